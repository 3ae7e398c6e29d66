"""What do grammars cost and save in the demo? The share of step time that they take, and the tokens that they force.

    python benchmarks/grammar_decoding.py [--dialogues 32]

Grammar time is masks, moves of the matchers and jump-forward with its tokenising, all inside the engine's steps;
compiling, which happens in the caller's thread, is reported separately.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_results import keep, table

import sgl
from sgl.grammars.automaton.grammar_matcher import Matcher
from sgl.runtime.loop.engine_core import EngineCore
from sgl.runtime.sequences.jump_forward import JumpForward

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from extract_bookings import SAMPLE, track


class Clock:
    """Seconds spent inside the functions it watches, each stretch counted once however they are nested."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = threading.local()

    def watch(self, owner: type, name: str) -> None:
        work: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(work)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "it", False):
                return work(*args, **kwargs)
            self._inside.it, started = True, time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started
                self._inside.it = False

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, default=32)
    options = parser.parse_args()
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    services = {service["service_name"]: service for service in sample["services"]}
    dialogues = sample["dialogues"][: options.dialogues]
    items = [{"turns": d["turns"], "services": [services[n] for n in d["expected"]]} for d in dialogues]
    clock = Clock()
    clock.watch(EngineCore, "_masked")
    clock.watch(JumpForward, "jump")
    for name in ("accept", "rollback", "forced", "shortest_end"):
        clock.watch(Matcher, name)
    with sgl.Engine(json_options={"whitespace": "spaced"}) as engine:
        rows = [
            _measured(engine, clock, items, label)
            for label in ("cold: every mask is new", "again: masks are remembered")
        ]
    table(
        ("", "steps' seconds", "grammars' share %", "generated", "forced", "forced share %"),
        [_row(*row) for row in rows],
    )
    keep("grammar_decoding", {label: {"share_of_steps": share, **stats.as_dict()} for label, share, stats in rows})


def _measured(engine: Any, clock: Clock, items: list[dict[str, Any]], label: str) -> tuple[str, float, Any]:
    engine.flush_cache()
    before, spent = engine.stats(), clock.seconds
    states = track.run_batch(items, backend=engine, temperature=0)
    for state in states:
        state.sync()
    stats = engine.stats() - before
    return label, (clock.seconds - spent) / stats.step_seconds, stats


def _row(label: str, share: float, stats: Any) -> tuple[Any, ...]:
    generated = stats.generated_tokens
    return (
        label,
        round(stats.step_seconds, 2),
        100 * share,
        generated,
        stats.forced_tokens,
        100 * stats.forced_tokens / generated,
    )


if __name__ == "__main__":
    main()
