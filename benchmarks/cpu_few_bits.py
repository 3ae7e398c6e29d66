"""The projections of a step on this CPU by the format that a checkpoint has them in, kept in it and restored.

    python benchmarks/cpu_few_bits.py [--threads 2] [--runs 5] [--rows 1 8 32]

The products of 0.3 billion random weights (24 layers, 1,024 wide, 2,816 within), one after the other, more than a cache
holds.
Formats take turns, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bench_results import table
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.linear_layers import BlockedLinear, Linear
from sgl.runtime.layers.mixed_format_linear import MixedFormatBlockedLinear
from sgl.runtime.quantization.fused_quantized_weight import FusedQuantizedWeight, QuantizedPiece
from sgl.runtime.quantization.quantized_transform import keep_quantized
from sgl.runtime.quantization.quantized_weight import E2M1, DoubleQuantized, QuantizedWeight

LAYERS = 24
SHAPES = {"qkv": (2048, 1024), "output": (1024, 1024), "gate_up": (5632, 1024), "down": (1024, 2816)}
OF_V = 512  # rows of qkv
Drawn = Callable[[int, int], QuantizedWeight]


def codes(outputs: int, inputs: int, levels: int) -> Tensor:
    return torch.randint(0, levels, (outputs, inputs), dtype=torch.uint8)


def halves(outputs: int, groups: int) -> Tensor:
    return (torch.rand(outputs, groups) * 0.01).half()


def folded(outputs: int, groups: int, each: int) -> DoubleQuantized:
    return DoubleQuantized(
        torch.randint(1, 63, (outputs, groups)).to(torch.int8), halves(outputs, groups // each), each
    )


def q4_k(outputs: int, inputs: int) -> QuantizedWeight:
    scale, offset = (folded(outputs, inputs // 32, 8) for _ in range(2))
    return QuantizedWeight(
        codes(outputs, inputs, 16), scale.numbers(), 32, offset=offset.numbers(), fine_scale=scale, fine_offset=offset
    )


def q6_k(outputs: int, inputs: int) -> QuantizedWeight:
    scale = folded(outputs, inputs // 16, 16)
    return QuantizedWeight(codes(outputs, inputs, 64), scale.numbers(), 16, 256, zero=32.0, fine_scale=scale)


def q8_0(outputs: int, inputs: int) -> QuantizedWeight:
    return QuantizedWeight(codes(outputs, inputs, 256), halves(outputs, inputs // 32), 32, 256, zero=128.0)


def gptq(outputs: int, inputs: int) -> QuantizedWeight:
    return QuantizedWeight(
        codes(outputs, inputs, 16), halves(outputs, inputs // 128), 128, zero=codes(outputs, inputs // 128, 16)
    )


def mxfp4(outputs: int, inputs: int) -> QuantizedWeight:
    return QuantizedWeight(
        codes(outputs, inputs, 16),
        torch.exp2(torch.randint(-12, -3, (outputs, inputs // 32))).bfloat16(),
        32,
        table=torch.tensor(E2M1),
    )


def nf4(outputs: int, inputs: int) -> QuantizedWeight:
    return QuantizedWeight(codes(outputs, inputs, 16), torch.rand(outputs, inputs // 64), 64, table=torch.randn(16))


def fp8(outputs: int, inputs: int) -> QuantizedWeight:
    return QuantizedWeight.float8(
        torch.randn(outputs, inputs).to(torch.float8_e4m3fn), torch.rand(outputs, inputs // 128), 128
    )


def int8(outputs: int, inputs: int) -> QuantizedWeight:
    return QuantizedWeight(codes(outputs, inputs, 256), torch.rand(outputs, 1), inputs, 256, zero=128.0)


FORMATS: dict[str, Drawn] = {
    "Q8_0": q8_0,
    "GPTQ, groups of 128": gptq,
    "MXFP4": mxfp4,
    "NF4": nf4,
    "FP8, blocks of 128": fp8,
    "int8, a scale per output": int8,
}
MIXED, PLAIN = "Q4_K_M", "bfloat16, as restored"


def q4_k_m(name: str, index: int) -> Iterator[QuantizedPiece]:
    """Half of the layers have values and the way down in six bits."""
    outputs, inputs = SHAPES[name]
    more = index % 2 == 0
    if name == "qkv":
        yield QuantizedPiece(0, "Q4_K", q4_k(outputs - OF_V, inputs))
        yield QuantizedPiece(outputs - OF_V, "Q6_K" if more else "Q4_K", (q6_k if more else q4_k)(OF_V, inputs))
    else:
        yield QuantizedPiece(0, "Q4_K", (q6_k if more and name == "down" else q4_k)(outputs, inputs))


def projections(form: str) -> list[Linear]:
    found = []
    for index in range(LAYERS):
        for name, shape in SHAPES.items():
            layer = Linear(torch.empty(shape, dtype=torch.bfloat16))
            if form == PLAIN:
                layer.weight.normal_()
                found.append(layer.seal())
                continue
            pieces = q4_k_m(name, index) if form == MIXED else [QuantizedPiece(0, form, FORMATS[form](*shape))]
            kept = keep_quantized(FusedQuantizedWeight(list(pieces)), layer)
            assert isinstance(kept, BlockedLinear | MixedFormatBlockedLinear), kept
            found.append(kept)
    return found


def seconds(layers: list[Linear], rows: int) -> float:
    inputs = {width: torch.randn(rows, width, dtype=torch.bfloat16) for width in (1024, 2816)}
    given = [inputs[SHAPES[name][1]] for _ in range(LAYERS) for name in SHAPES]
    started = time.perf_counter()
    for layer, x in zip(layers, given, strict=True):
        layer(x)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    asked = parser.parse_args()
    cpu_kernels.set_threads(asked.threads)
    torch.manual_seed(0)
    made = {form: projections(form) for form in (PLAIN, MIXED, *FORMATS)}
    best: dict[tuple[str, int], float] = {}
    for _ in range(asked.runs):
        for form, layers in made.items():
            for rows in asked.rows:
                best[form, rows] = min(seconds(layers, rows), best.get((form, rows), float("inf")))
    sizes = {form: sum(part.nbytes for layer in layers for part in layer.tensors()) for form, layers in made.items()}
    print(f"ms of all projections, {asked.threads} threads, best of {asked.runs} runs in turn\n")
    lines = [
        (form, f"{sizes[form] / 1e6:.0f}", *(f"{best[form, rows] * 1e3:.1f}" for rows in asked.rows)) for form in made
    ]
    table(("format", "MB", *(f"{rows} rows" for rows in asked.rows)), lines)


if __name__ == "__main__":
    main()
