"""Rounds dense weights to four bits by their input statistics: later columns compensate the error of a column.

Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, 2023.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .quantized_weight import QuantizedWeight
from .weight_forms import GROUP
from .weight_rounding import TOP, Rounding, scale_dtype, with_whole_zero, with_zero_point_eight

DAMPING = 0.01  # of the mean diagonal, added to it
BLOCK = 128  # columns whose errors are applied to the following columns together


def gptq(
    weight: Tensor,
    hessian: Tensor,
    group: int = GROUP,
    *,
    whole_zeros: bool = True,
    ordered: bool = False,
    scales: torch.dtype | None = None,
) -> QuantizedWeight:
    """weight [out, in] in codes that keep its products with the inputs of `hessian`.

    hessian: float [in, in], X^T X of the inputs X [tokens, in], times any number; 1 % of its mean diagonal is added.
    whole_zeros: as `nearest` has them; otherwise codes are around 8. ordered: columns by falling diagonal, each group's
    scale from the weight as it was, so that the result has no order; otherwise scales are of the columns as the errors
    left them.
    scales: their dtype; None: float16 where its range suffices. Raises ValueError for a hessian of another size or one
    that is not finite.
    """
    inputs = weight.shape[1]
    if hessian.shape != (inputs, inputs) or not bool(hessian.isfinite().all()):
        raise ValueError(
            f"hessian {list(hessian.shape)} must be finite numbers [{inputs}, {inputs}] for a weight "
            f"{list(weight.shape)}"
        )
    grid = _QuantizationGrid(
        min(group, inputs), with_whole_zero if whole_zeros else with_zero_point_eight, scales or scale_dtype(weight)
    )
    return _ordered(grid, weight, hessian) if ordered else _as_they_come(grid, weight, hessian)


def _as_they_come(grid: _QuantizationGrid, weight: Tensor, hessian: Tensor) -> QuantizedWeight:
    columns, factor = _columns(weight), inverse_factor(hessian)
    codes, found = torch.empty_like(columns, dtype=torch.uint8), []
    for start in range(0, len(columns), grid.group):
        stop = min(start + grid.group, len(columns))
        found.append(grid.of(columns[start:stop].t()))
        scale, zero = (part[:, 0] for part in found[-1].numbers())
        for block in _blocks(start, stop):
            width = block.stop - block.start
            codes[block] = _round_block(columns, factor, block, scale.expand(width, -1), zero.expand(width, -1))
    return grid.finished(codes, _GroupScales.joined(found))


def _ordered(grid: _QuantizationGrid, weight: Tensor, hessian: Tensor) -> QuantizedWeight:
    order = hessian.diagonal().argsort(descending=True, stable=True)
    columns, factor = _columns(weight)[order], inverse_factor(hessian[order][:, order])
    codes, found = torch.empty_like(columns, dtype=torch.uint8), grid.of(weight)
    groups = order // grid.group
    scale, zero = (part.t() for part in found.numbers())
    for block in _blocks(0, len(columns)):
        codes[block] = _round_block(columns, factor, block, scale[groups[block]], zero[groups[block]])
    return grid.finished(torch.empty_like(codes).index_copy_(0, order, codes), found)


def _round_block(columns: Tensor, factor: Tensor, block: slice, scale: Tensor, zero: Tensor) -> Tensor:
    """The codes of a block of columns, float32 [width, out]; its errors are subtracted from later columns, times
    `factor`.
    """
    own, inner = columns[block], factor[block, block]
    codes, errors = torch.empty_like(own), torch.empty_like(own)
    for at, column in enumerate(own):
        codes[at] = (column / scale[at]).round_().add_(zero[at]).clamp_(0, TOP)
        errors[at] = (column - (codes[at] - zero[at]) * scale[at]) / inner[at, at]
        own[at + 1 :].addr_(inner[at, at + 1 :], errors[at], alpha=-1)
    columns[block.stop :].addmm_(factor[block, block.stop :].t(), errors, alpha=-1)
    return codes


def inverse_factor(hessian: Tensor) -> Tensor:
    """float32, upper triangular U with U^T U the inverse of the damped hessian: row j is how an error in j reaches the
    others.

    From a factor R R^T of the hessian itself, R upper: then U is R's inverse, and no inverse has to be factored.
    """
    damped = hessian.double()
    mean = damped.diagonal().mean()
    damped.diagonal().add_(
        DAMPING * mean if mean > 0 else 1.0
    )  # inputs that never were leave the weight to its rounding
    upper = torch.linalg.cholesky(damped.flip(0, 1)).flip(0, 1)
    one = torch.eye(len(upper), dtype=upper.dtype, device=upper.device)
    return torch.linalg.solve_triangular(upper, one, upper=True).float()


class _GroupScales(NamedTuple):
    """Of some groups: scale [out, groups] as it is stored, and the zeros."""

    scale: Tensor
    zero: Tensor | float

    def numbers(self) -> tuple[Tensor, Tensor]:
        scale = self.scale.float()
        return scale, self.zero.float() if isinstance(self.zero, Tensor) else torch.full_like(scale, self.zero)

    @staticmethod
    def joined(parts: list[_GroupScales]) -> _GroupScales:
        zeros = [part.zero for part in parts if isinstance(part.zero, Tensor)]
        return _GroupScales(
            torch.cat([part.scale for part in parts], 1), torch.cat(zeros, 1) if zeros else parts[0].zero
        )


class _QuantizationGrid(NamedTuple):
    """How scales are found; dtype: as they are stored."""

    group: int
    rounding: Rounding
    dtype: torch.dtype

    def of(self, values: Tensor) -> _GroupScales:
        """values: [out, in]"""
        values = F.pad(values.float(), (0, -values.shape[1] % self.group)).unflatten(1, (-1, self.group))
        _, scale, zero = self.rounding(values, torch.ones_like(values[0], dtype=torch.bool), self.dtype)
        return _GroupScales(scale, zero)

    def finished(self, codes: Tensor, found: _GroupScales) -> QuantizedWeight:
        """codes: uint8 [in, out]"""
        return QuantizedWeight(codes.t().contiguous(), found.scale, self.group, zero=found.zero)


def _columns(weight: Tensor) -> Tensor:
    """float32 [in, out], a copy: columns are contiguous."""
    return weight.t().to(torch.float32, memory_format=torch.contiguous_format, copy=True)


def _blocks(start: int, stop: int) -> Iterator[slice]:
    for first in range(start, stop, BLOCK):
        yield slice(first, min(first + BLOCK, stop))
