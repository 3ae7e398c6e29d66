"""Random programs in the language on hybrids with too little room: each text is that
of the program alone, and nothing is lost.
"""

from __future__ import annotations

import gc
import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from states_rig import Make, make, paths, settled

import sgl
from sgl.lang.errors import ProgramCancelled

__all__ = ["make", "paths"]

WORDS = ["the", "end", "of", "it", "all", "is", "here,", "and", "then", "one", "more", "thing:", "yes", "or", "no?"]
PATTERNS = (r"[ab]{2} the end of it all [cd]{2}", r"(yes|no), (because|although) it is so", r"[0-9]{1,4}")
Pieces = list[tuple[Any, ...]]


def drawn(rng: random.Random, depth: int = 0) -> Pieces:
    """What a state is given, one piece after the other; a fork has the pieces of each of its children."""
    pieces: Pieces = [("text", " ".join(rng.choices(WORDS, k=rng.randint(2, 25))))]
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(("gen", "gen", "stop", "regex", "select", "text", "fork" if depth < 2 else "gen"))
        if kind == "fork":
            pieces.append((kind, [drawn(rng, depth + 1) for _ in range(rng.randint(1, 3))], rng.random() < 0.15))
        elif kind == "select":
            pieces.append(
                (kind, sorted({" ".join(rng.choices(WORDS, k=rng.randint(1, 4))) for _ in range(rng.randint(2, 4))}))
            )
        elif kind == "text":
            pieces.append((kind, " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))))
        else:
            pieces.append(
                (
                    kind,
                    rng.randint(1, 16),
                    rng.choice(PATTERNS) if kind == "regex" else rng.choice(("e", "a ", "th", "1")),
                )
            )
    return pieces


def appended(kind: str, name: str, *of: Any) -> Any:
    if kind == "text":
        return of[0]
    if kind == "select":
        return sgl.select(name, of[0])
    options = {"regex": of[1]} if kind == "regex" else {"stop": of[1]} if kind == "stop" else {}
    return sgl.gen(
        name, max_tokens=40 if kind == "regex" else of[0], temperature=0, ignore_eos=kind != "regex", **options
    )


def play(s: Any, pieces: Pieces, held: list[Any], gone: list[Any]) -> None:
    """held: the states whose texts count, in order.  gone: those that are cancelled as soon as they have begun."""
    held.append(s)
    for index, (kind, *of) in enumerate(pieces):
        if kind != "fork":
            s += appended(kind, f"x{index}", *of)
            continue
        subs, cancelled = of
        for child, sub in zip(s.fork(len(subs)), subs, strict=True):
            play(child, sub, gone if cancelled else held, gone)
            if cancelled:
                child.cancel()


@sgl.function
def program(s: Any, pieces: Pieces, held: list[Any], gone: list[Any]) -> None:
    play(s, pieces, held, gone)


def texts(held: list[Any]) -> list[str]:
    return [state.text() for state in held]


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    """pytest keeps what is logged, with the frames of cancelled runs, whose states would stay."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def soak(make: Make, case: str, seed: int, count: int) -> int:
    """`count` programs at once, and each of them alone; how many texts were compared."""
    rng = random.Random(f"{case} {seed}")
    engine = make(
        case,
        kv_tokens=700,
        states=(8, 16)[seed % 2],
        max_running=4,
        step_tokens=32,
        page_size=(1, 4)[seed % 2],
        run_ahead=seed % 4 > 1,
    )
    quiet = make(case)
    programs, compared = [drawn(rng) for _ in range(count)], 0
    runs: list[tuple[list[Any], list[Any]]] = [([], []) for _ in programs]
    states = [program.run(pieces, *run, backend=engine) for pieces, run in zip(programs, runs, strict=True)]
    for state in states:
        state.text()
    for pieces, (held, gone) in zip(programs, runs, strict=True):
        alone: tuple[list[Any], list[Any]] = ([], [])
        quiet.flush_cache()
        program.run(pieces, *alone, backend=quiet).text()
        assert texts(held) == texts(alone[0])
        compared += len(held)
        for state in (*gone, *alone[1]):
            try:
                state.text()
            except ProgramCancelled:
                pass
    del states, runs, held, gone, alone, state
    until = time.monotonic() + 10
    while (
        engine._core.life.live and time.monotonic() < until
    ):  # cancelled states are cycles, which go one after the other
        gc.collect()
    settled(engine)
    assert not engine._core.life.live
    return compared


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["lfm2", "qwen 3.5", "mamba 2", "falcon h1, multipliers"])
def test_programs_side_by_side_are_those_alone(case: str, make: Make) -> None:
    """More of it in tests/slow."""
    assert soak(make, case, 1, 8) > 8
