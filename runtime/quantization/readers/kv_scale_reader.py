"""The scales of keys and values kept in float8 (stored k = k / scale): which tensors of a layer hold them, and what
they may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .quantization_config import CheckpointQuantization
from .weight_reader_match import FLOATS, QuantizedModule, TensorHeader

NAMES = (
    ("k_scale", "v_scale"),  # compressed-tensors
    ("k_proj.k_scale", "v_proj.v_scale"),  # ModelOpt
    ("qkv_proj.k_scale", "qkv_proj.v_scale"),
    ("attn.k_scale", "attn.v_scale"),
    ("k_cache.scale", "v_cache.scale"),
    ("kv_scale", "kv_scale"),  # one for both
)
SUFFIXES = frozenset(name for names in NAMES for name in names)
FLOAT8 = {"FP8", "FLOAT8"}  # as ModelOpt calls it


class KVScales(NamedTuple):
    """The siblings, after "module.", each one number in float32, float16 or bfloat16."""

    k: str
    v: str


def kv_scales(module: str, siblings: Mapping[str, TensorHeader]) -> KVScales | None:
    """siblings: every tensor named module.*, by the rest. None: there are none.

    Raises CheckpointError for more than one number.
    """
    found = QuantizedModule(module, siblings)
    for names in NAMES:
        if found.has(*names):
            for name in names:
                if found.expect(name, FLOATS) not in ((), (1,), (1, 1)):
                    raise found.wrong(
                        name, "holds several scales, and one for all heads of a layer is read; leave kv_dtype at 'auto'"
                    )
            return KVScales(*names)
    return None


def other_kind(quant_config: CheckpointQuantization) -> str | None:
    """Why the scales of a checkpoint are none of float8, for people; None: its configuration does not speak against
    it."""
    scheme, algorithm = quant_config.table("kv_cache_scheme"), quant_config.keys.get("kv_cache_quant_algo")
    if (scheme.get("type") or "float") != "float" or (scheme.get("num_bits") or 8) != 8:
        return f"kv_cache_scheme asks for type {scheme.get('type')!r:.40} in {scheme.get('num_bits')!r:.40} bits"
    if isinstance(algorithm, str) and algorithm.upper() not in FLOAT8:
        return f"kv_cache_quant_algo is {algorithm!r:.40}"
    return None
