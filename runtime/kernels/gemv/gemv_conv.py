"""The product in front of a recurrent layer for one row, fused with the convolution of its outputs; see `gemv`."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ..activation_kernels import activated
from ..launch.compile_ahead import entry
from .gemv import plan_gemv
from .gemv_kernels import begin, products, values_at
from .gemv_launch import best_launch


@entry
@triton.jit
def _convolved(
    x,
    norm,
    words,
    meta,
    outer,
    bias,
    taps,
    taps_bias,
    memory,
    read,
    write,
    mixed,
    rest,
    outputs,
    eps,
    FIRST: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    SEEN: tl.constexpr,
    TAPS_BIASED: tl.constexpr,
    NAME: tl.constexpr,
    FORMAT: tl.constexpr,
    CUT: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Outputs FIRST to FIRST + CHANNELS go through the convolution to `mixed`, the others to `rest`.

    SEEN: WIDTH or the next power of 2.
    """
    rows = tl.program_id(0) * CUT.rows + tl.arange(0, CUT.rows)
    inside = rows < outputs
    rows = tl.minimum(rows, outputs - 1)
    channel, back = rows - FIRST, tl.arange(0, SEEN)[:, None]
    convolved = inside & (channel >= 0) & (channel < CHANNELS)
    weight = (words, meta, outer)
    begun, _ = begin(weight, rows, (), outputs, FORMAT, CUT, None, DEPENDENT)
    old = convolved[None, :] & (back < WIDTH - 1)
    before = memory + tl.load(read).to(tl.int64) * (WIDTH - 1) * CHANNELS + back * CHANNELS + channel[None, :]
    window = tl.load(before, old, other=0.0)
    sums = tl.sum(window.to(tl.float32) * tl.load(taps + back * CHANNELS + channel[None, :], old, other=0.0), 0)
    latest = tl.load(taps + (WIDTH - 1) * CHANNELS + channel, convolved, other=0.0)
    if TAPS_BIASED:
        sums += tl.load(taps_bias + channel, convolved, other=0.0)
    y = values_at(bias, rows, BIASED)
    y += products(begun, x, norm, weight, rows, outputs, eps, FORMAT, CUT, NORMED)
    y = y.to(rest.dtype.element_ty)
    tl.debug_barrier()  # a slot may be read and written
    behind = memory + tl.load(write).to(tl.int64) * (WIDTH - 1) * CHANNELS
    tl.store(behind + (back - 1) * CHANNELS + channel[None, :], window, old & (back >= 1))
    tl.store(behind + (WIDTH - 2) * CHANNELS + channel, y, convolved)
    tl.store(rest + tl.where(rows < FIRST, rows, rows - CHANNELS), y, inside & ((channel < 0) | (channel >= CHANNELS)))
    sums += y.to(tl.float32) * latest
    if NAME != "":
        sums = activated(sums, NAME)
    tl.store(mixed + channel, sums, convolved)


class ConvWeights(NamedTuple):
    """A convolution after a product: weight float32 [width, channels], bias float32 [channels], the activation's name.

    See `convolve`. first: the output of the product that is its first channel.
    """

    weight: Tensor
    bias: Tensor | None
    name: str | None
    first: int = 0


def gemv_conv(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    taps: ConvWeights,
    memory: Tensor,
    read: Tensor,
    write: Tensor,
    weight_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """norm(x [1, in]) @ weight[out, in].T + bias: the convolution's output, float32 [1, channels], and the others.

    The others are [1, others].
    memory: [slots, width - 1, channels]; read, write: int [1], see `convolve`.  norm_weight: None for no norm.
    """
    (outputs, inputs), (width, channels) = weight.shape, taps.weight.shape
    mixed, rest = taps.weight.new_empty(1, channels), x.new_empty(1, outputs - channels)
    plan = plan_gemv(weight, weight_scale, best_launch(outputs, inputs, weight.element_size()), 0)
    _convolved[plan.grid](
        x,
        x if norm_weight is None else norm_weight,
        *plan.parts,
        x if bias is None else bias,
        taps.weight,
        taps.weight if taps.bias is None else taps.bias,
        memory,
        read,
        write,
        mixed,
        rest,
        outputs,
        eps,
        FIRST=taps.first,
        CHANNELS=channels,
        WIDTH=width,
        SEEN=triton.next_power_of_2(max(width - 1, 1)),
        TAPS_BIASED=taps.bias is not None,
        NAME=taps.name or "",
        NORMED=norm_weight is not None,
        BIASED=bias is not None,
        **plan.cut,
    )
    return mixed, rest
