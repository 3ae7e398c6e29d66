"""The small parts that all mixers and feedforward networks are made of, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "xielu"]


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A norm over the last dimension, computed in float32: y = x / rms(x) * (weight + offset) + bias.

    kind: "rms", or "layer", which takes the mean away first.  weight, bias: whether the checkpoint has them.
    """

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    offset: float = 0.0
    weight: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class QkNormSpec:
    """Norm of queries and keys.

    over: "head", each head with one weight [dim] for all; "each", each head with its own [heads, dim]; "all", the
    whole projection at once, [heads * dim].  after: it stands behind the rotation.
    """

    norm: NormSpec
    over: Literal["head", "each", "all"] = "head"
    after: bool = False


@dataclass(frozen=True, slots=True)
class QueryTemperature:
    """Queries are multiplied by 1 + beta * log(1 + floor((position + shift) / period)), behind the rotation."""

    beta: float
    period: float
    shift: int = 0
