"""Llama under another name, or with one difference: Aquila, Xverse, Yi, Orion."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec, NormSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family
from .llama import llama

family("AquilaForCausalLM", "AquilaModel")(llama)
YI = TensorNames(before_mixer="ln1", before_ffn="ln2")


@family("XverseForCausalLM")
def xverse(c: ModelConfig) -> ModelSpec:
    c.raw("max_tokenizer_truncation")
    return llama(c)


@family("YiForCausalLM")
def yi(c: ModelConfig) -> ModelSpec:
    """As first published; since then Yi is saved as Llama."""
    rms = c.rms()
    return c.model([c.layer(LayerNorms.pre(rms), c.attention(rope=c.rope(c.width())))] * c.count, rms, names=YI)


@family("OrionForCausalLM")
def orion(c: ModelConfig) -> ModelSpec:
    """LayerNorm under the key of RMSNorm."""
    c.require("attention_bias", False)
    norm = NormSpec(c.number("rms_norm_eps", 1e-5), "layer", bias=True)
    mixer = c.attention(rope=c.rope(c.width()))
    return c.model([c.layer(LayerNorms.pre(norm), mixer, GatedFFNSpec(c.inner, c.activation()))] * c.count, norm)
