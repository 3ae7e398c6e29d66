"""Rounds dense weights to four and eight bits without data: scales and zeros from the weight alone.

The formulas of round-to-nearest, and of HQQ (Badri and Shaji, Half-Quadratic Quantization, 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .quantized_weight import QuantizedWeight
from .weight_forms import GROUP

TOP = 15  # the largest code
PART = 2**16  # numbers that are rounded at a time: so many that the cache holds them
PART_ON_GPU = 2**25
HALF_NORMAL = 2.0**-14  # the smallest number that float16 keeps with all its bits
HALF_SMALLEST = 2.0**-24
ROUNDS, POWER, BETA = 20, 0.7, 10.0  # of HQQ


def nearest(weight: Tensor, group: int = GROUP, scales: torch.dtype | None = None) -> QuantizedWeight:
    """weight [out, in] in codes with a whole zero in each group: zeros stay zeros.

    Each group's range is widened to hold 0 and cut into 15 steps. scales: their dtype; None: float16 where its range
    suffices.
    """
    return _rounded(weight, group, with_whole_zero, scales)


def symmetric(weight: Tensor, group: int = GROUP, scales: torch.dtype | None = None) -> QuantizedWeight:
    """weight [out, in] in codes around 8: w = (q - 8) * scale, scale = max|w| / 7.5."""
    return _rounded(weight, group, with_zero_point_eight, scales)


def hqq(weight: Tensor, group: int = GROUP, scales: torch.dtype | None = None) -> QuantizedWeight:
    """weight [out, in] in codes with a zero in each group that is no whole number, moved while a group's mean error
    falls.

    It ends where no group gets better, or after 20 rounds; scales stay what they were.
    """
    return _rounded(weight, group, _half_quadratic, scales)


def round_to_int8(weight: Tensor, scales: torch.dtype = torch.float32) -> QuantizedWeight:
    """weight [out, in] in codes around 128 with a scale for each output: w = (q - 128) * scale, scale = max|w| /
    127."""
    codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scale = torch.empty(len(weight), 1, dtype=scales, device=weight.device)
    step = max(1, part_of(weight) // weight.shape[1])
    for rows, out, found in zip(weight.split(step), codes.split(step), scale.split(step), strict=True):
        found.copy_(to_scales(rows.float().abs().amax(1, keepdim=True) / 127, scales))
        out.copy_((rows.float() / found.float()).round_().clamp_(-127, 127).add_(128))
    return QuantizedWeight(codes, scale, weight.shape[1], 256, zero=128.0)


Rounding = Callable[[Tensor, Tensor, torch.dtype], tuple[Tensor, Tensor, Tensor | float]]
"""(values [out, groups, group], which of them are there [groups, group], dtype of scales) -> codes, scales and
zeros.
"""


def _rounded(weight: Tensor, group: int, rounding: Rounding, scales: torch.dtype | None) -> QuantizedWeight:
    group = min(group, weight.shape[1])
    dtype = scales or scale_dtype(weight)
    parts = [rounding(values, there, dtype) for values, there in _in_groups(weight, group)]
    codes = torch.cat([part[0].to(torch.uint8).flatten(1)[:, : weight.shape[1]] for part in parts])
    zeros: Any = [part[2] for part in parts]
    zero = zeros[0] if isinstance(zeros[0], float) else torch.cat(zeros)
    return QuantizedWeight(codes, torch.cat([part[1] for part in parts]), group, zero=zero)


def part_of(weight: Tensor) -> int:
    return PART_ON_GPU if weight.is_cuda else PART


def _in_groups(weight: Tensor, group: int) -> Iterator[tuple[Tensor, Tensor]]:
    """float32 [rows, groups, group], a few rows at a time, zeros beyond the last input; and a mask of the real
    inputs.
    """
    inputs = weight.shape[1]
    beyond = -inputs % group
    there = (torch.arange(inputs + beyond, device=weight.device) < inputs).view(-1, group)
    for rows in weight.split(max(1, part_of(weight) // inputs)):
        yield F.pad(rows.float(), (0, beyond)).unflatten(1, (-1, group)), there


def scale_dtype(weight: Tensor) -> torch.dtype:
    """float16 if the largest scales have all their bits in it; the loss of smaller ones is negligible."""
    peak = float(weight.abs().max()) / TOP
    return torch.float16 if HALF_NORMAL <= peak <= torch.finfo(torch.float16).max else torch.float32


def to_scales(steps: Tensor, dtype: torch.dtype) -> Tensor:
    """Above zero, so that a group of zeros has one too."""
    return steps.clamp_min(HALF_SMALLEST if dtype == torch.float16 else torch.finfo(dtype).tiny).to(dtype)


def _range_in_steps(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Each group's scale in `dtype`, and float32 its whole zero; both [out, groups]."""
    low, high = values.amin(2).clamp_max(0), values.amax(2).clamp_min(0)
    scale = to_scales((high - low) / TOP, dtype)
    return scale, (-low / scale.float()).round_().clamp_(0, TOP)


def with_whole_zero(values: Tensor, there: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    scale, zero = _range_in_steps(values, dtype)
    codes = (values / scale.float()[..., None]).round_().add_(zero[..., None]).clamp_(0, TOP)
    return codes, scale, zero.to(torch.uint8)


def with_zero_point_eight(values: Tensor, there: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, float]:
    scale = to_scales(values.abs().amax(2) / 7.5, dtype)
    return (values / scale.float()[..., None]).round_().add_(8).clamp_(0, TOP), scale, 8.0


def _half_quadratic(values: Tensor, there: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    scale, zero = _range_in_steps(values, dtype)
    of_group, zero = scale.float()[..., None], zero[..., None]
    best, smallest = zero, torch.full_like(zero, torch.inf)
    for _ in range(ROUNDS):
        codes = _codes(values, of_group, zero)
        error = values - (codes - zero) * of_group
        mean = _mean_there(error.abs(), there)
        better = mean < smallest
        if not bool(better.any()):
            break
        best, smallest = torch.where(better, zero, best), torch.where(better, mean, smallest)
        zero = _mean_there(codes - (values - _shrunk(error)) / of_group, there).half().float()
    return _codes(values, of_group, best), scale, best[..., 0].half()


def _codes(values: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return (values / scale + zero).round_().clamp_(0, TOP)


def _shrunk(error: Tensor) -> Tensor:
    """The few large errors, less what separates them from the many small ones."""
    size = error.abs()
    return error.sign() * (size - size.clamp_min(1e-12).pow(POWER - 1) / BETA).clamp_min_(0)


def _mean_there(numbers: Tensor, there: Tensor) -> Tensor:
    return (numbers * there).sum(2, keepdim=True) / there.sum(1)[None, :, None]
