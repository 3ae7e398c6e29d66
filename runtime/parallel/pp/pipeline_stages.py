"""Pipeline parallelism: which layers each stage holds, and what of the checkpoint belongs to them.

A stage is a model of fewer layers: the first one embeds, the last one has the final norm and the head. After GPipe
(Huang et al., 2018, arXiv 1811.06965), without its training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import ConfigError
from ...loading.checkpoint import OpenCheckpoint, is_state, open_checkpoint
from ...loading.load_plan import renamed
from ...loading.load_weights import dummy_model, load_checkpoint, plan_of, require_packed_matches
from ...loading.sharded_state import ParallelSizes, rank_share_in
from ...loading.tensor_files.safetensors_header import StoredTensor
from ...loading.tensor_files.stacked_expert_source import split_stacked_experts
from ...loading.tensor_files.tensor_source import WeightSource
from ...models.decoder import Decoder
from ...models.spec.latent_attention_spec import LatentAttentionSpec
from ...models.spec.model_spec import (
    AttentionSpec,
    LayerSpec,
    Mixer,
    ModelSpec,
    ParallelMixersSpec,
    PipelineShare,
    attention_of,
)
from ...quantization import Transform
from ..ep.expert_parallel_split import ExpertParallelSplit
from ..tp.sharded_source import share_of
from ..tp.tensor_parallel_split import TensorParallelSplit


class RankPlace(NamedTuple):
    """Where a rank is: in which of so many stages, and which part of that stage it has."""

    stage: int
    stages: int
    split: TensorParallelSplit

    @classmethod
    def of(
        cls, rank: int, ranks: int, stages: int, whole: ExpertParallelSplit | None = None, rows: bool = False
    ) -> RankPlace:
        """Ranks of a stage follow each other. whole, rows: see `TensorParallelSplit`."""
        each = ranks // stages
        return cls(rank // each, stages, TensorParallelSplit(rank % each, each, whole, rows))

    @classmethod
    def all(cls, parts: ParallelSizes, rows: bool = False) -> list[RankPlace]:
        """In the order of the ranks. rows: see `TensorParallelSplit`."""
        whole = ExpertParallelSplit(parts.redundant_experts) if parts.expert_parallel else None
        return [cls.of(rank, parts.ranks, parts.pipeline_parallel, whole, rows) for rank in range(parts.ranks)]

    @property
    def rank(self) -> int:
        """Of all stages."""
        return self.stage * self.split.ranks + self.split.rank

    def open(
        self, path: Path, context: int | None = None, weights: bool = True, load_format: str = "auto"
    ) -> OpenCheckpoint:
        """As `open_checkpoint`, for this rank."""
        return open_checkpoint(path, context, weights, load_format, self.split.parts(self.stages), self.rank)


class StageWeightSource:
    """A source without the tensors that other stages hold."""

    def __init__(self, source: WeightSource, tensors: list[StoredTensor]) -> None:
        self.name, self.bytes, self.tensors, self._source = source.name, source.bytes, tensors, source

    def read(self, stored: StoredTensor, offset: int, part: Tensor) -> None:
        self._source.read(stored, offset, part)


def stage_boundaries(model: ModelSpec, stages: int) -> list[int]:
    """The first layer of each stage, and the number of layers at the end: the largest stage has as few bytes as can be.

    Raises ConfigError where the layers cannot be cut into so many stages.
    """
    asked = f"Engine(pipeline_parallel={stages}): {model.architecture}"
    if model.per_layer is not None:
        raise ConfigError(f"{asked}: embeddings of each layer's own are not shared out among stages")
    may_end = [*_ends(model)]
    if len(may_end) < stages:
        raise ConfigError(f"{asked}: its {len(model.layers)} layers can be cut into {len(may_end)} stages at most")
    return balanced_boundaries(sizes(model), may_end, stages)


def balanced_boundaries(costs: Sequence[int], ends: Sequence[int], parts: int) -> list[int]:
    """Cut a row into non-empty parts that end at some of `ends`, the last of which is the row's: [0, ..., its length].

    The largest part costs as little as can be; then the sum of squares does.
    """
    total = [0]
    for cost in costs:
        total.append(total[-1] + cost)
    best = {0: ((0, 0), [0])}  # by where the parts so far end
    for _ in range(parts):
        found: dict[int, tuple[tuple[int, int], list[int]]] = {}
        for end in ends:
            ways = [
                ((max(most, each := total[end] - total[start]), squares + each * each), [*cuts, end])
                for start, ((most, squares), cuts) in best.items()
                if start < end
            ]
            if ways:
                found[end] = min(ways)
        best = found
    return best[ends[-1]][1]


def sizes(model: ModelSpec) -> list[int]:
    """Numbers of weights of each layer; with the first one counts the embedding, with the last one what follows it."""
    parts = [
        sum(place.target.numel() for place in part.places()) for part in Decoder(model, torch.bfloat16, "meta").parts
    ]
    first, *found, last = parts
    found[0] += first
    found[-1] += last + (first if model.tied else 0)
    return found


def _ends(model: ModelSpec) -> Iterator[int]:
    """After which layers a stage may end: no later layer reads what a layer before has stored or chosen."""
    kept = [_earliest(index, layer) for index, layer in enumerate(model.layers)]
    yield from (end for end in range(1, len(kept) + 1) if all(first >= end for first in kept[end:]))


def _earliest(index: int, layer: LayerSpec) -> int:
    """The first of the layers before this one that must be where it is; itself: none must."""
    part = attention_of(layer.mixer)
    if isinstance(part, AttentionSpec) and part.source is not None:
        return part.source
    shares = isinstance(part, LatentAttentionSpec) and part.indexer is not None and part.indexer.shared
    return index - 1 if shares else index


def stage_of(model: ModelSpec, cuts: Sequence[int], number: int) -> ModelSpec:
    """The model of one stage. cuts: see `stage_boundaries`."""
    first, stop = cuts[number], cuts[number + 1]
    layers = tuple(replace(layer, mixer=_moved(layer.mixer, first)) for layer in model.layers[first:stop])
    return replace(model, layers=layers, stage=PipelineShare(first, number == 0, number == len(cuts) - 2))


def _moved(part: Mixer | None, first: int) -> Any:
    """With the numbers of layers that this stage counts by."""
    if isinstance(part, ParallelMixersSpec):
        return replace(part, mixers=tuple(_moved(each, first) for each in part.mixers))
    return (
        replace(part, source=part.source - first)
        if isinstance(part, AttentionSpec) and part.source is not None
        else part
    )


def stage_checkpoint(checkpoint: OpenCheckpoint, cuts: Sequence[int], number: int) -> OpenCheckpoint:
    """What a stage loads."""
    whole = checkpoint.model
    own = stage_of(whole, cuts, number)
    elsewhere = _elsewhere(own)
    kept = [
        StageWeightSource(source, [stored for stored in source.tensors if _is_here(stored.name, whole, own, elsewhere)])
        for source in checkpoint.sources
    ]
    return replace(checkpoint, model=own, sources=[*kept])


def _elsewhere(model: ModelSpec) -> tuple[str, ...]:
    """How the names of tensors outside the layers begin that other stages hold."""
    names, stage = model.names, model.stage
    ends = () if stage.ends else (names.head, names.norm, names.project_out)
    begins = () if stage.begins else (names.embed_norm, names.positions, names.project_in)
    table = () if model.has_table else (names.embedding,)
    return tuple(f"{name}." for name in (*ends, *begins, *table) if name)


def _is_here(name: str, whole: ModelSpec, own: ModelSpec, elsewhere: tuple[str, ...]) -> bool:
    """Tensors that belong to no part are everywhere, for the plan to judge."""
    begin, end = whole.names.layer.split("{}")
    for each in (name, renamed(name, whole, ())):
        number = each.removeprefix(begin).partition(end)[0]
        if each.startswith(begin) and number.isdecimal() and int(number) < len(whole.layers):
            return 0 <= int(number) - own.stage.first < len(own.layers)
        if each.startswith(elsewhere):
            return False
    return True


def load_rank_part(
    checkpoint: OpenCheckpoint,
    place: RankPlace,
    dtype: torch.dtype,
    device: torch.device,
    seed: int | None = None,
    transform: Transform | None = None,
) -> Decoder:
    """The model of a rank. seed: of random weights."""
    mine = part_of(checkpoint, place)
    if seed is not None:
        return dummy_model(mine.model, dtype, device, seed, transform)
    return load_checkpoint(mine, dtype, device, transform)


def part_of(checkpoint: OpenCheckpoint, place: RankPlace) -> OpenCheckpoint:
    """What a rank loads. Raises ConfigError for what cannot be shared out."""
    share = checkpoint if place.split.ranks == 1 else share_of(checkpoint, place.split)
    if place.stages == 1:
        return share
    cuts = stage_boundaries(checkpoint.model, place.stages)
    if share.packed is not None:
        return replace(share, model=stage_of(share.model, cuts, place.stage))
    return stage_checkpoint(
        replace(share, sources=[split_stacked_experts(source, checkpoint.model) for source in share.sources]),
        cuts,
        place.stage,
    )


def require_state(
    path: Path, parts: ParallelSizes, load_format: str = "auto", changes: bool = False, rows: bool = False
) -> None:
    """Compares what is stored for each rank with what that rank will load; nothing where `path` is no sharded state.

    changes: see `require_packed_matches`.  rows: see `TensorParallelSplit`. Raises CheckpointError for files that are
        absent, damaged or another model's, ConfigError for a state of other parts.
    """
    if not is_state(path, load_format):
        return
    # however many ranks an engine is asked for, a state has no more than it has files for
    rank_share_in(path, parts, 0)
    for place in RankPlace.all(parts, rows):
        mine = part_of(place.open(path, load_format=load_format), place)
        require_packed_matches(plan_of(Decoder(mine.model, torch.bfloat16, "meta"), mine), changes)
