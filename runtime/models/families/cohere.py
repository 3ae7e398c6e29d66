"""Command: attention and feedforward in parallel after one norm without bias, scaled logits."""

from __future__ import annotations

from ..spec.model_config import ModelConfig, every
from ..spec.model_spec import LayerNorms, ModelSpec, QkNormSpec
from .family_registry import family


@family("CohereForCausalLM")
def cohere(c: ModelConfig) -> ModelSpec:
    norm, bias, dim = c.layer_norm(bias=False), c.flag("attention_bias"), c.width()
    heads = QkNormSpec(norm, "each") if c.flag("use_qk_norm") else None
    mixer = c.attention(norm=heads, bias=bias, out_bias=bias, rope=c.rope(dim, theta=5e5, interleaved=True))
    return c.model(
        [c.layer(LayerNorms.parallel_branches(norm), mixer)] * c.count,
        norm,
        tied=True,
        logit_scale=c.number("logit_scale", 0.0625),
    )


@family("Cohere2ForCausalLM")
def cohere2(c: ModelConfig) -> ModelSpec:
    """Three layers with a window and positions, then one with neither."""
    c.assume(sliding_window=4096)
    _of_the_published(c)
    norm, bias, dim = c.layer_norm(bias=False), c.flag("attention_bias"), c.width()
    rope = c.rope(dim, interleaved=True)
    mixers = [
        c.attention(bias=bias, out_bias=bias, window=window, rope=None if window is None else rope)
        for window in c.windows(every(c.count, c.positive("sliding_window_pattern", 4)))
    ]
    layers = [c.layer(LayerNorms.parallel_branches(norm), mixer) for mixer in mixers]
    return c.model(layers, norm, tied=True, logit_scale=c.number("logit_scale", 0.0625))


def _of_the_published(c: ModelConfig) -> None:
    """Keys of their files that say what the architecture is anyway."""
    c.require("head_dim", c.hidden // c.heads)
    c.require("layer_switch", c.positive("sliding_window_pattern", 4))
    c.require("order_of_interleaved_layers", "local_attn_first")
    c.require("position_embedding_type", "rope_gptj")
    c.require("rotary_pct", 1.0)
    c.require("use_gated_activation", True)
    c.require("use_parallel_block", True)
    c.require("use_parallel_embedding", True, False)
    c.require("use_embedding_sharing", c.flag("tie_word_embeddings", True))
