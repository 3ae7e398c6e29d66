"""DeepSeek V3.2 and GLM-5: latent attention to 2,048 tokens that an indexer selects; experts as in V3."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.latent_attention_config import indexer, latent, unused
from ..spec.latent_attention_spec import IndexerSpec
from ..spec.model_config import ModelConfig
from ..spec.model_spec import Feedforward, GatedFFNSpec, LayerNorms, ModelSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family
from .glm_moe import dense_or_sparse, mtp_tensors, routed


@family("DeepseekV32ForCausalLM")
def deepseek_v32(c: ModelConfig) -> ModelSpec:
    c.assume(
        first_k_dense_replace=3,
        n_group=8,
        topk_group=4,
        routed_scaling_factor=2.5,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
    )
    return _model(c, query_rank=1536, heads=64, interleaved=False, eps=1e-6)


@family("GlmMoeDsaForCausalLM")
def glm_moe_dsa(c: ModelConfig) -> ModelSpec:
    """Layers may attend to what the one before them has chosen."""
    c.assume(
        first_k_dense_replace=3,
        routed_scaling_factor=2.5,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        qk_nope_head_dim=192,
        v_head_dim=256,
    )
    return _model(c, query_rank=2048, heads=32, interleaved=True, eps=1e-5)


def _model(c: ModelConfig, query_rank: int, heads: int, interleaved: bool, eps: float) -> ModelSpec:
    """query_rank, heads, interleaved, eps: where config.json does not say."""
    unused(c)
    c.require("scoring_func", "sigmoid")
    c.require("topk_method", "noaux_tc")
    c.require("moe_layer_freq", 1)
    c.require("mlp_bias", False)
    c.raw("layer_types")  # all alike: how transformers caches them
    rms, mixer = c.rms(eps), latent(c, interleaved=c.flag("rope_interleave", True), query_rank=query_rank)
    own = indexer(c, mixer, heads=heads, interleaved=c.flag("indexer_rope_interleave", interleaved))
    ffns: dict[str, Feedforward] = {"dense": GatedFFNSpec(c.inner, c.activation()), "sparse": routed(c)}
    layers = [
        c.layer(LayerNorms.pre(rms), replace(mixer, indexer=each), ffns[kind])
        for each, kind in zip(_indexers(c, own), dense_or_sparse(c), strict=True)
    ]
    return c.model(layers, rms, names=TensorNames(ignored=mtp_tensors(c)))


def _indexers(c: ModelConfig, own: IndexerSpec) -> list[IndexerSpec]:
    """Of each layer its own, or one that is shared with the layer before."""
    kinds = _kinds(c)
    if len(kinds) != c.count or kinds[0] != "full" or any(kind not in ("full", "shared") for kind in kinds):
        raise ConfigError(
            f"{c.where}: indexer_types={shown(kinds)} must name full or shared {c.count} times, full first"
        )
    return [replace(own, shared=kind == "shared") for kind in kinds]


def _kinds(c: ModelConfig) -> list[str]:
    """By a list, by a pattern of letters, or every so many layers."""
    found, pattern = c.raw("indexer_types"), c.raw("index_topk_pattern")
    every, first = c.positive("index_topk_freq", 1), c.get("index_skip_topk_offset", int, 2)
    if found is None and isinstance(pattern, str):
        found = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    if found is None and pattern is None:
        found = ["full" if max(index - first + 1, 0) % every == 0 else "shared" for index in range(c.count)]
    if not isinstance(found, list):
        raise ConfigError(
            f"{c.where}: indexer_types={shown(c.raw('indexer_types'))}, index_topk_pattern={shown(pattern)}: neither "
            "is a list or letters F and S"
        )
    return found
