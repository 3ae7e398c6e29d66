"""The catalogue: the families by lineage, and the parts of layers, each as a small model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..layers.rotary import Rope
from .decoder import Decoder
from .executors import Ran, expected
from .families import FAMILIES
from .latent_spec import Latent
from .recurrent_spec import Delta, Mamba1, Mamba2
from .sparse_spec import Sparse
from .spec import (
    Attention,
    Beside,
    Experts,
    Feedforward,
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

HIDDEN, VOCABULARY, CONTEXT = 64, 32, 64
RMS, MEAN = Norm(1e-6), Norm(1e-6, "layer", bias=True)


@dataclass(frozen=True, slots=True)
class Lineage:
    """A file of families. about: its first line.  architectures: as config.json's `architectures` says them."""

    file: str
    about: str
    architectures: tuple[str, ...]


def lineages() -> list[Lineage]:
    found: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        found.setdefault(family.read.__module__, []).append(name)
    return [
        Lineage(f"{module.rpartition('.')[2]}.py", (sys.modules[module].__doc__ or "").partition("\n")[0], tuple(sorted(names)))
        for module, names in sorted(found.items())
    ]


def _model(layer: Layer, others: tuple[Layer, ...] = (), **options: Any) -> Model:
    kept: dict[str, Any] = {"norm": RMS, "tied": False} | options
    return Model("", VOCABULARY, HIDDEN, CONTEXT, (layer, *others), **kept)


def _attention(**options: Any) -> Model:
    return _model(replace(PLAIN, mixer=replace(PLAIN.attention, **options)))


def _head(dim: int) -> Model:
    return _attention(dim=dim, scale=dim**-0.5, rope=Rope(1e4, dim, dim))


def _norms(norms: Norms, last: Norm | None = RMS) -> Model:
    return _model(replace(PLAIN, norms=norms), norm=last)


def _ffn(ffn: Feedforward) -> Model:
    return _model(replace(PLAIN, ffn=ffn))


def _per_layer() -> Model:
    return _model(PLAIN, per_layer=PerLayer(16, VOCABULARY, "gelu_tanh", RMS))


