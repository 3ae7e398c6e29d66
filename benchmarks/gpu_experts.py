"""Mixtures of experts with dummy weights: decoding at several batch sizes and a crowd at once; or with --kernels their
products alone.

    python benchmarks/gpu_experts.py [--shapes qwen3-30b-a3b gpt-oss-20b:mxfp4] [--sequences 1 16 64] [--crowd 256]
    python benchmarks/gpu_experts.py --expert-memory device 20GB host [--layers 12] [--sequences 1 --wanted 32 --crowd
    0] python benchmarks/gpu_experts.py --kernels [--shapes qwen3-30b-a3b] [--rows 1 4 16 64 256 4096]
    benchmarks/gpu_bench.sh experts ...    where sgl cannot be installed

With --expert-memory a line for each place: experts in main memory, all or those that the bytes on the device do not
hold, with the bytes that they brought over the bus, compared with one large copy over the bus.

With --deep also the share of what a large copy moves: all weights but the embeddings and the tokens that are kept, read
once a step.

128 tokens in and 256 (--wanted) out for each batch, 512 and 128 for the crowd; medians of three; output tokens a
second.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from gpu_kernel_experts import copy_rate
from gpu_report import text_table
from gpu_session import where
from gpu_shapes import MIXTURES, Shape, shape_of, write_model
from gpu_work import generate, median_rate, prompts, repeated, rested

import sgl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=["qwen3-30b-a3b", "gpt-oss-20b:mxfp4"],
        help=f"NAME or NAME:WEIGHTS; names: {', '.join(MIXTURES)}",
    )
    parser.add_argument("--layers", type=int, help="of the shapes, if not all")
    parser.add_argument("--sequences", nargs="*", type=int, default=[1, 16, 64])
    parser.add_argument(
        "--wanted",
        type=int,
        default=256,
        help="tokens out of each of `sequences`: fewer where all experts cross the bus for each",
    )
    parser.add_argument("--crowd", type=int, default=256, help="sequences of 512 and 128 tokens at once; 0: none")
    parser.add_argument(
        "--deep",
        type=int,
        default=0,
        help="this many sequences go on after 4,096 tokens each; the time of the prompts is left out",
    )
    parser.add_argument("--attention", default="auto")
    parser.add_argument(
        "--expert-memory",
        nargs="+",
        default=["device"],
        help="where experts are stored: device, host, or bytes of the device such as 20GB",
    )
    parser.add_argument("--kv-tokens", type=int, help="of the pool, if not as many as there is memory for")
    parser.add_argument("--kernels", action="store_true", help="the products alone, over several tiles")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 64, 256, 4096])
    parser.add_argument(
        "--tokens", type=int, help="of the tokenizer, if not as many as the model has: fewer are there sooner"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.kernels:
        from gpu_kernel_experts import measure

        for name in args.shapes:
            measure(shape_of(name.partition(":")[0]), args.rows)
        return
    found: list[dict[str, Any]] = []
    for name, memory in product(args.shapes, args.expert_memory):
        found.append(measured(*name.partition(":")[::2], memory, args))
        print(json.dumps(found[-1]), flush=True)
        if args.out:
            args.out.write_text(json.dumps({"where": where(), "found": found}, indent=1))
    names = list(dict.fromkeys(name for one in found for name in one))
    print(
        text_table(
            names,
            [
                [f"{one[name]:,.1f}" if isinstance(one.get(name), float) else one.get(name, "") for name in names]
                for one in found
            ],
        )
    )


def measured(name: str, weights: str, memory: str, args: argparse.Namespace) -> dict[str, Any]:
    shape, weights = shape_of(name, args.layers), weights or "auto"
    options: dict[str, Any] = (
        {"device": "cpu", "dtype": "float32", "kv_tokens": 40_000}
        if shape.small
        else {"device": "cuda", "dtype": "bfloat16"}
    )
    options |= {"kv_tokens": args.kv_tokens} if args.kv_tokens else {}
    if args.deep:
        copy_rate()  # before there is an engine, whose captures waiting for the device would end
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        model, vocab = write_model(Path(folder) / shape.name, shape, args.tokens), args.tokens or shape.vocab
        with sgl.Engine(
            model,
            dummy=True,
            weights=weights,
            context=shape.context,
            expert_memory=memory,
            attention=args.attention,
            **options,
        ) as engine:
            info = engine.info()
            row: dict[str, Any] = {
                "shape": name,
                "weights": weights,
                "ready s": time.perf_counter() - started,
                "GB": info["memory"]["weights"] / 1e9,
            }
            row |= of_places(info["expert_memory"])
            row["layers by"] = ", ".join(
                sorted({f"{row['executor']}{': ' + row['why'] if row['why'] else ''}" for row in info["layers"]})
            )
            rested(engine)
            for count in args.sequences:
                before = engine.stats()
                row[f"{count} sequences"] = rate(engine, vocab, count, 128, args.wanted)
                if args.expert_memory != ["device"]:
                    row[f"GB/s, {count} sequences"] = brought(engine.stats() - before)
            if args.deep:
                row[f"{args.deep} x 4k, decoding"] = found = rate_after_prompts(engine, vocab, args.deep)
                row["share of copies"] = found / args.deep * step_bytes(engine, shape, args.deep) / copy_rate()
            if args.crowd:
                row[f"{args.crowd} x (512+128)"] = rate(engine, vocab, args.crowd, 512, 128)
    gc.collect()
    torch.cuda.empty_cache()
    return row


def of_places(experts: dict[str, Any]) -> dict[str, Any]:
    """Where experts are stored; nothing where all are on the device."""
    row: dict[str, Any] = {"experts": str(experts["asked"])}
    if "token_bytes" in experts:
        row |= {
            "host GB": experts["host_bytes"] / 1e9,
            "room GB": experts["room_bytes"] / 1e9,
            "GB a token": experts["token_bytes"] / 1e9,
            "bus GB/s": bus(),
        }
    return row


def bus() -> float:
    """GB/s of copies of 1 GB from locked main memory, the best of five."""
    source, target = (
        torch.empty(10**9, dtype=torch.uint8, pin_memory=True),
        torch.empty(10**9, dtype=torch.uint8, device="cuda"),
    )
    best, stream = 0.0, torch.cuda.current_stream()  # waiting for the whole device would end the engine's captures
    for _ in range(5):
        stream.synchronize()
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        stream.synchronize()
        best = max(best, 1 / (time.perf_counter() - started))
    return best


def brought(spent: Any) -> float:
    """GB/s of experts over the bus while steps ran."""
    return spent.expert_bytes / 1e9 / spent.step_seconds if spent.step_seconds else 0.0


def rate_after_prompts(engine: sgl.Engine, vocab: int, count: int, given: int = 4096) -> float:
    """Output tokens/s of `count` sequences after prompts, the median of three."""

    def once(seed: int) -> float:
        short, long = (generate(engine, prompts(count, given, vocab, seed), wanted).seconds for wanted in (16, 144))
        return count * 128 / (long - short)

    return statistics.median(once(seed) for seed in range(3))


def step_bytes(engine: sgl.Engine, shape: Shape, count: int, given: int = 4096 + 80) -> float:
    """That a step of so many sequences reads at least: all weights but the
    embeddings, and what is kept of each token.
    """
    info = engine.info()
    return (
        info["memory"]["weights"]
        - 2 * shape.vocab * shape.hidden
        + count * given * info["kv_bytes"] / info["kv_tokens"]
    )


def rate(engine: sgl.Engine, vocab: int, count: int, given: int, wanted: int) -> float:
    """Output tokens a second."""
    return median_rate(repeated(3, lambda seed: generate(engine, prompts(count, given, vocab, seed), wanted)))


if __name__ == "__main__":
    main()
