"""Rounds dense weights to small floats, from the weight alone: MXFP4, NVFP4, and e4m3 with a scale for each block."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..layers.float8_reference import FP8, LARGEST, scale_of
from .quantized_weight import E2M1, QuantizedWeight
from .weight_forms import MX_GROUP, NV_GROUP
from .weight_rounding import part_of

TOP = 6.0  # the largest number of e2m1
TOO_LARGE = 7.0  # where the next power of two loses less than cutting off at TOP
SMALLEST_SCALE = 2.0**-9  # above zero in e4m3, so that a group of zeros has one too
BLOCK = 128  # outputs and inputs

_BETWEEN = torch.tensor(
    [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
)  # halfway between neighbours; such a number goes to the even code
_BORDERS = torch.where(torch.arange(7) % 2 == 1, _BETWEEN.nextafter(torch.zeros(7)), _BETWEEN)


def mxfp4(weight: Tensor) -> QuantizedWeight:
    """weight [out, in] as e2m1 under a power of two for each 32 inputs: the one that brings the largest below 7; 6 is
    the end.
    """
    return _in_e2m1(weight, MX_GROUP, _power, None)


def nvfp4(weight: Tensor) -> QuantizedWeight:
    """weight [out, in] as e2m1 under a scale in e4m3 for each 16 inputs, times one power of two for the whole weight.

    Other writers take any number for the whole; a power of two loses nothing, for scales are floats, and leaves the
    product of both a number of float16.
    """
    peak = weight.abs().amax().float()
    whole = (
        torch.exp2((peak / (TOP * LARGEST)).log2().ceil().clamp_min(-126)) if float(peak) > 0 else torch.ones_like(peak)
    )
    return _in_e2m1(
        weight, NV_GROUP, lambda peaks: (peaks / (TOP * whole)).clamp_(SMALLEST_SCALE, LARGEST).to(FP8).half(), whole
    )


def float8_blocks(weight: Tensor, block: int = BLOCK) -> QuantizedWeight:
    """weight [out, in] as e4m3 with a float32 scale for each `block` outputs and inputs; the last ones may be fewer."""
    codes, scales = torch.empty(weight.shape, dtype=FP8, device=weight.device), []
    beyond = -weight.shape[1] % block
    for rows, out in zip(weight.split(block), codes.split(block), strict=True):
        scale = scale_of(F.pad(rows.abs().amax(0), (0, beyond)).unflatten(0, (-1, block)).amax(1))
        scales.append(scale.expand(len(rows), -1))
        out.copy_((rows.float() / scale.repeat_interleave(block)[: rows.shape[1]]).clamp_(-LARGEST, LARGEST))
    return QuantizedWeight.float8(codes, torch.cat(scales), block)


def _power(peaks: Tensor) -> Tensor:
    """bfloat16: what brings each peak to 3.5 or above and below 7, where it is above zero; others have 1."""
    mantissa, exponent = torch.frexp(peaks)
    exponent = exponent - 3 + (mantissa >= TOO_LARGE / 8).int()
    return torch.where(peaks > 0, torch.ldexp(torch.ones_like(peaks), exponent.clamp(-126, 127)), 1.0).bfloat16()


def _in_e2m1(
    weight: Tensor, group: int, scale_for: Callable[[Tensor], Tensor], whole: Tensor | None
) -> QuantizedWeight:
    """scale_for: of the largest magnitudes of groups [rows, groups].  whole: what multiplies all scales."""
    thresholds = _BORDERS.to(weight.device)
    codes, scales = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device), []
    step, beyond = max(1, part_of(weight) // weight.shape[1]), -weight.shape[1] % group
    for rows, out in zip(weight.split(step), codes.split(step), strict=True):
        values = F.pad(rows.float(), (0, beyond)).unflatten(1, (-1, group))
        scales.append(scale_for(values.abs().amax(2)))
        under = scales[-1].float() if whole is None else scales[-1].float() * whole
        out.copy_(_codes(values / under[..., None], thresholds).flatten(1)[:, : weight.shape[1]])
    table = torch.tensor(E2M1, device=weight.device)
    factor = None if whole is None else whole.expand(len(weight)).contiguous()
    return QuantizedWeight(codes, torch.cat(scales), group, factor=factor, table=table)


def _codes(values: Tensor, thresholds: Tensor) -> Tensor:
    """uint8: the nearest numbers of e2m1, by code."""
    return (
        torch.bucketize(values.abs().contiguous(), thresholds, out_int32=True).to(torch.uint8)
        | (values < 0).to(torch.uint8) << 3
    )
