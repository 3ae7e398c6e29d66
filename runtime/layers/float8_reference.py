"""Numbers as float8 (e4m3) and their scales, with torch operations: the definition that kernels are tested against."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # the largest number of e4m3; conversions beyond it are NaN, not saturated
SMALLEST_PEAK = 1e-12  # of a row or a weight, so that zeros have a scale too


class KVScaleFactors(NamedTuple):
    """Scales of the keys and values of a layer: stored is value / scale, saturated."""

    k: float = 1.0
    v: float = 1.0


def scale_of(peak: Tensor) -> Tensor:
    """The float32 scale under which a largest magnitude becomes the largest float8."""
    peak = peak.float().clamp_min(SMALLEST_PEAK)
    return peak / peak.new_full((), LARGEST)  # by a number, CUDA would multiply with its rounded inverse


def quantize_weight(weight: Tensor, per_output: bool = True) -> tuple[Tensor, Tensor]:
    """weight [out, in] -> float8 [out, in] and float32 scales [out]; all are equal with per_output=False."""
    peaks = weight.abs().amax(1)
    scale = scale_of(peaks if per_output else peaks.amax().expand(len(weight)))
    return (weight.float() / scale[:, None]).clamp_(-LARGEST, LARGEST).to(FP8), scale.contiguous()


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, in] -> float8 [T, in] and the float32 scale of each row [T]."""
    scale = scale_of(x.abs().amax(1))
    return (x.float() / scale[:, None]).clamp_(-LARGEST, LARGEST).to(FP8), scale


def saturate(x: Tensor, scale: float) -> Tensor:
    """x / scale as float8; what is too large becomes the largest."""
    return (x.float() / scale).clamp_(-LARGEST, LARGEST).to(FP8)


def restore(x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """The values of a float8 tensor that `saturate` made."""
    return x.to(dtype) if scale == 1.0 else (x.float() * scale).to(dtype)
