"""A KV pool that is too small: how many tokens are computed twice, and what does it cost?

    python benchmarks/pressure.py [--pool 3072] [--requests 96] [--threads 1] [--keep]

questions      requests over a few long shared prefixes, all at once, answers of very different lengths
conversations  several turns each, every turn a request with the whole history
waves          urgent requests arrive in bursts while patient ones run

"twice" counts the computed tokens beyond the distinct prefixes of all prompts and answers, which a pool without
end would compute once.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from bench_results import keep, table

from sgl.runtime import Engine, SamplingParams

VOCABULARY = range(100, 4000)
STOPS = tuple(range(1, 8192, 2))  # from the wanted length on, every second token ends a text
LONGEST = 320
Row = list[int]


class Load:
    """Requests that are on their way; each is a separate sequence, closed when it ends."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.random = engine, random.Random(seed)
        self.rows: list[Row] = []
        self.latencies: dict[int, list[float]] = {}
        self.errors: list[BaseException] = []
        self._open = 0
        self._changed = threading.Condition()

    def tokens(self, count: int) -> Row:
        return self.random.choices(VOCABULARY, k=count)

    def ask(self, prompt: Row, count: int, then: Callable[[Row], Any] | None = None, priority: int = 0) -> None:
        """Generate about `count` tokens, LONGEST allowed; `then` gets the whole row, on the scheduler thread."""
        started, sequence = time.perf_counter(), self.engine.open(priority)
        with self._changed:
            self._open += 1
        sequence.extend(prompt)
        params = SamplingParams(
            max_tokens=LONGEST, min_tokens=count, stop_token_ids=STOPS, seed=self.random.getrandbits(32)
        )
        future = sequence.generate(params)
        sequence.close()
        future.add_done_callback(lambda done: self._done(done, prompt, priority, started, then))

    def _done(
        self, done: Future[Any], prompt: Row, priority: int, started: float, then: Callable[[Row], Any] | None
    ) -> None:
        if (error := done.exception()) is not None:
            self.errors.append(error)
        else:
            row = prompt + done.result().token_ids
            self.rows.append(row)
            self.latencies.setdefault(priority, []).append(time.perf_counter() - started)
            if then is not None:
                then(row)
        with self._changed:
            self._open -= 1
            self._changed.notify()

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)
        if self.errors:
            raise SystemExit(f"{len(self.errors)} requests failed, the first by: {self.errors[0]}")


def questions(load: Load, requests: int) -> None:
    documents = [load.tokens(load.random.randint(150, 500)) for _ in range(8)]
    for _ in range(requests):
        prompt = load.random.choice(documents) + load.tokens(load.random.randint(10, 150))
        load.ask(prompt, _length(load))


def conversations(load: Load, requests: int) -> None:
    system = load.tokens(120)
    for _ in range(requests // 4):
        _turn(load, system, 4)


def _turn(load: Load, history: Row, turns: int) -> None:
    if turns:
        prompt = history + load.tokens(load.random.randint(10, 80))
        load.ask(prompt, _length(load) // 2 + 1, lambda row: _turn(load, row, turns - 1))


def waves(load: Load, requests: int) -> None:
    documents = [load.tokens(300) for _ in range(8)]
    for _ in range(requests // 2):
        load.ask(load.random.choice(documents) + load.tokens(40), _length(load))
    _wave(load, requests // 2)


def _wave(load: Load, left: int) -> None:
    """Sixteen urgent requests; the next sixteen when the last of them is done."""
    if left > 0:
        count = min(16, left)
        load.ask(load.tokens(60), 60, lambda row: _wave(load, left - count), priority=1)
        for _ in range(count - 1):
            load.ask(load.tokens(60), 20, priority=1)


def _length(load: Load) -> int:
    return min(300, 8 + int(load.random.expovariate(1 / 60)))


def distinct_prefixes(rows: list[Row]) -> int:
    """Nodes of the trie of all rows, without each row's last token (which is not computed)."""
    total, before = 0, np.empty(0, np.int32)
    for row in sorted(row[:-1] for row in rows):
        now = np.array(row, np.int32)
        shared = min(len(now), len(before))
        differs = np.flatnonzero(now[:shared] != before[:shared])
        total += len(now) - (int(differs[0]) if len(differs) else shared)
        before = now
    return total


def measure(args: argparse.Namespace, work: Callable[[Load, int], None]) -> dict[str, Any]:
    with Engine(kv_tokens=args.pool, threads=args.threads, max_running=args.running) as engine:
        load = Load(engine, seed=1)
        before, started = time.process_time(), time.perf_counter()
        engine._core.call(lambda: work(load, args.requests))  # all of it arrives before the next step
        load.wait()
        seconds, busy = time.perf_counter() - started, time.process_time() - before
        stats = engine.stats()
    needed = distinct_prefixes(load.rows)
    return {
        "generated": sum(map(len, load.rows)) and stats.generated_tokens,
        "computed": stats.computed_tokens,
        "twice": stats.computed_tokens - needed,
        "twice_share": (stats.computed_tokens - needed) / needed,
        "hit_rate": stats.hit_rate,
        "preemptions": stats.preemptions,
        "steps": stats.steps,
        "seconds": seconds,
        "cpu_seconds": busy,
        "latency": {
            str(key): [float(np.quantile(values, q)) for q in (0.5, 0.99)] for key, values in load.latencies.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=int, default=3072, help="tokens")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--running", type=int, default=64, help="sequences in a step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/pressure.json")
    args = parser.parse_args()
    found = {work.__name__: measure(args, work) for work in (questions, conversations, waves)}
    table(
        ("", "computed", "twice", "hit rate", "preempted", "steps", "seconds", "of CPU", "p50 s by priority"),
        [
            (
                name,
                f["computed"],
                f"{f['twice']} ({f['twice_share']:.1%})",
                f"{f['hit_rate']:.1%}",
                f["preemptions"],
                f["steps"],
                f"{f['seconds']:.1f}",
                f"{f['cpu_seconds']:.1f}",
                {key: round(v[0], 2) for key, v in sorted(f["latency"].items())},
            )
            for name, f in found.items()
        ],
    )
    if args.keep:
        keep("pressure", {"pool": args.pool, "requests": args.requests, "running": args.running, "figures": found})


if __name__ == "__main__":
    main()
