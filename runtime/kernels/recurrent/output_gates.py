"""Factors of the outputs of a mixer: the sigmoid of gates, or an RMS norm of spans and the activation of gates."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch.compile_ahead import entry
from ..launch.programmatic_launch import launched
from .linear_attention_scan import by_gate

BLOCK = 1024


@entry
@triton.jit
def _sigmoid(x, gate, out, x_stride, gate_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Grid (rows, blocks of SIZE)."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    y = tl.load(x + row * x_stride + columns, inside, other=0.0).to(tl.float32)
    z = tl.load(gate + row * gate_stride + columns, inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + columns, by_gate(y, z, "sigmoid"), inside)


def times_sigmoid(x: Tensor, gate: Tensor, overlap: bool = False) -> Tensor:
    """x [T, n] times the sigmoid of gate [T, n], rows contiguous both, rounded once."""
    (rows, size), out = x.shape, x.new_empty(x.shape)
    if rows:
        _sigmoid[(rows, triton.cdiv(size, BLOCK))](
            x, gate, out, x.stride(0), gate.stride(0), SIZE=size, BLOCK=BLOCK, num_warps=4, **launched(overlap)
        )
    return out


@entry
@triton.jit
def _normed(
    x,
    z,
    weight,
    out,
    z_stride,
    eps,
    SPANS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    WEIGHTS: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    NAME: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Grid (rows, SPANS). WEIGHTS: 0, SIZE for all spans, or SPANS * SIZE."""
    row, span = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    if WEIGHTS:
        factor = tl.load(weight + (0 if WEIGHTS == SIZE else span * SIZE) + columns, inside, other=0.0)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    y = tl.load(x + (row * SPANS + span) * SIZE + columns, inside, other=0.0)
    gate = tl.load(z + row * z_stride + span * SIZE + columns, inside, other=0.0).to(tl.float32)
    if GATE_FIRST or not NORM:
        y = by_gate(y, gate, NAME)
    if NORM:
        y *= tl.rsqrt(tl.sum(y * y, 0) / SIZE + eps)
    if WEIGHTS:
        y *= factor
    if NORM and not GATE_FIRST:
        y = by_gate(y, gate, NAME)
    tl.store(out + (row * SPANS + span) * SIZE + columns, y, inside)


def gated(
    x: Tensor,
    z: Tensor,
    weight: Tensor | None,
    eps: float | None,
    name: str,
    gate_first: bool = False,
    overlap: bool = False,
) -> Tensor:
    """`reference_recurrence.gated` of x float32 [T, spans, n] contiguous and z [T, spans * n]: of z's shape and type.

    Rows of z are contiguous.
    """
    (rows, spans, size), out = x.shape, z.new_empty(z.shape)
    block = triton.next_power_of_2(size)
    if rows:
        _normed[(rows, spans)](
            x,
            z,
            x if weight is None else weight,
            out,
            z.stride(0),
            eps or 0.0,
            SPANS=spans,
            SIZE=size,
            BLOCK=block,
            NORM=eps is not None,
            WEIGHTS=0 if weight is None else len(weight),
            GATE_FIRST=gate_first,
            NAME=name,
            num_warps=min(max(block // 256, 1), 8),
            **launched(overlap),
        )
    return out
