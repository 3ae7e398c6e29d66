"""Which kernel multiplies how many rows with which packed weight on which GPU: the table that products choose from.

docs/gpu.md has it too, written by docs/site/kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from ..gemv import gemv
from ..packed.packed_weight import PackedWeight
from . import skinny_gemm, split_k_gemm, wgmma_gemm

DEQUANTIZED_ROWS = 512  # from here on dequantizing a part of the weight and a library's product are faster


FEW_OUTPUTS_ROWS = 32  # of `split_k_gemm`, where so few outputs leave multiprocessors of `skinny_gemm` without work
FEW_OUTPUTS_WITH_ZEROS = 2048  # with more of them `skinny_gemm` is faster


class KernelRange(NamedTuple):
    """A kernel and what it is used for.

    least, most: rows; most by weight.  supports: of a weight, and whether the product has an activation.
    aligned: numbers that x's rows are aligned to, if it begins at a multiple of 16 bytes; 0: to none.
    rows, weights, gpu, about: the same for people.
    """

    kernel: str
    least: int
    most: Callable[[PackedWeight], int]
    supports: Callable[[PackedWeight, bool], bool]
    aligned: int
    rows: str
    weights: str
    gpu: str
    about: str


def _always(weight: PackedWeight, gated: bool) -> bool:
    return True


def _split_k_rows(weight: PackedWeight) -> int:
    """As measured on an H200, see benchmarks/gpu_skinny_gemm.py."""
    few = 2 * weight.outputs < 3 * weight.inputs
    few = few and (weight.kind == "scaled" or weight.outputs <= FEW_OUTPUTS_WITH_ZEROS)
    other = skinny_gemm.supports_weight(weight) and skinny_gemm.most_rows(weight) > 0
    return FEW_OUTPUTS_ROWS if few and other else split_k_gemm.MOST_ROWS


GEMV = (  # of a batch of one, if all products of a layer have such kernels
    KernelRange(
        "gemv_tensor_core_kernels",
        1,
        lambda weight: 1,
        lambda weight, gated: gemv.uses_tensor_cores(weight),
        0,
        "1",
        "bfloat16 model; 4-bit integers in groups of 32, 64, multiples of 128, or whole rows; up to "
        f"{gemv.TENSOR_INPUTS:,} inputs",
        "227 KB of shared memory",
        "unscaled codes feed the tensor cores, scales are applied to the sums",
    ),
    KernelRange(
        "gemv_kernels",
        1,
        lambda weight: 1,
        lambda weight, gated: gemv.supports_weight(weight),
        0,
        "1",
        "4-bit integers; 8 bits with a scale an output; not quantized",
        "any",
        "norm, rotary, store, activation and residual are fused in",
    ),
)
GEMM = (  # the first that supports a product is used
    KernelRange(
        "wgmma_gemm",
        wgmma_gemm.LEAST_ROWS,
        lambda weight: wgmma_gemm.MOST_ROWS,
        wgmma_gemm.supports_weight,
        8,
        f"{wgmma_gemm.LEAST_ROWS} to {wgmma_gemm.MOST_ROWS:,}",
        "bfloat16 model; 4-bit integers with a scale a group or an output, with or without zeros, in groups of 32, 64 "
        "or multiples of 128 inputs; float8 with a scale an output",
        "Hopper",
        "feeds wide tensor core instructions from registers",
    ),
    KernelRange(
        "split_k_gemm",
        1,
        _split_k_rows,
        lambda weight, gated: split_k_gemm.supports_weight(weight),
        16,
        f"up to {split_k_gemm.MOST_ROWS}, or to {FEW_OUTPUTS_ROWS} of weights that `skinny_gemm` takes with fewer than "
        f"1.5 outputs an input (with zeros: up to {FEW_OUTPUTS_WITH_ZEROS:,} outputs)",
        "bfloat16 model; 4 and 8 bits, codebooks and small floats, not asymmetric (minima)",
        "227 KB of shared memory",
        "each program has a slice of the inputs",
    ),
    KernelRange(
        "skinny_gemm",
        1,
        skinny_gemm.most_rows,
        lambda weight, gated: skinny_gemm.supports_weight(weight),
        16,
        f"up to 32, or to {skinny_gemm.MOST_ROWS} for up to {skinny_gemm.WIDE:,} outputs",
        f"bfloat16 model; 4-bit integers with scales of groups; up to {skinny_gemm.DEEP:,} inputs",
        "227 KB of shared memory",
        "for small batches, by tensor cores",
    ),
    KernelRange(
        "quantized_gemm",
        1,
        lambda weight: DEQUANTIZED_ROWS - 1,
        _always,
        0,
        f"up to {DEQUANTIZED_ROWS - 1}",
        "all",
        "any",
        "the general kernel",
    ),
    KernelRange(
        "cuBLAS",
        1,
        lambda weight: 2**62,
        _always,
        0,
        "more",
        "all",
        "any",
        "after dequantizing a part of the weight at a time",
    ),
)


def kernel_for(rows: int, weight: PackedWeight, gated: bool = False, x: Tensor | None = None) -> str:
    """The kernel of a product of so many rows.  gated: with an activation.  x: its rows, if their place matters."""
    return next(
        each.kernel
        for each in GEMM
        if each.least <= rows <= each.most(weight) and _fits(x, each.aligned) and each.supports(weight, gated)
    )


def _fits(x: Tensor | None, aligned: int) -> bool:
    return x is None or not aligned or (x.data_ptr() % 16 == 0 and x.stride(0) % aligned == 0)


def gemv_kernel(weight: PackedWeight) -> str | None:
    """The kernel of a batch of one whose neighbours are fused in; None: none supports the weight."""
    return next((each.kernel for each in GEMV if each.supports(weight, False)), None)


def kernels_by_rows(weight: PackedWeight, first: int, last: int) -> Iterator[tuple[str, int]]:
    """The kernels of products of `first` to `last` rows, each with the most rows that it is used for."""
    ends = {each.least - 1 for each in GEMM} | {each.most(weight) for each in GEMM} | {last}
    found = [(kernel_for(end, weight), end) for end in sorted(ends) if first <= end <= last]
    for (kernel, end), (following, _) in zip(found, [*found[1:], ("", 0)], strict=True):
        if kernel != following:
            yield kernel, end


__all__ = ["DEQUANTIZED_ROWS", "GEMM", "GEMV", "KernelRange", "gemv_kernel", "kernel_for", "kernels_by_rows"]
