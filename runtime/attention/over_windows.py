"""Attention of layers whose keys and values lie in the slots of windows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

from ..layers.float8 import Scales
from ..step.batch import Batch
from .chosen import Chosen

if TYPE_CHECKING:
    from . import OneBackend


class OverWindows:
    """See `AttentionBackend`: any of them, for which `Batch.windows` takes the place of the slots of all layers."""

    def __init__(self, backend: OneBackend) -> None:
        self._backend = backend
        self.name, self.reason, self.slower, self.pool = backend.name, backend.reason, backend.slower, backend.pool
        self.capturable = False

    def plan(self, batch: Batch) -> None:
        with _slots(batch):
            self._backend.plan(batch)

    def store(self, k: Tensor, v: Tensor, layer: int, batch: Batch) -> None:
        with _slots(batch):
            self._backend.store(k, v, layer, batch)

    def attend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, batch: Batch, sinks: Tensor | None = None
    ) -> Tensor:
        return self._backend.attend(q, k, v, layer, batch, sinks)

    def stored(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._backend.stored(layer)

    def store_index(self, keys: Tensor, layer: int, batch: Batch) -> None:
        with _slots(batch):
            self._backend.store_index(keys, layer, batch)

    def choose(self, queries: Tensor, shares: Tensor, layer: int, batch: Batch) -> Chosen:
        with _slots(batch):
            return self._backend.choose(queries, shares, layer, batch)

    def attend_chosen(self, q: Tensor, chosen: Chosen, layer: int, batch: Batch, sinks: Tensor | None = None) -> Tensor:
        return self._backend.attend_chosen(q, chosen, layer, batch, sinks)

    def scales(self, layer: int) -> Scales:
        return self._backend.scales(layer)

    def reasons(self, layer: int) -> tuple[str, str | None]:
        return self._backend.reasons(layer)

    def seen(self, layer: int, batch: Batch) -> tuple[int, int, int, int] | None:
        with _slots(batch):
            return self._backend.seen(layer, batch)


@contextmanager
def _slots(batch: Batch) -> Iterator[None]:
    assert batch.windows is not None
    slots, context_slots = batch.slots, batch.context_slots
    batch.slots, batch.context_slots = batch.windows.slots, batch.windows.context_slots
    try:
        yield
    finally:
        batch.slots, batch.context_slots = slots, context_slots
