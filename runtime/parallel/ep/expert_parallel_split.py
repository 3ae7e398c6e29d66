"""Expert parallelism: each rank holds whole experts of a mixture, and what of the checkpoint belongs to them.

Everything else of the model is cut as for tensor parallelism: attention by heads, dense and shared networks by their
width; the router is on every rank.
After GShard (Lepikhin et al., 2020, arXiv 2006.16668), but that tokens are on every rank, so that none is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ...attention.attention_layout import listed
from ...errors import ConfigError
from ...models.decoder import Decoder
from ...models.gpu.gpu_expert_support import PLAIN
from ...models.gpu.gpu_support import gpu_refusal_around_mixer
from ...models.reference.reference_block import ReferenceBlock
from ...models.reference.reference_experts import ReferenceExperts
from ...models.spec.model_spec import ExpertShare, ExpertsSpec, ModelSpec
from ...models.spec.tensor_names import expert_names
from .expert_placement import initial_placement


class ExpertParallelSplit(NamedTuple):
    """How experts are shared out.

    redundant: copies, in each layer.  nodes: of ranks that follow each other, on one of which a router's group of
    experts is. ordered: see `ExpertShare`.
    """

    redundant: int = 0
    nodes: int = 1
    ordered: bool = False

    def held(self, part: ExpertsSpec, rank: int, ranks: int) -> ExpertShare:
        """Before anything is known of what is chosen."""
        return ExpertShare(
            rank, initial_placement(part.count, ranks, self.redundant), self.ordered, self.nodes, part.router.groups
        )

    def refusal(self, part: ExpertsSpec, ranks: int) -> str | None:
        """Why a mixture cannot be shared out so, for people; None: it can."""
        places = part.count + self.redundant
        if places < ranks:
            return f"{places} places for experts, copies counted in, over {ranks} ranks: each takes one at least"
        if (most := part.count * (ranks - 1)) < self.redundant:
            return (
                f"redundant_experts={self.redundant}: with {most} copies all {part.count} experts are on each of "
                f"{ranks} ranks; take no more"
            )
        if self.nodes > 1 and places % ranks:
            return (
                f"{places} places for experts, copies counted in, over {ranks} ranks: with expert_nodes they must "
                "divide; change redundant_experts"
            )
        return None


def require_mixtures(model: ModelSpec) -> str | None:
    """Why a model has nothing to share out so; None: it has."""
    return (
        None
        if any(isinstance(layer.ffn, ExpertsSpec) for layer in model.layers)
        else "it has no experts: leave expert_parallel out"
    )


def require_kernels(model: Decoder, option: str) -> None:
    """Raises ConfigError for a rank's mixtures that no kernels of a GPU take, or not where experts are whole on ranks.

    option: how its text begins.
    """
    for block in model.layers:
        if isinstance(block.ffn, ReferenceExperts) and (why := _kernels_refusal(block, model)) is not None:
            raise ConfigError(
                f"{option}, expert_parallel=True): layer {block.index}: {why}; leave expert_parallel out, or take "
                "device='cpu'"
            )


def require_same_options(fixed: list[int], option: str) -> None:
    """Raises ConfigError where other ranks of GPUs keep experts otherwise than rank 0.

    fixed: layers of which that is so.  option: as for `require_kernels`.
    """
    if fixed:
        raise ConfigError(
            f"{option}, expert_parallel=True): layers {listed(fixed)}: experts kept in different forms are not "
            "whole on ranks of GPUs; leave expert_parallel out, or take device='cpu'"
        )


def _kernels_refusal(block: ReferenceBlock, model: Decoder) -> str | None:
    if not model.fused:
        return "Triton is not there, by whose kernels GPUs compute experts of several ranks"
    assert isinstance(block.ffn, ReferenceExperts)
    kinds = {type(product) for expert in block.ffn.experts for product in (getattr(expert, expert.into), expert.down)}
    if not kinds <= {*PLAIN}:
        return f"experts kept as {', '.join(sorted(kind.__name__ for kind in kinds))} are not whole on ranks of GPUs"
    why = gpu_refusal_around_mixer(block, model.dtype)
    return None if why is None else f"torch computes it on GPUs ({why}), and would wait for each step's choices"


def narrowed_expert_parallel(part: ExpertsSpec, whole: ExpertParallelSplit, rank: int, ranks: int) -> ExpertsSpec:
    return replace(part, held=whole.held(part, rank, ranks))


def elsewhere(model: ModelSpec) -> tuple[str, ...]:
    """How the names of tensors begin, in the model, that belong to experts of other ranks. model: a rank's own."""
    return tuple(dict.fromkeys(_elsewhere(model)))


def _elsewhere(model: ModelSpec) -> Iterator[str]:
    for index, layer in enumerate(model.layers):
        if isinstance(layer.ffn, ExpertsSpec) and layer.ffn.held is not None:
            prefix = model.names.layer.format(model.stage.first + index)
            for expert in {*range(layer.ffn.count)} - {*layer.ffn.here}:
                names = expert_names(model.names, expert)
                both = () if names.gate_up is None else (names.gate_up.name,)
                yield from (f"{prefix}{name}." for name in (names.gate, names.up, names.down, *both))
