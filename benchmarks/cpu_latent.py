"""A decode step of one layer of latent attention on this CPU, compared with the bytes that it must read.

    python benchmarks/cpu_latent.py [--threads 2] [--runs 20] [--contexts 512 4096 32768]

DeepSeek V2-Lite's layer: 2,048 wide, 16 heads of 128 + 64, values of 128, rows of 512 + 64. It must read the
weights and the rows of the context; the last columns are that rate, and its share of what this machine reads when it
only adds numbers up.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bench_results import best_of, table
from sgl.runtime.attention import attention_backend
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.loading.load_weights import dummy_model
from sgl.runtime.models.spec.latent_attention_spec import LatentAttentionSpec
from sgl.runtime.models.spec.model_spec import LayerNorms, LayerSpec, ModelSpec, NormSpec
from sgl.runtime.step.step_batch import StepBatch

RMS = NormSpec(1e-6)
LATENT = LatentAttentionSpec(16, 512, 128, 64, 128, 192**-0.5, RMS, RopeParameters(1e4, 64, 64, interleaved=True))
MODEL = ModelSpec("DeepseekV2", 32, 2048, 2**20, (LayerSpec(LayerNorms(before_mixer=RMS), LATENT, None),), RMS, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4096, 32768])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    cpu_kernels.set_threads(given.threads)
    most, rows = bandwidth(given.runs), []
    for dtype in (torch.float32, torch.bfloat16):
        for context in given.contexts:
            seconds, read = decode(dtype, context, given.runs)
            rows.append(
                (
                    str(dtype).removeprefix("torch."),
                    context,
                    seconds * 1e3,
                    read / 1e6,
                    read / seconds / 1e9,
                    100 * read / seconds / most,
                )
            )
    table(("dtype", "context", "ms", "MB", "GB/s", "% of a sum's"), rows)


def decode(dtype: torch.dtype, context: int, runs: int) -> tuple[float, int]:
    """Seconds of a step of one sequence, and the bytes that it must read."""
    model = dummy_model(MODEL, dtype)
    pool = MODEL.attention.pool(context + 1, dtype)
    backend = attention_backend("auto", pool, MODEL.attention)
    slots = np.random.default_rng(0).permutation(np.arange(1, context + 1)).astype(np.int32)
    one = torch.zeros(1, dtype=torch.int64)
    batch = StepBatch(
        one, one + context - 1, torch.from_numpy(slots[-1:].astype(np.int64)), [1], [context], [slots], one
    )
    backend.plan(batch)
    weights = sum(tensor.nbytes for tensor in model.layers[0].tensors())
    return best_of(runs, lambda: model.forward(batch, backend)), weights + context * MODEL.attention.bytes_per_slot(
        dtype
    )


def bandwidth(runs: int) -> float:
    """Bytes a second."""
    numbers = torch.ones(2**27)
    return numbers.nbytes / best_of(runs, numbers.sum)


if __name__ == "__main__":
    main()
