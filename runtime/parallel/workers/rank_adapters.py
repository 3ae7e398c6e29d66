"""What a rank above 0 has of adapters, which rank 0 reads: its parts, in its own slots, and reports of its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ...adapters.adapted_model import AdaptedModel
from ...adapters.adapter import Adapter
from ...adapters.adapter_slots import AdapterSlots
from ...adapters.batch_adapters import BatchAdaptersBySlot
from ...adapters.choose_adapter_kernels import adapted_sites, adapter_products_for
from ...adapters.files.adapter_base_weights import LocalBaseWeights
from ...models.decoder import Decoder
from .rank_weights import RankWeights


class RankAdapters:
    """of_step: where the rows of steps find theirs, once there are slots."""

    of_step: BatchAdaptersBySlot | None = None

    def __init__(self, part: RankWeights, model: Decoder) -> None:
        self._model, self._deterministic = model, part.deterministic
        self._sites = adapted_sites(model, part.deterministic, part.path)
        weights = LocalBaseWeights(model, self._sites)
        self.calls: dict[str, Callable[..., Any]] = {
            "place": self.place,
            "empty": self.empty,
            "biases": weights.biases,
            "squares": weights.squares,
            "same": weights.same,
        }

    def set_aside(self, ranks: Sequence[int], grows: bool = False) -> BatchAdaptersBySlot:
        """Slots for adapters of these ranks, as rank 0 has them."""
        model = self._model
        slots = AdapterSlots(self._sites, model.dtype, model.device, Counter(ranks), grows)
        model.adapted = shadow = AdaptedModel(
            model, self._sites, adapter_products_for(model, slots, self._sites, self._deterministic)
        )
        self.of_step = BatchAdaptersBySlot(slots, shadow)
        return self.of_step

    def place(self, ranks: list[int], number: int, adapter: Adapter) -> None:
        """An adapter's part into a slot, see `AdapterSlots.mirror`. On a CPU slots are made with the first one."""
        (self.of_step or self.set_aside((), grows=True)).slots.mirror(ranks, number, adapter)

    def empty(self, number: int) -> None:
        assert self.of_step is not None
        self.of_step.slots.empty(number)
