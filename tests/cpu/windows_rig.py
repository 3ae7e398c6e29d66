"""Engines on models of which some layers see a window only, compared with quiet
ones that keep every token in every layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tokenizer
from family_cases import FAMILIES, GEMMA4
from family_checks import reference
from states_rig import Walk
from test_scheduler_pressure import FOREVER

from sgl.runtime import Engine
from sgl.runtime.cache import window_pages

EVERY = ("gemma3", "mistral", "gpt-oss", "gemma2", "llama 4", "cohere2", "gemma 4", "starcoder2, window")

Make = Callable[..., Engine]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    found: dict[str, Path] = {}

    def path(case: str) -> Path:
        if case not in found:
            architecture, keys = (FAMILIES | GEMMA4)[case]
            model = reference(architecture, **keys | {"max_position_embeddings": 512})
            model.save_pretrained(where := tmp_path_factory.mktemp("windows"))
            found[case] = write_tokenizer(where)
        return found[case]

    yield path


@pytest.fixture
def make(paths: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Engines that give back what falls 2 tokens behind a window at once."""
    monkeypatch.setattr(window_pages, "SLACK", 2)
    monkeypatch.setattr(window_pages, "LOT", 1)
    made: list[Engine] = []

    def open_one(case: str = "gemma3", **options: Any) -> Engine:
        options = {
            "dtype": "float32",
            "threads": 1,
            "kv_tokens": 4096,
            "step_tokens": 64,
            "poison_freed": True,
            "device": "cpu",
        } | options
        made.append(Engine(paths(case), **options))
        made[-1]._core.after_step = made[-1]._core.check
        return made[-1]

    yield open_one
    for engine in made:
        engine.close()


def quiet(make: Make, case: str = "gemma3") -> Engine:
    """It keeps all."""
    engine = make(case, window_tokens=4096)
    assert not engine.info()["window_tokens"] and "no less than kv_tokens" in engine.info()["windows"]
    return engine


def settled(engine: Engine) -> None:
    """Nobody is left, and everything is free once the cache is empty."""
    until = time.monotonic() + FOREVER
    while engine._core.life.live and time.monotonic() < until:
        engine.check()
    engine.flush_cache()
    stats = engine.stats()
    assert stats.pages_free == stats.pages_total and stats.window_pages_free == stats.window_pages_total > 0


def walk(make: Make, case: str, seed: int, moves: int) -> int:
    """How many texts of random requests on too small a pool were compared with those of an engine with room."""
    engine = make(
        case,
        kv_tokens=300,
        page_size=(1, 3)[seed % 2],
        step_tokens=24,
        max_running=5,
        run_ahead=seed % 4 > 1,
        window_tokens=(100, 120, 200)[seed % 3],
    )
    mix = Walk(engine, quiet(make, case), seed)
    mix.play(moves)
    compared = mix.settle()
    mix.sequences.clear()
    for pin in mix.pins:
        pin.release()
    settled(engine)
    assert engine.stats().window_given_back and not engine._core.life.scheduler.counters.present
    return compared
