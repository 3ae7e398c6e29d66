"""The adapter of each row of a step: of rank 0's sequences, and of those that another rank gets from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from ..step.adapter_rows import NONE, AdapterRows
from .adapted_model import AdaptedModel
from .adapter_slots import AdapterSlots
from .lora_linear import rows_of


class BatchAdapters(ABC):
    def __init__(self, slots: AdapterSlots, adapted_model: AdaptedModel) -> None:
        self.slots, self.adapted_model = slots, adapted_model
        self._newest: tuple[object, AdapterRows | None] | None = None

    @abstractmethod
    def adapter_slots_for(self, digests: Iterable[str]) -> Sequence[int]:
        """Of the sequences of a step; "" has none."""

    def captures(self, slots: Sequence[int]) -> bool:
        """Whether a step with the adapters in these may be a CUDA graph."""
        return self.adapted_model.products.captures(slots)

    def rows(self, digests: Iterable[str], lengths: Sequence[int], wanted: Sequence[int]) -> AdapterRows | None:
        """Of a step, sequence by sequence; "" has none. None: no row of it has one."""
        asked = list(digests), tuple(lengths), tuple(wanted), self.slots.version
        if (
            self._newest is None or self._newest[0] != asked
        ):  # of decode steps one is like the next, and slots that are held stay
            slots = self.adapter_slots_for(asked[0])
            self._newest = asked, None if all(slot == NONE for slot in slots) else rows_of(slots, lengths, wanted)
        return self._newest[1]


class BatchAdaptersBySlot(BatchAdapters):
    """Of sequences that name an adapter by its slot, as on ranks above 0, which know no more of it."""

    def adapter_slots_for(self, digests: Iterable[str]) -> Sequence[int]:
        found = [int(digest) if digest else NONE for digest in digests]
        for slot in {*found} - {NONE}:
            self.slots.wait_for(slot)
        return found
