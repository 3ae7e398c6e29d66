"""Activations, alone and gated, bound by memory."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .launch.compile_ahead import entry
from .launch.programmatic_launch import launched

BLOCK, WARPS = 2048, 4  # 16 numbers of each half a thread: two loads of 16 bytes in half precision


@triton.jit
def activated(x, NAME: tl.constexpr):
    """x: float32. gelu_tanh is written with a sigmoid: (1 + tanh(u)) / 2 = sigmoid(2 u)."""
    if NAME == "silu":
        return x / (1.0 + tl.exp(-x))
    elif NAME == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif NAME == "gelu_tanh":
        return x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif NAME == "quick_gelu":
        return x / (1.0 + tl.exp(-1.702 * x))
    elif NAME == "relu":
        return tl.maximum(x, 0.0)
    else:
        tl.static_assert(NAME == "relu2")
        positive = tl.maximum(x, 0.0)
        return positive * positive


@entry
@triton.jit
def _gated(gate_up, out, stride, size, NAME: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """Grid (rows, blocks of `size`)."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    start = gate_up + row * stride + columns
    gate = tl.load(start, inside, other=0.0).to(tl.float32)
    up = tl.load(start + size, inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + columns, activated(gate, NAME) * up, inside)


@entry
@triton.jit
def _activate(x, stride, size, NAME: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (rows, blocks of `size`)."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    place = x + tl.program_id(0).to(tl.int64) * stride + columns
    tl.store(place, activated(tl.load(place, inside, other=0.0).to(tl.float32), NAME), inside)


def activate_gated(gate_up: Tensor, name: str = "silu", overlap: bool = False) -> Tensor:
    """[T, 2 n], rows contiguous -> [T, n]: the activation of the first half times the second, rounded once.

    overlap: the kernel may start under the tail of the one before (see `overlap`).
    """
    rows, width = gate_up.shape
    size = width // 2
    y = gate_up.new_empty(rows, size)
    if rows:
        _gated[(rows, triton.cdiv(size, BLOCK))](
            gate_up, y, gate_up.stride(0), size, NAME=name, BLOCK=BLOCK, num_warps=WARPS, **launched(overlap)
        )
    return y


def activate(x: Tensor, name: str) -> Tensor:
    """The activation of x [T, n], rows contiguous, in place. Returns x."""
    rows, size = x.shape
    if rows:
        _activate[(rows, triton.cdiv(size, BLOCK))](x, x.stride(0), size, NAME=name, BLOCK=BLOCK, num_warps=WARPS)
    return x
