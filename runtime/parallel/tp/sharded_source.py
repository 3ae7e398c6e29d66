"""A rank's share of a checkpoint: tensors are the parts that it keeps, and no more rows are read than these."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...errors import CheckpointError, ConfigError
from ...loading.checkpoint import OpenCheckpoint
from ...loading.load_plan import renamed
from ...loading.tensor_files.safetensors_header import ITEM_SIZES, StoredTensor
from ...loading.tensor_files.stacked_expert_source import split_stacked_experts
from ...loading.tensor_files.tensor_source import WeightSource
from ...models.spec.json_fields import shown
from ...models.spec.model_spec import ModelSpec
from ..ep.expert_parallel_split import ExpertParallelSplit, elsewhere
from .sharded_quantized_weights import ShardedWeightReaders, coded
from .tensor_parallel_split import TensorParallelSplit, TensorSlice, narrowed_model, refusal, tensor_slices


class ShardedWeightSource:
    """A source whose tensors have what a rank keeps of them.

    cuts: by the tensors' own names.  absent: says of which it keeps nothing.

    Rows are read by runs. Of columns whole rows are read, since they are in each row.
    """

    def __init__(
        self, source: WeightSource, found: Mapping[str, TensorSlice], absent: Callable[[str], bool] = lambda name: False
    ) -> None:
        self.name, self.bytes, self._source, self._cuts = source.name, source.bytes, source, found
        self._whole = {stored.name: stored for stored in source.tensors if not absent(stored.name)}
        self.tensors = [
            _share(stored, found[name]) if name in found else stored for name, stored in self._whole.items()
        ]

    def read(self, stored: StoredTensor, offset: int, part: Tensor) -> None:
        whole, cut = self._whole[stored.name], self._cuts.get(stored.name)
        if cut is None:
            self._source.read(whole, offset, part)
        elif cut.axis == 0:
            self._rows(whole, cut.kept, offset, part)
        else:
            self._columns(whole, cut.kept, offset, part)

    def _rows(self, whole: StoredTensor, kept: np.ndarray, offset: int, part: Tensor) -> None:
        width, at = _bytes(whole, 1), 0
        # of the runs of rows that follow each other
        ends = np.append(np.flatnonzero(np.diff(kept) != 1) + 1, len(kept))
        while at < len(part):
            row, within = divmod(offset + at, width)
            end = ends[np.searchsorted(ends, row, "right")]
            count = min(int(end - row) * width - within, len(part) - at)
            self._source.read(whole, int(kept[row]) * width + within, part[at : at + count])
            at += count

    def _columns(self, whole: StoredTensor, kept: np.ndarray, offset: int, part: Tensor) -> None:
        size, width = ITEM_SIZES[whole.dtype], _bytes(whole, 1)
        first, last = offset // (len(kept) * size), -(-(offset + len(part)) // (len(kept) * size))
        rows = torch.empty((last - first) * width, dtype=torch.uint8)
        self._source.read(whole, first * width, rows)
        found = rows.view(last - first, -1, size)[:, torch.from_numpy(kept)].reshape(-1)
        begin = offset - first * len(kept) * size
        part.copy_(found[begin : begin + len(part)])


def _share(stored: StoredTensor, cut: TensorSlice) -> StoredTensor:
    shape = list(stored.shape)
    shape[cut.axis] = len(cut.kept)
    return stored._replace(shape=shape, stop=stored.start + math.prod(shape) * ITEM_SIZES[stored.dtype])


def _bytes(stored: StoredTensor, axis: int) -> int:
    return math.prod(stored.shape[axis:]) * ITEM_SIZES[stored.dtype]


def share_of(checkpoint: OpenCheckpoint, split: TensorParallelSplit) -> OpenCheckpoint:
    """What a rank loads; of a sharded state it was cut when that was written.

    Raises ConfigError for what cannot be shared out.
    """
    model = checkpoint.model
    require(model, split.ranks, split.whole, split.rows)
    own = narrowed_model(model, split)
    if checkpoint.packed is not None:
        if split.rows:
            raise ConfigError(
                f"{option(split.ranks, split.whole, True)}: a sharded state has latent attention by heads: open it "
                "with latent_attention='heads', or the model itself with 'rows'"
            )
        return replace(checkpoint, model=own)
    found = tensor_slices(model, split)
    cut_apart = [split_stacked_experts(source, model) for source in checkpoint.sources]
    begins = elsewhere(own)
    few = coded([stored for source in cut_apart for stored in source.tensors], model, found)
    plain = {name: each for name, each in found.items() if name not in few}
    sources = [
        ShardedWeightSource(
            source,
            _by_own_names(source, plain, model),
            lambda name: name.startswith(begins) or renamed(name, model, found).startswith(begins),
        )
        for source in cut_apart
    ]
    readers = ShardedWeightReaders(checkpoint.readers, model, {name: found[name] for name in few})
    return replace(checkpoint, model=own, sources=[*sources], readers=readers)


def require(model: ModelSpec, ranks: int, whole: ExpertParallelSplit | None = None, rows: bool = False) -> None:
    """Raises ConfigError where a model cannot be shared out among so many ranks.

    whole, rows: see `TensorParallelSplit`.
    """
    if (why := refusal(model, ranks, whole, rows)) is not None:
        raise ConfigError(f"{option(ranks, whole, rows)}: {model.architecture}: {why}")


def option(ranks: int, whole: ExpertParallelSplit | None, rows: bool) -> str:
    """The beginning of errors about it."""
    more = ("" if whole is None else ", expert_parallel=True") + (", latent_attention='rows'" if rows else "")
    return f"Engine(tensor_parallel={ranks}{more})"


def _by_own_names(source: WeightSource, found: Mapping[str, TensorSlice], model: ModelSpec) -> dict[str, TensorSlice]:
    own: dict[str, TensorSlice] = {}
    for stored in source.tensors:
        if (kept := found.get(renamed(stored.name, model, found))) is not None:
            own[stored.name] = _checked(source, stored, kept)
    return own


def _checked(source: WeightSource, stored: StoredTensor, cut: TensorSlice) -> TensorSlice:
    if len(stored.shape) <= cut.axis or stored.shape[cut.axis] != cut.places:
        raise CheckpointError(
            f"{source.name}: tensor {shown(stored.name)} has shape {shown(stored.shape)}, config.json asks for "
            f"{cut.places} at axis {cut.axis}"
        )
    return cut
