"""Gemma 4: two head dimensions, late layers that reuse the keys of earlier ones, per-layer embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import MOST_WIDTH, ModelConfig, every
from ..spec.model_spec import (
    AttentionSpec,
    GatedFFNSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    NormSpec,
    PerLayerEmbeddingsSpec,
    QkNormSpec,
)
from ..spec.tensor_names import TensorNames
from .family_registry import family

OWN = {"head_dim", "num_key_value_heads"}  # what a layer may override


@family("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
def gemma4(c: ModelConfig) -> ModelSpec:
    """The variants with experts in parallel with the feedforward network are refused."""
    c.assume(
        vocab_size=262_144,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=30,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        max_position_embeddings=131_072,
        sliding_window=512,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=262_144,
    )
    _without_experts(c)
    rms, act = c.rms(), c.activation("gelu_tanh", "hidden_activation")
    kinds = [*c.kinds(every(c.count, 6))[:-1], "full_attention"]  # the last is, whatever is written
    layers = _layers(c, _mixers(c, kinds, rms), rms)
    width, cap = c.get("hidden_size_per_layer_input", int, 0), c.optional("final_logit_softcapping", float)
    table = c.positive("vocab_size_per_layer_input")
    own = PerLayerEmbeddingsSpec(width, table, act, rms) if width else None
    shared = [str(index) for index, layer in enumerate(layers) if layer.attention.source is not None]
    unused = (rf".*layers\.({'|'.join(shared)})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\..*",) if shared else ()
    names = TensorNames(before_ffn="pre_feedforward_layernorm", ignored=unused)
    return c.model(layers, rms, tied=True, embed_scale=c.hidden**0.5, logit_softcap=cap, per_layer=own, names=names)


def _without_experts(c: ModelConfig) -> None:
    c.require("enable_moe_block", False)
    c.raw("num_experts", "top_k_experts", "moe_intermediate_size")


def _layers(c: ModelConfig, mixers: list[AttentionSpec], rms: NormSpec) -> list[LayerSpec]:
    """With `use_double_wide_mlp` those that read the keys of others have twice the feedforward network."""
    narrow = GatedFFNSpec(c.inner, c.activation("gelu_tanh", "hidden_activation"))
    wide = replace(narrow, inner=2 * narrow.inner) if c.flag("use_double_wide_mlp") else narrow
    return [
        c.layer(LayerNorms.both(rms), mixer, narrow if mixer.source is None else wide, scalar=True) for mixer in mixers
    ]


def _mixers(c: ModelConfig, kinds: list[str], rms: NormSpec) -> list[AttentionSpec]:
    c.assume_rope(
        full_attention={"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        sliding_attention={"rope_type": "default", "rope_theta": 1e4},
    )
    bias = c.flag("attention_bias")
    plain = c.attention(scale=1.0, norm=QkNormSpec(rms), value_norm_eps=rms.eps, bias=bias, out_bias=bias)
    windows = [
        window if kind == "sliding_attention" else None for kind, window in zip(kinds, c.windows(kinds), strict=True)
    ]
    shared, sizes, mixers = _first_shared(c), _sizes(c, kinds), list[AttentionSpec]()
    for index, (kind, window, (dim, kv_heads)) in enumerate(zip(kinds, windows, sizes, strict=True)):
        source = None if index < shared else _last(kinds[:shared], kind, c)
        keys_alone = c.flag("attention_k_eq_v") and kind == "full_attention" and source is None
        mixers.append(
            replace(
                plain,
                dim=dim,
                kv_heads=kv_heads,
                window=window,
                rope=c.rope(dim, kind),
                source=source,
                value_is_key=keys_alone,
            )
        )
    return mixers


def _first_shared(c: ModelConfig) -> int:
    """The first layer of those without keys."""
    count = c.get("num_kv_shared_layers", int, 0)
    if not 0 <= count < c.count:
        raise ConfigError(f"{c.where}: num_kv_shared_layers={count} must be from 0 to {c.count - 1}")
    return c.count - count


def _last(kinds: list[str], kind: str, c: ModelConfig) -> int:
    if kind not in kinds:
        raise ConfigError(
            f"{c.where}: layers of {kind} read the keys of one before them, and num_kv_shared_layers leaves none"
        )
    return len(kinds) - 1 - kinds[::-1].index(kind)


def _sizes(c: ModelConfig, kinds: list[str]) -> list[tuple[int, int]]:
    """Width and key heads of each layer, by `per_layer_config` or by the keys that were before it."""
    width, heads, written = c.width(), c.kv_heads(), c.raw("per_layer_config")
    full = {"head_dim": c.positive("global_head_dim", 512)}
    if c.flag("attention_k_eq_v") and (own_heads := c.optional("num_global_key_value_heads", int)):
        full["num_key_value_heads"] = own_heads
    c.raw("num_global_key_value_heads")
    own = {str(i): full for i, kind in enumerate(kinds) if kind == "full_attention"} if written is None else written
    _check_own(c, own)
    return [
        (own.get(str(i), {}).get("head_dim", width), own.get(str(i), {}).get("num_key_value_heads", heads))
        for i in range(c.count)
    ]


def _check_own(c: ModelConfig, own: Any) -> None:
    layers: list[tuple[Any, Any]] = list(own.items()) if isinstance(own, Mapping) else [(None, own)]
    there = {str(index) for index in range(c.count)}
    for index, sizes in layers:
        known = (
            isinstance(sizes, Mapping)
            and set(sizes) <= OWN
            and all(type(size) is int and 0 < size <= MOST_WIDTH for size in sizes.values())
        )
        if not known or index not in there:
            raise ConfigError(
                f"{c.where}: per_layer_config holds {shown(index)}: {shown(sizes)}; only {' and '.join(sorted(OWN))} "
                "of a layer are supported"
            )
