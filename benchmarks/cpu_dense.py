"""Products of weights as they are on this CPU, one thread: by AVX2, by AVX-512 and by AMX where they are there, and by
torch.

    python benchmarks/cpu_dense.py [--keep]
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 python benchmarks/cpu_dense.py

The second line has torch as it is without AVX-512. Gflop/s, best of some runs; weights [2048, 1024] and [1024, 2816].
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.bench_results import keep_text, table
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.linear_layers import BlockedLinear

SIZES, ROWS = ((2048, 1024), (1024, 2816)), (1, 2, 8, 32, 128, 512)
WAYS = {1: "AVX2", 2: "AVX-512", 3: "AMX"}


def rate(outputs: int, inputs: int, rows: int, run: Callable[[], object]) -> float:
    """Gflop/s."""
    best = float("inf")
    for _ in range(5 if rows > 100 else 40):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return 2 * outputs * inputs * rows / best / 1e9


def line(dtype: torch.dtype, outputs: int, inputs: int, rows: int) -> tuple[str, ...]:
    weight, x = torch.randn(outputs, inputs).to(dtype), torch.randn(rows, inputs).to(dtype)
    blocked, found = (
        BlockedLinear(weight, None),
        [str(dtype).removeprefix("torch."), f"[{outputs}, {inputs}]", str(rows)],
    )
    best = cpu_kernels.kernels.FLOAT32 if dtype == torch.float32 else cpu_kernels.kernels.BFLOAT16
    for way in WAYS:
        if way <= best:
            cpu_kernels.kernels.set_dense_way(cpu_kernels.KINDS[dtype], way)
        found.append(f"{rate(outputs, inputs, rows, lambda: blocked(x)):.0f}" if way <= best else "-")
    return (*found, f"{rate(outputs, inputs, rows, lambda: torch.nn.functional.linear(x, weight)):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/cpu_dense.txt")
    args = parser.parse_args()
    if cpu_kernels.kernels is None or not cpu_kernels.kernels.FLOAT32:
        raise SystemExit("needs the compiled kernels and AVX2")
    torch.set_num_threads(1)
    cpu_kernels.set_threads(1)
    torch.manual_seed(0)
    lines = [line(dtype, *size, rows) for dtype in cpu_kernels.KINDS for size in SIZES for rows in ROWS]
    limits = {
        name: os.environ[name]
        for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
        if name in os.environ
    }
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print(f"torch with {limits or 'all that this CPU has'}")
        table(("dtype", "weights", "rows", *WAYS.values(), "torch"), lines)
    print(printed.getvalue())
    if args.keep:
        keep_text("cpu_dense", printed.getvalue())


if __name__ == "__main__":
    with torch.inference_mode():
        main()
