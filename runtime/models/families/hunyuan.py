"""Hunyuan dense: Llama with QK-norm after RoPE."""

from __future__ import annotations

from ..config import Config
from ..names import Names
from ..spec import HeadNorm, Model, Norms
from .registry import family

HUNYUAN = Names(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")


@family("HunYuanDenseV1ForCausalLM")
def hunyuan_dense(c: Config) -> Model:
    _of_the_published(c)
    rms, bias, dim = c.rms(1e-5), c.flag("attention_bias"), c.width()
    mixer = c.attention(norm=HeadNorm(rms, after=True), bias=bias, out_bias=bias, rope=c.rope(dim))
    return c.model([c.layer(Norms.pre(rms), mixer)] * c.count, rms, names=HUNYUAN)


def _of_the_published(c: Config) -> None:
    """Keys that the published files have and that other models of the house use."""
    c.raw("org_vocab_size", "cla_share_factor", "pad_id", "num_shared_expert", "routed_scaling_factor", "moe_topk", "enable_lm_head_fp32")
    c.raw("dense_list", "class_num", "pool_type", "mask_init_id", "im_start_id", "im_end_id", "im_newline_id", "text_start_id", "text_end_id")  # of classifiers and pictures
    c.require("attention_head_dim", c.width())
    c.require("norm_type", "rms", "hf_rms", "fused")
    c.require("num_experts", 1)
    c.require("use_qk_norm", True)
    c.require("use_rotary_pos_emb", True)
    for key in ("mlp_bias", "use_cla", "position_embedding_xdrope", "use_mla", "use_mixed_mlp_moe"):
        c.require(key, False)
