"""Baichuan 1 and 2: Llama with a fused QKV projection.

13B uses ALiBi; version 2 normalizes the rows of its output head.
"""

from __future__ import annotations

from ..spec.alibi_slopes import alibi_slopes
from ..spec.model_config import ModelConfig
from ..spec.model_spec import AttentionSpec, LayerNorms, ModelSpec
from ..spec.tensor_names import MergedProjections, TensorNames
from .family_registry import family

BAICHUAN = TensorNames(qkv=MergedProjections("self_attn.W_pack"))
SECOND = 125_696  # tokens of the second generation's vocabulary; the first has 64,000
WIDE = 5_120  # hidden size of 13B, which has ALiBi even where its config.json names a longest position


def _baichuan(c: ModelConfig, mixer: AttentionSpec, longest: int, unit: bool = False) -> ModelSpec:
    rms = c.rms()
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer)] * c.count, rms, names=BAICHUAN, max_position=longest, head_unit=unit
    )


@family("BaiChuanForCausalLM")
def baichuan_7b(c: ModelConfig) -> ModelSpec:
    c.require("num_key_value_heads", c.heads)
    return _baichuan(c, c.attention(rope=c.rope(c.width())), c.positions)


@family("BaichuanForCausalLM")
def baichuan(c: ModelConfig) -> ModelSpec:
    """13B of the first generation, or either size of the second, which has `z_loss_weight` or its own vocabulary."""
    c.require("num_key_value_heads", c.heads)
    longest = c.positive(("model_max_length", "max_position_embeddings"))
    turning = c.raw("max_position_embeddings") is not None and c.hidden != WIDE
    mixer = c.attention(rope=c.rope(c.width())) if turning else c.attention(alibi=alibi_slopes(c.heads))
    unit = c.vocabulary >= SECOND or c.raw("z_loss_weight") is not None
    if unit:
        c.require("tie_word_embeddings", False)
    return _baichuan(c, mixer, c.positions if turning else longest, unit)
