"""Rotary position embedding: frequencies of every supported scaling, and their table of cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from . import cpu_kernels
from .rope_parameters import RopeParameters, alpha_theta, yarn_ramp


def frequencies(rope: RopeParameters) -> Tensor:
    """float32 [width / 2], radians a position; 0 for what does not turn."""
    turning = ROPE_KINDS[rope.kind](rope)
    return torch.cat((turning, torch.zeros(rope.width // 2 - len(turning))))


def _default(rope: RopeParameters) -> Tensor:
    return 1.0 / rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim)


def _linear(rope: RopeParameters) -> Tensor:
    return _default(rope) / rope.factor


def _llama3(rope: RopeParameters) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    frequency = _default(rope)
    turns = rope.original_context * frequency / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return torch.lerp(frequency / rope.factor, frequency, blend.clamp(0, 1))


def _yarn(rope: RopeParameters) -> Tensor:
    """Dimensions that turn more than beta_fast times keep their frequency, below beta_slow are stretched."""
    low, high = yarn_ramp(rope)
    ramp = (torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low or 1e-3)
    frequency = _default(rope)
    return torch.lerp(frequency, frequency / rope.factor, ramp.clamp(0, 1))


def _longrope(rope: RopeParameters) -> Tensor:
    """Every wavelength has a separate factor (LongRoPE, arXiv 2402.13753)."""
    return 1.0 / (
        torch.tensor(rope.factors) * rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim)
    )


def _alpha(rope: RopeParameters) -> Tensor:
    """The base is raised once, for every length (NTK-aware with a fixed `factor`)."""
    return _default(replace(rope, theta=alpha_theta(rope)))


def _proportional(rope: RopeParameters) -> Tensor:
    """The frequencies of the whole head, of which the first `dim / 2` turn (Gemma 4)."""
    return 1.0 / rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.width) / rope.factor


ROPE_KINDS: dict[str, Callable[[RopeParameters], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "alpha": _alpha,
    "proportional": _proportional,
}


PIECE = 2**14  # positions whose angles are worked out at a time, in float32


class RotaryEmbedding:
    """Table of cosines and sines of positions, grown on demand; one gather a step serves every layer.

    table: [positions, 2 head_dim] of the model's type. A row is cos twice, then sin with its first half negated,
    so that rotating is `x * cos + swap_halves(x) * sin`.
    positions: rows to build at once; the table keeps its address until more are requested.
    """

    def __init__(self, rope: RopeParameters, dtype: torch.dtype, device: torch.device, positions: int = 64) -> None:
        frequency = frequencies(rope)
        factor = torch.where(frequency == 0, 1.0, rope.attention_factor)  # what does not turn keeps its size
        self._frequency, self._factor = frequency.to(device), factor.to(device)
        self._half = rope.width // 2
        self._dtype, self._device = dtype, device
        self.table = self._build(positions)

    def _build(self, rows: int) -> Tensor:
        table = torch.empty(rows, 4, self._half, dtype=self._dtype, device=self._device)
        for start in range(0, 0 if table.is_meta else rows, PIECE):
            stop = min(start + PIECE, rows)
            positions = torch.arange(start, stop, dtype=torch.float32, device=self._device)
            angle = torch.outer(positions, self._frequency)
            cos, sin = angle.cos() * self._factor, angle.sin() * self._factor
            table[start:stop] = torch.stack((cos, cos, -sin, sin), 1)
        return table.view(rows, 4 * self._half)

    def reach(self, length: int) -> Tensor:
        """The table, with the positions below `length` in it."""
        if length > len(self.table):
            self.table = self._build(1 << (length - 1).bit_length())
        return self.table

    def gather(self, positions: Tensor, length: int) -> RotaryAngles:
        """The angles of positions [T], all of them below `length`."""
        table = self.reach(length).index_select(0, positions)
        return RotaryAngles(table, *table.view(-1, 1, 4, self._half).split(2, 2))


class RotaryAngles(NamedTuple):
    """table: [T, 2 head_dim]; cos, sin: views of it, [T, 1, 2, head_dim / 2]."""

    table: Tensor
    cos: Tensor
    sin: Tensor


def rotate(x: Tensor, angles: RotaryAngles) -> Tensor:
    """Heads x [T, heads, head_dim] rotated, possibly in place; the last two dimensions are contiguous."""
    tokens, heads, dim = x.shape
    if cpu_kernels.supports(x):
        cpu_kernels.kernels.rotate(
            cpu_kernels.KINDS[x.dtype], x.data_ptr(), x.stride(0), angles.table.data_ptr(), tokens, heads, dim
        )
        return x
    halves = x.view(tokens, heads, 2, dim // 2)
    return torch.addcmul(halves * angles.cos, halves.flip(2), angles.sin).view(tokens, heads, dim)
