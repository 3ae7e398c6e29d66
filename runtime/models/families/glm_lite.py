"""GLM-4.7-Flash: latent attention, a dense first layer, then experts as in GLM-4.5."""

from __future__ import annotations

from ...errors import ConfigError
from ..config import Config
from ..fields import shown
from ..latent_config import latent, unused
from ..names import Names
from ..spec import Feedforward, Gated, Model, Norms
from .glm_moe import behind, first_sparse, routed
from .registry import family


@family("Glm4MoeLiteForCausalLM")
def glm4_moe_lite(c: Config) -> Model:
    unused(c)
    c.require("scoring_func", "sigmoid")
    c.require("topk_method", "noaux_tc")
    c.require("moe_layer_freq", 1)
    c.assume(qk_nope_head_dim=192, v_head_dim=256, routed_scaling_factor=1.8, num_experts_per_tok=4, moe_intermediate_size=1536)
    rms, mixer = c.rms(1e-5), latent(c, interleaved=c.flag("rope_interleave", True), query_rank=768)
    ffns: dict[str, Feedforward] = {"dense": Gated(c.inner, c.activation()), "sparse": routed(c)}
    return c.model([c.layer(Norms.pre(rms), mixer, ffns[kind]) for kind in dense_or_sparse(c)], rms, names=Names(ignored=behind(c)))


def dense_or_sparse(c: Config) -> list[str]:
    """Of each layer "dense" or "sparse"; published files say how many come first."""
    first, found = first_sparse(c), c.raw("mlp_layer_types")
    kinds = ["dense" if index < first else "sparse" for index in range(c.count)] if found is None else found
    if not isinstance(kinds, list) or len(kinds) != c.count or any(kind not in ("dense", "sparse") for kind in kinds):
        raise ConfigError(f"{c.where}: mlp_layer_types={shown(found)} must name dense or sparse {c.count} times")
    return kinds
