"""Llama under another name, or with one difference: Aquila, Xverse, Yi, Orion."""

from __future__ import annotations

from ..config import Config
from ..names import Names
from ..spec import Gated, Model, Norm, Norms
from .llama import llama
from .registry import family

family("AquilaForCausalLM", "AquilaModel")(llama)
YI = Names(before_mixer="ln1", before_ffn="ln2")


@family("XverseForCausalLM")
def xverse(c: Config) -> Model:
    c.raw("max_tokenizer_truncation")
    return llama(c)


@family("YiForCausalLM")
def yi(c: Config) -> Model:
    """As first published; since then Yi is saved as Llama."""
    rms = c.rms()
    return c.model([c.layer(Norms.pre(rms), c.attention(rope=c.rope(c.width())))] * c.count, rms, names=YI)


@family("OrionForCausalLM")
def orion(c: Config) -> Model:
    """LayerNorm under the key of RMSNorm."""
    c.require("attention_bias", False)
    norm = Norm(c.number("rms_norm_eps", 1e-5), "layer", bias=True)
    mixer = c.attention(rope=c.rope(c.width()))
    return c.model([c.layer(Norms.pre(norm), mixer, Gated(c.inner, c.activation()))] * c.count, norm)
