"""Runs of the engine on token ids, timed: what the cases of the GPU benchmark are made of."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

import sgl
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.errors import RuntimeFailure
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.generation import Generation

FIRST_PLAIN_ID = 300  # after special tokens and bytes
REST = 12.0  # seconds
PATIENCE = 150  # seconds; a batch that is not done by then has failed


@dataclass(slots=True)
class Run:
    """One pass over a batch. `tokens` were generated, `forced` of them by a grammar without sampling."""

    seconds: float
    tokens: int
    forced: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def prompts(count: int, length: int, vocab: int, seed: int, shared: int = 0) -> list[np.ndarray]:
    """`count` rows of random ids, int32 [shared + length]; the first `shared` are the same in all."""
    draw = np.random.default_rng(seed)
    head = draw.integers(FIRST_PLAIN_ID, vocab, shared)
    rows = draw.integers(FIRST_PLAIN_ID, vocab, (count, length))
    return [np.concatenate([head, row]).astype(np.int32) for row in rows]


def generate(
    engine: sgl.Engine,
    rows: Sequence[np.ndarray],
    tokens: int,
    temperature: float = 0.0,
    grammars: Sequence[Any] | None = None,
) -> Run:
    """All rows at once on a cold cache, `tokens` new ones each; the wall time until the last is there."""
    engine.flush_cache()
    params = [
        SamplingParams(max_tokens=tokens, temperature=temperature, ignore_eos=True, seed=i) for i in range(len(rows))
    ]
    given = grammars or [None] * len(rows)
    started = time.perf_counter()
    with opened(engine, rows) as sequences:
        futures = [s.generate(p, g) for s, p, g in zip(sequences, params, given, strict=True)]
        results: list[Generation] = [
            future.result(max(0.0, started + PATIENCE - time.perf_counter())) for future in futures
        ]
        seconds = time.perf_counter() - started
    made = sum(len(result.token_ids) for result in results)
    if grammars is None and made != tokens * len(rows):
        raise RuntimeError(f"{made} tokens came back, {tokens * len(rows)} were asked for")
    return Run(seconds, made, sum(result.forced_tokens for result in results))


def rested(engine: sgl.Engine) -> None:
    """Once it has captured the graphs that are captured while it is idle: others are captured before it is ready. In
    another
    process: after a while.
    """
    runner, until = getattr(engine._core, "runner", None), time.monotonic() + 120
    while getattr(runner, "_ahead", None) is not None and time.monotonic() < until:
        time.sleep(0.05)
    if runner is None and torch.cuda.is_available():
        time.sleep(REST)


@contextmanager
def opened(engine: sgl.Engine, rows: Sequence[np.ndarray]) -> Iterator[list[Any]]:
    sequences = [engine.open() for _ in rows]
    try:
        for sequence, ids in zip(sequences, rows, strict=True):
            sequence.extend(ids)
        yield sequences
    finally:
        for sequence in sequences:
            sequence.close()


def repeated(times: int, work: Callable[[int], Run], warm: int = 1) -> list[Run]:
    """`work(seed)` on fresh prompts: `warm` runs of the same size that do not count, then `times`."""
    for seed in range(warm):
        work(1000 + seed)
    return [work(seed) for seed in range(times)]


def middle(runs: Sequence[Run]) -> Run:
    """The run of the median time (the faster of the middle two)."""
    return sorted(runs, key=lambda run: run.seconds)[(len(runs) - 1) // 2]


def spread(runs: Sequence[Run]) -> float:
    """Slowest over fastest, less one."""
    seconds = [run.seconds for run in runs]
    return max(seconds) / min(seconds) - 1


def median_rate(runs: Sequence[Run]) -> float:
    return statistics.median(run.rate for run in runs)


def alive(engine: sgl.Engine) -> bool:
    """Whether its loop still answers."""
    try:
        engine.stats()
    except RuntimeFailure:
        return False
    return True


def known_options(**options: Any) -> dict[str, Any] | None:
    """The options, or None when this engine lacks one of them."""
    names = {field.name for field in fields(EngineConfig)}
    return options if set(options) <= names else None
