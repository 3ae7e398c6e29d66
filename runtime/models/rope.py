"""Rotary parameters as checkpoints write them, before and since transformers 5."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..errors import ConfigError
from ..layers.rotary import ROPE_KINDS, RopeConfig
from .fields import Fields


def rope_config(fields: Fields) -> RopeConfig:
    """Of `rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` beside it (before)."""
    nested = fields.values.get("rope_parameters") or fields.values.get("rope_scaling") or {}
    where = (
        f"{fields.where}: rope_parameters"
        if "rope_parameters" in fields.values
        else f"{fields.where}: rope_scaling"
    )
    rope = Fields(nested, where)
    kind = rope.get("rope_type", str, rope.get("type", str, "default"))
    if kind not in ROPE_KINDS:
        raise ConfigError(f"{where}: rope_type={kind!r} is not supported; supported: {', '.join(ROPE_KINDS)}")
    for holder in (fields, rope):
        if (part := holder.get("partial_rotary_factor", float, 1.0)) != 1.0:
            raise ConfigError(f"{holder.where}: partial_rotary_factor={part} is not supported, only 1.0")
    theta = rope.get("rope_theta", float, fields.get("rope_theta", float, 10000.0))
    if kind == "default":
        return RopeConfig(theta)
    factor = rope.get("factor", float)
    trained = rope.positive("original_max_position_embeddings", fields.positive("max_position_embeddings"))
    common = RopeConfig(theta, kind, factor, fields.positive("original_max_position_embeddings", trained))
    return _SCALING[kind](common, rope)


def _linear(common: RopeConfig, rope: Fields) -> RopeConfig:
    return common


def _llama3(common: RopeConfig, rope: Fields) -> RopeConfig:
    low, high = rope.get("low_freq_factor", float), rope.get("high_freq_factor", float)
    return replace(common, low_freq_factor=low, high_freq_factor=high)


def _yarn(common: RopeConfig, rope: Fields) -> RopeConfig:
    mscale, mscale_all = rope.get("mscale", float, 0.0), rope.get("mscale_all_dim", float, 0.0)
    if mscale and mscale_all:
        natural = _yarn_temperature(common.factor, mscale) / _yarn_temperature(common.factor, mscale_all)
    else:
        natural = _yarn_temperature(common.factor)
    return replace(
        common,
        attention_factor=rope.get("attention_factor", float, natural),
        beta_fast=rope.get("beta_fast", float, 32.0),
        beta_slow=rope.get("beta_slow", float, 1.0),
        truncate=rope.get("truncate", bool, True),
    )


def _yarn_temperature(factor: float, mscale: float = 1.0) -> float:
    """How much YaRN scales cosines and sines to keep the attention's entropy."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


_SCALING: dict[str, Callable[[RopeConfig, Fields], RopeConfig]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
