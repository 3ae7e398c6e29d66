"""The time to sample one token for each row on a CPU: the compiled kernel against the same operations in torch.

    python benchmarks/cpu_sampling.py [--threads 1] [--rounds 15] [--keep]

Logits are random, masks allow half of all tokens. It prints microseconds a step, the medians of the rounds,
both ways in turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from bench_results import keep_text, table

from sgl.runtime.layers import cpu_kernels
from sgl.runtime.sampling import Sampler, SamplingBatch, SamplingParams, SamplingRow

COLUMNS = ("vocabulary", "rows", "asked", "kernel us", "torch us", "times as fast")
WIDTHS, ROWS = (8192, 151_936), (1, 8, 64)
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "greedy, masked": {"temperature": 0},
    "drawn": {},
    "drawn, masked": {},
    "drawn from top_p": {"top_p": 0.9},
    "drawn from top_k": {"top_k": 40},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/cpu_sampling.txt")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if cpu_kernels.kernels is None:
        sys.exit("there are no compiled kernels here: build sgl with a C compiler at hand")
    cpu_kernels.set_threads(args.threads)
    rows = [compared(width, count, asked, args.rounds) for width in WIDTHS for count in ROWS for asked in ASKED]
    table(COLUMNS, rows)
    if args.keep:
        keep_text("cpu_sampling", "\n".join("  ".join(row) for row in (COLUMNS, *rows)) + "\n")


def compared(width: int, count: int, asked: str, rounds: int) -> tuple[str, ...]:
    draw = np.random.default_rng(width)
    logits = torch.from_numpy(draw.normal(0, 3, (count, width)).astype(np.float32))
    batch = SamplingBatch([SamplingRow(SamplingParams(**ASKED[asked]), seed) for seed in range(count)])
    masks = (
        [draw.integers(-(2**31), 2**31, (width + 31) // 32).astype(np.int32) for _ in range(count)]
        if "masked" in asked
        else None
    )
    samplers = Sampler(width), Sampler(width)
    samplers[1].kernels = None
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(rounds + 1):
        for sampler, taken in zip(samplers, seconds, strict=True):
            began = time.perf_counter()
            sampler.sample(logits, batch, list(range(count)), masks)
            taken.append(time.perf_counter() - began)
    ours, theirs = (1e6 * statistics.median(taken[1:]) for taken in seconds)
    return str(width), str(count), asked, f"{ours:.0f}", f"{theirs:.0f}", f"{theirs / ours:.1f}"


if __name__ == "__main__":
    main()
