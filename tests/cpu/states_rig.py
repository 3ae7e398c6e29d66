"""Engines on models whose layers keep states, compared with quiet ones that have room for everything."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tokenizer
from family_cases import FAMILIES
from family_checks import reference
from test_scheduler_pressure import FOREVER, some
from test_scheduler_random import ENDS, Mix

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.cache.recurrent_state_slots import FIRST_SLOT, SCRAP_SLOT
from sgl.runtime.errors import RequestAborted
from sgl.runtime.executor.eager_runner import state_slots

LONGER = {"max_position_embeddings": 512}
HYBRIDS = (
    "qwen 3.5",
    "qwen3 next",
    "kimi linear",
    "mamba",
    "falcon mamba",
    "mamba 2",
    "jamba",
    "nemotron h, experts",
    "granite 4",
    "olmo hybrid",
    "falcon h1, multipliers",
)

Make = Callable[..., Engine]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    found: dict[str, Path] = {}

    def path(case: str) -> Path:
        if case not in found:
            found[case] = write_tokenizer(write_case(case, tmp_path_factory.mktemp("hybrid")))
        return found[case]

    yield path


def write_case(case: str, path: Path, seed: int = 0) -> Path:
    """Its checkpoint, for 512 tokens. seed: of the weights."""
    architecture, keys = FAMILIES[case]
    endless = keys.get("max_position_embeddings") is ...
    reference(architecture, seed, **keys | ({} if endless else LONGER)).save_pretrained(path)
    return path


@pytest.fixture
def make(paths: Callable[[str], Path]) -> Iterator[Make]:
    made: list[Engine] = []
    wrong: list[str] = []

    def open_one(case: str = "lfm2", **options: Any) -> Engine:
        options = {"dtype": "float32", "threads": 1, "kv_tokens": 4096, "poison_freed": True, "device": "cpu"} | options
        made.append(Engine(paths(case), **options))
        made[-1]._core.after_step = made[-1]._core.check
        watch(made[-1]._core.runner, wrong)
        return made[-1]

    yield open_one
    for engine in made:
        engine.close()
    assert not wrong


def watch(runner: Any, wrong: list[str]) -> None:
    """Note every step in which a sequence reads or writes a slot that another one writes: a GPU runs them at once."""
    forward = runner.forward

    def watched(work: list[Any]) -> Any:
        read, write = state_slots(work)
        for index, slot in enumerate(write):
            others = [*write[:index], *write[index + 1 :], *read[:index], *read[index + 1 :]]
            if slot < SCRAP_SLOT or (slot >= FIRST_SLOT and slot in others):
                wrong.append(f"reads {read}, writes {write}")
        if SCRAP_SLOT in read:
            wrong.append(f"reads {read}")
        return forward(work)

    runner.forward = watched


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(4, 320), k=length)


def run(engine: Engine, tokens: list[int], count: int = 12, **options: Any) -> Any:
    sequence = engine.open()
    sequence.extend(tokens)
    params = SamplingParams(**{"max_tokens": count, "temperature": 0, "ignore_eos": True} | options)
    return sequence.generate(params).result(FOREVER)


def settled(engine: Engine) -> None:
    """Nobody is left, and everything is free once the cache is empty."""
    until = time.monotonic() + FOREVER
    while engine._core.life.live and time.monotonic() < until:
        engine.check()
    engine.flush_cache()
    stats = engine.stats()
    assert stats.pages_free == stats.pages_total and stats.states_free == stats.states_total and not stats.states_cached


def abort_some(engine: Engine, count: int) -> None:
    """Sequences that are aborted while they run; what they held is given back."""
    for seed in range(count):
        sequence = engine.open()
        sequence.extend(prompt(seed, 50))
        future = sequence.generate(some(300))
        time.sleep(0.02)
        sequence.abort()
        with pytest.raises(RequestAborted):
            future.result(FOREVER)
        sequence.close()
    settled(engine)


class Walk(Mix):
    """Also texts that end with a stop, and go on behind it, where what was computed of the stop is taken back."""

    STOPS = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True, stop=("e", "a ", "th", "1", "x"))

    def stop(self) -> None:
        if not self.sequences:
            return
        sequence, tokens = self.sequences.pop(self.random.randrange(len(self.sequences)))
        first, extra, count = (
            sequence.generate(self.STOPS),
            prompt(self.random.randint(1, 99), self.random.randint(0, 3)),
            self.random.randint(1, 9),
        )
        sequence.extend(extra)
        self.stopped.append((first, sequence.generate(some(count)), tokens, extra, count))
        sequence.close()

    def play(self, moves: int) -> None:
        self.stopped: list[Any] = []
        for _ in range(moves // 10):
            super().play(10)
            self.stop()

    def settle(self) -> int:
        compared = super().settle()
        for first, second, tokens, extra, count in self.stopped:
            try:
                found, rest = first.result(FOREVER).token_ids, second.result(FOREVER).token_ids
            except ENDS:
                continue
            sequence = self.quiet.open()
            sequence.extend(tokens)
            assert found == sequence.generate(self.STOPS).result(FOREVER).token_ids
            assert rest == run(self.quiet, tokens + found + extra, count).token_ids
            compared += 1
        return compared


def walk(make: Make, case: str, seed: int, moves: int) -> int:
    """How many texts of random requests on too small a pool were compared with those of an engine with room."""
    engine = make(
        case,
        kv_tokens=300,
        page_size=(1, 3)[seed % 2],
        step_tokens=24,
        max_running=5,
        run_ahead=seed % 4 > 1,
        states=(10, 24, 4)[seed % 3],
        state_every=(32, 7)[seed % 5 == 0],
    )
    mix = Walk(engine, make(case), seed)
    mix.play(moves)
    compared = mix.settle()
    mix.sequences.clear()
    for pin in mix.pins:
        pin.release()
    settled(engine)
    assert not engine._core.life.scheduler.counters.present
    return compared