MAMBA2 = Mamba2(4, 16, 16, 1, 4, 1e-6)
PLAIN = Layer(Norms.pre(RMS), Attention(4, 2, 64, 0.125, rope=Rope(1e4, 64, 64)), Gated(128))
PARTS: dict[str, Callable[[], Model]] = {
    "Llama's layer: RMS pre-norms, RoPE, grouped-query attention, gated silu": lambda: _model(PLAIN),
    "LayerNorm": lambda: _norms(Norms.pre(MEAN), MEAN),
    "post-norms": lambda: _norms(Norms.post(RMS)),
    "pre- and post-norms": lambda: _norms(Norms.both(RMS)),
    "norms after the residual addition": lambda: _norms(Norms(after_mixer=MEAN, after_ffn=MEAN, of_sum=True), None),
    "attention and feedforward in parallel": lambda: _norms(Norms.beside(MEAN), MEAN),
    "scaled branches": lambda: _model(replace(PLAIN, branch=0.5)),
    "layers scaled by a learned number": lambda: _model(replace(PLAIN, scalar=True)),
    "biases": lambda: _attention(bias=True, out_bias=True),
    "QK-norm, per head": lambda: _attention(norm=HeadNorm(RMS)),
    "QK-norm, separate weights for each head": lambda: _attention(norm=HeadNorm(RMS, "each")),
    "QK-norm, over all heads": lambda: _attention(norm=HeadNorm(RMS, "all")),
    "QK-norm after RoPE": lambda: _attention(norm=HeadNorm(RMS, after=True)),
    "norm of values": lambda: _attention(value_norm_eps=1e-6),
    "sliding window": lambda: _attention(window=16),
    "chunked attention": lambda: _attention(chunk=16),
    "soft-capped scores": lambda: _attention(softcap=30.0),
    "attention sinks": lambda: _attention(sinks=True),
    "custom attention scale": lambda: _attention(scale=0.3),
    "clipped queries, keys, values": lambda: _attention(clip=8.0),
    "queries scaled by position": lambda: _attention(temperature=Temperature(0.1, 8.0)),
    "keys that are also the values": lambda: _attention(value_is_key=True),
    "layers that reuse the keys of an earlier layer": lambda: _model(PLAIN, (replace(PLAIN, mixer=replace(PLAIN.attention, source=0)),)),
    "values narrower than keys": lambda: _attention(value_dim=32),
    "head dimension 80": lambda: _head(80),
    "head dimension 256": lambda: _head(256),
    "head dimension 512": lambda: _head(512),
    "partial RoPE": lambda: _attention(rope=Rope(1e4, 16, 64)),
    "interleaved RoPE": lambda: _attention(rope=Rope(1e4, 64, 64, interleaved=True)),
    "no RoPE": lambda: _attention(rope=None),
    "ALiBi": lambda: _attention(rope=None, alibi=(0.5, 0.25, 0.125, 0.0625)),
    "gated heads": lambda: _attention(gate=True),
    "latent attention": lambda: _model(replace(PLAIN, mixer=Latent(4, 32, 16, 16, 16, 0.2, RMS, Rope(1e4, 16, 16, interleaved=True)))),
    "compressed, chosen and latest tokens (NSA)": lambda: _model(replace(PLAIN, mixer=Sparse(4, 2, 64, 0.125, 32, Rope(1e4, 64, 64)))),
    "short convolution": lambda: _model(replace(PLAIN, mixer=ShortConv(HIDDEN, 3))),
    "gated delta net": lambda: _model(replace(PLAIN, mixer=Delta(4, 2, 16, 16, 4, 1e-6))),
    "KDA: a gated delta net with decays of each channel": lambda: _model(replace(PLAIN, mixer=Delta(4, 4, 16, 16, 4, 1e-6, rank=16, gate="sigmoid"))),
    "Mamba 1": lambda: _model(replace(PLAIN, mixer=Mamba1(64, 16, 4, 4))),
    "Mamba 2": lambda: _model(replace(PLAIN, mixer=MAMBA2)),
    "attention and Mamba 2 beside each other": lambda: _model(replace(PLAIN, mixer=Beside((PLAIN.attention, MAMBA2), (1.0, 1.0), (1.0, 1.0)))),
    "layers of one part": lambda: _model(replace(PLAIN, ffn=None), (replace(PLAIN, mixer=None),)),
    "learned positions": lambda: _model(PLAIN, positions=Learned(CONTEXT)),
    "gated gelu": lambda: _ffn(Gated(128, "gelu_tanh")),
    "plain gelu": lambda: _ffn(Plain(128, "gelu", True)),
    "plain relu²": lambda: _ffn(Plain(128, "relu2")),
    "plain xIELU": lambda: _ffn(Plain(128, "xielu")),
    "mixture of experts": lambda: _ffn(Experts(8, 2, Gated(32), Router(normalise=True), shared=Gated(32))),
    "scaled embeddings": lambda: _model(PLAIN, embed_scale=8.0),
    "norm after the embeddings": lambda: _model(PLAIN, embed_norm=MEAN),
    "embeddings narrower than layers": lambda: _model(PLAIN, embed_size=32),
    "per-layer embeddings": _per_layer,
    "scaled or soft-capped logits": lambda: _model(PLAIN, logit_scale=0.5, logit_softcap=30.0),
}


def runs_of_parts(device: torch.device, dtype: torch.dtype) -> dict[str, Ran]:
    """The executor of a layer with each part, for a model on `device`: that of its slowest layer."""
    found = {}
    for name, made in PARTS.items():
        runs = expected(Decoder(made(), dtype, "meta"), device)
        found[name] = next((ran for ran in runs if ran.why is not None), runs[0])
    return found
