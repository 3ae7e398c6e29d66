"""Small models made of parts, with random weights: each has what some family has and Llama has not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from layer_checks import FusedRig
from loaded_models import GivenWeights
from rig import Rig

from sgl.runtime.attention import attention_backend
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.spec.latent_attention_spec import IndexerSpec, LatentAttentionSpec
from sgl.runtime.models.spec.model_spec import (
    AttentionSpec,
    ExpertsSpec,
    GatedFFNSpec,
    LayerNorms,
    LayerSpec,
    LearnedPositions,
    ModelSpec,
    NormSpec,
    ParallelMixersSpec,
    PerLayerEmbeddingsSpec,
    PlainFFNSpec,
    QkNormSpec,
    QueryTemperature,
    RouterSpec,
    ShortConvSpec,
)
from sgl.runtime.models.spec.recurrent_spec import DeltaNetSpec, Mamba1Spec, Mamba2Spec
from sgl.runtime.models.spec.sparse_attention_spec import SparseAttentionSpec

HIDDEN, INNER, VOCABULARY = 48, 80, 60
RMS, ONE = NormSpec(1e-5), NormSpec(1e-5, offset=1.0)
LAYER, BIASED = NormSpec(1e-5, "layer"), NormSpec(1e-5, "layer", bias=True)
ROPE, OTHER = RopeParameters(1e4, 16, 16), RopeParameters(1e5, 16, 16, "linear", factor=4.0)


def attention(**options: Any) -> AttentionSpec:
    options = {"rope": ROPE, "scale": 0.25} | options
    return AttentionSpec(4, options.pop("kv_heads", 2), options.pop("dim", 16), **options)


def model(*layers: LayerSpec, norm: NormSpec | None = RMS, **options: Any) -> ModelSpec:
    return ModelSpec("Test", VOCABULARY, HIDDEN, 512, layers, norm, options.pop("tied", False), **options)


def plain(activation: Any, bias: bool = False) -> PlainFFNSpec:
    return PlainFFNSpec(INNER, activation, bias)


def _gemma(**options: Any) -> ModelSpec:
    both, gated, head = LayerNorms.both(ONE), GatedFFNSpec(INNER, "gelu_tanh"), QkNormSpec(ONE)
    local = LayerSpec(both, attention(norm=head, window=7), gated)
    return model(
        local, LayerSpec(both, attention(norm=head, rope=OTHER), gated), norm=ONE, tied=True, embed_scale=6.9, **options
    )


def _gemma4() -> ModelSpec:
    both, gated, head = LayerNorms.both(RMS), GatedFFNSpec(INNER, "gelu_tanh"), QkNormSpec(RMS)
    wide = RopeParameters(1e4, 8, 32, "proportional")
    local = LayerSpec(both, attention(norm=head, window=9, scale=1.0, value_norm_eps=1e-5), gated, scalar=True)
    full = attention(norm=head, dim=32, kv_heads=1, rope=wide, value_norm_eps=1e-5, value_is_key=True, scale=1.0)
    reader = replace(full, source=1, value_is_key=False)
    return model(
        local, LayerSpec(both, full, gated, scalar=True), LayerSpec(both, reader, gated, scalar=True), embed_scale=7.0
    )


LATENT = LatentAttentionSpec(4, 16, 8, 8, 12, 0.25, RMS, RopeParameters(1e4, 8, 8, interleaved=True), query_rank=24)
CHOOSES = replace(LATENT, indexer=IndexerSpec(3, 12, 5, BIASED, RopeParameters(1e4, 8, 12)))
SPARSE = SparseAttentionSpec(4, 2, 16, 0.25, 24, ROPE, length=4, stride=2, block=4, most=3, first=1, latest=1, window=5)
MAMBA = Mamba2Spec(4, 8, 6, 2, 4, 1e-5)
MODELS: dict[str, ModelSpec] = {
    "gemma": _gemma(),
    "gemma, capped": _gemma(logit_softcap=3.0),
    "gemma 4": _gemma4(),
    "olmo 2": model(
        *[LayerSpec(LayerNorms.post(RMS), attention(norm=QkNormSpec(RMS, "all")), GatedFFNSpec(INNER))] * 2
    ),
    "neox": model(
        *[
            LayerSpec(
                LayerNorms.parallel_branches(BIASED, own=True),
                attention(bias=True, out_bias=True, kv_heads=4, rope=RopeParameters(1e4, 4, 16)),
                plain("gelu", True),
            )
        ]
        * 2,
        norm=BIASED,
    ),
    "cohere": model(
        *[
            LayerSpec(
                LayerNorms.parallel_branches(LAYER),
                attention(rope=rope, norm=QkNormSpec(LAYER, "each")),
                GatedFFNSpec(INNER),
            )
            for rope in (RopeParameters(1e4, 16, 16, interleaved=True), None)
        ],
        norm=LAYER,
        logit_scale=0.25,
    ),
    "persimmon": model(
        *[
            LayerSpec(
                LayerNorms.pre(BIASED),
                attention(norm=QkNormSpec(BIASED), bias=True, rope=RopeParameters(1e4, 8, 16)),
                plain("relu2", True),
            )
        ]
        * 2,
        norm=BIASED,
    ),
    "granite": model(
        *[LayerSpec(LayerNorms.pre(RMS), attention(scale=0.1), GatedFFNSpec(INNER), branch=0.3)] * 2,
        embed_scale=3.0,
        logit_scale=0.2,
    ),
    "opt": model(
        *[
            LayerSpec(
                LayerNorms.pre(BIASED), attention(rope=None, bias=True, out_bias=True, kv_heads=4), plain("relu", True)
            )
        ]
        * 2,
        norm=BIASED,
        positions=LearnedPositions(512, 2),
        tied=True,
    ),
    "opt, norms behind": model(
        *[LayerSpec(replace(LayerNorms.post(BIASED), of_sum=True), attention(rope=None), plain("relu2"))] * 2,
        norm=None,
        positions=LearnedPositions(512),
        embed_size=32,
    ),
    "glm 4": model(*[LayerSpec(LayerNorms.both(RMS), attention(bias=True), GatedFFNSpec(INNER))] * 2),
    "norms behind the rotation": model(
        *[
            LayerSpec(LayerNorms.pre(RMS), attention(norm=QkNormSpec(RMS, after=True), rope=rope), GatedFFNSpec(INNER))
            for rope in (ROPE, None)
        ]
    ),
    "clipped": model(
        *[
            LayerSpec(
                LayerNorms.pre(LAYER),
                attention(clip=0.7, temperature=QueryTemperature(0.4, 4.0)),
                GatedFFNSpec(INNER, "quick_gelu"),
            )
        ]
        * 2
    ),
    "sinks": model(
        *[
            LayerSpec(LayerNorms.pre(RMS), attention(sinks=True, window=window, bias=True), GatedFFNSpec(INNER))
            for window in (5, None)
        ]
    ),
    "a layer by the law": model(
        LayerSpec(LayerNorms.both(ONE), attention(norm=QkNormSpec(ONE)), GatedFFNSpec(INNER, "gelu")),
        LayerSpec(LayerNorms.pre(RMS), attention(), plain("xielu")),
        LayerSpec(LayerNorms.pre(RMS), attention(), GatedFFNSpec(INNER)),
    ),
    "the last by the law": model(
        LayerSpec(LayerNorms.pre(RMS), attention(), GatedFFNSpec(INNER)),
        LayerSpec(LayerNorms.post(RMS), attention(), plain("xielu")),
    ),
    "embeddings of each layer": model(
        *[
            LayerSpec(
                LayerNorms.both(RMS), attention(norm=QkNormSpec(RMS)), GatedFFNSpec(INNER, "gelu_tanh"), scalar=True
            )
        ]
        * 2,
        per_layer=PerLayerEmbeddingsSpec(8, VOCABULARY, "gelu_tanh", RMS),
    ),
    "experts": model(
        LayerSpec(LayerNorms.pre(RMS), attention(), GatedFFNSpec(INNER)),
        LayerSpec(
            LayerNorms.both(RMS),
            attention(),
            ExpertsSpec(
                6, 2, GatedFFNSpec(20), RouterSpec("sigmoid", correction=True, normalise=True), shared=GatedFFNSpec(30)
            ),
            branch=0.5,
        ),
        LayerSpec(LayerNorms.pre(RMS), attention(), GatedFFNSpec(INNER)),
    ),
    "experts that fold": model(
        *[
            LayerSpec(
                LayerNorms.pre(RMS),
                attention(),
                ExpertsSpec(6, 2, GatedFFNSpec(20), RouterSpec(normalise=True), shared=shared, switched=bool(shared)),
            )
            for shared in (GatedFFNSpec(24), None)
        ]
    ),
    "experts beside attention": model(
        *[
            LayerSpec(
                LayerNorms.parallel_branches(LAYER),
                attention(),
                ExpertsSpec(5, 2, GatedFFNSpec(24, "quick_gelu", True, 0.5), RouterSpec(best_first=True, bias=True)),
            )
        ]
        * 2
    ),
    "gated heads": model(
        *[
            LayerSpec(
                LayerNorms.pre(ONE),
                attention(gate=True, norm=QkNormSpec(ONE), rope=RopeParameters(1e4, 4, 16)),
                GatedFFNSpec(INNER),
            )
        ]
        * 2
    ),
    "gated delta net": model(
        *[
            LayerSpec(LayerNorms.pre(ONE), mixer, GatedFFNSpec(INNER))
            for mixer in (DeltaNetSpec(4, 2, 8, 12, 4, 1e-5), attention())
        ]
    ),
    "kda": model(
        *[
            LayerSpec(LayerNorms.pre(RMS), mixer, GatedFFNSpec(INNER))
            for mixer in (attention(), DeltaNetSpec(2, 2, 8, 8, 3, 1e-5, rank=6, gate="sigmoid"))
        ]
    ),
    "latent attention": model(
        *[
            LayerSpec(LayerNorms.pre(RMS), mixer, ffn)
            for mixer, ffn in (
                (LATENT, GatedFFNSpec(INNER)),
                (attention(), GatedFFNSpec(INNER)),
                (
                    replace(LATENT, query_rank=None, rope=None),
                    ExpertsSpec(
                        6,
                        2,
                        GatedFFNSpec(20),
                        RouterSpec("sigmoid", correction=True, normalise=True),
                        shared=GatedFFNSpec(30),
                    ),
                ),
            )
        ]
    ),
    "latent attention, norms behind": model(
        *[
            LayerSpec(
                LayerNorms.both(ONE), replace(LATENT, temperature=warm), GatedFFNSpec(INNER, "gelu_tanh"), branch=0.5
            )
            for warm in (None, QueryTemperature(0.4, 4.0))
        ],
        norm=ONE,
    ),
    "latent attention, chosen tokens": model(
        *[
            LayerSpec(
                LayerNorms.pre(RMS),
                replace(CHOOSES, indexer=replace(CHOOSES.indexer, shared=shared)),
                GatedFFNSpec(INNER),
            )
            for shared in (False, True, False)
        ]
    ),
    "three branches": model(
        *[
            LayerSpec(LayerNorms.pre(RMS), mixer, GatedFFNSpec(INNER))
            for mixer in (SPARSE, attention(), replace(SPARSE, rope=None))
        ]
    ),
    "mamba": model(
        *[
            LayerSpec(LayerNorms.pre(RMS), mixer, GatedFFNSpec(INNER))
            for mixer in (Mamba1Spec(30, 4, 5, 4, norm=RMS), MAMBA, attention())
        ]
    ),
    "no attention": model(
        LayerSpec(LayerNorms.pre(RMS), ShortConvSpec(HIDDEN, 3), GatedFFNSpec(INNER)),
        LayerSpec(LayerNorms(before_mixer=RMS), Mamba1Spec(30, 4, 5, 4), None),
    ),
    "beside": model(
        *[
            LayerSpec(
                LayerNorms.pre(RMS),
                ParallelMixersSpec((attention(), MAMBA), (1.0, 0.5), (0.7, 1.0)),
                GatedFFNSpec(INNER, scale=0.5, out_scale=2.0),
            )
        ]
        * 2
    ),
    "layers of one part": model(
        LayerSpec(LayerNorms(before_mixer=RMS), MAMBA, None),
        LayerSpec(LayerNorms(before_ffn=RMS), None, plain("relu2")),
        LayerSpec(LayerNorms(before_mixer=RMS), attention(), None),
        LayerSpec(LayerNorms.pre(RMS), attention(), GatedFFNSpec(INNER)),
    ),
    "values of their own width": model(
        *[LayerSpec(LayerNorms.pre(RMS), attention(value_dim=8), GatedFFNSpec(INNER))] * 2
    ),
}

CHOOSING = [
    "latent attention, chosen tokens",
    "three branches",
]  # what they choose among few is another choice where it is rounded otherwise
BY_LAW = {
    "no attention": [1],
    "beside": [0, 1],
    "layers of one part": [0, 1, 2],
    "embeddings of each layer": [0, 1],
    "a layer by the law": [1],
    "the last by the law": [1],
}
UNCUT = [
    "gated heads",
    "gated delta net",
    "kda",
    "mamba",
    "no attention",
    "latent attention",
    "latent attention, norms behind",
]  # steps of these are not cut where layers attend, for states, gates or latents
MIXER_BY_LAW = {
    "mamba": [0],
    "values of their own width": [0, 1],
    "latent attention, chosen tokens": [0, 1, 2],
    "three branches": [0, 2],
}


@torch.no_grad()
def decoder(spec: ModelSpec, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> Decoder:
    """The same weights whatever the type and device are."""
    generator = torch.Generator().manual_seed(seed)

    def fill(name: str, target: torch.Tensor) -> None:
        numbers = torch.randn(target.shape, generator=generator)
        spread = 0.3 if "norm" in name or target.dim() < 2 else target.shape[-1] ** -0.5
        target.copy_((numbers * spread + (0.7 if "norm" in name else 0.0)).bfloat16())

    return Decoder(spec, dtype, device).load(GivenWeights(fill))


class LawRig(Rig):
    """A rig of a model made of parts."""

    def __init__(
        self,
        spec: ModelSpec,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        attention: str = "torch_native",
        slots: int = 512,
    ) -> None:
        self.model = decoder(spec, dtype, device)
        layout = spec.attention
        self.pool = layout.pool(slots, dtype, device)
        self.attention = attention_backend(attention, self.pool, layout)
        self.free = list(np.random.default_rng(0).permutation(np.arange(1, slots)))
        self.pool.fill_nan(self.free)
        self.keep_states(slots, dtype, device)


class PartsRig(FusedRig, LawRig):
    """The same with a GPU's batches."""
