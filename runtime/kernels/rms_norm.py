"""Root mean square norm of rows, alone or of a sum that is written back on the way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .launch.compile_ahead import entry
from .launch.programmatic_launch import launched


@triton.jit
def _normalised(x, weights, columns, inside, size, eps):
    """x: float32 [BLOCK], zero outside."""
    return _scaled(x, tl.load(weights + columns, inside, other=0.0).to(tl.float32), size, eps)


@triton.jit
def _scaled(x, weight, size, eps):
    """weight: float32 [BLOCK]."""
    return x * tl.rsqrt(tl.sum(x * x, 0) / size + eps) * weight


@entry
@triton.jit
def _rms_norm(rows, weights, out, stride, size, eps, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """One program a row."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    x = tl.load(rows + row * stride + columns, inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + columns, _normalised(x, weights, columns, inside, size, eps), inside)


@entry
@triton.jit
def _add_rms_norm(
    rows, deltas, weights, out, stride, delta_stride, size, eps, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):
    """One program a row. The norm is of the sum as it is stored, rounded."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    place = rows + row * stride + columns
    x = tl.load(place, inside, other=0.0).to(tl.float32)
    x += tl.load(deltas + row * delta_stride + columns, inside, other=0.0).to(tl.float32)
    stored = x.to(rows.dtype.element_ty)
    tl.store(place, stored, inside)
    x = stored.to(tl.float32)
    tl.store(out + row * size + columns, _normalised(x, weights, columns, inside, size, eps), inside)


def block_of(size: int) -> tuple[int, int]:
    """The power of two that holds a row of `size` numbers, and the warps that share it."""
    block = 1 << (size - 1).bit_length()
    return block, min(max(block // 512, 1), 16)


def rms_norm(x: Tensor, weight: Tensor, eps: float, overlap: bool = False) -> Tensor:
    """x [T, size], rows contiguous, weight [size] -> x / sqrt(mean(x^2) + eps) * weight, [T, size] contiguous.

    float32, bfloat16 or float16; computed in float32, rounded once.  overlap: the kernel may start under the tail of
    the one before (see `overlap`).
    """
    rows, size = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if rows:
        block, warps = block_of(size)
        _rms_norm[(rows,)](x, weight, y, x.stride(0), size, eps, BLOCK=block, num_warps=warps, **launched(overlap))
    return y


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float, overlap: bool = False) -> Tensor:
    """x += delta in place, then as `rms_norm` of x. x, delta: [T, size], rows contiguous."""
    rows, size = x.shape
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if rows:
        block, warps = block_of(size)
        _add_rms_norm[(rows,)](
            x,
            delta,
            weight,
            y,
            x.stride(0),
            delta.stride(0),
            size,
            eps,
            BLOCK=block,
            num_warps=warps,
            **launched(overlap),
        )
    return y
