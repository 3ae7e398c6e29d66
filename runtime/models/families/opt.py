"""OPT, BioGPT and XGLM: positions start at row 2."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ConfigError
from ..spec.model_config import MOST_WIDTH, ModelConfig
from ..spec.model_spec import LayerNorms, LearnedPositions, ModelSpec, NormSpec, PlainFFNSpec, SinusoidalPositions
from ..spec.tensor_names import TensorNames
from .family_registry import family

FIRST = 2  # row of the first position
LONGEST = 2**17  # positions that are computed beforehand
OPT = TensorNames(
    embedding="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    norm="model.decoder.final_layer_norm",
    project_in="model.decoder.project_in",
    project_out="model.decoder.project_out",
    layer="model.decoder.layers.{}.",
    before_mixer="self_attn_layer_norm",
    after_mixer="self_attn_layer_norm",
    before_ffn="final_layer_norm",
    after_ffn="final_layer_norm",
    output="self_attn.out_proj",
    up="fc1",
    down="fc2",
    prefixes=(("decoder.", "model.decoder."),),
)


@family("OPTForCausalLM")
def opt(c: ModelConfig) -> ModelSpec:
    """Norms before mixer and FFN, or, in OPT-350M, after the sum; there the embeddings are narrower too."""
    bias, affine, before = (
        c.flag("enable_bias", True),
        c.flag("layer_norm_elementwise_affine", True),
        c.flag("do_layer_norm_before", True),
    )
    norm, width = (
        NormSpec(1e-5, "layer", weight=affine, bias=affine),
        c.positive("word_embed_proj_dim", c.hidden, MOST_WIDTH),
    )
    norms = LayerNorms.pre(norm) if before else replace(LayerNorms.post(norm), of_sum=True)
    ffn = PlainFFNSpec(c.inner, c.activation("relu", "activation_function"), bias)
    layer = c.layer(norms, c.attention(bias=bias, out_bias=bias), ffn)
    return c.model(
        [layer] * c.count,
        norm if before and not c.flag("_remove_final_layer_norm") else None,
        tied=True,
        names=OPT,
        positions=LearnedPositions(c.positions, FIRST),
        embed_size=None if width == c.hidden else width,
    )


BIOGPT = replace(
    OPT,
    embedding="biogpt.embed_tokens",
    positions="biogpt.embed_positions",
    norm="biogpt.layer_norm",
    head="output_projection",
    layer="biogpt.layers.{}.",
    prefixes=(),
)


def _biased(
    c: ModelConfig, activation: str, positions: LearnedPositions | SinusoidalPositions, names: TensorNames
) -> ModelSpec:
    """Biases everywhere; embeddings may be scaled; the norms' eps is fixed."""
    norm, scale = NormSpec(1e-5, "layer", bias=True), c.hidden**0.5 if c.flag("scale_embedding", True) else 1.0
    layer = c.layer(
        LayerNorms.pre(norm),
        c.attention(bias=True, out_bias=True),
        PlainFFNSpec(c.inner, c.activation("gelu", activation), True),
    )
    return c.model([layer] * c.count, norm, tied=True, names=names, positions=positions, embed_scale=scale)


@family("BioGptForCausalLM")
def biogpt(c: ModelConfig) -> ModelSpec:
    c.raw("layer_norm_eps")  # which no norm takes
    return _biased(c, "hidden_act", LearnedPositions(c.positions, FIRST), BIOGPT)


XGLM = replace(
    OPT,
    embedding="model.embed_tokens",
    norm="model.layer_norm",
    layer="model.layers.{}.",
    prefixes=(),
    ignored=(r"model\.embed_positions\.weights",),
)


@family("XGLMForCausalLM")
def xglm(c: ModelConfig) -> ModelSpec:
    """Row `pad_token_id` of the positions is zero, which only rows without a position may be."""
    if c.get("pad_token_id", int, 1) >= FIRST or c.hidden % 2:
        raise ConfigError(
            f"{c.where}: pad_token_id={c.raw('pad_token_id')} must be below {FIRST}, d_model={c.hidden} even"
        )
    return _biased(
        c, "activation_function", SinusoidalPositions(c.positive("max_position_embeddings", most=LONGEST), FIRST), XGLM
    )
