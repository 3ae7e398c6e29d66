"""sgl's side: a workload run with everything on, or with parts switched off, and what the engine counted."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from typing import Any

import sgl

from .switches import SwitchedBackend, Switches
from .work import Answer, Item, Workload

COUNTED = ("steps", "computed_tokens", "cached_tokens", "forced_tokens", "generated_tokens")


@dataclass(frozen=True)
class Run:
    """Seconds of one run, the engine's counts, and what the programs made of the items."""

    seconds: float
    counts: dict[str, int]
    answers: list[Answer]


class Ours:
    """An engine for each way to jump; the second one is opened when it is asked for."""

    def __init__(self, **options: Any) -> None:
        self._options = {"kv_tokens": 65_536, "json_options": {"whitespace": "spaced"}, **options}
        self._engines: dict[bool, sgl.Engine] = {}
        self._free_tokens: dict[str, int] = {}

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *exc: object) -> None:
        for engine in self._engines.values():
            engine.close()

    def engine(self, jumps: bool = True) -> sgl.Engine:
        if jumps not in self._engines:
            self._engines[jumps] = sgl.Engine(jump_forward=jumps, **self._options)
        return self._engines[jumps]

    def free_tokens(self, work: Workload, programs: int) -> int:
        """How many tokens an answer under a grammar has, on average."""
        if not work.grammars:
            return 0
        if work.name not in self._free_tokens:
            counts = self.run(work, work.items(programs)).counts
            self._free_tokens[work.name] = round(counts["generated_tokens"] / programs)
        return self._free_tokens[work.name]

    def run(self, work: Workload, items: list[Item], switches: Switches | None = None) -> Run:
        """All items from an empty cache. Without switches nothing stands between the programs and the engine."""
        engine = self.engine(switches.jumps if switches else True)
        backend = self._backend(work, engine, switches, len(items))
        engine.flush_cache()
        gc.collect()
        before, started = engine.stats(), time.perf_counter()
        states = run_programs(work, items, backend, switches is None or switches.batching)
        seconds, spent = time.perf_counter() - started, engine.stats() - before
        return Run(seconds, {name: getattr(spent, name) for name in COUNTED}, [work.answer(state) for state in states])

    def _backend(self, work: Workload, engine: sgl.Engine, switches: Switches | None, programs: int) -> Any:
        if switches is None or switches == Switches() or switches in (Switches(jumps=False), Switches(batching=False)):
            return engine
        if not switches.grammars:
            switches = replace(switches, free_tokens=self.free_tokens(work, programs))
        return SwitchedBackend(engine, switches)


def run_programs(work: Workload, items: list[Item], backend: Any, together: bool) -> list[Any]:
    """The finished states, of a batch or of one program after the other."""
    if together:
        return work.program.run_batch(items, backend=backend, temperature=0, progress_bar=False)
    states = []
    for item in items:
        state = work.program.run(**item, backend=backend, temperature=0)
        state.sync()
        states.append(state)
    return states
