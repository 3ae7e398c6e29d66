"""Plain texts next to hostile requests in one engine, for grammar_stalls.py."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sgl.grammars import GrammarError, compile_json_schema
from sgl.runtime import Engine, SamplingParams
from sgl.runtime.common.thread_priority import yield_priority
from sgl.runtime.sequences.grammar_compile_pool import THREADS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cpu"))
PLAIN, TOGETHER, LONGEST = 4, 12, 24  # plain texts at a time, hostile ones, and most tokens of these
SCHEMA = {
    "properties": {
        "city": {"type": "string"},
        "guests": {"type": "integer"},
        "notes": {"type": "array", "items": {"type": "string", "minLength": 40}},
    },
    "required": ["city", "guests", "notes"],
}
ALONE_SECONDS = 10.0


class Plain:
    """Texts one after the other, of which every other has a schema; notes when each token comes that comes alone.

    Several come together where the first ones wait for the rest of a character, which is no wait for others.
    """

    def __init__(self, engine: Engine, number: int) -> None:
        self.engine, self.number, self.waits = engine, number, list[tuple[float, float]]()
        self.grammar = compile_json_schema(SCHEMA, engine.vocabulary).prepared() if number % 2 else None
        self.going = True
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        count = 0
        while self.going:
            sequence, last = self.engine.open(), [0.0]

            def heard(chunk: Any, last: list[float] = last) -> None:
                now = time.perf_counter()
                if last[0] and len(chunk.token_ids) == 1:
                    self.waits.append((last[0], now))
                last[0] = now

            sequence.extend(
                self.engine.tokenizer.encode(f"Once upon a time {self.number} {count}", special_prefix=True)
            )
            sequence.generate(
                SamplingParams(max_tokens=200, temperature=1.0, seed=count, error_on_truncation=False),
                self.grammar,
                heard,
            ).result()
            sequence.close()
            count += 1


class Hostiles:
    """So many of them, a few at a time; how they ended."""

    def __init__(self, engine: Engine, count: int, seed: int, grammars: bool) -> None:
        self.engine, self.grammars, self.ended = engine, grammars, Counter[str]()
        self.left, self.draw = count, random.Random(seed)
        self.lock, self.compiling = threading.Lock(), ThreadPoolExecutor(THREADS, initializer=yield_priority)
        self.slowest = (0.0, "")

    def run(self) -> None:
        with ThreadPoolExecutor(TOGETHER) as pool:
            for future in [pool.submit(self._serve) for _ in range(TOGETHER)]:
                future.result()

    def _serve(self) -> None:
        from hostile_requests import hostile

        while True:
            with self.lock:
                if not self.left:
                    return
                self.left -= 1
                request, seed = hostile(self.draw), self.draw.randrange(10**6)
                tokens = self.draw.randrange(2, LONGEST)
            began, how = time.perf_counter(), "text"
            try:
                self._answer(request, tokens, seed)
            except GrammarError as error:
                how = f"{type(error).__name__}: {str(error)[:60]}"
            with self.lock:
                self.ended[how] += 1
                self.slowest = max(
                    self.slowest, (time.perf_counter() - began, f"{request.name}: {str(request.source)[:80]}")
                )

    def _answer(self, request: Any, tokens: int, seed: int) -> None:
        grammar = None
        if self.grammars:
            grammar = self.compiling.submit(lambda: request.compile(self.engine.vocabulary).prepared()).result()
        sequence = self.engine.open()
        sequence.extend(self.engine.tokenizer.encode(f"Value {seed}: ", special_prefix=True))
        params = SamplingParams(
            max_tokens=tokens, temperature=1.5, seed=seed, error_on_truncation=False, close_at_limit=seed % 4 == 0
        )
        sequence.generate(params, grammar).result()
        sequence.close()


class Collections:
    """When Python's cyclic garbage was collected in full, which stops every thread."""

    def __init__(self) -> None:
        self.times: list[list[float]] = []
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            if phase == "start":
                self.times.append([time.perf_counter(), 0.0])
            else:
                self.times[-1][1] = time.perf_counter()

    def apart(self, waits: np.ndarray) -> np.ndarray:
        """The waits in which there was none."""
        within = np.zeros(len(waits), bool)
        for began, ended in self.times:
            within |= (waits[:, 0] < ended) & (waits[:, 1] > began)
        return waits[~within]


def measured(engine: Engine, others: Hostiles | None) -> np.ndarray:
    """Of each token of plain texts but the first, when the one before it came and when it came itself, in seconds."""
    plain = [Plain(engine, number) for number in range(PLAIN)]
    for each in plain:
        each.thread.start()
    if others is None:
        time.sleep(ALONE_SECONDS)
    else:
        others.run()
    for each in plain:
        each.going = False
    for each in plain:
        each.thread.join()
    return np.array([wait for each in plain for wait in each.waits])


def row(name: str, waits: np.ndarray) -> str:
    found = (waits[:, 1] - waits[:, 0]) * 1e3
    quantiles = "  ".join(f"{np.quantile(found, q):7.1f}" for q in (0.5, 0.99, 0.999))
    return f"{name:44} {len(found):9} {quantiles}  {found.max():7.1f}  {(found > 50).sum():6}"


def measure_next_to_hostile_requests(count: int, seed: int, apart: bool) -> None:
    with Engine(threads=1, max_running=32, grammar_process=apart) as engine:
        measured(engine, Hostiles(engine, 20, seed + 1, False))
        print(
            f"{'milliseconds between tokens of':44} {'tokens':>9}     p50      p99    p99.9      max  over 50",
            flush=True,
        )
        print(row("plain texts alone", measured(engine, None)), flush=True)
        print(
            row("next to requests without grammars", measured(engine, Hostiles(engine, count, seed, False))), flush=True
        )
        before, began, collected = engine.stats(), time.perf_counter(), Collections()
        hostiles = Hostiles(engine, count, seed, True)
        found = measured(engine, hostiles)
        after, seconds = engine.stats(), time.perf_counter() - began
        compiled = engine.info()["grammars"]["compiled"]
        print(row("next to hostile requests", found), flush=True)
        print(row("  of these, while no garbage was collected", collected.apart(found)))
    print(
        f"{count} hostile requests in {seconds:.0f} s; {after.late_masks - before.late_masks} tokens of "
        f"{after.generated_tokens - before.generated_tokens} waited for their grammars outside of the loop"
    )
    print(f"grammars were compiled {compiled}")
    print(
        "full collections of Python's garbage took, in ms: "
        f"{', '.join(f'{(b - a) * 1e3:.0f}' for a, b in collected.times) or 'none'}"
    )
    print(f"the slowest request took {hostiles.slowest[0]:.1f} s: {hostiles.slowest[1]}")
    for how, times in hostiles.ended.most_common():
        print(f"  {times:6} {how}")
