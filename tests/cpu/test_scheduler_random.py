"""Random requests of every kind on a pool that is too small: nothing is lost, no text changes, everybody ends."""

from __future__ import annotations

import gc
import random
import time
from concurrent.futures import Future

import pytest
from test_engine import prompt
from test_scheduler_pressure import FOREVER, make, some

from sgl.runtime import Engine, Sequence
from sgl.runtime.errors import DeadlineExceeded, OutOfPages, RequestAborted
from sgl.runtime.sequences.prefix_pin import PrefixPin

__all__ = ["make"]

ENDS = (DeadlineExceeded, RequestAborted)


class Mix:
    """What happens to one engine. Texts are compared with those of a quiet engine without a deadline in sight."""

    def __init__(self, engine: Engine, quiet: Engine, seed: int) -> None:
        self.engine, self.quiet, self.random = engine, quiet, random.Random(seed)
        self.sequences: list[tuple[Sequence, list[int]]] = []
        self.pins: list[PrefixPin] = []
        self.expected: list[tuple[Future, list[int], int]] = []
        self.others: list[Future] = []

    def open(self) -> None:
        choose = self.random.choice
        sequence = self.engine.open(
            choose([-1, 0, 0, 0, 2]),
            tenant=choose("abc"),
            namespace=choose(["", "", "n"]),
            timeout=choose([None, None, 60.0, 0.05]),
        )
        tokens = prompt(self.random.randint(1, 4), self.random.randint(10, 80)) + prompt(
            self.random.randint(1, 10**6), 5
        )
        sequence.extend(tokens)
        self.sequences.append((sequence, tokens))
        if self.random.random() < 0.7:
            self.generate(-1)

    def generate(self, index: int | None = None) -> None:
        sequence, tokens = self.sequences.pop(self.random.randrange(len(self.sequences)) if index is None else index)
        count = self.random.randint(1, 30)
        self.expected.append((sequence.generate(some(count)), tokens, count))
        sequence.close()

    def fork(self) -> None:
        sequence, tokens = self.random.choice(self.sequences)
        self.sequences += [(child, list(tokens)) for child in sequence.fork(2)]

    def score(self) -> None:
        sequence, _ = self.random.choice(self.sequences)
        self.others.append(sequence.score([prompt(n, 3) for n in range(self.random.randint(1, 3))]))

    def prefill(self) -> None:
        self.others.append(self.random.choice(self.sequences)[0].prefill())

    def abort(self) -> None:
        sequence, _ = self.sequences.pop(self.random.randrange(len(self.sequences)))
        sequence.prefill()
        sequence.abort()

    def drop(self) -> None:
        del self.sequences[self.random.randrange(len(self.sequences))]

    def pin(self) -> None:
        try:
            self.pins.append(self.engine.pin(prompt(self.random.randint(1, 4), self.random.randint(10, 60))))
        except OutOfPages:
            self.unpin()

    def unpin(self) -> None:
        if self.pins:
            self.pins.pop(self.random.randrange(len(self.pins))).release()

    def flush(self) -> None:
        self.engine.flush_cache()

    def doze(self) -> None:
        self.engine.sleep()
        self.engine.wake()

    def play(self, moves: int) -> None:
        weights = {
            self.open: 12,
            self.generate: 6,
            self.fork: 3,
            self.score: 3,
            self.prefill: 2,
            self.abort: 1,
            self.drop: 2,
            self.pin: 2,
            self.unpin: 2,
            self.flush: 1,
            self.doze: 1,
        }
        for move in self.random.choices(list(weights), list(weights.values()), k=moves):
            if self.sequences or move in (self.open, self.pin, self.unpin, self.flush, self.doze):
                move()

    def settle(self) -> int:
        """How many texts were compared."""
        compared = 0
        for future in self.others:
            try:
                future.result(FOREVER)
            except ENDS:
                pass
        for future, tokens, count in self.expected:
            try:
                found = future.result(FOREVER).token_ids
            except ENDS:
                continue
            sequence = self.quiet.open()
            sequence.extend(tokens)
            assert found == sequence.generate(some(count)).result(FOREVER).token_ids
            compared += 1
        return compared


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_everything_at_once(make, seed):
    engine = make(kv_tokens=300, page_size=(1, 3)[seed % 2], step_tokens=24, max_running=5, run_ahead=seed % 4 > 1)
    mix = Mix(engine, make(), seed)
    mix.play(120)
    assert mix.settle() > 20
    mix.sequences.clear()
    for pin in mix.pins:
        pin.release()
    gc.collect()  # sequences in cycles are closed now, not while the engine is looked at
    life, until = engine._core.life, time.monotonic() + FOREVER
    while life.live and time.monotonic() < until:
        engine.check()
    engine.flush_cache()
    while life.live and time.monotonic() < until:
        engine.check()
    stats = engine.stats()
    assert not life.live and not life.deadlines._watched and not life.scheduler.counters.present
    assert stats.pages_free == stats.pages_total and stats.pages_pinned == 0
