"""GLM-4.7-Flash: latent attention, a dense first layer, then experts as in GLM-4.5."""

from __future__ import annotations

from ..spec.latent_attention_config import latent, unused
from ..spec.model_config import ModelConfig
from ..spec.model_spec import Feedforward, GatedFFNSpec, LayerNorms, ModelSpec
from ..spec.tensor_names import TensorNames
from .family_registry import family
from .glm_moe import dense_or_sparse, mtp_tensors, routed


@family("Glm4MoeLiteForCausalLM")
def glm4_moe_lite(c: ModelConfig) -> ModelSpec:
    unused(c)
    c.require("scoring_func", "sigmoid")
    c.require("topk_method", "noaux_tc")
    c.require("moe_layer_freq", 1)
    c.assume(
        qk_nope_head_dim=192,
        v_head_dim=256,
        routed_scaling_factor=1.8,
        num_experts_per_tok=4,
        moe_intermediate_size=1536,
    )
    rms, mixer = c.rms(1e-5), latent(c, interleaved=c.flag("rope_interleave", True), query_rank=768)
    ffns: dict[str, Feedforward] = {"dense": GatedFFNSpec(c.inner, c.activation()), "sparse": routed(c)}
    return c.model(
        [c.layer(LayerNorms.pre(rms), mixer, ffns[kind]) for kind in dense_or_sparse(c)],
        rms,
        names=TensorNames(ignored=mtp_tensors(c)),
    )
