"""Mixers with states in config.json, and which layers have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError
from .json_fields import shown
from .model_config import MOST_HEADS, MOST_WIDTH, ModelConfig
from .recurrent_spec import DeltaNetSpec, Mamba2Spec

LINEAR, FULL = "linear_attention", "full_attention"
RENAMED = {"mamba": LINEAR, "attention": FULL}  # before transformers 5
MOST_SEEN = 64  # tokens that a convolution sees


def layer_kinds(
    c: ModelConfig, default: Sequence[str], allowed: Sequence[str] = (LINEAR, FULL), key: str = "layer_types"
) -> list[str]:
    """Of each layer what it is, one of `allowed`."""
    found = c.raw(key)
    if found is None and not default:
        raise ConfigError(f"{c.where}: key {key!r} is missing; it must name {' or '.join(allowed)} for each layer")
    kinds = list(default) if found is None else found
    if isinstance(kinds, list):
        kinds = [RENAMED.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    if not isinstance(kinds, list) or not kinds or any(kind not in allowed for kind in kinds):
        raise ConfigError(f"{c.where}: {key}={shown(found)} must name {' or '.join(allowed)} for each layer")
    return kinds


def counted(c: ModelConfig, kinds: list[str], key: str = "layer_types") -> list[str]:
    """The same, of as many layers as config.json says."""
    if len(kinds) != c.count:
        raise ConfigError(f"{c.where}: {key}={shown(kinds)} must name {c.count} layers, not {len(kinds)}")
    return kinds


def periodic(c: ModelConfig) -> list[str]:
    """Each `full_attention_interval`-th layer attends."""
    each = c.positive("full_attention_interval", 4)
    return [LINEAR if (index + 1) % each else FULL for index in range(c.count)]


def delta(
    c: ModelConfig,
    eps: float,
    heads: int | None = 32,
    key_heads: int | None = 16,
    dim: int | None = 128,
    **options: Any,
) -> DeltaNetSpec:
    """A gated delta net by the keys that begin with `linear_`."""
    values, keys = (
        c.positive("linear_num_value_heads", heads, MOST_HEADS),
        c.positive("linear_num_key_heads", key_heads, MOST_HEADS),
    )
    if values % keys:
        raise ConfigError(
            f"{c.where}: linear_num_value_heads={values} is not a multiple of linear_num_key_heads={keys}"
        )
    width = c.positive("linear_key_head_dim", dim, MOST_WIDTH)
    own = c.positive("linear_value_head_dim", options.pop("value_dim", dim), MOST_WIDTH)
    return DeltaNetSpec(
        values, keys, width, own, c.positive("linear_conv_kernel_dim", 4, MOST_SEEN), eps, c.activation(), **options
    )


def mamba2(
    c: ModelConfig, heads: int, dim: int, size: int, groups: int, width: int, eps: float | None, **options: Any
) -> Mamba2Spec:
    """The state space layer of these sizes. Raises ConfigError where heads cannot share groups evenly."""
    if heads % groups:
        raise ConfigError(f"{c.where}: {heads} heads of Mamba 2 cannot share {groups} groups evenly")
    return Mamba2Spec(heads, dim, size, groups, width, eps, **options)


def heads_of(c: ModelConfig, inner: int, heads: str, dim: str, default: int | None = None) -> tuple[int, int]:
    """How many heads `inner` numbers have, and how wide each is."""
    count = c.positive(heads, default, MOST_HEADS)
    written = None if c.raw(dim) == "auto" else c.optional(dim, int)
    width = inner // count if written is None else written
    if width * count != inner:
        raise ConfigError(f"{c.where}: {heads}={count} of {dim}={shown(c.raw(dim))} must give {inner} numbers")
    return count, width


def time_limits(c: ModelConfig) -> dict[str, float]:
    """`time_step_limit`: the least and the largest time step; transformers writes infinity as an object."""
    found = c.raw("time_step_limit")
    numbers = [_number(each) for each in found] if isinstance(found, list) else [0.0, math.inf] if found is None else []
    if len(numbers) != 2 or any(number is None for number in numbers) or not 0 <= numbers[0] <= numbers[1]:  # type: ignore[operator]
        raise ConfigError(f"{c.where}: time_step_limit={shown(found)} must hold the least and the largest time step")
    return {"least": numbers[0], "most": numbers[1]}  # type: ignore[dict-item]


def _number(value: Any) -> float | None:
    value = value.get("__float__") if isinstance(value, dict) else value
    if value in ("Infinity", "inf"):
        return math.inf
    return float(value) if type(value) in (int, float) and not math.isnan(value) else None


def ignored(*patterns: str) -> tuple[str, ...]:
    """Tensors of multi-token prediction heads, and other ignored ones."""
    return (r"mtp\..*", *patterns)
