"""Mixtures of experts by Triton kernels: which they support, how the weights are stored, and a layer's call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.experts.expert_replica_select import ExpertReplicaTable, select_replicas
from ...kernels.experts.expert_routing import FEW_ROWS, RouterWeights, logits, route
from ...kernels.experts.fused_moe import (
    ExpertSelection,
    SharedExpertOutput,
    StackedExpertWeights,
    UnreducedExpertOutput,
    fused_moe,
    unreduced_experts,
)
from ...kernels.residual_norm import NormWeights
from ...quantization.deterministic_linear import DeterministicLinear
from ...quantization.gpu_quantized_linear import DeterministicGpuQuantizedLinear
from ..reference.reference_experts import ReferenceExperts
from ..reference.stacked_experts import stacked_weights
from ..reference.tensor_parallel_linear import PartialSum
from ..spec.model_spec import GatedFFNSpec, RouterSpec
from .gpu_feedforward import inner_of

FIXED = (DeterministicLinear, DeterministicGpuQuantizedLinear)


@dataclass(frozen=True, slots=True)
class FusedExperts:
    """A sealed mixture as the kernels take it. turns: where its experts are stored, if on several ranks."""

    part: ReferenceExperts
    stacks: StackedExpertWeights
    routing: RouterWeights
    turns: ExpertReplicaTable | None

    @classmethod
    def of(cls, part: ReferenceExperts) -> FusedExperts:
        """For a part that `refusal` has no reason against."""
        up, down = (stacked_weights([getattr(each, name) for each in part.experts]) for name in ("gate_up", "down"))
        expert, router = part.part.expert, part.router
        assert isinstance(expert, GatedFFNSpec)
        counters = torch.zeros(FEW_ROWS, dtype=torch.int32, device=router.weight.device)
        routing = RouterWeights(
            narrowed(router.weight, part.dtype),
            router.bias,
            part.correction,
            part.part.top_k,
            options_of(part.part.router),
            part.counts,
            counters,
            isinstance(part.experts[0].down, FIXED),
        )
        return cls(
            part, StackedExpertWeights(up, down, expert.activation, expert.limit), routing, replica_table_of(part)
        )

    @property
    def fixed(self) -> bool:
        """Whether the bits of a row do not depend on the other rows of the batch."""
        return self.routing.fixed

    def __call__(self, y: Tensor, slots: Tensor | None = None, overlap: bool = False) -> Tensor | PartialSum:
        """y [T, hidden] -> the mixture's output, [T, hidden].

        slots: [T]; rows without one, 0, are padding, which is not counted.  overlap: see `overlap`.
        """
        found, ranks = self._mixed(None, *route(y, self.routing, slots, None, overlap), slots, overlap), self.part.ranks
        return found if ranks is None else PartialSum(found, ranks)

    def unreduced(self, y: Tensor, slots: Tensor, overlap: bool = False) -> Tensor | UnreducedExpertOutput | PartialSum:
        """The same, possibly not reduced yet."""
        if self.part.ranks is not None:
            return self(y, slots, overlap)
        y, experts, weights = route(y, self.routing, slots, None, overlap)
        choice, stacks = self._chosen(experts, weights, slots, overlap)
        shared = SharedExpertOutput(*self._shared(y, overlap))
        found = unreduced_experts(y, stacks, choice, shared, fixed=self.fixed, overlap=overlap)
        return fused_moe(y, stacks, choice, shared, fixed=self.fixed, overlap=overlap) if found is None else found

    def add(self, x: Tensor, norm: NormWeights, slots: Tensor, overlap: bool = False) -> Tensor:
        """x [T, hidden], a small batch, += the mixture's output for the RMS norm of x, in place.

        Returns x. Not for a part of the experts.
        """
        return self._mixed(x, *route(x, self.routing, slots, norm, overlap), slots, overlap)

    def _mixed(
        self, x: Tensor | None, y: Tensor, experts: Tensor, weights: Tensor, slots: Tensor | None, overlap: bool
    ) -> Tensor:
        choice, stacks = self._chosen(experts, weights, slots, overlap)
        return fused_moe(
            y, stacks, choice, SharedExpertOutput(*self._shared(y, overlap), x), fixed=self.fixed, overlap=overlap
        )

    def _chosen(
        self, experts: Tensor, weights: Tensor, slots: Tensor | None, overlap: bool
    ) -> tuple[ExpertSelection, StackedExpertWeights]:
        """With the weights of the chosen experts on the device, or of those that this rank computes."""
        host, turns, of_input = self.part.host, self.turns, self.part.part.weighs_input
        if turns is not None:
            return ExpertSelection(
                select_replicas(experts, turns, self.part.counts, slots, overlap), weights, of_input, turns.places
            ), self.stacks
        return ExpertSelection(experts, weights, of_input), self.stacks if host is None else host.fetch(
            self.stacks, experts, slots
        )

    def _shared(self, y: Tensor, overlap: bool) -> tuple[Tensor | None, Tensor | None]:
        """The shared network's output [T, hidden], and the logits [T] of its sigmoid weight."""
        shared, switch = self.part.shared, self.part.switch
        if shared is None:
            return None, None
        every = shared.down(inner_of(shared, y))
        return every, None if switch is None else logits(y, switch.weight, None, self.fixed, overlap).view(-1)


def replica_table_of(part: ReferenceExperts) -> ExpertReplicaTable | None:
    """None: all experts are here, or a part of each."""
    spread = part.spread
    return None if spread is None else ExpertReplicaTable(spread.copies, spread.table, spread.shared, *spread.sizes)


def narrowed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The same numbers in `dtype` if all are exact in it, as in most checkpoints; half the bytes to read."""
    narrow = weight.to(dtype)
    return narrow if torch.equal(narrow.float(), weight) else weight


def options_of(router: RouterSpec) -> dict[str, Any]:
    """Of `routing.choose`."""
    names = ("score", "best_first", "groups", "kept_groups", "outside", "normalise", "floor", "scale", "jitter")
    return {name: getattr(router, name) for name in names} | {"two_best": router.group_score == "two"}
