"""GLM-4 dense: interleaved RoPE on half of each head; the 0414 models have pre- and post-norms."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import LayerNorms, ModelSpec
from ..spec.tensor_names import MergedProjections, TensorNames
from .family_registry import family

GLM = TensorNames(gate_up=MergedProjections("mlp.gate_up_proj"))
GLM4 = TensorNames(gate_up=GLM.gate_up, after_mixer="post_self_attn_layernorm", after_ffn="post_mlp_layernorm")


@family("GlmForCausalLM")
def glm(c: ModelConfig) -> ModelSpec:
    return _glm(c, both=False)


@family("Glm4ForCausalLM")
def glm4(c: ModelConfig) -> ModelSpec:
    return _glm(c, both=True)


def _glm(c: ModelConfig, both: bool) -> ModelSpec:
    rms, dim = c.rms(1.5625e-7), c.width(128)
    rope = c.rope(dim, share=0.5, interleaved=True)
    mixer = c.attention(kv_heads=2, width=dim, bias=c.flag("attention_bias", True), rope=rope)
    norms, names = (LayerNorms.both(rms), GLM4) if both else (LayerNorms.pre(rms), GLM)
    return c.model([c.layer(norms, mixer)] * c.count, rms, names=names)
