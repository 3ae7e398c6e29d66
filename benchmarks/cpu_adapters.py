"""Tokens/s of the bundled model on a CPU with adapters on all projections, and of the same rows without.

python benchmarks/cpu_adapters.py --rows 8 --adapters 4 --ranks 8 16
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import sgl
from sgl.runtime.nano import ADAPTERS
from sgl.runtime.sampling.sampling_params import SamplingParams


def write(path: Path, rank: int, seed: int) -> Path:
    """Of the shapes of the adapter that ships, with small random numbers."""
    torch.manual_seed(seed)
    path.mkdir()
    tensors = {}
    for name, tensor in load_file(ADAPTERS / "listings" / "adapter_model.safetensors").items():
        shape = (rank, tensor.shape[1]) if "lora_A" in name else (tensor.shape[0], rank)
        tensors[name] = (torch.randn(shape) / 100).bfloat16()
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    return path


def speed(engine: sgl.Engine, names: list[str | None], tokens: int) -> float:
    """Tokens a second of all rows together, decoding."""
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    sequences = [engine.open(adapter=name) for name in names]
    for i, sequence in enumerate(sequences):
        sequence.extend(list(range(100 + i, 132 + i)))
        sequence.prefill().result()
    begun = time.perf_counter()
    futures = [sequence.generate(params) for sequence in sequences]
    count = sum(len(future.result().token_ids) for future in futures)
    return count / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure adapters on a CPU.")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    for rank in args.ranks:
        with tempfile.TemporaryDirectory() as folder:
            paths = {f"a{i}": write(Path(folder) / str(i), rank, i) for i in range(args.adapters)}
            with sgl.Engine(adapters=paths) as engine:
                rows = [f"a{i % args.adapters}" for i in range(args.rows)]
                pairs = [
                    (speed(engine, [None] * args.rows, args.tokens), speed(engine, [*rows], args.tokens))
                    for _ in range(args.rounds + 1)
                ][1:]
        base, adapted = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(
            f"rank {rank}, {args.rows} rows over {args.adapters} adapters: {adapted:,.0f} tokens/s of the base's "
            f"{base:,.0f} = {adapted / base:.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
