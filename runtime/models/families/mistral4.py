"""Mistral 4: latent attention with queries scaled by position, experts by a softmax in groups."""

from __future__ import annotations

from ..spec.latent_attention_config import latent, unused
from ..spec.model_config import MOST_WIDTH, ModelConfig
from ..spec.model_spec import Feedforward, GatedFFNSpec, LayerNorms, ModelSpec, RouterSpec
from .family_registry import family
from .glm_moe import first_sparse
from .mistral import position_temperature


@family("Mistral4ForCausalLM")
def mistral4(c: ModelConfig) -> ModelSpec:
    unused(c)
    c.assume(
        kv_lora_rank=256,
        qk_nope_head_dim=64,
        first_k_dense_replace=0,
        moe_intermediate_size=2048,
        n_shared_experts=1,
        num_experts_per_tok=4,
    )
    c.assume_rope(
        rope_type="yarn",
        rope_theta=1e4,
        factor=128.0,
        original_max_position_embeddings=8192,
        beta_fast=32.0,
        beta_slow=1.0,
        mscale=1.0,
        mscale_all_dim=1.0,
        llama_4_scaling_beta=0.1,
    )
    turned, inner = c.positive("qk_rope_head_dim", 64, MOST_WIDTH), c.positive("moe_intermediate_size", most=MOST_WIDTH)
    whole = c.positive("qk_nope_head_dim", most=MOST_WIDTH) + turned
    c.rope_fields().require("partial_rotary_factor", turned / whole)
    interleaved = c.flag_unless_null("rope_interleave", True)
    rope = c.rope(
        turned, dim=turned, interleaved=interleaved, others=("llama_4_scaling_beta", "max_position_embeddings")
    )
    mixer = latent(c, interleaved=interleaved, query_rank=1024, rope=rope, temperature=position_temperature(c, rope))
    router = RouterSpec(
        groups=c.positive("n_group", 1, most=MOST_WIDTH),
        kept_groups=c.positive("topk_group", 1, most=MOST_WIDTH),
        outside=0.0,
        normalise=c.flag_unless_null("norm_topk_prob", True),
        floor=1e-20,
        scale=c.number("routed_scaling_factor", 1.0),
    )
    shared = GatedFFNSpec(inner * c.positive("n_shared_experts", most=MOST_WIDTH), c.activation())
    experts = c.experts(
        GatedFFNSpec(inner, c.activation()), router, ("n_routed_experts", "num_local_experts"), shared=shared
    )
    rms, first, dense = c.rms(), first_sparse(c), GatedFFNSpec(c.inner, c.activation())
    ffns: list[Feedforward] = [dense if index < first else experts for index in range(c.count)]
    return c.model([c.layer(LayerNorms.pre(rms), mixer, ffn) for ffn in ffns], rms)
