"""Scales that float8 keys and values are divided by: the checkpoint's for a layer, otherwise 1."""

from __future__ import annotations

from ..attention import AttentionLayout
from ..cache.multi_width_kv_pools import Pool
from ..errors import CheckpointError
from ..layers.float8_reference import FP8, KVScaleFactors
from .decoder import Decoder
from .transformers_backend import AnyDecoder


def take_scales(pool: Pool, model: AnyDecoder, layout: AttentionLayout) -> None:
    """Copy the model's scales to a pool in which nothing is stored yet. Raises CheckpointError for invalid scales."""
    if pool.dtype != FP8:
        return
    said = model.kv_scales if isinstance(model, Decoder) else ()
    found = []
    for scales in said or (None,) * len(layout.layers):
        if isinstance(scales, str):
            raise CheckpointError(f"kv_dtype='fp8': {scales}")
        found.append(scales or KVScaleFactors())
    layout.scale(pool, found)


def describe_scales(pool: Pool, layout: AttentionLayout) -> str | None:
    """For people; None: nothing is stored in float8."""
    if pool.dtype != FP8:
        return None
    found = [layout.scales(pool, layer) for layer in layout.places]
    if all(scales == KVScaleFactors() for scales in found):
        return "1 in every layer"
    keys, values = zip(*found, strict=True)
    return (
        f"from the checkpoint: keys {min(keys):.4g} to {max(keys):.4g}, values {min(values):.4g} to {max(values):.4g}"
    )
