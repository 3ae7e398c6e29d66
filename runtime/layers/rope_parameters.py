"""Rotary position embedding as data: the parameters of every supported scaling, and the frequencies that they give."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """Rotation of a head of `width` numbers, `dim` of which are rotated; `kind` is one of `FREQUENCIES`.

    interleaved: adjacent numbers are pairs (GPT-J), not halves (GPT-NeoX). Weights are reordered to halves while
        loading, see `order`, so that no other code has to know.  backwards: it rotates the other way (nanochat).
        factors: of longrope, factors of the wavelengths.
    Fields that a kind does not use keep their defaults.
    """

    theta: float
    dim: int
    width: int
    kind: str = "default"
    interleaved: bool = False
    backwards: bool = False
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    factors: tuple[float, ...] = ()

    @property
    def order(self) -> list[int] | None:
        """Which number of a checkpoint's head comes to each place, so that number i turns with i + width / 2.

        None: they are there already. Scores do not change: queries and keys are reordered alike.
        """
        if self.kind == "proportional":
            return None
        turning, half = range(self.dim), self.dim // 2
        first, second = (turning[::2], turning[1::2]) if self.interleaved else (turning[:half], turning[half:])
        if self.backwards:
            first, second = second, first
        still, split = range(self.dim, self.width), self.width // 2 - half
        order = [*first, *still[:split], *second, *still[split:]]
        return None if order == list(range(self.width)) else order


def exact_frequencies(rope: RopeParameters) -> list[float]:
    """Radians a position of the pairs that turn, without the rounding to float32 of `rotary_embedding.frequencies`.

    Raises ArithmeticError or ValueError for parameters that give none.
    """
    return FREQUENCIES[rope.kind](rope)


def _default(rope: RopeParameters) -> list[float]:
    return [1.0 / rope.theta ** (index / rope.dim) for index in range(0, rope.dim, 2)]


def _linear(rope: RopeParameters) -> list[float]:
    return [each / rope.factor for each in _default(rope)]


def _llama3(rope: RopeParameters) -> list[float]:
    reach = rope.high_freq_factor - rope.low_freq_factor
    blends = [(rope.original_context * each / (2 * math.pi) - rope.low_freq_factor) / reach for each in _default(rope)]
    return [_between(each / rope.factor, each, blend) for each, blend in zip(_default(rope), blends, strict=True)]


def _yarn(rope: RopeParameters) -> list[float]:
    low, high = yarn_ramp(rope)
    blends = [(index - low) / (high - low or 1e-3) for index in range(rope.dim // 2)]
    return [_between(each, each / rope.factor, blend) for each, blend in zip(_default(rope), blends, strict=True)]


def yarn_ramp(rope: RopeParameters) -> tuple[float, float]:
    """The pairs between which frequencies pass from kept to stretched: those that turn more than beta_fast times in
    the original context are kept, those below beta_slow stretched.
    """

    def dimension_of(turns: float) -> float:
        return rope.dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, rope.dim - 1)


def _longrope(rope: RopeParameters) -> list[float]:
    return [each / factor for each, factor in zip(_default(rope), rope.factors, strict=True)]


def _alpha(rope: RopeParameters) -> list[float]:
    return _default(replace(rope, theta=alpha_theta(rope)))


def alpha_theta(rope: RopeParameters) -> float:
    """The base, raised once for every length."""
    return rope.theta * rope.factor ** (rope.dim / (rope.dim - 2))


def _proportional(rope: RopeParameters) -> list[float]:
    return [1.0 / rope.theta ** (index / rope.width) / rope.factor for index in range(0, rope.dim, 2)]


def _between(one: float, other: float, share: float) -> float:
    return one + min(max(share, 0.0), 1.0) * (other - one)


FREQUENCIES: dict[str, Callable[[RopeParameters], list[float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "alpha": _alpha,
    "proportional": _proportional,
}
