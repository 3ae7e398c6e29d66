"""Talks that come back after the pool has forgotten them: what does main memory save?

    python benchmarks/host_tier.py [--talks 32] [--turns 5] [--pool 0.25] [--host 1GB] [--threads 1] [--keep]
    python benchmarks/host_tier.py --shape llama8b --device cuda --said 400 --answer 32 --host 40GB

Every turn of every talk is a request with all that was said before, so that a talk's pages are needed again after all
the others had their turn. The pool has room for a share of all tokens. Without --shape the bundled model answers, with
it random weights of that shape. Answers are greedy, and compared.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_results import keep_text
from gpu_shapes import SHAPES, shape_of, write_model

from sgl.runtime import Engine, Generation, SamplingParams
from sgl.runtime.cache.host_kv_pages import HostKVPages

VOCABULARY = range(100, 4000)
Row = list[int]


class Talks:
    """The same for every engine, but for what it answers."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.random = args, random.Random(1)
        system = self._tokens(args.system)
        self.rows = [list(system) for _ in range(args.talks)]
        self.params = SamplingParams(max_tokens=args.answer, temperature=0, ignore_eos=True)
        self.first: list[float] = []  # seconds to each answer's first token
        self.answers: dict[int, list[Row]] = {index: [] for index in range(args.talks)}

    def _tokens(self, count: int) -> Row:
        return self.random.choices(VOCABULARY, k=count)

    def turn(self, engine: Engine) -> None:
        """Everybody once, in random order, some at a time."""
        order = self.random.sample(range(len(self.rows)), len(self.rows))
        for start in range(0, len(order), self.args.at_once):
            asked = {index: self._ask(engine, index) for index in order[start : start + self.args.at_once]}
            for index, future in asked.items():
                self.answers[index].append(future.result().token_ids)
                self.rows[index] += future.result().token_ids

    def _ask(self, engine: Engine, index: int) -> Future[Generation]:
        self.rows[index] += self._tokens(self.args.said)
        started, times = time.perf_counter(), self.first
        sequence, seen = engine.open(), []

        def note(chunk: Any) -> None:
            if not seen:
                seen.append(times.append(time.perf_counter() - started))

        sequence.extend(self.rows[index])
        return sequence.generate(self.params, on_chunk=note)


def measure(args: argparse.Namespace, model: Path | None, **options: Any) -> tuple[Talks, dict[str, float]]:
    talks = Talks(args)
    with Engine(model, device=args.device, threads=args.threads, dummy=model is not None, **options) as engine:
        engine.generate("warm up", max_tokens=8)
        engine.flush_cache()
        before, started = engine.stats(), time.perf_counter()
        for _ in range(args.turns):
            talks.turn(engine)
        seconds = time.perf_counter() - started
        stats = engine.stats() - before
    return talks, {
        "computed": stats.computed_tokens,
        "hit rate": stats.hit_rate,
        "from main memory": stats.host_hits,
        "kept there": stats.host_tokens,
        "seconds": seconds,
        "first token ms (p50)": 1000 * float(np.median(talks.first)),
        "first token ms (p95)": 1000 * float(np.quantile(talks.first, 0.95)),
    }


def copies(args: argparse.Namespace, model: Path | None) -> str:
    """Seconds of the ways between the pool and main memory, for 2,048 tokens of this model."""
    with Engine(model, device=args.device, threads=args.threads, dummy=model is not None, kv_tokens=64) as engine:
        pool, layout = engine._core.runner.attention.pool, engine._core.runner.model.config.attention
        dtype, device = pool.dtype, pool.device
    pool = layout.pool(4096, dtype, device)
    host, count = HostKVPages(pool, 1, 2049), 2048
    pages = np.random.default_rng(0).permutation(np.arange(1, 4096, dtype=np.int32))[:count]
    places, size = np.arange(1, count + 1, dtype=np.int32), count * layout.bytes_per_slot(dtype)
    lines = []
    for name, work in (("out", lambda: host.save(pages, places)), ("back", lambda: host.load(places, pages))):
        best = min(_seconds(work, device) for _ in range(4))
        lines.append(f"{name} {size / best / 1e9:.1f} GB/s, {1e6 * best / count:.2f} us a token")
    host.close()
    return f"{count} tokens of {size // count:,} bytes: " + "; ".join(lines)


def _seconds(work: Any, device: torch.device) -> float:
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    started = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - started


def report(args: argparse.Namespace, model: Path | None) -> str:
    tokens = args.system + args.talks * args.turns * (args.said + args.answer)
    pool = max(int(args.pool * tokens), 2 * args.at_once * args.turns * (args.said + args.answer))
    kinds = {
        "pool only": {"kv_tokens": pool},
        "pool and main memory": {"kv_tokens": pool, "host_kv": args.host},
        "room for all": {"kv_tokens": 2 * tokens},
    }
    found = {name: measure(args, model, **options) for name, options in kinds.items()}
    plain, (truth, _) = found["pool only"][1], found["room for all"]
    lines = [
        f"{args.talks} talks, {args.turns} turns of {args.said} + {args.answer} tokens, {tokens:,} tokens in all; a "
        f"pool of {pool:,}\n"
    ]
    width = max(map(len, plain))
    lines.append(" " * width + "".join(f"{name:>22}" for name in found))
    for key in plain:
        lines.append(f"{key:<{width}}" + "".join(f"{_shown(figures[key]):>22}" for _, figures in found.values()))
    same = [
        sum(a == b for index in truth.answers for a, b in zip(talks.answers[index], truth.answers[index], strict=True))
        for talks, _ in found.values()
    ]
    lines.append(
        f"{'answers as with room':<{width}}"
        + "".join(f"{f'{count} of {args.talks * args.turns}':>22}" for count in same)
    )
    with_host = found["pool and main memory"][1]
    lines.append(
        f"\nmain memory: {plain['seconds'] / with_host['seconds']:.2f} times as fast, "
        f"{plain['computed'] / with_host['computed']:.2f} times fewer tokens computed"
    )
    return "\n".join([*lines, copies(args, model), ""])


def _shown(value: float) -> str:
    return f"{value:.1%}" if 0 < value < 1 else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--talks", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--system", type=int, default=200, help="tokens that all begin with")
    parser.add_argument("--said", type=int, default=120, help="tokens a turn")
    parser.add_argument("--answer", type=int, default=16, help="tokens a turn")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--pool", type=float, default=0.25, help="share of all tokens that the KV pool has room for")
    parser.add_argument("--host", default="1GB")
    parser.add_argument(
        "--shape", choices=tuple(SHAPES), help="random weights of this shape instead of the bundled model"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/host_tier_DEVICE.txt")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shape = args.shape and shape_of(args.shape)
        text = report(args, write_model(Path(folder) / shape.name, shape) if shape else None)
    print(text)
    if args.keep:
        keep_text(f"host_tier_{'cuda' if args.device != 'cpu' and torch.cuda.is_available() else 'cpu'}", text)


if __name__ == "__main__":
    main()
