"""4-bit weights against bfloat16 and float8 in one run: decoding at several batch sizes, and a crowd at once, dummy
weights.

    python benchmarks/gpu_few_bits.py [--shape llama8b] [--weights auto fp8 int4] [--sequences 1 16 64] [--crowd 256]
    benchmarks/gpu_bench.sh few ...    where sgl cannot be installed

128 tokens in and 256 out for each batch, 512 and 128 for the crowd; medians of three; output tokens a second.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gpu_report import text_table
from gpu_session import where
from gpu_shapes import SHAPES, Shape, shape_of, write_model
from gpu_work import generate, median_rate, prompts, repeated, rested

import sgl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama8b")
    parser.add_argument("--weights", nargs="+", default=["auto", "fp8", "int4"])
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--crowd", type=int, default=256, help="sequences of 512 and 128 tokens at once; 0: none")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shape, found = shape_of(args.shape), []
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / shape.name, shape)
        for weights in args.weights:
            found.append(measured(model, shape, weights, args))
            print(json.dumps(found[-1]), flush=True)
            if args.out:
                args.out.write_text(json.dumps({"where": where(), "found": found}, indent=1))
    names = list(found[0])
    print(
        text_table(
            names,
            [[f"{one[name]:,.1f}" if isinstance(one[name], float) else one[name] for name in names] for one in found],
        )
    )


def measured(model: Path, shape: Shape, weights: str, args: argparse.Namespace) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    with sgl.Engine(
        model, device="cuda", dtype="bfloat16", dummy=True, weights=weights, context=shape.context
    ) as engine:
        row: dict[str, Any] = {
            "weights": weights,
            "ready s": time.perf_counter() - started,
            "GB": engine.info()["memory"]["weights"] / 1e9,
        }
        rested(engine)
        for count in args.sequences:
            row[f"{count} sequences"] = rate(engine, shape, count, 128, 256)
        if args.crowd:
            row[f"{args.crowd} x (512+128)"] = rate(engine, shape, args.crowd, 512, 128)
    gc.collect()
    torch.cuda.empty_cache()
    return row


def rate(engine: sgl.Engine, shape: Shape, count: int, given: int, wanted: int) -> float:
    """Output tokens a second."""
    return median_rate(repeated(3, lambda seed: generate(engine, prompts(count, given, shape.vocab, seed), wanted)))


if __name__ == "__main__":
    main()
