"""What each rank has of an adapter: pairs cut as the projections that they change, so that sums over ranks bring the parts together."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..adapters.adapter import Adapter, Packing
from ..adapters.extras import Extras
from ..adapters.sites import WEIGHT, Site, sites_of
from ..adapters.slots import Slot, Slots, bytes_of
from ..models.spec import Model
from .split import Split, cuts, narrowed
from .stages import borders, stage_of
from .team import Team

Pair = tuple[Tensor, Tensor, float]


class Kept(NamedTuple):
    """Outputs and inputs of a module that a rank keeps, int64; None: all."""

    outputs: Tensor | None = None
    inputs: Tensor | None = None

    def of(self, pair: Pair) -> Pair:
        """pair: A [rank, inputs], B [outputs, rank], of the whole module."""
        first, second, scale = pair
        return first if self.inputs is None else first[:, self.inputs], second if self.outputs is None else second[self.outputs], scale


class PartsPacking:
    """As `Packing`, of the parts of all ranks: rank 0's with the others' in `elsewhere`. model: the whole one.  stages, ranks: of each stage."""

    def __init__(self, model: Model, stages: int, ranks: int, dtype: torch.dtype) -> None:
        packings = [Packing(sites, dtype) for sites in sites_by_stage(model, stages, ranks)]
        kept = [_kept(model, Split(rank, ranks)) for rank in range(ranks)]
        self._parts = [(packing, each) for packing in packings for each in kept]

    def pack(self, pairs: dict[str, Pair], extras: Extras | None = None) -> Adapter:
        own, *others = (packing.pack({module: kept.get(module, Kept()).of(pair) for module, pair in pairs.items()}, extras) for packing, kept in self._parts)
        digest = hashlib.sha256("".join(part.digest for part in (own, *others)).encode()).hexdigest()[: len(own.digest)]
        return replace(own, digest=digest, elsewhere=tuple(replace(part, digest=digest) for part in others))


def sites_by_stage(model: Model, stages: int, ranks: int) -> list[tuple[Site, ...]]:
    """Of each stage those of any of its ranks, which are alike."""
    narrow = narrowed(model, Split(0, ranks)) if ranks > 1 else model
    starts = borders(model, stages)
    return [sites_of(stage_of(narrow, starts, stage)) for stage in range(stages)] if stages > 1 else [sites_of(narrow)]


def bytes_of_ranks(model: Model, stages: int, ranks: int, counts: Mapping[int, int], itemsize: int) -> int:
    """That slots take on all ranks together. model: the whole one."""
    return ranks * sum(bytes_of(sites, counts, itemsize) for sites in sites_by_stage(model, stages, ranks))


def most_of_a_rank(model: Model, stages: int, ranks: int, counts: Mapping[int, int], itemsize: int) -> int:
    """Bytes that slots take on the rank whose stage has most to adapt. model: the whole one."""
    return max(bytes_of(sites, counts, itemsize) for sites in sites_by_stage(model, stages, ranks))


def _kept(model: Model, split: Split) -> dict[str, Kept]:
    """By the names of modules in the model."""
    if split.ranks == 1:
        return {}
    found = {}
    for name, cut in cuts(model, split).items():
        if name.endswith(WEIGHT):
            part = torch.from_numpy(cut.kept)
            found[name.removesuffix(WEIGHT)] = Kept(inputs=part) if cut.inputs else Kept(outputs=part)
    return found


class TeamSlots(Slots):
    """Of rank 0. What it lays in a slot, the other ranks lay in theirs, each its own part. all_bytes: that slots of these classes take on all ranks.

    On GPUs the others set theirs aside at once: graphs have the addresses.
    """

    def __init__(self, team: Team, all_bytes: Callable[[Mapping[int, int]], int], at_once: bool, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._team, self._all_bytes = team, all_bytes
        if at_once and self.slots:
            team.ask("set_aside", [slot.rank for slot in self.slots])

    @property
    def bytes(self) -> int:
        """On all ranks together; on a CPU the others make theirs when the first adapter is laid in one."""
        return self._all_bytes(Counter(slot.rank for slot in self.slots))

    def placed(self, slot: Slot) -> None:
        assert slot.there is not None
        ranks = [each.rank for each in self.slots]
        self._team.tell_each("place", [(ranks, slot.number, part) for part in slot.there.elsewhere])
        slot.there = replace(slot.there, elsewhere=())
