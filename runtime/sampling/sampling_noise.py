"""Noise as a pure function of (seed, position, vocabulary column), the same on every device and in every batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_UNIT = 2.0**-31 * (1 - 2.0**-24)  # a little less, or the largest variate would be infinite


def _splitmix(x: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64, on uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def seed_hash_words(seeds: list[int]) -> np.ndarray:
    """Any Python integers as well mixed uint64 words; [n]."""
    return _splitmix(np.array([seed & _MASK for seed in seeds], np.uint64) + np.uint64(0x9E3779B97F4A7C15))


def noise_row_keys(words: np.ndarray, positions: list[int]) -> np.ndarray:
    """int32 [n, 2]: an offset and an odd factor for each row of noise."""
    counters = np.array(positions, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    keys = _splitmix(words + counters).view(np.int32).reshape(-1, 2)
    keys[:, 1] |= 1
    return keys


def column_hash(width: int) -> np.ndarray:
    """Distinct well mixed int32 words, one a vocabulary column; [width]."""
    x = np.arange(1, width + 1, dtype=np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return (x ^ (x >> np.uint32(16))).view(np.int32)


def exponential_race(keys: Tensor, columns: Tensor) -> Tensor:
    """Minus a unit exponential variate for each row and column; float32 [n, V] in [-16.7, -2**-33].

    `race / p` is largest for column i with probability p[i] / sum(p): the Gumbel-max trick without logarithms of p. The
    last shift is arithmetic: it folds the sign away and leaves 31 uniform bits.
    """
    x = columns * keys[:, 1:]
    x += keys[:, :1]
    shifted = torch.bitwise_right_shift(x, 16)
    x ^= shifted
    x *= 0x7FEB352D
    torch.bitwise_right_shift(x, 15, out=shifted)
    x ^= shifted
    uniform = x.float()
    return uniform.add_(0.5).mul_(-_UNIT).log1p_()
