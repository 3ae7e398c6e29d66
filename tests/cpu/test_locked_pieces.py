"""Locked memory that is given out again, and what copies under way still read of it; the driver's part runs in tests/gpu."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from sgl.runtime.adapters.adapter import Adapter
from sgl.runtime.adapters.slots import Slots
from sgl.runtime.errors import ConfigError
from sgl.runtime.step import locked


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the driver was asked for."""
    asked: list[str] = []

    def lock(owner: object, memory: torch.Tensor, device: torch.device, option: str) -> weakref.finalize:
        asked.append(f"lock {memory.nbytes}")
        return weakref.finalize(owner, asked.append, f"unlock {memory.nbytes}")

    monkeypatch.setattr(locked, "lock", lock)
    return asked


def pieces(most_free: int) -> locked.LockedPieces:
    return locked.LockedPieces(torch.device("cpu"), most_free, "adapter_memory")


def test_memory_is_given_out_again_as_zeros(driver: list[str]) -> None:
    space = pieces(10_000)
    first = space.take(1000, torch.float32)
    address = first.data_ptr()
    assert not first.any() and first.data_ptr() % locked.ALIGNMENT == 0
    first.fill_(7)
    other = space.take(1000, torch.float32)  # the first is held
    assert other.data_ptr() != address
    del first
    gc.collect()
    again = space.take(900, torch.float32)
    assert again.data_ptr() == address and not again.any()
    assert driver == ["lock 4000", "lock 4000"]


def test_what_is_far_too_large_or_too_small_is_not_taken(driver: list[str]) -> None:
    space = pieces(100_000)
    sizes = [1000, 3000, 2000]
    held = [space.take(size, torch.int8) for size in sizes]
    addresses = dict(zip(sizes, (tensor.data_ptr() for tensor in held), strict=True))
    del held
    gc.collect()
    assert space.take(1900, torch.int8).data_ptr() == addresses[2000]
    gc.collect()
    one = space.take(1001, torch.int8)
    assert one.data_ptr() not in addresses.values() and driver[-1] == "lock 1001"


def test_finalizers_call_no_driver_and_the_oldest_are_unlocked_by_who_takes(driver: list[str]) -> None:
    space = pieces(2500)
    held = [space.take(size, torch.int8) for size in (1000, 2000)]
    del held[0]
    del held[0]
    gc.collect()
    assert not any(each.startswith("unlock") for each in driver)
    space.take(5000, torch.int8)
    assert [each for each in driver if each.startswith("unlock")] == ["unlock 1000"]


def test_all_is_unlocked_with_the_last_who_holds_a_piece(driver: list[str]) -> None:
    space = pieces(10_000)
    held, gone = space.take(1000, torch.int8), space.take(3000, torch.int8)
    del gone, space
    gc.collect()
    assert len(driver) == 2
    del held
    gc.collect()
    assert sorted(driver[2:]) == ["unlock 1000", "unlock 3000"]


def test_an_adapter_without_pairs_takes_nothing(driver: list[str]) -> None:
    assert pieces(0).take(0, torch.bfloat16).shape == (0,) and not driver


def test_the_drivers_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(owner: object, memory: torch.Tensor, device: torch.device, option: str) -> Any:
        raise ConfigError(f"{option}: the driver cannot lock it")

    monkeypatch.setattr(locked, "lock", refuse)
    with pytest.raises(ConfigError, match="adapter_memory: the driver cannot lock it"):
        pieces(0).take(10, torch.int8)


class Copy:
    """An event behind a copy."""

    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done


def test_what_a_copy_reads_is_not_given_to_others_before_it_is_done(driver: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    slots, space, copies = Slots((), torch.float32, torch.device("cpu"), {8: 1}, grows=False), pieces(10_000), []

    class Stream:
        def record_event(self) -> Copy:
            copies.append(Copy())
            return copies[-1]

    monkeypatch.setattr(slots, "_stream", Stream())
    monkeypatch.setattr(slots, "_copying", nullcontext)

    def laid(digest: str) -> int:
        adapter = Adapter(digest, 8, space.take(0 if digest == "empty" else 500, torch.float32), np.zeros(0, np.int64), np.zeros((0, 1), np.float32))
        slots.slots[0].memory = torch.zeros(500)
        slots._load(slots.slots[0], adapter)
        return adapter.memory.data_ptr()

    first = laid("a")
    gc.collect()
    assert laid("b") != first, "the copy of `a` has not ended"
    copies[0].done = True
    laid("empty")  # `a` is let go with the next load
    gc.collect()
    assert laid("c") == first
