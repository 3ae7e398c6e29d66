"""Bloom, MPT and Falcon: ALiBi, or RoPE in Falcon from 7B on."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ConfigError
from ..spec.alibi_slopes import alibi_slopes
from ..spec.json_fields import shown
from ..spec.model_config import MOST_WIDTH, ModelConfig
from ..spec.model_spec import AttentionSpec, LayerNorms, ModelSpec, NormSpec, PlainFFNSpec
from ..spec.tensor_names import MergedProjections, TensorNames
from .family_registry import family

BLOOM = TensorNames(
    embedding="transformer.word_embeddings",
    embed_norm="transformer.word_embeddings_layernorm",
    norm="transformer.ln_f",
    layer="transformer.h.{}.",
    qkv=MergedProjections("self_attention.query_key_value", "groups"),
    output="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    prefixes=tuple((begin, f"transformer.{begin}") for begin in ("word_embeddings", "h.", "ln_f.")),
)
EPS = "layer_norm_epsilon"
OF_KERNELS = (
    "attention_softmax_in_fp32",
    "masked_softmax_fusion",
    "bias_dropout_fusion",
    "skip_bias_add",
    "skip_bias_add_qkv",
)
UNWRITTEN = 2048  # the longest sequence, where config.json does not say


@family("BloomForCausalLM")
def bloom(c: ModelConfig) -> ModelSpec:
    c.require("apply_residual_connection_post_layernorm", False)
    c.require("slow_but_exact", False)  # would leave biases out
    c.require("n_inner", 4 * c.hidden)
    c.raw(*OF_KERNELS)
    norm, mixer = c.layer_norm(key=EPS), c.attention(bias=True, out_bias=True, alibi=alibi_slopes(c.heads))
    layer = c.layer(LayerNorms.pre(norm), mixer, PlainFFNSpec(4 * c.hidden, "gelu_tanh", bias=True))
    longest = c.positive("seq_length", UNWRITTEN)
    return c.model([layer] * c.count, norm, tied=True, names=BLOOM, embed_norm=norm, max_position=longest)


FALCON_BESIDE = replace(BLOOM, before_mixer="ln_attn", before_ffn="ln_mlp")


@family("FalconForCausalLM")
def falcon(c: ModelConfig) -> ModelSpec:
    """Parallel mixer and FFN after one norm (7B) or each after a separate one (40B), or sequential (RW).

    ALiBi is exact here; transformers rounds it to bfloat16, position by position.
    """
    bias, dim, grouped = c.flag("bias"), c.width(), c.flag("new_decoder_architecture")
    norms, names = _placement(c, c.layer_norm(key=EPS), grouped)
    c.raw("rope_parameters", "rope_scaling", "rope_theta")  # may be present in addition to ALiBi
    alibi = alibi_slopes(c.heads, dim**-0.5) if c.flag("alibi") else None  # added before the scores are scaled
    rope = None if alibi else c.rope(dim)
    mixer = AttentionSpec(
        c.heads, _kv_heads(c, grouped), dim, dim**-0.5, rope=rope, bias=bias, out_bias=bias, alibi=alibi
    )
    ffn = PlainFFNSpec(
        c.positive("ffn_hidden_size", 4 * c.hidden, MOST_WIDTH), c.activation("gelu", "activation"), bias
    )
    longest = c.positive("max_position_embeddings", UNWRITTEN)
    return c.model(
        [c.layer(norms, mixer, ffn)] * c.count, c.layer_norm(key=EPS), tied=True, names=names, max_position=longest
    )


def _placement(c: ModelConfig, norm: NormSpec, grouped: bool) -> tuple[LayerNorms, TensorNames]:
    beside = c.flag("parallel_attn", True)
    if grouped:
        c.require("parallel_attn", True)
        c.require("num_ln_in_parallel_attn", 1, 2)
        own = c.get("num_ln_in_parallel_attn", int, 2) == 2
        return LayerNorms.parallel_branches(norm, own), FALCON_BESIDE if own else BLOOM
    if beside:
        c.require("num_ln_in_parallel_attn", 1)
    c.raw("num_ln_in_parallel_attn")
    return LayerNorms.parallel_branches(norm) if beside else LayerNorms.pre(norm), BLOOM


def _kv_heads(c: ModelConfig, grouped: bool) -> int:
    shared, wanted = c.flag("multi_query", True), c.positive("num_kv_heads", c.heads)
    found = wanted if grouped else 1 if shared else c.heads
    if c.heads % found or (not grouped and not shared and wanted != found):
        raise ConfigError(f"{c.where}: num_kv_heads={wanted} does not fit {c.heads} heads of queries")
    return found


MPT = TensorNames(
    embedding="transformer.wte",
    norm="transformer.norm_f",
    layer="transformer.blocks.{}.",
    before_mixer="norm_1",
    before_ffn="norm_2",
    qkv=MergedProjections("attn.Wqkv"),
    output="attn.out_proj",
    up="ffn.up_proj",
    down="ffn.down_proj",
)


@family("MptForCausalLM", "MPTForCausalLM")
def mpt(c: ModelConfig) -> ModelSpec:
    c.raw(
        "learned_pos_emb", "init_config", "init_device", "embedding_fraction", "emb_pdrop", "tokenizer_name", "verbose"
    )
    c.require("expansion_ratio", 4)
    c.require("no_bias", True)
    c.require("norm_type", "low_precision_layernorm", "layernorm")
    if (scale := c.raw("logit_scale")) is not None:
        raise ConfigError(f"{c.where}: logit_scale={shown(scale)} is not supported; only null is")
    norm = c.layer_norm(bias=False, key=EPS)
    layer = c.layer(LayerNorms.pre(norm), _mpt_attention(c), PlainFFNSpec(4 * c.hidden, "gelu"))
    return c.model([layer] * c.count, norm, tied=True, names=MPT)


def _mpt_attention(c: ModelConfig) -> AttentionSpec:
    values = c.raw("attn_config") or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{c.where}: attn_config must be an object, not {shown(values)}")
    own = ModelConfig(values, f"{c.where}: attn_config", c.architecture)
    own.raw("attn_impl", "attn_pdrop")
    for key, only in (("attn_type", "multihead_attention"), ("alibi", True), ("alibi_bias_max", 8)):
        own.require(key, only)
    for key in ("prefix_lm", "qk_ln", "attn_uses_sequence_id"):
        own.require(key, False)
    scale, clip = own.optional("softmax_scale", float), own.optional("clip_qkv", float)
    own.finish()
    return c.attention(scale=scale, clip=clip or None, alibi=alibi_slopes(c.heads))
