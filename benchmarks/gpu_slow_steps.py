"""Which steps make streams wait: requests that come as a Poisson process, and all at once, traced step by step.

    python benchmarks/gpu_slow_steps.py [--shape llama8b] [--rates 16 32] [--burst 600]

Lengths as in gpu_serve.py. Printed of each load: the longest steps, with what they computed; and the time of all steps
by kind.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from gpu_report import text_table
from gpu_serve import requests
from gpu_shapes import SHAPES, shape_of, write_model

import sgl
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.watch.step_trace import StepRecord

LONGEST = 8
BORDERS = (0, 1, 16, 64, 256, 1024, 4096, 1 << 30)  # new tokens of prompts in a step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama8b")
    parser.add_argument("--rates", nargs="*", type=float, default=[16.0, 32.0])
    parser.add_argument("--window", type=float, default=10)
    parser.add_argument("--burst", type=int, default=600)
    parser.add_argument("--running", nargs="+", type=int, default=[256])
    args = parser.parse_args()
    shape = shape_of(args.shape)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / shape.name, shape)
        for running in args.running:
            with sgl.Engine(model, device="cuda", dtype="bfloat16", dummy=True, max_running=running) as engine:
                for rate in [*args.rates, math.inf]:
                    if rate == math.inf and not args.burst:
                        continue
                    print(f"\n== {rate:g} requests/s, max_running={running}")
                    report(engine, load(engine, rate, args, shape.vocab))


def load(engine: sgl.Engine, rate: float, args: argparse.Namespace, vocab: int) -> list[StepRecord]:
    engine.flush_cache()
    wanted = requests(rate, args.window, args.burst, vocab, 1.0, 1)
    futures, opened, started, before = [], [], time.perf_counter(), engine.stats()
    with engine.trace_steps() as records:
        for one in wanted:
            time.sleep(max(0.0, started + one.at - time.perf_counter()))
            sequence = engine.open()
            sequence.extend(one.prompt)
            opened.append(sequence)
            futures.append(sequence.generate(SamplingParams(max_tokens=one.tokens, temperature=0, ignore_eos=True)))
        made = sum(len(future.result(120).token_ids) for future in futures)
        seconds = time.perf_counter() - started
    for sequence in opened:
        sequence.close()
    after = engine.stats()
    print(
        f"{made / seconds:,.0f} output tokens/s; waited {after.compile_seconds - before.compile_seconds:.2f} s for "
        "compiles, "
        f"{after.capture_seconds - before.capture_seconds:.2f} s for captures"
    )
    return records


def report(engine: sgl.Engine, records: list[StepRecord]) -> None:
    rows = []
    for record in sorted(records, key=lambda one: -one.seconds)[:LONGEST]:
        singles = sum(part.tokens == 1 for part in record.parts)
        chunks = [part.tokens for part in record.parts if part.tokens > 1]
        rows.append(
            (
                f"{record.began - records[0].began:.2f}",
                f"{1e3 * record.seconds:.1f}",
                singles,
                len(chunks),
                sum(chunks),
                len(record.waiting),
            )
        )
    print(text_table(("at s", "ms", "decoding", "prompts", "their tokens", "waiting"), rows))
    kinds: dict[tuple[int, int], list[StepRecord]] = defaultdict(list)
    for record in records:
        singles = sum(part.tokens == 1 for part in record.parts)
        kinds[_kind(record.tokens - singles), 1 << max(0, singles - 1).bit_length()].append(record)
    rows = []
    for (border, singles), found in sorted(kinds.items()):
        total = sum(record.seconds for record in found)
        rows.append(
            (
                f"up to {BORDERS[border]}",
                f"up to {singles}",
                len(found),
                f"{1e3 * total / len(found):.2f}",
                f"{1e3 * max(r.seconds for r in found):.1f}",
                f"{total:.2f}",
                f"{sum(r.tokens for r in found) / total:,.0f}",
            )
        )
    print(text_table(("prompt tokens", "decoding", "steps", "ms each", "most", "s in all", "tokens/s"), rows))
    gaps = [b.began - a.began - a.seconds for a, b in itertools.pairwise(records)]
    print(
        f"between steps: {sum(gaps):.2f} s in all, most {1e3 * max(gaps):.1f} ms; steps "
        f"{sum(r.seconds for r in records):.2f} s"
    )


def _kind(tokens: int) -> int:
    return next(index for index, border in enumerate(BORDERS) if tokens <= border)


if __name__ == "__main__":
    main()
