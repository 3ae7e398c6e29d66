"""The runtime on one GPU: a model of Llama-3.1-8B's shape with dummy weights, against vLLM's published figures; or
of another shape (`--shape gemma3-4b`, `--shape qwen3-4b`), against its rooflines only.

    python benchmarks/gpu_llama8b.py [--shape SHAPE] [--cases 2,3,5] [--quick] [--keep]
    GIT_COMMIT=$(git rev-parse --short HEAD) benchmarks/gpu_bench.sh ...   where sgl cannot be installed

1 ready: process start to first token        2 one sequence, 128 in, 256 out
3 256 x (512 in, 128 out) at once            4 256 x (3,000 shared + 64 in, 32 out), cold
5 prefill 64 x 2,048                         6 JSON schemas with 1, 8, 64, 256 sequences against free text
7 tree of thought, 64 programs               8 transformers' generate in the same run
idle           share of a decode step in which no kernel runs, kernels by time (batch 1 and 256)
deterministic  cases 2 and 3 in deterministic mode        fp8  cases 2 and 3 with fp8 weights and KV cache
--attention triton,flashinfer runs cases 2 and 3 with each. `--shape tiny --device cpu` tries the script out.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gpu_cases import TINY, Sizes
from gpu_session import Session, where
from gpu_shapes import SHAPES, shape_of, write_model

CASES = ("1", "2", "3", "4", "5", "6", "7", "8", "idle", "deterministic", "fp8")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="some of " + ",".join(CASES))
    parser.add_argument("--attention", default="", help="backends to compare on cases 2 and 3, e.g. triton,flashinfer")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama8b")
    parser.add_argument("--layers", type=int, help="fewer layers, for a quick look")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="one run of each instead of the median of three")
    parser.add_argument("--temperature", type=float, default=0.0, help="of cases 2 to 5")
    parser.add_argument(
        "--checkpoint", type=Path, help="case 1 reads weights from here too; written first if need be (16 GB)"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="of the engine, e.g. page_size=16"
    )
    parser.add_argument(
        "--limit", type=int, default=580, help="seconds after which everything is given up, with stacks printed"
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON here, case by case")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/gpu_SHAPE.json and .txt")
    args = parser.parse_args()
    args.cases = [case for case in args.cases.split(",") if case]
    if unknown := [case for case in args.cases if case not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}; known: {', '.join(CASES)}")
    if args.checkpoint and SHAPES[args.shape].keys:
        parser.error(f"--checkpoint is written with Llama's tensors, not for --shape {args.shape}")
    return args


def engine_options(args: argparse.Namespace, sizes: Sizes) -> dict[str, Any]:
    """What the engine of every case is opened with."""
    shape = shape_of(args.shape, args.layers)
    chosen: dict[str, Any] = {
        "device": args.device,
        "dummy": True,
        "context": shape.context,
        "max_running": max(sizes.batches[-1], sizes.crowd[0]),
    }
    if args.device == "cpu":
        chosen |= {"threads": 1, "dtype": "float32", "kv_tokens": 20_000}
    for pair in args.option:
        name, _, value = pair.partition("=")
        try:
            chosen[name] = json.loads(value)
        except json.JSONDecodeError:
            chosen[name] = value
    return chosen


def main() -> None:
    started = time.perf_counter()
    args = options()
    faulthandler.dump_traceback_later(args.limit, exit=True)
    shape = shape_of(args.shape, args.layers)
    sizes = TINY if shape.small else Sizes()
    if args.quick:
        sizes = dataclasses.replace(sizes, runs=1)
    print("".join(f"{name}: {value}\n" for name, value in where().items()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / shape.name, shape)
        session = Session(args, shape, sizes, model, engine_options(args, sizes), torch.device(args.device))
        session.run()
    faulthandler.cancel_dump_traceback_later()
    session.say(f"all in {time.perf_counter() - started:.0f} s")
    session.finish()


if __name__ == "__main__":
    main()
