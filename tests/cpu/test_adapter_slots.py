"""Slots whose copies take a while: more wait than there are slots, and each copy serves who it was made for."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from sgl.runtime.adapters import adapter_slots as module
from sgl.runtime.adapters.adapter import Adapter
from sgl.runtime.adapters.adapter_slots import AdapterSlots


class Clock:
    """Seconds, and copies that end with the next turn."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def record_event(self) -> Clock.Copy:
        return Clock.Copy(self, self.now + 0.005)

    class Copy:
        def __init__(self, clock: Clock, end: float) -> None:
            self._clock, self._end = clock, end

        def query(self) -> bool:
            return self._clock.now >= self._end


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def slots_of(count: int, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AdapterSlots:
    slots = AdapterSlots((), torch.float32, torch.device("cpu"), {8: count}, grows=False)
    monkeypatch.setattr(slots, "_stream", clock)
    monkeypatch.setattr(slots, "_copying", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    return slots


class Stream:
    def wait_event(self, event: Any) -> None:
        pass


def adapter(name: str) -> Adapter:
    return Adapter(name, 8, torch.zeros(0), np.zeros(0, np.int64), np.zeros((0, 1), np.float32))


def test_each_copy_serves_who_it_was_made_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    slots, waiting, running = slots_of(4, clock, monkeypatch), [adapter(f"{i}") for i in range(40)], []
    for _ in range(200):
        clock.now += 0.01
        for each in running:
            slots.drop(each.digest)
        running = [each for each in waiting if slots.take(each.digest, each, waits=True)]
        waiting = [each for each in waiting if each not in running]
        if not waiting:
            break
    assert not waiting and slots.loads == slots.misses == 40 and not slots.hits


def test_who_gives_up_keeps_its_slot_for_a_moment(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(1, clock, monkeypatch)
    assert not slots.take("a", adapter("a"), waits=True)
    clock.now += 0.5 * module.RESERVED
    assert not slots.take("b", adapter("b"), waits=True) and slots.has("a")
    clock.now += 0.6 * module.RESERVED
    assert not slots.take("b", adapter("b"), waits=True) and slots.has("b")
    clock.now += 0.01
    assert slots.take("b", None, waits=True)


def test_what_is_forgotten_leaves_its_slot_at_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(1, clock, monkeypatch)
    assert not slots.take("a", adapter("a"), waits=True)
    slots.forget("a")
    assert not slots.take("b", adapter("b"), waits=True) and slots.has("b")
