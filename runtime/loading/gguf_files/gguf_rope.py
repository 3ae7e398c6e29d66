"""Rotary parameters of a GGUF file: its keys, and the factors that it keeps as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

from ...errors import ConfigError
from ...layers.rope_parameters import RopeParameters, exact_frequencies
from ...models.spec.json_fields import JsonFields, shown

ORIGINAL = "rope.scaling.original_context_length"
PUBLISHED = (8192, 4096, 2048, 16384, 32768, 65536, 131072)  # contexts before the stretch
ORIGINAL_CONTEXT = "original_max_position_embeddings"
CLOSE = 1e-6  # relative; factors are stored with 24 bits


def rope_of_gguf(keys: JsonFields, factors: Mapping[str, list[float]], width: int | None = None) -> dict[str, Any]:
    """`rope_theta`, `rope_scaling` and their like, as config.json has them.

    factors: what divides frequencies, by the tensor that holds it: rope_freqs for all lengths, rope_factors_short and
    rope_factors_long for those below and above the original context.  width: of a head, where no key says it.
    """
    width = (
        width
        or keys.optional("attention.key_length", int)
        or keys.positive("embedding_length") // keys.positive("attention.head_count")
    )
    turned = keys.positive("rope.dimension_count", width)
    theta = keys.rate("rope.freq_base", 1e4)
    found: dict[str, Any] = {"rope_theta": theta}
    if turned != width:
        found["partial_rotary_factor"] = (turned + 0.25) / width  # rounded down
    scaling = _factors(keys, factors, turned, theta) if factors else _written(keys)
    if scaling is None:
        return found
    original = (
        {ORIGINAL_CONTEXT: scaling[ORIGINAL_CONTEXT]} if scaling["rope_type"] == "longrope" else {}
    )  # which counts before the one inside
    return found | original | {"rope_scaling": scaling}


def _written(keys: JsonFields) -> dict[str, Any] | None:
    """Of a scaling that keys describe."""
    kind = keys.get("rope.scaling.type", str, "none")
    original, attention = keys.optional(ORIGINAL, int), keys.optional("rope.scaling.attn_factor", float)
    if kind == "yarn":
        return _yarn(keys, original, attention)
    if kind not in ("none", "linear"):
        raise ConfigError(
            f"{keys.where}.rope.scaling.type={shown(kind)} is not supported without factors; supported: none, "
            "linear, yarn"
        )
    factor = keys.optional("rope.scaling.factor", float)
    return {"rope_type": "linear", "factor": factor} if kind == "linear" and factor is not None else None


def _yarn(keys: JsonFields, original: int | None, attention: float | None) -> dict[str, Any]:
    if attention not in (None, 1.0):
        raise ConfigError(
            f"{keys.where}.rope.scaling.attn_factor={attention} together with yarn is not supported; "
            "take a newer GGUF file"
        )
    keys.require("rope.scaling.yarn_ext_factor", 1.0)
    said = {
        "factor": keys.rate("rope.scaling.factor"),
        "original_max_position_embeddings": original,
        "attention_factor": keys.optional("rope.scaling.yarn_attn_factor", float),
        "beta_fast": keys.optional("rope.scaling.yarn_beta_fast", float),
        "beta_slow": keys.optional("rope.scaling.yarn_beta_slow", float),
    }
    return {"rope_type": "yarn"} | {key: value for key, value in said.items() if value is not None}


def _factors(keys: JsonFields, factors: Mapping[str, list[float]], turned: int, theta: float) -> dict[str, Any]:
    """Of a scaling that tensors hold; nothing may be scaled besides."""
    for name, values in factors.items():
        if len(values) != turned // 2 or not all(0 < value < math.inf for value in values):
            raise ConfigError(
                f"{keys.where}: tensor {name}={shown(values)} must hold {turned // 2} numbers above 0; fetch the "
                "file again"
            )
    short, long = factors.get("rope_factors_short"), factors.get("rope_factors_long")
    if short is not None and long is not None:
        keys.require("rope.scaling.type", "none", "longrope")
        return _longrope(keys, short, long)
    if list(factors) != ["rope_freqs"]:
        raise ConfigError(f"{keys.where}: the factors {', '.join(factors)} do not go together; fetch the file again")
    keys.require("rope.scaling.type", "none")
    return _llama3(keys, factors["rope_freqs"], turned, theta) or _exactly(keys, factors["rope_freqs"])


def _longrope(keys: JsonFields, short: list[float], long: list[float]) -> dict[str, Any]:
    longest = keys.positive("context_length")
    original, attention = keys.positive(ORIGINAL, longest), keys.optional("rope.scaling.attn_factor", float)
    natural = math.sqrt(1 + math.log(longest / original) / math.log(original)) if longest > original > 1 else 1.0
    found = {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
    }
    if attention is not None and not math.isclose(attention, natural, rel_tol=CLOSE):
        found["attention_factor"] = attention
    return found


def _exactly(keys: JsonFields, factors: list[float]) -> dict[str, Any]:
    """Any factors, the same for all lengths."""
    original = keys.positive("context_length")
    return {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": original,
    }


def _llama3(keys: JsonFields, factors: list[float], turned: int, theta: float) -> dict[str, Any] | None:
    """The parameters of Llama 3.1 that give these factors, so that the frequencies are those of its other
    checkpoints."""
    said, plain = keys.optional(ORIGINAL, int), exact_frequencies(RopeParameters(theta, turned, turned))
    for original, low, high in product((said,) if said else PUBLISHED, (1.0,), (4.0,)):
        rope = RopeParameters(
            theta,
            turned,
            turned,
            "llama3",
            factor=max(factors),
            original_context=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
        if all(map(_close, plain, exact_frequencies(rope), factors)):
            return {
                "rope_type": "llama3",
                "factor": max(factors),
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    return None


def _close(plain: float, scaled: float, factor: float) -> bool:
    return math.isclose(plain / scaled, factor, rel_tol=4 * CLOSE)
