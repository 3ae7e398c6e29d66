"""The gain of keys and values in float8 on a CPU: seconds of a decode step after long contexts, against those in the
model's dtype.

    python benchmarks/kv_float8.py [--threads 2] [--sequences 1] [--keep]

A model of random weights (Llama's shape, 24 layers, hidden 1,024, 16 and 8 heads of 64) decodes on pools of random keys
and values; nothing is prefilled. Steps of both pools alternate, so that both see the same machine; medians. --keep
writes results/kv_float8.txt.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch

from benchmarks.bench_results import keep_text, machine
from sgl.runtime.attention import attention_backend
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.float8_reference import FP8
from sgl.runtime.loading.load_weights import dummy_model
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.families import read_model
from sgl.runtime.quantization import transform_for
from sgl.runtime.step.step_batch import StepBatch

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "vocab_size": 32_000,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
CONTEXTS = (1024, 4096, 16_384, 32_768)
STEPS = 7


class Decoding:
    """Steps of one token for each sequence, all after `context` tokens."""

    def __init__(self, model: Decoder, kept: torch.dtype, context: int, sequences: int) -> None:
        self.model, layout = model, model.config.attention
        self.pool = layout.pool(context * sequences + 1, kept)
        for part in self.pool.parts:
            for stored in (part.k, part.v):
                for layer in stored:
                    layer[1:] = torch.randn(layer[1:].shape).to(kept)
        self.attention = attention_backend("cpu", self.pool, layout, dtype=model.dtype)
        slots = np.arange(1, context * sequences + 1, dtype=np.int32).reshape(sequences, context)
        last = torch.from_numpy(slots[:, -1].astype(np.int64))
        ones, positions = [1] * sequences, torch.full((sequences,), context - 1)
        self.batch = StepBatch(
            torch.arange(sequences), positions, last, ones, [context] * sequences, list(slots), torch.arange(sequences)
        )

    def step(self) -> float:
        started = time.perf_counter()
        self.attention.plan(self.batch)
        self.model.forward(self.batch, self.attention)
        return time.perf_counter() - started


def rows(dtype: torch.dtype, weights: str, sequences: int) -> list[dict[str, Any]]:
    model = dummy_model(
        read_model(SHAPE, "the benchmark", None), dtype, transform=transform_for(weights, False, torch.device("cpu"))
    )
    found = []
    for context in CONTEXTS:
        pools = [Decoding(model, kept, context, sequences) for kept in (dtype, FP8)]
        times = [[decoding.step() for decoding in pools] for _ in range(STEPS + 1)][1:]
        plain, eight = (statistics.median(each) for each in zip(*times, strict=True))
        name = str(dtype).removeprefix("torch.")
        found.append(
            {
                "weights": name if weights == "auto" else weights,
                "KV": name,
                "context": context,
                "ms": plain * 1e3,
                "ms, fp8": eight * 1e3,
                "ratio": plain / eight,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    cpu_kernels.set_threads(asked.threads)
    kinds = [(torch.bfloat16, "auto"), (torch.bfloat16, "int4"), (torch.float32, "int4")]
    table = [row for kind in kinds for row in rows(*kind, asked.sequences)]
    lines = ["  ".join(f"{name:>9}" for name in table[0])]
    lines += [
        "  ".join(f"{value:9.2f}" if isinstance(value, float) else f"{value:>9}" for value in row.values())
        for row in table
    ]
    text = f"{machine()}\n{asked.sequences} sequences, {asked.threads} threads\n\n" + "\n".join(lines)
    print(text)
    if asked.keep:
        keep_text("kv_float8", text)


if __name__ == "__main__":
    main()
