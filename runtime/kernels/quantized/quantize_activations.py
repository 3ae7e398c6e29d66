"""Rows of activations as float8 or int8 with a scale each: maximum, division and cast in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...layers.float8_reference import FP8, LARGEST, SMALLEST_PEAK
from ..launch.compile_ahead import entry

WHOLE = tl.constexpr(12582912.0)  # 1.5 * 2^23: added to it, a float32 keeps no fractions, and rounds to even
TOPS = {FP8: LARGEST, torch.int8: 127.0}
BOTTOM = tl.constexpr(SMALLEST_PEAK)
NUMBERS_PER_WARP = 1024


@entry
@triton.jit
def quantize_each_row(x, y, scales, inputs, stride, BLOCK: tl.constexpr, TOP: tl.constexpr):
    """One program a row, held in registers between the two passes.

    A NaN or an infinity makes its row NaN, or in int8 its scale.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, at < inputs, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(values), 0), BOTTOM), TOP)
    scaled = tl.clamp(tl.div_rn(values, scale), -TOP, TOP, propagate_nan=tl.PropagateNan.ALL)
    if y.dtype.element_ty == tl.int8:
        scaled = (scaled + WHOLE) - WHOLE
        scale += tl.sum(values * 0.0, 0)
    tl.store(y + row * inputs + at, scaled.to(y.dtype.element_ty), at < inputs)
    tl.store(scales + row, scale)


def quantize_rows(x: Tensor, dtype: torch.dtype = FP8) -> tuple[Tensor, Tensor]:
    """x [T, in], rows contiguous -> `dtype` [T, in], float8 or int8, and float32 scales [T].

    As `layers.float8_reference` does it.
    """
    rows, inputs = x.shape
    y = torch.empty(rows, inputs, dtype=dtype, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(inputs)
        warps = min(16, max(1, block // NUMBERS_PER_WARP))
        quantize_each_row[(rows,)](x, y, scales, inputs, x.stride(0), BLOCK=block, TOP=TOPS[dtype], num_warps=warps)
    return y, scales
