"""The end of a layer's branch in one pass: the norm after the branch, the residual addition, the next branch's norm.

`rms_norm` has the usual case, an addition and an RMS norm, by itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .launch.compile_ahead import entry
from .launch.programmatic_launch import launched
from .rms_norm import block_of

NONE, RMS, LAYER = (tl.constexpr(kind) for kind in range(3))


class NormWeights(NamedTuple):
    """weight, bias: [size], any float type; in float32 it is y = x / rms(x) * weight + bias.

    layer: the mean is subtracted first.
    """

    weight: Tensor
    bias: Tensor | None
    eps: float
    layer: bool = False


@triton.jit
def _normed(x, weight, bias, columns, inside, size, eps, KIND: tl.constexpr, BIAS: tl.constexpr):
    """x: float32 [BLOCK], zero outside."""
    if KIND == LAYER:
        x = tl.where(inside, x - tl.sum(x, 0) / size, 0.0)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps) * tl.load(weight + columns, inside, other=0.0).to(tl.float32)
    if BIAS:
        y += tl.load(bias + columns, inside, other=0.0).to(tl.float32)
    return y


@entry
@triton.jit
def _join(
    rows,
    deltas,
    others,
    out,
    after_weight,
    after_bias,
    before_weight,
    before_bias,
    scalar,
    stride,
    delta_stride,
    other_stride,
    size,
    after_eps,
    before_eps,
    branch,
    DELTA: tl.constexpr,
    OTHER: tl.constexpr,
    BRANCH: tl.constexpr,
    OF_SUM: tl.constexpr,
    SCALAR: tl.constexpr,
    AFTER: tl.constexpr,
    AFTER_BIAS: tl.constexpr,
    BEFORE: tl.constexpr,
    BEFORE_BIAS: tl.constexpr,
    DEPENDENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row. The second norm is of the sum as it is stored, rounded."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    place = rows + row * stride + columns
    x = tl.load(place, inside, other=0.0).to(tl.float32)
    if DELTA:
        delta = tl.load(deltas + row * delta_stride + columns, inside, other=0.0).to(tl.float32)
        if OTHER:
            delta += tl.load(others + row * other_stride + columns, inside, other=0.0).to(tl.float32)
        if AFTER != NONE and not OF_SUM:
            delta = _normed(delta, after_weight, after_bias, columns, inside, size, after_eps, AFTER, AFTER_BIAS)
        if BRANCH:
            delta *= branch
        x += delta
        if AFTER != NONE and OF_SUM:
            x = _normed(x, after_weight, after_bias, columns, inside, size, after_eps, AFTER, AFTER_BIAS)
        if SCALAR:
            x *= tl.load(scalar).to(tl.float32)
        stored = x.to(rows.dtype.element_ty)
        tl.store(place, stored, inside)
        x = stored.to(tl.float32)
    if BEFORE != NONE:
        y = _normed(x, before_weight, before_bias, columns, inside, size, before_eps, BEFORE, BEFORE_BIAS)
        tl.store(out + row * size + columns, y, inside)


def add_norm(
    x: Tensor,
    delta: Tensor | None,
    *,
    other: Tensor | None = None,
    after: NormWeights | None = None,
    before: NormWeights | None = None,
    branch: float = 1.0,
    scalar: Tensor | None = None,
    of_sum: bool = False,
    overlap: bool = False,
) -> Tensor:
    """x = (x + branch * after(delta + other)) * scalar in place; returns before(x), [T, size] contiguous.

    With `of_sum`: after(x + branch * delta) * scalar. If `before` is None it returns x itself.
    x, delta, other: [T, size], rows contiguous.  scalar: float32 [1].  Without delta x stays as it is.
    overlap: the kernel may start under the tail of the one before (see `overlap`).
    """
    (rows, size), none = x.shape, x
    y = x if before is None else torch.empty_like(x, memory_format=torch.contiguous_format)
    if not rows or (delta is None and before is None):
        return y
    block, warps = block_of(size)
    _join[(rows,)](
        x,
        none if delta is None else delta,
        none if other is None else other,
        y,
        *_pointers(after, x),
        *_pointers(before, x),
        none if scalar is None else scalar,
        x.stride(0),
        _stride(delta),
        _stride(other),
        size,
        0.0 if after is None else after.eps,
        0.0 if before is None else before.eps,
        branch,
        DELTA=delta is not None,
        OTHER=other is not None,
        BRANCH=branch != 1,
        OF_SUM=of_sum,
        SCALAR=scalar is not None,
        AFTER=_kind(after),
        AFTER_BIAS=after is not None and after.bias is not None,
        BEFORE=_kind(before),
        BEFORE_BIAS=before is not None and before.bias is not None,
        BLOCK=block,
        num_warps=warps,
        **launched(overlap),
    )
    return y


def _pointers(norm: NormWeights | None, unused: Tensor) -> tuple[Tensor, Tensor]:
    if norm is None:
        return unused, unused
    return norm.weight, unused if norm.bias is None else norm.bias


def _stride(x: Tensor | None) -> int:
    return 0 if x is None else x.stride(0)


def _kind(norm: NormWeights | None) -> int:
    return 0 if norm is None else 2 if norm.layer else 1
