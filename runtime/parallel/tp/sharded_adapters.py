"""What each rank has of an adapter: pairs cut as the projections that they change, so that sums join the parts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...adapters.adapter import Adapter, AdapterPacker, Memory, widest_rank_of
from ...adapters.adapter_extras import AdaptedEmbeddingTable, AdapterWeightChanges, Pair
from ...adapters.adapter_sites import WEIGHT, AdapterSite, sites_of
from ...adapters.adapter_slots import AdapterSlot, AdapterSlots, bytes_of
from ...adapters.files.adapter_base_weights import LocalBaseWeights
from ...models.spec.model_spec import ExpertsSpec, ModelSpec
from ..ep.expert_parallel_split import ExpertParallelSplit
from ..pp.pipeline_stages import RankPlace, stage_boundaries, stage_of
from ..workers.worker_group import RankGroup
from .tensor_parallel_split import TensorParallelSplit, narrowed_model, tensor_slices


class KeptAdapterRows(NamedTuple):
    """Outputs and inputs of a module that a rank keeps, int64; None: all."""

    outputs: Tensor | None = None
    inputs: Tensor | None = None

    def of(self, pair: Pair) -> Pair:
        """pair: of the whole module."""
        first, second, scale = pair
        return first if self.inputs is None else first[:, self.inputs], self.outputs_of(second), scale

    def outputs_of(self, values: Tensor) -> Tensor:
        """values: [outputs, ...] of the whole module."""
        return values if self.outputs is None else values[self.outputs]


class ShardedAdapter:
    """What one of the ranks has of all that is the whole model's, by module.

    model: the whole one.  starts: see `stage_boundaries`.
    """

    def __init__(self, model: ModelSpec, place: RankPlace, starts: Sequence[int]) -> None:
        split, names = place.split, model.names
        self._lead = split.rank == 0  # who adds a bias to a sum
        self._begins, self._ends = place.stage == 0, place.stage == place.stages - 1
        self._embedding, self._head = names.embedding, names.head
        layers = range(starts[place.stage], starts[place.stage + 1])
        self._prefixes = tuple(names.layer.format(index) for index in layers)
        self._kept = _kept(model, split)
        rows = split.tokens(model.vocab_size)
        self._tokens = slice(rows.start, rows.stop)

    def pairs(self, whole: Mapping[str, Pair]) -> dict[str, Pair]:
        return {module: self._of(module).of(pair) for module, pair in whole.items() if self._is_here(module)}

    def changes(self, whole: AdapterWeightChanges) -> AdapterWeightChanges:
        gains = {
            module: self._of(module).outputs_of(values)
            for module, values in whole.gains.items()
            if self._is_here(module)
        }
        offsets = {
            module: self._of(module).outputs_of(values)
            for module, values in whole.offsets.items()
            if self._is_here(module) and self._adds(module)
        }
        mixtures = {
            module: [self._of(module).of(pair) for pair in pairs]
            for module, pairs in whole.mixtures.items()
            if self._is_here(module)
        }
        return AdapterWeightChanges(
            gains, offsets, whole.embedding if self._begins else None, self._of_head(whole.head), mixtures
        )

    def table(self, name: str, whole: Tensor) -> Tensor | None:
        """Rows of the embedding or the head; None: they are elsewhere."""
        if name == self._embedding:
            return whole if self._begins else None
        return whole[self._tokens] if self._ends else None

    def put(self, module: str, values: Tensor, into: Tensor) -> None:
        """values: of the outputs that the rank has; those of products whose inputs are cut are parts of a sum."""
        kept = self._of(module)
        if kept.inputs is not None:
            into += values
        elif kept.outputs is not None:
            into[kept.outputs] = values
        else:
            into.copy_(values)

    def _of(self, module: str) -> KeptAdapterRows:
        return self._kept.get(module, KeptAdapterRows())

    def _adds(self, module: str) -> bool:
        return self._lead or self._of(module).inputs is None

    def _is_here(self, module: str) -> bool:
        return module.startswith(self._prefixes)

    def _of_head(self, table: AdaptedEmbeddingTable | None) -> AdaptedEmbeddingTable | None:
        if table is None or not self._ends:
            return None
        whole, second = (None if part is None else part[self._tokens].clone() for part in (table.whole, table.second))
        return replace(table, whole=whole, second=second)


def parts_of(
    model: ModelSpec, stages: int, ranks: int, whole: ExpertParallelSplit | None = None
) -> list[ShardedAdapter]:
    """Of all ranks in their order.

    ranks: of each stage.  whole: see `TensorParallelSplit`; then each rank has what belongs to any expert, as these
    move.
    """
    starts = stage_boundaries(model, stages)
    return [
        ShardedAdapter(model, RankPlace.of(rank, stages * ranks, stages, whole), starts)
        for rank in range(stages * ranks)
    ]


class ShardedAdapterPacker:
    """As `AdapterPacker`, of the parts of all ranks: rank 0's with the others' in `elsewhere`. model: the whole
    one.  stages, ranks: of each stage.  by_reference: see `sites_of`.  whole: see `parts_of`.  memory: for rank
    0's, see `AdapterPacker`.
    """

    def __init__(
        self,
        model: ModelSpec,
        stages: int,
        ranks: int,
        dtype: torch.dtype,
        by_reference: bool = False,
        whole: ExpertParallelSplit | None = None,
        memory: Memory | None = None,
    ) -> None:
        models = models_by_stage(model, stages, ranks, whole)
        packings = [AdapterPacker(sites_of(part, by_reference), dtype, part) for part in models]
        self._parts = [
            (packings[rank // ranks], part) for rank, part in enumerate(parts_of(model, stages, ranks, whole))
        ]
        self._parts[0] = AdapterPacker(sites_of(models[0], by_reference), dtype, models[0], memory), self._parts[0][1]

    def pack(self, pairs: dict[str, Pair], changes: AdapterWeightChanges | None = None) -> Adapter:
        changes, widest = changes or AdapterWeightChanges(), widest_rank_of(pairs)
        parts = [packing.pack(part.pairs(pairs), part.changes(changes), widest) for packing, part in self._parts]
        digest = hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest()[: len(parts[0].digest)]
        kinds = tuple(dict.fromkeys(kind for part in parts for kind in part.extra_kinds))
        most = max(part.most_extras for part in parts)
        own, *others = (replace(part, digest=digest, extra_kinds=kinds, most_extras=most) for part in parts)
        return replace(own, elsewhere=tuple(others))


class RanksBaseWeights:
    """See `BaseWeights`: each rank reports its part.

    own: rank 0's.  parts: of all ranks.  sites: of the whole model.
    """

    def __init__(
        self, own: LocalBaseWeights, team: RankGroup, parts: Sequence[ShardedAdapter], sites: Sequence[AdapterSite]
    ) -> None:
        self.dtype, self.no_mixtures = own.dtype, own.no_mixtures
        self._own, self._team, self._parts = own, team, parts
        self._sizes = {module: size for site in sites for module, size in zip(site.modules, site.sizes, strict=True)}

    def biases(self, modules: Sequence[str]) -> dict[str, Tensor]:
        return self._joined(self._all("biases", [(modules,)] * len(self._parts)))

    def squares(self, pairs: dict[str, Pair]) -> dict[str, Tensor | None]:
        received = self._all("squares", [(part.pairs(pairs),) for part in self._parts])
        coded = {module for each in received for module, values in each.items() if values is None}
        known = self._joined(
            [{module: values for module, values in each.items() if module not in coded} for each in received]
        )
        return known | dict.fromkeys(coded)

    def same(self, name: str, table: Tensor) -> bool | None:
        tables = [part.table(name, table) for part in self._parts]
        received = [
            each
            for each, asked in zip(self._all("same", [(name, asked) for asked in tables]), tables, strict=True)
            if asked is not None
        ]
        return None if None in received else all(received)

    def _joined(self, received: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Of the whole modules. received: from each rank, of what it has."""
        found: dict[str, Tensor] = {}
        for part, each in zip(self._parts, received, strict=True):
            for module, values in each.items():
                part.put(module, values, found.setdefault(module, torch.zeros(self._sizes[module])))
        return found

    def _all(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What each rank says, rank 0 first. arguments: of each."""
        return [getattr(self._own, name)(*arguments[0]), *self._team.ask_each(name, arguments[1:])]


def models_by_stage(
    model: ModelSpec, stages: int, ranks: int, whole: ExpertParallelSplit | None = None
) -> list[ModelSpec]:
    """Of each stage that of any of its ranks, which are alike; with all experts, where these are whole on ranks."""
    narrow = narrowed_model(model, TensorParallelSplit(0, ranks, whole)) if ranks > 1 else model
    if whole is not None:
        narrow = replace(
            narrow,
            layers=tuple(
                replace(layer, ffn=replace(layer.ffn, held=None)) if isinstance(layer.ffn, ExpertsSpec) else layer
                for layer in narrow.layers
            ),
        )
    starts = stage_boundaries(model, stages)
    return [stage_of(narrow, starts, stage) for stage in range(stages)] if stages > 1 else [narrow]


def adapter_bytes_of_ranks(
    model: ModelSpec, stages: int, ranks: int, counts: Mapping[int, int], itemsize: int, by_reference: bool = False
) -> int:
    """That slots take on all ranks together. model: the whole one."""
    return ranks * sum(_bytes_by_stage(model, stages, ranks, counts, itemsize, by_reference))


def most_adapter_bytes_of_rank(
    model: ModelSpec, stages: int, ranks: int, counts: Mapping[int, int], itemsize: int, by_reference: bool = False
) -> int:
    """Bytes that slots take on the rank whose stage has most to adapt. model: the whole one."""
    return max(_bytes_by_stage(model, stages, ranks, counts, itemsize, by_reference))


def _bytes_by_stage(
    model: ModelSpec, stages: int, ranks: int, counts: Mapping[int, int], itemsize: int, by_reference: bool
) -> list[int]:
    return [bytes_of(sites_of(part, by_reference), counts, itemsize) for part in models_by_stage(model, stages, ranks)]


def _kept(model: ModelSpec, split: TensorParallelSplit) -> dict[str, KeptAdapterRows]:
    """By the names of modules in the model."""
    if split.ranks == 1:
        return {}
    found = {}
    for name, cut in tensor_slices(model, split).items():
        if name.endswith(WEIGHT):
            part = torch.from_numpy(cut.kept)
            found[name.removesuffix(WEIGHT)] = (
                KeptAdapterRows(inputs=part) if cut.inputs else KeptAdapterRows(outputs=part)
            )
    return found


class RanksAdapterSlots(AdapterSlots):
    """Of rank 0.

    What it puts in a slot, the other ranks put in theirs, each its own part. all_bytes: that slots of these classes
    take on all ranks.

    On GPUs the others set theirs aside at once: graphs have the addresses.
    """

    def __init__(
        self, team: RankGroup, all_bytes: Callable[[Mapping[int, int]], int], at_once: bool, *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._team, self._all_bytes = team, all_bytes
        if at_once and self.slots:
            team.ask("set_aside", [slot.rank for slot in self.slots])

    @property
    def bytes(self) -> int:
        """On all ranks together; on a CPU the others make theirs when the first adapter is laid in one."""
        return self._all_bytes(Counter(slot.rank for slot in self.slots))

    def empty(self, number: int) -> None:
        super().empty(number)
        self._team.tell("empty", number)

    def placed(self, slot: AdapterSlot) -> None:
        assert slot.there is not None
        ranks = [each.rank for each in self.slots]
        self._team.tell_each("place", [(ranks, slot.number, part) for part in slot.there.elsewhere])
        slot.there = replace(slot.there, elsewhere=())
