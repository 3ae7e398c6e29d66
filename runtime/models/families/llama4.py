"""Llama 4, its text model: chunked attention with weightless QK-norm; one expert a token."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import MOST_LAYERS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import (
    AttentionSpec,
    ExpertsSpec,
    GatedFFNSpec,
    LayerNorms,
    ModelSpec,
    NormSpec,
    QkNormSpec,
    QueryTemperature,
    RouterSpec,
)
from ..spec.tensor_names import ExpertTensorNames, MergedProjections, StackedExpertTensor, TensorNames
from .family_registry import family

FF = "feed_forward."
LLAMA4 = TensorNames(
    gate=f"{FF}gate_proj",
    up=f"{FF}up_proj",
    down=f"{FF}down_proj",
    experts=ExpertTensorNames(
        router=f"{FF}router",
        gate_up=MergedProjections(f"{FF}experts.{{}}.gate_up_proj"),
        down=f"{FF}experts.{{}}.down_proj",
        transposed=True,
        shared_gate=f"{FF}shared_expert.gate_proj",
        shared_up=f"{FF}shared_expert.up_proj",
        shared_down=f"{FF}shared_expert.down_proj",
        stacks=tuple(
            StackedExpertTensor(f"{FF}experts.{name}", (f"{FF}experts.{{}}.{name}.weight",))
            for name in ("gate_up_proj", "down_proj")
        ),
    ),
)


@family("Llama4ForCausalLM", "Llama4ForConditionalGeneration")
def llama4(c: ModelConfig) -> ModelSpec:
    c.raw("router_jitter_noise", "for_llm_compressor")
    c.raw("rope_theta")
    rms, inner, act = c.rms(1e-5), c.inner, c.activation()
    experts = c.experts(
        GatedFFNSpec(inner, act),
        RouterSpec("sigmoid", best_first=True),
        ("num_local_experts", "num_experts"),
        shared=GatedFFNSpec(inner, act),
        weighs_input=True,
    )
    dense, sparse = GatedFFNSpec(c.positive("intermediate_size_mlp", 16_384, most=MOST_WIDTH), act), _sparse(c)
    ffns: list[GatedFFNSpec | ExpertsSpec] = [experts if index in sparse else dense for index in range(c.count)]
    layers = [c.layer(LayerNorms.pre(rms), mixer, ffn) for mixer, ffn in zip(_mixers(c, rms), ffns, strict=True)]
    return c.model(layers, rms, names=LLAMA4)


def _sparse(c: ModelConfig) -> list[int]:
    """The layers with experts."""
    step, written = c.positive("interleave_moe_layer_step", 1, most=MOST_LAYERS), c.raw("moe_layers")
    found = list(range(step - 1, c.count, step)) if written is None else written
    if not isinstance(found, list) or any(type(index) is not int for index in found):
        raise ConfigError(f"{c.where}: moe_layers={shown(written)} must list numbers of layers")
    return found


def _mixers(c: ModelConfig, rms: NormSpec) -> list[AttentionSpec]:
    turning, dim, bias = _turning(c), c.width(128), c.flag("attention_bias")
    rope = c.rope(dim, theta=5e5, interleaved=True)
    norm = QkNormSpec(NormSpec(rms.eps, weight=False), after=True) if c.flag("use_qk_norm", True) else None
    warm = (
        QueryTemperature(c.number("attn_scale", 0.1), c.rate("floor_scale", 8192.0), 1)
        if c.flag("attn_temperature_tuning", True)
        else None
    )
    chunk = 8192 if "attention_chunk_size" not in c.values else c.optional("attention_chunk_size", int)
    common: dict[str, Any] = {"kv_heads": 8, "width": dim, "bias": bias, "out_bias": bias}
    kinds = c.kinds(["chunked_attention" if turns else "full_attention" for turns in turning])
    if "sliding_attention" in kinds or (chunk is None and "chunked_attention" in kinds):
        raise ConfigError(
            f"{c.where}: layer_types={shown(kinds)} with attention_chunk_size={chunk} is not supported; layers are "
            "full, or in chunks of a size"
        )
    chunks = [chunk if kind == "chunked_attention" else None for kind in kinds]
    return [
        c.attention(rope=rope, norm=norm, chunk=each, **common)
        if turns
        else c.attention(temperature=warm, chunk=each, **common)
        for turns, each in zip(turning, chunks, strict=True)
    ]


def _turning(c: ModelConfig) -> list[int]:
    """Of each layer 0 where it has no positions."""
    each, written = c.positive("no_rope_layer_interval", 4), c.raw("no_rope_layers")
    found = written or [int((index + 1) % each != 0) for index in range(c.count)]
    if not isinstance(found, list) or len(found) != c.count or any(turns not in (0, 1) for turns in found):
        raise ConfigError(f"{c.where}: no_rope_layers={shown(written)} must hold {c.count} times 0 or 1")
    return found
