"""Rotary parameters in checkpoints: before and since transformers 5, one for all layers or one for each kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from ...layers.rope_parameters import RopeParameters, exact_frequencies
from .json_fields import LARGEST, JsonFields, shown

RENAMED = {"su": "longrope", "mrope": "default"}  # for text all axes of mrope are the same
SHARE = "partial_rotary_factor"
THETA = "rope_theta"
LARGEST_FLOAT32 = 3.4028234663852886e38
OF_PICTURES = ("mrope_section", "mrope_interleaved")  # which axes of a picture turn what


def read_rope(
    fields: JsonFields,
    width: int,
    kind: str | None = None,
    *,
    theta: float = 1e4,
    theta_keys: tuple[str, ...] = (THETA,),
    share: float | None = None,
    share_keys: tuple[str, ...] = (SHARE,),
    dim: int | None = None,
    interleaved: bool = False,
    others: tuple[str, ...] = (),
    context: int | None = None,
) -> RopeParameters:
    """From `rope_parameters` (transformers 5), or from `rope_scaling` with `rope_theta` next to it (before).

    width: of a head.  kind: of the layers, if each has its own.  theta, share: the family's defaults; share None: only
        whole heads are rotated.  theta_keys, share_keys: their keys in `fields` itself.  dim: rotated numbers, if the
        family counts them itself.  others: keys that it reads itself.  context: the longest sequence requested.
    """
    rope, where = written_rope(fields, kind)
    name = rope.get(("rope_type", "type"), str, "default")
    name = "longrope" if "short_factor" in rope.values else RENAMED.get(name, name)  # the first Phi-3 call it yarn
    rope.raw(*OF_PICTURES, *others)
    base = rope.number(THETA, fields.number(theta_keys, theta))
    part = rope.number(SHARE, fields.number(share_keys, share or 1.0))
    if part != 1 and share is None and dim is None and name != "proportional":
        raise ConfigError(
            f"{where}: partial_rotary_factor={part} is not supported by this architecture: it turns whole heads"
        )
    turned = int(width * part) if dim is None else dim
    if not 0 < turned <= width or turned % 2:
        raise ConfigError(
            f"{where}: partial_rotary_factor={part} lets {turned} of {width} numbers of a head turn; they must be "
            "even, and not more than all"
        )
    if base <= 1:
        raise ConfigError(f"{where}: rope_theta={base} must be above 1")
    found = _SCALING.get(name)
    if found is None:
        raise ConfigError(f"{where}: rope_type={shown(name)} is not supported; supported: {', '.join(_SCALING)}")
    shared = fields if kind is None else _without_original(fields)
    result = found(RopeParameters(base, turned, width, name, interleaved), rope, shared, context)
    if unread := rope.unread():
        raise ConfigError(
            f"{where}: key {unread[0]!r} ({shown(rope.values[unread[0]])}) is not understood for rope_type={name!r}"
        )
    _require_turning(result, where, rope.values)
    return result


def _require_turning(rope: RopeParameters, where: str, values: Mapping[str, Any]) -> None:
    """Raises ConfigError if the parameters give no usable frequencies."""
    try:
        found = exact_frequencies(rope)
    except (ArithmeticError, ValueError) as error:
        raise ConfigError(f"{where}={shown(values)} gives no rotation ({error}); restore these numbers") from error
    if not all(abs(each) <= LARGEST_FLOAT32 for each in found) or math.isnan(rope.attention_factor):
        raise ConfigError(f"{where}={shown(values)} gives rotations that are no numbers; restore these")


def written_rope(fields: JsonFields, kind: str | None = None) -> tuple[JsonFields, str]:
    """The object with the rotary parameters of all layers, or those of a kind; and its name for errors."""
    new, old = fields.raw("rope_parameters"), fields.raw("rope_scaling")
    if new and old and new != old:
        raise ConfigError(
            f"{fields.where}: rope_scaling={shown(old)} and rope_parameters={shown(new)} differ; keep one of them"
        )
    written = "rope_parameters" if new is not None else "rope_scaling" if old is not None else None
    values: Any = fields.raw(written) if written else {}
    where = f"{fields.where}: {written}" if written else fields.where
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be an object, not {shown(values)}")
    if kind is not None and values:
        values, where = _of_kind(values, kind, written, where)
    return JsonFields(values, where), where


def _of_kind(values: dict[str, Any], kind: str, written: str | None, where: str) -> tuple[dict[str, Any], str]:
    """The old `rope_scaling` of a model with kinds scales its full layers only."""
    if all(isinstance(value, dict | None) for value in values.values()):
        own = values.get(kind) or {}
        if own.get("truncate") is False:
            raise ConfigError(
                f"{where}.{kind}: truncate=False is not supported for one kind of layers: transformers reads it for "
                "all or none"
            )
        return own, f"{where}.{kind}"
    if written == "rope_parameters":
        raise ConfigError(f"{where}={shown(values)} must have an object for each kind of layers, {kind!r} among them")
    return (values if kind == "full_attention" else {}), where


def _plain(rope: RopeParameters, own: JsonFields, fields: JsonFields, context: int | None) -> RopeParameters:
    own.raw(
        "factor", "attention_factor", "original_max_position_embeddings"
    )  # some configurations write them without a use
    fields.raw("original_max_position_embeddings")
    return rope


def _dynamic(rope: RopeParameters, own: JsonFields, fields: JsonFields, context: int | None) -> RopeParameters:
    """Below max_position_embeddings, which a sequence stays, nothing is scaled; with `alpha` the base is raised for
    all.
    """
    own.raw("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "original_max_position_embeddings")
    if own.optional("alpha", float) is None:
        return replace(rope, kind="default")
    if rope.dim < 4:
        raise ConfigError(f"{own.where}: with alpha at least 4 numbers of a head must turn, not {rope.dim}")
    return replace(rope, kind="alpha", factor=own.rate("alpha"))


def _linear(rope: RopeParameters, own: JsonFields, fields: JsonFields, context: int | None) -> RopeParameters:
    return replace(rope, factor=own.rate("factor"))


def _proportional(rope: RopeParameters, own: JsonFields, fields: JsonFields, context: int | None) -> RopeParameters:
    share = rope.dim / rope.width
    return replace(rope, factor=own.rate("factor", 1.0), dim=2 * int(share * rope.width // 2))


def _llama3(rope: RopeParameters, own: JsonFields, fields: JsonFields, context: int | None) -> RopeParameters:
    low, high = own.number("low_freq_factor"), own.number("high_freq_factor")
    if low >= high:
        raise ConfigError(f"{own.where}: low_freq_factor={low} must be below high_freq_factor={high}")
    return replace(
        rope,
        factor=own.rate("factor"),
        original_context=_original(own, fields),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(rope: RopeParameters, own: JsonFields, fields: JsonFields, context: int | None) -> RopeParameters:
    original = _original(own, fields)
    factor = own.rate("factor", fields.positive("max_position_embeddings", original) / original)
    mscale, mscale_all = own.number("mscale", 0.0), own.number("mscale_all_dim", 0.0)
    if mscale and mscale_all:
        natural = _temperature(factor, mscale) / _temperature(factor, mscale_all)
    else:
        natural = _temperature(factor)
    return replace(
        rope,
        factor=factor,
        original_context=original,
        attention_factor=own.number("attention_factor", natural),
        beta_fast=own.rate("beta_fast", 32.0),
        beta_slow=own.rate("beta_slow", 1.0),
        truncate=own.flag("truncate", True),
    )


def _longrope(rope: RopeParameters, own: JsonFields, fields: JsonFields, context: int | None) -> RopeParameters:
    """One choice for the engine, by the longest sequence that it allows: keys in the cache could not follow a
    change.
    """
    original, longest = _original(own, fields), fields.positive("max_position_embeddings")
    factor = own.rate("factor", longest / original)
    natural = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(max(original, 2)))
    lists = {name: _stretches(own, name, rope.dim // 2) for name in ("short_factor", "long_factor")}
    chosen = "long_factor" if (context or longest) > original else "short_factor"
    return replace(
        rope, attention_factor=own.number("attention_factor", natural), original_context=original, factors=lists[chosen]
    )


def _stretches(own: JsonFields, name: str, count: int) -> tuple[float, ...]:
    values = own.raw(name)
    numbers = isinstance(values, list) and all(type(value) in (int, float) and 0 < value < LARGEST for value in values)
    if not numbers or len(values) != count:
        raise ConfigError(f"{own.where}: {name} must be a list of {count} numbers above 0, not {shown(values)}")
    return tuple(map(float, values))


def _without_original(fields: JsonFields) -> JsonFields:
    """If each kind of layers has its own parameters, the original length outside of them is ignored."""
    return JsonFields(
        {key: value for key, value in fields.values.items() if key != "original_max_position_embeddings"}, fields.where
    )


def _original(own: JsonFields, fields: JsonFields) -> int:
    """The value next to rope_parameters takes precedence over the one in it."""
    key = "original_max_position_embeddings"
    inside = own.positive(key, fields.positive("max_position_embeddings"))
    return fields.positive(key, inside)


def _temperature(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor on cosines and sines, which keeps the attention's entropy."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


_SCALING: dict[str, Callable[[RopeParameters, JsonFields, JsonFields, int | None], RopeParameters]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
