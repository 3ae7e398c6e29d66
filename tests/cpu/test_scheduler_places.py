"""Who gets a place in a full pool keeps it until some tokens are computed, and what is counted as cached was used."""

from __future__ import annotations

import itertools
import random

import pytest
from test_engine import prompt
from test_scheduler_pressure import FOREVER, Held, make, some

from sgl.runtime import Engine
from sgl.runtime.errors import OutOfPages
from sgl.runtime.sequences.sequence_state import SequenceState

__all__ = ["make"]


class Places:
    """Fails the plan that gives a sequence a place and takes it back before anything of it is computed."""

    def __init__(self, engine: Engine) -> None:
        self.given, self.lost = 0, 0
        self._new: set[SequenceState] = set()
        self._futile: list[int] = []
        scheduler = engine._core.scheduler
        self._start, self._preempt, self._plan = scheduler.start, scheduler.preempt, scheduler.plan
        scheduler.start, scheduler.preempt, scheduler.plan = self.start, self.preempt, self.plan

    def start(self, seq) -> None:
        self._start(seq)
        self.given += 1
        self._new.add(seq)

    def preempt(self, seq) -> None:
        self.lost += 1
        if seq in self._new:
            self._futile.append(seq.id)
        self._preempt(seq)

    def plan(self):
        self._new.clear()
        return self._plan()

    def check(self) -> None:
        assert not self._futile, f"{len(self._futile)} of {self.given} places were given and taken back at once"
        assert self.lost, "nobody lost a place: this tests nothing"


@pytest.mark.parametrize("page_size", [1, 4])
def test_nobody_gets_a_place_for_nothing_and_cached_tokens_were_used(make, page_size):
    engine = make(kv_tokens=128, page_size=page_size, step_tokens=64)
    with engine.trace_steps() as steps:
        with Held(engine):
            sequences = [engine.open() for _ in range(4)]
            for seed, sequence in enumerate(sequences):
                sequence.extend(prompt(seed, 11))
            futures = [sequence.generate(some(36)) for sequence in sequences]
        for future in futures:
            future.result(FOREVER)
    lost = [step.preempted for step in steps if step.preempted]
    assert lost and all(len(set(of_step)) == len(of_step) for of_step in lost)
    for before, step in itertools.pairwise(steps):
        assert not set(before.waiting) & set(step.preempted)
    assert engine.stats().cached_tokens == sum(part.cached for step in steps for part in step.parts) > 0


def test_the_urgent_come_back_to_a_cached_prefix_by_the_room_of_others(make):
    engine, urgent, ended = make(kv_tokens=128), [], []
    cached = engine.open()
    cached.extend(prompt(1, 40))
    cached.prefill().result(FOREVER)
    cached.close()

    def hurry(chunk):
        if not urgent:
            urgent.append(engine.open(1))
            urgent[0].extend(prompt(1, 40) + prompt(2, 20))
            urgent.append(urgent[0].generate(some(5)))
            urgent[1].add_done_callback(lambda done: ended.append("urgent"))

    usual = engine.open()
    usual.extend(prompt(3, 80))
    future = usual.generate(some(20), on_chunk=hurry)
    future.add_done_callback(lambda done: ended.append("usual"))
    future.result(FOREVER)
    urgent[1].result(FOREVER)
    assert ended == ["urgent", "usual"] and engine.stats().preemptions == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(6))
def test_no_place_is_given_and_taken_back_in_one_plan(make, seed):
    engine, draw = make(kv_tokens=300, page_size=(1, 3)[seed % 2], step_tokens=24, max_running=6), random.Random(seed)
    places, futures, idle = Places(engine), [], []
    pin = engine.pin(prompt(1, 30))
    for _ in range(60):
        sequence = engine.open(draw.choice([0, 0, 0, 1]), tenant=draw.choice("ab"))
        sequence.extend(prompt(draw.randint(1, 4), draw.randint(10, 90)) + prompt(draw.randint(10, 10**6), 5))
        family = [sequence, *(sequence.fork(2) if draw.random() < 0.4 else ())]
        idle += family[: draw.randint(0, 1)]
        futures += [member.generate(some(draw.randint(1, 60))) for member in family]
        if draw.random() < 0.2:
            futures.append(sequence.score([prompt(n, 3) for n in range(3)]))
        del idle[:-4]
    for future in futures:
        try:
            future.result(FOREVER)
        except OutOfPages:
            pytest.fail("every request fits into the pool")
    pin.release()
    places.check()
