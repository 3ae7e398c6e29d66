"""Rotary position embedding: frequencies of every supported scaling, and their table of cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import cpu


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """kind is one of `ROPE_KINDS`; fields that a kind does not use keep their defaults."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


def _default(rope: RopeConfig, dim: int) -> Tensor:
    return 1.0 / rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _linear(rope: RopeConfig, dim: int) -> Tensor:
    return _default(rope, dim) / rope.factor


def _llama3(rope: RopeConfig, dim: int) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    frequency = _default(rope, dim)
    turns = rope.original_context * frequency / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return torch.lerp(frequency / rope.factor, frequency, blend.clamp(0, 1))


def _yarn(rope: RopeConfig, dim: int) -> Tensor:
    """Dimensions that turn more than beta_fast times keep their frequency, below beta_slow are stretched."""

    def dimension_of(turns: float) -> float:
        return dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low or 1e-3)
    frequency = _default(rope, dim)
    return torch.lerp(frequency, frequency / rope.factor, ramp.clamp(0, 1))


ROPE_KINDS: dict[str, Callable[[RopeConfig, int], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


PIECE = 2**14  # positions whose angles are worked out at a time, in float32


class Rotary:
    """Table of cosines and sines of positions, grown on demand; one gather a step serves every layer.

    table: [positions, 2 head_dim] of the model's type. A row is cos twice, then sin with its first half negated,
    so that rotating is `x * cos + swap_halves(x) * sin`.
    positions: rows to build at once; the table keeps its address while nobody asks for more.
    """

    def __init__(
        self, rope: RopeConfig, head_dim: int, dtype: torch.dtype, device: torch.device, positions: int = 64
    ) -> None:
        self._frequency = ROPE_KINDS[rope.kind](rope, head_dim).to(device)
        self._scale = rope.attention_factor
        self._half = head_dim // 2
        self._dtype, self._device = dtype, device
        self.table = self._build(positions)

    def _build(self, rows: int) -> Tensor:
        table = torch.empty(rows, 4, self._half, dtype=self._dtype, device=self._device)
        for start in range(0, rows, PIECE):
            stop = min(start + PIECE, rows)
            positions = torch.arange(start, stop, dtype=torch.float32, device=self._device)
            angle = torch.outer(positions, self._frequency)
            cos, sin = angle.cos() * self._scale, angle.sin() * self._scale
            table[start:stop] = torch.stack((cos, cos, -sin, sin), 1)
        return table.view(rows, 4 * self._half)

    def reach(self, length: int) -> Tensor:
        """The table, with the positions below `length` in it."""
        if length > len(self.table):
            self.table = self._build(1 << (length - 1).bit_length())
        return self.table

    def gather(self, positions: Tensor, length: int) -> Angles:
        """The angles of positions [T], all of them below `length`."""
        table = self.reach(length).index_select(0, positions)
        return Angles(table, *table.view(-1, 1, 4, self._half).split(2, 2))


class Angles(NamedTuple):
    """table: [T, 2 head_dim]; cos, sin: views of it, [T, 1, 2, head_dim / 2]."""

    table: Tensor
    cos: Tensor
    sin: Tensor


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Heads x [T, heads, head_dim] rotated, possibly in place; the last two dimensions are contiguous."""
    tokens, heads, dim = x.shape
    if cpu.suits(x):
        cpu.kernels.rotate(
            cpu.KINDS[x.dtype], x.data_ptr(), x.stride(0), angles.table.data_ptr(), tokens, heads, dim
        )
        return x
    halves = x.view(tokens, heads, 2, dim // 2)
    return torch.addcmul(halves * angles.cos, halves.flip(2), angles.sin).view(tokens, heads, dim)
