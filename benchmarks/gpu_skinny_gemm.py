"""The two kernels for 17 to 32 rows with 4-bit weights: `skinny_gemm`, which is used, and `split_k_gemm`.

    python benchmarks/gpu_skinny_gemm.py [--rows 17 20 24 28 32] [--models 8b 1b] [--runs 5]

Both with the tiles that they choose, in CUDA graphs over more weights than caches hold, in turns; medians. A ratio
below 1.03 in all cases means that `skinny_gemm` gains nothing up to 32 rows.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from statistics import geometric_mean, median

import torch
from gpu_kernel_few_bits import FORMS, int4, size_of
from torch import Tensor

from sgl.runtime.kernels.packed.packed_weight import PackedWeight
from sgl.runtime.kernels.quantized import quantized_gemm, skinny_gemm, split_k_gemm
from sgl.runtime.quantization.gpu_weight_packing import pack_for_gpu

MODELS = {  # outputs and inputs of the products of Llama-3.1-8B and Llama-3.2-1B
    "8b": {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)},
    "1b": {"qkv": (3072, 2048), "output": (2048, 2048), "gate_up": (16384, 2048), "down": (2048, 8192)},
}
FORMATS = {
    "groups of 64, zeros": int4,
    "groups of 128": FORMS["int4, 128, no zeros"],
    "groups of 32": FORMS["int4, 32"],
}
COLD = 2**28  # bytes of weights that a graph reads: several times the L2 cache
LOADED = 0.05  # seconds of work in front of what is measured, so that clocks are up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[17, 20, 24, 28, 32])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--runs", type=int, default=5, help="of each kernel, in turns")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, medians of {args.runs}, microseconds\n")
    print("| model | product | format | rows | skinny_gemm | split_k_gemm | split_k / skinny |")
    print("|---|---|---|---|---|---|---|")
    ratios = [ratio for model in args.models for ratio in _of_model(model, args.rows, args.runs)]
    best, worst, close = min(ratios), max(ratios), sum(ratio <= 1.03 for ratio in ratios)
    print(
        f"\n{len(ratios)} cases: split_k_gemm takes {geometric_mean(ratios):.3f} of skinny_gemm's time, {best:.3f} at"
    )
    print(f"best, {worst:.3f} at worst; within 3 % or faster in {close}")


def _of_model(model: str, rows: list[int], runs: int) -> Iterator[float]:
    for name, size in MODELS[model].items():
        for form, make in FORMATS.items():
            with torch.device("cuda"):
                first = pack_for_gpu(make(*size), torch.bfloat16)
                more = range(max(1, math.ceil(COLD / size_of(first)) - 1))
                weights = [first, *(pack_for_gpu(make(*size), torch.bfloat16) for _ in more)]
            for count in rows:
                skinny, split = (1e6 * seconds for seconds in _times(count, weights, runs))
                used = " (not used)" if count > skinny_gemm.most_rows(first) else ""
                print(
                    f"| {model} | {name} {size[0]} x {size[1]} | {form} | {count} | {skinny:.1f}{used} | {split:.1f} "
                    f"| {split / skinny:.3f} |",
                    flush=True,
                )
                yield split / skinny


def _times(rows: int, weights: list[PackedWeight], runs: int) -> list[float]:
    """Seconds of a product by either kernel."""
    outputs, inputs = weights[0].outputs, weights[0].inputs
    x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
    tiles = skinny_gemm.tile_for(rows, outputs, inputs), split_k_gemm.tile_for(rows, weights[0])
    graphs = [_captured(x, weights, tile) for tile in tiles]
    found: list[list[float]] = [[], []]
    for _ in range(runs):
        for seconds, graph in zip(found, graphs, strict=True):
            seconds.append(_seconds(graph.replay) / len(weights))
    return [median(seconds) for seconds in found]


def _captured(
    x: Tensor, weights: list[PackedWeight], tile: skinny_gemm.SkinnyGemmTile | split_k_gemm.SplitKTile
) -> torch.cuda.CUDAGraph:
    def products() -> None:
        for weight in weights:
            quantized_gemm.matmul(x, weight, tile=tile, overlap=True)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        products()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        products()
    return graph


def _seconds(work: Callable[[], None]) -> float:
    """Of one call, by the device's clock, after as long a time of the same work as clocks need."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    work()
    begin.record()
    work()
    end.record()
    end.synchronize()
    times = max(1, math.ceil(LOADED / (begin.elapsed_time(end) / 1e3)))
    begin.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


if __name__ == "__main__":
    main()
