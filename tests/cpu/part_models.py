"""Small models made of parts, with random weights: each has what some family has and Llama has not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from layer_checks import FusedRig
from rig import Rig

from sgl.runtime.attention import attention_backend
from sgl.runtime.layers.rotary import Rope
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.latent_spec import Indexer, Latent
from sgl.runtime.models.recurrent_spec import Delta, Mamba1, Mamba2
from sgl.runtime.models.sparse_spec import Sparse
from sgl.runtime.models.spec import (
    Attention,
    Beside,
    Experts,
    Gated,
    HeadNorm,
    Layer,
    Learned,
    Model,
    Norm,
    Norms,
    PerLayer,
    Plain,
    Router,
    ShortConv,
    Temperature,
)

HIDDEN, INNER, VOCABULARY = 48, 80, 60
RMS, ONE = Norm(1e-5), Norm(1e-5, offset=1.0)
LAYER, BIASED = Norm(1e-5, "layer"), Norm(1e-5, "layer", bias=True)
ROPE, OTHER = Rope(1e4, 16, 16), Rope(1e5, 16, 16, "linear", factor=4.0)


def attention(**options: Any) -> Attention:
    options = {"rope": ROPE, "scale": 0.25} | options
    return Attention(4, options.pop("kv_heads", 2), options.pop("dim", 16), **options)


def model(*layers: Layer, norm: Norm | None = RMS, **options: Any) -> Model:
    return Model("Test", VOCABULARY, HIDDEN, 512, layers, norm, options.pop("tied", False), **options)


def plain(activation: Any, bias: bool = False) -> Plain:
    return Plain(INNER, activation, bias)


def _gemma(**options: Any) -> Model:
    both, gated, head = Norms.both(ONE), Gated(INNER, "gelu_tanh"), HeadNorm(ONE)
    local = Layer(both, attention(norm=head, window=7), gated)
    return model(local, Layer(both, attention(norm=head, rope=OTHER), gated), norm=ONE, tied=True, embed_scale=6.9, **options)


def _gemma4() -> Model:
    both, gated, head = Norms.both(RMS), Gated(INNER, "gelu_tanh"), HeadNorm(RMS)
    wide = Rope(1e4, 8, 32, "proportional")
    local = Layer(both, attention(norm=head, window=9, scale=1.0, value_norm_eps=1e-5), gated, scalar=True)
    full = attention(norm=head, dim=32, kv_heads=1, rope=wide, value_norm_eps=1e-5, value_is_key=True, scale=1.0)
    reader = replace(full, source=1, value_is_key=False)
    return model(local, Layer(both, full, gated, scalar=True), Layer(both, reader, gated, scalar=True), embed_scale=7.0)


LATENT = Latent(4, 16, 8, 8, 12, 0.25, RMS, Rope(1e4, 8, 8, interleaved=True), query_rank=24)
CHOOSES = replace(LATENT, indexer=Indexer(3, 12, 5, BIASED, Rope(1e4, 8, 12)))
SPARSE = Sparse(4, 2, 16, 0.25, 24, ROPE, length=4, stride=2, block=4, most=3, first=1, latest=1, window=5)
MAMBA = Mamba2(4, 8, 6, 2, 4, 1e-5)
MODELS: dict[str, Model] = {
    "gemma": _gemma(),
    "gemma, capped": _gemma(logit_softcap=3.0),
    "gemma 4": _gemma4(),
    "olmo 2": model(*[Layer(Norms.post(RMS), attention(norm=HeadNorm(RMS, "all")), Gated(INNER))] * 2),
    "neox": model(*[Layer(Norms.beside(BIASED, own=True), attention(bias=True, out_bias=True, kv_heads=4,
        rope=Rope(1e4, 4, 16)), plain("gelu", True))] * 2, norm=BIASED),
    "cohere": model(*[Layer(Norms.beside(LAYER), attention(rope=rope, norm=HeadNorm(LAYER, "each")), Gated(INNER))
        for rope in (Rope(1e4, 16, 16, interleaved=True), None)], norm=LAYER, logit_scale=0.25),
    "persimmon": model(*[Layer(Norms.pre(BIASED), attention(norm=HeadNorm(BIASED), bias=True, rope=Rope(1e4, 8, 16)), plain("relu2", True))] * 2,
        norm=BIASED),
    "granite": model(*[Layer(Norms.pre(RMS), attention(scale=0.1), Gated(INNER), branch=0.3)] * 2, embed_scale=3.0, logit_scale=0.2),
    "opt": model(*[Layer(Norms.pre(BIASED), attention(rope=None, bias=True, out_bias=True, kv_heads=4), plain("relu", True))] * 2,
        norm=BIASED, positions=Learned(512, 2), tied=True),
    "opt, norms behind": model(*[Layer(replace(Norms.post(BIASED), of_sum=True), attention(rope=None), plain("relu2"))] * 2,
        norm=None, positions=Learned(512), embed_size=32),
    "glm 4": model(*[Layer(Norms.both(RMS), attention(bias=True), Gated(INNER))] * 2),
    "norms behind the rotation": model(*[Layer(Norms.pre(RMS), attention(norm=HeadNorm(RMS, after=True), rope=rope), Gated(INNER))
        for rope in (ROPE, None)]),
    "clipped": model(*[Layer(Norms.pre(LAYER), attention(clip=0.7, temperature=Temperature(0.4, 4.0)), Gated(INNER, "quick_gelu"))] * 2),
    "sinks": model(*[Layer(Norms.pre(RMS), attention(sinks=True, window=window, bias=True), Gated(INNER)) for window in (5, None)]),
    "a layer by the law": model(Layer(Norms.both(ONE), attention(norm=HeadNorm(ONE)), Gated(INNER, "gelu")),
        Layer(Norms.pre(RMS), attention(), plain("xielu")), Layer(Norms.pre(RMS), attention(), Gated(INNER))),
    "the last by the law": model(Layer(Norms.pre(RMS), attention(), Gated(INNER)), Layer(Norms.post(RMS), attention(), plain("xielu"))),
    "embeddings of each layer": model(*[Layer(Norms.both(RMS), attention(norm=HeadNorm(RMS)), Gated(INNER, "gelu_tanh"), scalar=True)] * 2,
        per_layer=PerLayer(8, VOCABULARY, "gelu_tanh", RMS)),
    "experts": model(Layer(Norms.pre(RMS), attention(), Gated(INNER)), Layer(Norms.both(RMS), attention(), Experts(6, 2, Gated(20), Router("sigmoid",
        correction=True, normalise=True), shared=Gated(30)), branch=0.5), Layer(Norms.pre(RMS), attention(), Gated(INNER))),
    "experts that fold": model(*[Layer(Norms.pre(RMS), attention(), Experts(6, 2, Gated(20), Router(normalise=True), shared=shared, switched=bool(shared)))
        for shared in (Gated(24), None)]),
    "experts beside attention": model(*[Layer(Norms.beside(LAYER), attention(), Experts(5, 2, Gated(24, "quick_gelu", True, 0.5), Router(best_first=True, bias=True)))] * 2),
    "gated heads": model(*[Layer(Norms.pre(ONE), attention(gate=True, norm=HeadNorm(ONE), rope=Rope(1e4, 4, 16)), Gated(INNER))] * 2),
    "gated delta net": model(*[Layer(Norms.pre(ONE), mixer, Gated(INNER)) for mixer in (Delta(4, 2, 8, 12, 4, 1e-5), attention())]),
    "kda": model(*[Layer(Norms.pre(RMS), mixer, Gated(INNER)) for mixer in (attention(), Delta(2, 2, 8, 8, 3, 1e-5, rank=6, gate="sigmoid"))]),
    "latent attention": model(*[Layer(Norms.pre(RMS), mixer, ffn) for mixer, ffn in ((LATENT, Gated(INNER)), (attention(), Gated(INNER)),
        (replace(LATENT, query_rank=None, rope=None), Experts(6, 2, Gated(20), Router("sigmoid", correction=True, normalise=True), shared=Gated(30))))]),
    "latent attention, norms behind": model(*[Layer(Norms.both(ONE), replace(LATENT, temperature=warm), Gated(INNER, "gelu_tanh"), branch=0.5)
        for warm in (None, Temperature(0.4, 4.0))], norm=ONE),
    "latent attention, chosen tokens": model(*[Layer(Norms.pre(RMS), replace(CHOOSES, indexer=replace(CHOOSES.indexer, shared=shared)), Gated(INNER)) for shared in (False, True, False)]),
    "three branches": model(*[Layer(Norms.pre(RMS), mixer, Gated(INNER)) for mixer in (SPARSE, attention(), replace(SPARSE, rope=None))]),
    "mamba": model(*[Layer(Norms.pre(RMS), mixer, Gated(INNER)) for mixer in (Mamba1(30, 4, 5, 4, norm=RMS), MAMBA, attention())]),
    "no attention": model(Layer(Norms.pre(RMS), ShortConv(HIDDEN, 3), Gated(INNER)), Layer(Norms(before_mixer=RMS), Mamba1(30, 4, 5, 4), None)),
    "beside": model(*[Layer(Norms.pre(RMS), Beside((attention(), MAMBA), (1.0, 0.5), (0.7, 1.0)), Gated(INNER, scale=0.5, out_scale=2.0))] * 2),
    "layers of one part": model(Layer(Norms(before_mixer=RMS), MAMBA, None), Layer(Norms(before_ffn=RMS), None, plain("relu2")),
        Layer(Norms(before_mixer=RMS), attention(), None), Layer(Norms.pre(RMS), attention(), Gated(INNER))),
    "values of their own width": model(*[Layer(Norms.pre(RMS), attention(value_dim=8), Gated(INNER))] * 2),
}  # fmt: skip

CHOOSING = ["latent attention, chosen tokens", "three branches"]  # what they choose among few is another choice where it is rounded otherwise
BY_LAW = {"no attention": [1], "beside": [0, 1], "layers of one part": [0, 1, 2], "embeddings of each layer": [0, 1], "a layer by the law": [1], "the last by the law": [1]}
UNCUT = ["gated heads", "gated delta net", "kda", "mamba", "no attention"]  # steps of these are not cut where layers attend, for states or gates
MIXER_BY_LAW = {
    "mamba": [0], "values of their own width": [0, 1],
    "latent attention, chosen tokens": [0, 1, 2], "three branches": [0, 2],
}  # fmt: skip


@torch.no_grad()
def decoder(spec: Model, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> Decoder:
    """The same weights whatever the type and device are."""
    found, generator = Decoder(spec, dtype, device), torch.Generator().manual_seed(seed)
    for name, target, *_ in found.places():
        numbers = torch.randn(target.shape, generator=generator)
        spread = 0.3 if "norm" in name or target.dim() < 2 else target.shape[-1] ** -0.5
        target.copy_((numbers * spread + (0.7 if "norm" in name else 0.0)).bfloat16())
    return found.seal()


class LawRig(Rig):
    """A rig of a model made of parts."""

    def __init__(
        self, spec: Model, dtype: torch.dtype = torch.float32, device: str = "cpu", attention: str = "torch_native", slots: int = 512
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
