"""GLM-4.5 to 4.7: dense first layers, then experts by a sigmoid with corrections, and one that is shared."""

from __future__ import annotations

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import MOST_LAYERS, MOST_WIDTH, ModelConfig
from ..spec.model_spec import ExpertsSpec, GatedFFNSpec, LayerNorms, ModelSpec, QkNormSpec, RouterSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family


def routed(c: ModelConfig) -> ExpertsSpec:
    """As DeepSeek V3 has them: by sigmoids with corrections, maybe in groups; the shared ones are one network."""
    inner = c.positive("moe_intermediate_size", most=MOST_WIDTH)
    router = RouterSpec(
        "sigmoid",
        correction=True,
        groups=c.positive("n_group", 1, most=MOST_WIDTH),
        kept_groups=c.positive("topk_group", 1, most=MOST_WIDTH),
        normalise=c.flag_unless_null("norm_topk_prob", True),
        floor=1e-20,
        scale=c.number("routed_scaling_factor", 1.0),
    )
    shared = GatedFFNSpec(inner * c.positive("n_shared_experts", 1, most=MOST_LAYERS), c.activation())
    return c.experts(
        GatedFFNSpec(inner, c.activation()), router, ("n_routed_experts", "num_local_experts"), shared=shared
    )


@family("Glm4MoeForCausalLM")
def glm4_moe(c: ModelConfig) -> ModelSpec:
    rms, dense, experts = c.rms(1e-5), GatedFFNSpec(c.inner, c.activation()), routed(c)
    norm = QkNormSpec(rms) if c.flag("use_qk_norm") else None
    mixer = c.attention(kv_heads=8, bias=c.flag("attention_bias"), norm=norm, rope=c.rope(c.width(), share=0.5))
    layers = [
        c.layer(LayerNorms.pre(rms), mixer, dense if index < first_sparse(c) else experts) for index in range(c.count)
    ]
    return c.model(layers, rms, names=TensorNames(ignored=mtp_tensors(c)))


def first_sparse(c: ModelConfig) -> int:
    first = c.get("first_k_dense_replace", int, 1)
    if first < 0:
        raise ConfigError(f"{c.where}: first_k_dense_replace={first} must be at least 0")
    return first


def dense_or_sparse(c: ModelConfig) -> list[str]:
    """Of each layer "dense" or "sparse"; published files say how many dense ones come first."""
    first, found = first_sparse(c), c.raw("mlp_layer_types")
    kinds = ["dense" if index < first else "sparse" for index in range(c.count)] if found is None else found
    if not isinstance(kinds, list) or len(kinds) != c.count or any(kind not in ("dense", "sparse") for kind in kinds):
        raise ConfigError(f"{c.where}: mlp_layer_types={shown(found)} must name dense or sparse {c.count} times")
    return kinds


def mtp_tensors(c: ModelConfig) -> tuple[str, ...]:
    """Tensors of the multi-token prediction layers: they are numbered after the last layer of the model."""
    more = c.get(("num_nextn_predict_layers", "num_mtp_layers"), int, 1)
    return tuple(rf"model\.layers\.{c.count + index}\..*" for index in range(min(more, MOST_LAYERS)))
