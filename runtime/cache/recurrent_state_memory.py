"""The memory of layers that keep a state instead of keys and values: one slot is the state after one prefix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError
from ..memory.huge_pages import lazy_zeros, touched_of
from .recurrent_state_shape import RecurrentStateShape
from .recurrent_state_slots import FIRST_SLOT

StateShapes = Mapping[int, tuple[RecurrentStateShape, ...]]  # by layer, of those that keep a state


def bytes_per_state(shapes: StateShapes, dtype: torch.dtype) -> int:
    """Bytes that one sequence's state takes in all layers together."""
    return sum(part.bytes(dtype) for parts in shapes.values() for part in parts)


class RecurrentStateMemory:
    """The states of all layers; see the slots above for who may be read and written.

    dtype: of the model.
    """

    def __init__(self, shapes: StateShapes, slots: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        if slots < FIRST_SLOT:
            raise ConfigError(f"a memory of {slots} states has no room: the first {FIRST_SLOT} slots are reserved")
        self.shapes, self.slots, self.dtype, self.device = dict(shapes), slots, dtype, torch.device(device)
        self.restore()

    def of(self, layer: int) -> tuple[Tensor, ...]:
        """[slots, *shape] each; they keep their addresses until `release`."""
        return self._tensors[layer]

    @property
    def tensors(self) -> list[Tensor]:
        return [tensor for parts in self._tensors.values() for tensor in parts]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def touched(self) -> int:
        """Bytes of it that the system has given by now, see `lazy_zeros`."""
        return sum(map(touched_of, self.tensors))

    def release(self) -> None:
        """Give the memory back, and with it every state."""
        self._allocate(0)

    def restore(self) -> None:
        """Memory for all slots, zero."""
        self._allocate(self.slots)

    def _allocate(self, slots: int) -> None:
        self._tensors = {
            layer: tuple(lazy_zeros((slots, *part.shape), part.kept_as(self.dtype), self.device) for part in parts)
            for layer, parts in self.shapes.items()
        }

    def fill_nan(self, slots: Sequence[int]) -> None:
        """Poison freed slots, so that a stale read turns the output into NaN (for tests)."""
        if any(slot < FIRST_SLOT for slot in slots):
            raise ValueError(f"slots {list(slots)}: the first {FIRST_SLOT} are reserved and stay as they are")
        index = torch.as_tensor(slots, dtype=torch.int64, device=self.device)
        for tensor in self.tensors:
            tensor.index_fill_(0, index, float("nan"))


class StepStates(NamedTuple):
    """The states of a step.

    read, write: int64 [S], for each sequence the slot from which its state is read, and the one to which the state
    after its last new token is written; the same slot where it is written in place.
    """

    memory: RecurrentStateMemory
    read: Tensor
    write: Tensor

    def of(self, layer: int) -> tuple[Tensor, ...]:
        """[slots, *shape] each."""
        return self.memory.of(layer)
