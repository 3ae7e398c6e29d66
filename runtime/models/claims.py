"""Which layers the fast executors take: so far those of Llama's shape. What they do not take runs by the law."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .spec import Attention, Gated, Norms

if TYPE_CHECKING:
    from .block import Block
    from .decoder import Decoder


def model_refusal(model: Decoder) -> str | None:
    """Why a whole step of the model is not taken, for people; None: it is."""
    if not (model.embedding.plain and model.embedding.scale == 1 and model.head.plain and model.config.norm):
        return "its embedding or head does more than look up and multiply"
    if model.config.norm.kind != "rms" or len(model.rotaries) != 1:
        return "norms or rotations other than Llama's"
    if len({(block.layer.mixer.heads, block.layer.mixer.kv_heads, block.layer.mixer.dim, block.layer.ffn.inner) for block in model.layers}) > 1:
        return "its layers differ in size"
    return next((why for block in model.layers if (why := layer_refusal(block)) is not None), None)


def layer_refusal(block: Block) -> str | None:
    """Why a layer is not taken, for people; None: it is."""
    layer, mixer = block.layer, block.layer.mixer
    norm = layer.norms.before_mixer
    usual = norm is not None and norm.kind == "rms" and layer.norms == Norms.pre(norm)
    if not usual or layer.branch != 1 or layer.scalar or block.gate is not None:
        return "norms or sums other than Llama's"
    plain = Attention(mixer.heads, mixer.kv_heads, mixer.dim, mixer.dim**-0.5)
    if replace(mixer, rope=None, bias=False, out_bias=False, window=None, norm=None) != plain or mixer.rope is None:
        return "attention other than Llama's"
    if mixer.norm is not None and (mixer.norm.norm.kind != "rms" or mixer.norm.over == "all" or mixer.norm.after):
        return "a norm of queries and keys other than Qwen3's"
    if not isinstance(layer.ffn, Gated) or layer.ffn.activation != "silu":
        return "a feedforward network other than Llama's"
    return None
