"""ChatGLM 2 and 3 and GLM-4 in its first format: interleaved RoPE on the first half of each head, fused projections."""

from __future__ import annotations

from ...errors import ConfigError
from ..spec.model_config import MOST_WIDTH, ModelConfig
from ..spec.model_spec import AttentionSpec, GatedFFNSpec, LayerNorms, ModelSpec
from ..spec.tensor_names import MergedProjections, TensorNames
from .family_registry import family

CHATGLM = TensorNames(
    embedding="transformer.embedding.word_embeddings",
    norm="transformer.encoder.final_layernorm",
    head="transformer.output_layer",
    layer="transformer.encoder.layers.{}.",
    qkv=MergedProjections("self_attention.query_key_value"),
    output="self_attention.dense",
    gate_up=MergedProjections("mlp.dense_h_to_4h"),
    down="mlp.dense_4h_to_h",
    ignored=(r"transformer\.rotary_pos_emb\.inv_freq",),
)
SCALED = (1.0, 50.0)  # rope_ratio of models with ChatGLM's vocabulary of 65,024 whose base it raises


@family("ChatGLMModel", "ChatGLMForConditionalGeneration")
def chatglm(c: ModelConfig) -> ModelSpec:
    _refuse(c)
    c.raw(
        "apply_query_key_layer_scaling", "attention_softmax_in_fp32", "fp32_residual_connection", "bias_dropout_fusion"
    )  # precision
    rms, heads, dim = c.rms(1e-5, key="layernorm_epsilon"), c.heads, c.positive("kv_channels", 128, MOST_WIDTH)
    kv_heads = c.positive("multi_query_group_num", 1)
    if heads % kv_heads:
        raise ConfigError(
            f"{c.where}: num_attention_heads={heads} is not a multiple of multi_query_group_num={kv_heads}"
        )
    rope = c.rope(dim, theta=1e4 * _ratio(c), dim=dim // 2, interleaved=True)
    mixer = AttentionSpec(heads, kv_heads, dim, dim**-0.5, rope=rope, bias=c.flag("add_qkv_bias"))
    ffn, norm = GatedFFNSpec(c.inner, "silu"), rms if c.flag("post_layer_norm", True) else None
    return c.model([c.layer(LayerNorms.pre(rms), mixer, ffn)] * c.count, norm, names=CHATGLM)


def _refuse(c: ModelConfig) -> None:
    """What no published checkpoint has. Without groups of queries the order of the merged rows would be another."""
    if not c.flag("multi_query_attention"):
        raise ConfigError(
            f"{c.where}: multi_query_attention={c.raw('multi_query_attention')!r} is not supported; only True is"
        )
    for key, only in (
        ("add_bias_linear", False),
        ("apply_residual_connection_post_layernorm", False),
        ("rmsnorm", True),
        ("original_rope", True),
        ("quantization_bit", 0),
        ("pre_seq_len", 0),
        ("prefix_projection", False),
    ):
        c.require(key, only)


def _ratio(c: ModelConfig) -> float:
    ratio = c.number("rope_ratio", 1.0)
    if c.vocabulary == 65_024 and ratio not in SCALED:
        raise ConfigError(
            f"{c.where}: rope_ratio={ratio} is not supported with ChatGLM's vocabulary: in the second generation it "
            "divides "
            "positions, in the third it raises the base, and config.json does not say which this is"
        )
    return ratio
