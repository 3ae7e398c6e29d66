"""Mixers that carry a state along with each sequence, as data; parts of `spec`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...cache.recurrent_state_shape import RecurrentStateShape
from .layer_part_specs import Activation, NormSpec


@dataclass(frozen=True, slots=True)
class DeltaNetSpec:
    """Gated delta net (arXiv 2412.06464), or KDA (arXiv 2510.26692), where each channel of keys decays at a separate
    rate.

    heads, value_dim: of values and states.  key_heads, dim: of queries and keys, each for as many heads of values.
    width: tokens of the convolution in front, `activation` follows it.  rank: of the two products for KDA's decay and
        gate; None: gated delta net.  reach: beta is between 0 and this.  gate: activation of the factor of normed
        outputs.
    log_rate: the files hold the logarithm of the decay rate, not -e^ of it.  tiled: head i of values reads head
        i % key_heads of keys, not its neighbours'.
    """

    heads: int
    key_heads: int
    dim: int
    value_dim: int
    width: int
    eps: float
    activation: Activation = "silu"
    rank: int | None = None
    reach: float = 1.0
    gate: Literal["silu", "sigmoid"] = "silu"
    log_rate: bool = True
    tiled: bool = False

    @property
    def channels(self) -> int:
        """Of the convolution: of queries, keys and values."""
        return 2 * self.key_heads * self.dim + self.heads * self.value_dim

    @property
    def state(self) -> tuple[RecurrentStateShape, ...]:
        return RecurrentStateShape((self.width - 1, self.channels), False), RecurrentStateShape(
            (self.heads, self.dim, self.value_dim), True
        )


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """State space duality (arXiv 2405.21060): each of `heads` heads of width `dim` has a state for each of `size`
    numbers.

    groups: heads of a group share B and C, which write and read states.  width: tokens of the convolution in front,
        `activation` follows it.
    bias: of the input projection; out_bias: of the output projection; conv_bias: of the convolution.  least, most:
        limits of a time step.
    eps: of the norm of each group of outputs; None: no norm.  norm_first: it comes before the gate.
    scale: of the input.  scales: of its projections: gate, x, B, C, time steps; empty: 1.  log_rate: see
        `DeltaNetSpec`.
    """

    heads: int
    dim: int
    size: int
    groups: int
    width: int
    eps: float | None
    activation: Activation = "silu"
    bias: bool = False
    out_bias: bool = False
    conv_bias: bool = True
    least: float = 0.0
    most: float = math.inf
    norm_first: bool = False
    scale: float = 1.0
    scales: tuple[float, ...] = ()
    log_rate: bool = True

    @property
    def inner(self) -> int:
        return self.heads * self.dim

    @property
    def channels(self) -> int:
        """Of the convolution: of x, B and C."""
        return self.inner + 2 * self.groups * self.size

    @property
    def state(self) -> tuple[RecurrentStateShape, ...]:
        return RecurrentStateShape((self.width - 1, self.channels), False), RecurrentStateShape(
            (self.heads, self.size, self.dim), True
        )


@dataclass(frozen=True, slots=True)
class Mamba1Spec:
    """The selective scan (arXiv 2312.00752): each of `inner` channels has a state of `size` numbers.

    rank: of the time steps' input.  width: tokens of the convolution in front, `activation` follows it.
    bias: of the input and output projections; conv_bias: of the convolution.  norm: of the time steps' input, B and C.
    log_rate: see `DeltaNetSpec`.
    """

    inner: int
    size: int
    rank: int
    width: int
    activation: Activation = "silu"
    bias: bool = False
    conv_bias: bool = True
    norm: NormSpec | None = None
    log_rate: bool = True

    @property
    def state(self) -> tuple[RecurrentStateShape, ...]:
        return RecurrentStateShape((self.width - 1, self.inner), False), RecurrentStateShape(
            (self.inner, self.size), True
        )
