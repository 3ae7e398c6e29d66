"""Which tensors of an attention module hold the scales of keys and values kept in float8: stored k = k / scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .claim import FLOATS, Module, Sibling

NAMES = (
    ("k_scale", "v_scale"),  # compressed-tensors
    ("k_proj.k_scale", "v_proj.v_scale"),  # ModelOpt
    ("qkv_proj.k_scale", "qkv_proj.v_scale"),
    ("attn.k_scale", "attn.v_scale"),
    ("k_cache.scale", "v_cache.scale"),
    ("k_proj.output_scale", "v_proj.output_scale"),  # compressed-tensors, of old
    ("kv_scale", "kv_scale"),  # one for both
)


class KVScales(NamedTuple):
    """The siblings, behind "module.", each one number in float32, float16 or bfloat16."""

    k: str
    v: str


def kv_scales(module: str, siblings: Mapping[str, Sibling]) -> KVScales | None:
    """siblings: every tensor named module.*, by the rest. None: there are none. Raises CheckpointError for more than one number."""
    found = Module(module, siblings)
    for names in NAMES:
        if found.has(*names):
            for name in names:
                if found.expect(name, FLOATS) not in ((), (1,), (1, 1)):
                    raise found.wrong(name, "holds several scales, and one for all heads is read; set kv_dtype='auto' and take it out")
            return KVScales(*names)
    return None
