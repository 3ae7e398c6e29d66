"""What a rank above 0 has of adapters, which rank 0 reads: its parts, in slots of its own, and what it tells of its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..adapters.adapter import Adapter
from ..adapters.base_weights import WeightsHere
from ..adapters.laws import adapted_sites, law_for
from ..adapters.of_step import ByNumber
from ..adapters.shadow import Shadow
from ..adapters.slots import Slots
from ..models.decoder import Decoder
from .part import Part


class AdaptersHere:
    """of_step: where the rows of steps find theirs, once there are slots."""

    of_step: ByNumber | None = None

    def __init__(self, part: Part, model: Decoder) -> None:
        self._model, self._deterministic = model, part.deterministic
        self._sites = adapted_sites(model, part.deterministic, part.path)
        weights = WeightsHere(model, self._sites)
        self.calls: dict[str, Callable[..., Any]] = {"place": self.place, "empty": self.empty, "biases": weights.biases, "squares": weights.squares, "same": weights.same}

    def set_aside(self, ranks: Sequence[int], grows: bool = False) -> ByNumber:
        """Slots for adapters of these ranks, as rank 0 has them."""
        model = self._model
        slots = Slots(self._sites, model.dtype, model.device, Counter(ranks), grows)
        model.adapted = shadow = Shadow(model, self._sites, law_for(model, slots, self._sites, self._deterministic))
        self.of_step = ByNumber(slots, shadow)
        return self.of_step

    def place(self, ranks: list[int], number: int, adapter: Adapter) -> None:
        """An adapter's part into a slot, see `Slots.mirror`. On a CPU slots are made with the first one."""
        (self.of_step or self.set_aside((), grows=True)).slots.mirror(ranks, number, adapter)

    def empty(self, number: int) -> None:
        assert self.of_step is not None
        self.of_step.slots.empty(number)
