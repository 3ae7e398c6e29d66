"""A causal depthwise convolution with its activation, from slots of states into slots of states."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_kernels import activated
from ..launch.compile_ahead import entry
from ..launch.programmatic_launch import launched

BLOCK, TOKENS = 512, 16  # channels and tokens of a program


@entry
@triton.jit
def _convolve(
    x,
    gate_in,
    gate_out,
    taps,
    bias,
    memory,
    read,
    write,
    starts,
    out,
    stride,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    BIASED: tl.constexpr,
    NAME: tl.constexpr,
    GATED: tl.constexpr,
    GIVES: tl.constexpr,
    LEAVES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program for some channels of some tokens of a sequence. ROWS: WIDTH or the next power of 2.

    GATED: inputs are multiplied with `gate_in` and outputs with `gate_out`, which are stored as x is.
    LEAVES: the state after the last of these tokens is stored; then no other program of the channels may read it.
    """
    sequence = tl.program_id(0).to(tl.int64)
    channels, row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :], tl.arange(0, ROWS)[:, None]
    inside = (channels < CHANNELS) & (row < WIDTH)
    kernel = tl.load(taps + row * CHANNELS + channels, inside, other=0.0)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    first, last = tl.load(starts + sequence).to(tl.int64), tl.load(starts + sequence + 1).to(tl.int64)
    before = memory + (tl.load(read + sequence).to(tl.int64) + 1) * (WIDTH - 1) * CHANNELS + channels
    begin = first + tl.program_id(2) * TOKENS if GIVES else last - 1
    for token in range(begin, tl.minimum(begin + TOKENS, last)):
        seen = token - (WIDTH - 1) + row
        window = tl.load(x + seen * stride + channels, inside & (seen >= first), other=0.0).to(tl.float32)
        if GATED:
            window *= tl.load(gate_in + seen * stride + channels, inside & (seen >= first), other=0.0).to(tl.float32)
            window = window.to(x.dtype.element_ty).to(tl.float32)
        window += tl.load(before + (seen - first) * CHANNELS, inside & (seen < first), other=0.0).to(tl.float32)
        if GIVES:
            y = tl.sum(window * kernel, 0)
            column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
            if BIASED:
                y += tl.load(bias + column, column < CHANNELS, other=0.0)
            if NAME != "":
                y = activated(y, NAME)
            if GATED:
                y = y.to(x.dtype.element_ty).to(tl.float32)
                y *= tl.load(gate_out + token * stride + column, column < CHANNELS, other=0.0).to(tl.float32)
            tl.store(out + token * CHANNELS + column, y, column < CHANNELS)
        if LEAVES:
            tl.debug_barrier()  # a slot may be read and written
            behind = memory + tl.load(write + sequence).to(tl.int64) * (WIDTH - 1) * CHANNELS + channels
            tl.store(behind + (row - 1) * CHANNELS, window.to(memory.dtype.element_ty), inside & (row >= 1))


def convolve(
    x: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    name: str | None,
    memory: Tensor,
    read: Tensor,
    write: Tensor,
    starts: Tensor,
    longest: int,
    overlap: bool = False,
    gates: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """x [T, channels], rows contiguous -> float32 [T, channels]; for sequences that begin at starts int [S + 1].

    longest: most tokens of a sequence.
    taps: float32 [width, channels], the latest token's last.  bias: float32 [channels].  name: of the activation; None:
        none.
    memory: [slots, width - 1, channels], of x's type, the inputs before each sequence; they are read from the slots
        `read` and stored in the slots `write`, int [S]. A slot may be read and written by the same sequence; a slot
        that one sequence writes no other may read.
    gates: factors of inputs and outputs, in rows as far apart as x's; then x, and the result, is of x's type.
    """
    width, channels = taps.shape
    out = x.new_empty(len(x), channels, dtype=taps.dtype if gates is None else x.dtype)
    sequences = len(read)
    if not len(x):
        return out
    parts = (x, *(gates or (x, x)), taps, taps if bias is None else bias, memory, read, write, starts, out, x.stride(0))
    cut = {
        "CHANNELS": channels,
        "WIDTH": width,
        "ROWS": triton.next_power_of_2(width),
        "BLOCK": min(BLOCK, triton.next_power_of_2(channels)),
        "TOKENS": TOKENS,
        "BIASED": bias is not None,
        "NAME": name or "",
        "GATED": gates is not None,
        "num_warps": 4,
        **launched(overlap),
    }
    grid = (sequences, triton.cdiv(channels, BLOCK))
    if longest == 1:
        _convolve[(*grid, 1)](*parts, **cut, GIVES=True, LEAVES=True)
        return out
    _convolve[(*grid, triton.cdiv(longest, TOKENS))](*parts, **cut, GIVES=True, LEAVES=False)
    _convolve[(*grid, 1)](*parts, **cut, GIVES=False, LEAVES=True)
    return out
