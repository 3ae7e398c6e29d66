"""Qwen, first generation: Llama with GPT-2's tensor names; w2 is the gate."""

from __future__ import annotations

from ..spec.model_config import MOST_WIDTH, ModelConfig
from ..spec.model_spec import AttentionSpec, GatedFFNSpec, LayerNorms, ModelSpec
from ..spec.tensor_names import MergedProjections, TensorNames
from .family_registry import family

QWEN = TensorNames(
    embedding="transformer.wte",
    norm="transformer.ln_f",
    layer="transformer.h.{}.",
    before_mixer="ln_1",
    before_ffn="ln_2",
    qkv=MergedProjections("attn.c_attn"),
    output="attn.c_proj",
    gate="mlp.w2",
    up="mlp.w1",
    down="mlp.c_proj",
)
OF_PRECISION = ("bf16", "fp16", "fp32", "softmax_in_fp32", "use_cache_quantization", "use_cache_kernel", "onnx_safe")
BEYOND = (
    "use_dynamic_ntk",
    "use_logn_attn",
    "max_position_embeddings",
)  # what is done about sequences above seq_length


@family("QWenLMHeadModel")
def qwen(c: ModelConfig) -> ModelSpec:
    c.require("no_bias", True)
    c.require("scale_attn_weights", True)
    c.require("apply_residual_connection_post_layernorm", False)
    c.raw("attn_dropout_prob", "emb_dropout_prob", *OF_PRECISION, *BEYOND)
    rms, dim = c.rms(key="layer_norm_epsilon"), c.positive("kv_channels", 128, MOST_WIDTH)
    mixer = AttentionSpec(
        c.heads,
        c.heads,
        dim,
        dim**-0.5,
        rope=c.rope(dim, share=1.0, theta_keys=("rotary_emb_base",), share_keys=("rotary_pct",)),
        bias=True,
    )
    layer = c.layer(LayerNorms.pre(rms), mixer, GatedFFNSpec(c.inner // 2, "silu"))
    longest = c.positive(("seq_length", "n_positions", "max_position_embeddings"))
    return c.model([layer] * c.count, rms, names=QWEN, max_position=longest)
