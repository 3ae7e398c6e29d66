"""Attention of layers whose keys and values are in the slots of windows."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from torch import Tensor

from ..layers.float8_reference import KVScaleFactors
from ..step.step_batch import StepBatch
from .backend_protocols import UniformAttention
from .topk_attention import TopKSelection


class WindowSlotAttention:
    """See `AttentionBackend`: any of them, for which `StepBatch.windows` takes the place of the slots of all layers."""

    def __init__(self, backend: UniformAttention) -> None:
        self._backend = backend
        self.name, self.reason, self.slower, self.pool = backend.name, backend.reason, backend.slower, backend.pool
        self.capturable = backend.capturable
        for name in ("attend_into", "variant"):
            if hasattr(backend, name):
                setattr(self, name, getattr(self, f"_{name}"))

    def plan(self, batch: StepBatch) -> None:
        with _slots(batch):
            self._backend.plan(batch)

    def store(self, k: Tensor, v: Tensor, layer: int, batch: StepBatch) -> None:
        with _slots(batch):
            self._backend.store(k, v, layer, batch)

    def attend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        with _slots(batch):
            return self._backend.attend(q, k, v, layer, batch, sinks)

    def _attend_into(self, out: Tensor, q: Tensor, layer: int, batch: StepBatch, sinks: Tensor | None = None) -> None:
        with _slots(batch):
            self._backend.attend_into(out, q, layer, batch, sinks)  # type: ignore[attr-defined]

    def _variant(self, batch: StepBatch) -> Hashable:
        with _slots(batch):
            return self._backend.variant(batch)  # type: ignore[attr-defined]

    def stored(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._backend.stored(layer)

    def store_index(self, keys: Tensor, layer: int, batch: StepBatch) -> None:
        with _slots(batch):
            self._backend.store_index(keys, layer, batch)

    def choose(self, queries: Tensor, shares: Tensor, layer: int, batch: StepBatch) -> TopKSelection:
        with _slots(batch):
            return self._backend.choose(queries, shares, layer, batch)

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        with _slots(batch):
            return self._backend.attend_topk(q, chosen, layer, batch, sinks)

    def scales(self, layer: int) -> KVScaleFactors:
        return self._backend.scales(layer)

    def slots(self, layer: int, batch: StepBatch) -> Tensor:
        assert batch.windows is not None
        return batch.windows.slots

    def reasons(self, layer: int) -> tuple[str, str | None]:
        return self._backend.reasons(layer)

    def seen(self, layer: int, batch: StepBatch) -> tuple[int, int, int, int] | None:
        with _slots(batch):
            return self._backend.seen(layer, batch)


@contextmanager
def _slots(batch: StepBatch) -> Iterator[None]:
    windows, device = batch.windows, batch.device
    assert windows is not None
    slots, context_slots, table = batch.slots, batch.context_slots, None if device is None else device.table
    batch.slots, batch.context_slots = windows.slots, windows.context_slots
    if device is not None and windows.table is not None:
        device.table = windows.table
    try:
        yield
    finally:
        batch.slots, batch.context_slots = slots, context_slots
        if device is not None and table is not None:
            device.table = table
