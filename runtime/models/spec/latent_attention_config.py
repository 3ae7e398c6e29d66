"""Latent attention in config.json, in DeepSeek's keys."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from ...layers.rope_parameters import RopeParameters
from .latent_attention_spec import IndexerSpec, LatentAttentionSpec
from .model_config import MOST_WIDTH, ModelConfig
from .model_spec import NormSpec

NORM = NormSpec(1e-6)  # of latents, whatever rms_norm_eps says
SIZES = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}  # DeepSeek's


def latent(
    c: ModelConfig,
    *,
    interleaved: bool,
    query_rank: int | None = 1536,
    rope: RopeParameters | None = None,
    turns: bool = True,
    **options: Any,
) -> LatentAttentionSpec:
    """query_rank: if config.json does not say; null means none.  rope: if the family reads it itself.

    turns: False for no rotation at all.
    """
    rank, dim, turned, value_dim = (c.positive(key, size, MOST_WIDTH) for key, size in SIZES.items())
    c.require("num_key_value_heads", c.heads)
    c.require("qk_head_dim", dim + turned)
    c.require(
        "head_dim", turned, dim + turned, c.hidden // c.heads
    )  # which of them differs among families, and changes nothing
    if rope is None and turns:
        rope = c.rope(turned, interleaved=interleaved)
    bias = c.flag("attention_bias")
    few = c.optional("q_lora_rank", int) if "q_lora_rank" in c.values else query_rank
    if few is not None and not 1 <= few <= MOST_WIDTH:
        raise ConfigError(
            f"{c.where}: key 'q_lora_rank' must be at least 1 and at most {MOST_WIDTH:,}, or null, not {few}"
        )
    scale = (dim + turned) ** -0.5 * (1.0 if rope is None else temperature(c, rope) ** 2)
    return LatentAttentionSpec(c.heads, rank, dim, turned, value_dim, scale, NORM, rope, few, bias, bias, **options)


def indexer(c: ModelConfig, mixer: LatentAttentionSpec, *, heads: int, interleaved: bool) -> IndexerSpec:
    """heads: if config.json does not say.  interleaved: how its heads rotate, which may differ from the others."""
    heads, dim = c.positive("index_n_heads", heads, MOST_WIDTH), c.positive("index_head_dim", 128, MOST_WIDTH)
    if mixer.query_rank is None or mixer.rope is None or dim < mixer.turned:
        raise ConfigError(
            f"{c.where}: what chooses tokens needs q_lora_rank, positions, and index_head_dim={dim} of at least "
            f"{mixer.turned}"
        )
    rope = replace(mixer.rope, width=dim, interleaved=interleaved)
    return IndexerSpec(heads, dim, c.positive("index_topk", 2048), NormSpec(1e-6, "layer", bias=True), rope)


def temperature(c: ModelConfig, rope: RopeParameters) -> float:
    """YaRN's factor on queries, and keys, which keeps the entropy of the scores."""
    written = c.rope_fields().number("mscale_all_dim", 0.0)
    if not written or rope.kind == "default":
        return 1.0
    return 1.0 if rope.factor <= 1 else 0.1 * written * math.log(rope.factor) + 1.0


def unused(c: ModelConfig) -> None:
    """Keys of training, and of the placement of experts on devices."""
    c.raw("ep_size", "aux_loss_alpha", "seq_aux")
