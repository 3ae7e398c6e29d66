"""Listing: the families by lineage, and the parts of layers, each as a small model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...layers.rope_parameters import RopeParameters
from ..expected_executors import LayerExecutorChoice, executors_on_cpu
from ..families import FAMILIES
from ..spec.latent_attention_spec import LatentAttentionSpec
from ..spec.model_spec import (
    AttentionSpec,
    ExpertsSpec,
    Feedforward,
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
from ..spec.recurrent_spec import DeltaNetSpec, Mamba1Spec, Mamba2Spec
from ..spec.sparse_attention_spec import SparseAttentionSpec

HIDDEN, VOCABULARY, CONTEXT = 64, 32, 64
RMS, MEAN = NormSpec(1e-6), NormSpec(1e-6, "layer", bias=True)


@dataclass(frozen=True, slots=True)
class FamilyFile:
    """A file of families. about: its first line.  architectures: the names in config.json's `architectures`."""

    file: str
    about: str
    architectures: tuple[str, ...]


def lineages() -> list[FamilyFile]:
    found: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        found.setdefault(family.read.__module__, []).append(name)
    return [
        FamilyFile(
            f"{module.rpartition('.')[2]}.py",
            (sys.modules[module].__doc__ or "").partition("\n")[0],
            tuple(sorted(names)),
        )
        for module, names in sorted(found.items())
    ]


def _model(layer: LayerSpec, others: tuple[LayerSpec, ...] = (), **options: Any) -> ModelSpec:
    kept: dict[str, Any] = {"norm": RMS, "tied": False} | options
    return ModelSpec("", VOCABULARY, HIDDEN, CONTEXT, (layer, *others), **kept)


def _attention(**options: Any) -> ModelSpec:
    return _model(replace(PLAIN, mixer=replace(PLAIN.attention, **options)))


def _head(dim: int) -> ModelSpec:
    return _attention(dim=dim, scale=dim**-0.5, rope=RopeParameters(1e4, dim, dim))


def _norms(norms: LayerNorms, last: NormSpec | None = RMS) -> ModelSpec:
    return _model(replace(PLAIN, norms=norms), norm=last)


def _ffn(ffn: Feedforward) -> ModelSpec:
    return _model(replace(PLAIN, ffn=ffn))


def _per_layer() -> ModelSpec:
    return _model(PLAIN, per_layer=PerLayerEmbeddingsSpec(16, VOCABULARY, "gelu_tanh", RMS))


MAMBA2 = Mamba2Spec(4, 16, 16, 1, 4, 1e-6)
PLAIN = LayerSpec(
    LayerNorms.pre(RMS), AttentionSpec(4, 2, 64, 0.125, rope=RopeParameters(1e4, 64, 64)), GatedFFNSpec(128)
)
PARTS: dict[str, Callable[[], ModelSpec]] = {
    "Llama's layer: RMS pre-norms, RoPE, grouped-query attention, gated silu": lambda: _model(PLAIN),
    "LayerNorm": lambda: _norms(LayerNorms.pre(MEAN), MEAN),
    "post-norms": lambda: _norms(LayerNorms.post(RMS)),
    "pre- and post-norms": lambda: _norms(LayerNorms.both(RMS)),
    "norms after the residual addition": lambda: _norms(
        LayerNorms(after_mixer=MEAN, after_ffn=MEAN, of_sum=True), None
    ),
    "attention and feedforward in parallel": lambda: _norms(LayerNorms.parallel_branches(MEAN), MEAN),
    "scaled branches": lambda: _model(replace(PLAIN, branch=0.5)),
    "layers scaled by a learned number": lambda: _model(replace(PLAIN, scalar=True)),
    "biases": lambda: _attention(bias=True, out_bias=True),
    "QK-norm, per head": lambda: _attention(norm=QkNormSpec(RMS)),
    "QK-norm, separate weights for each head": lambda: _attention(norm=QkNormSpec(RMS, "each")),
    "QK-norm, over all heads": lambda: _attention(norm=QkNormSpec(RMS, "all")),
    "QK-norm after RoPE": lambda: _attention(norm=QkNormSpec(RMS, after=True)),
    "norm of values": lambda: _attention(value_norm_eps=1e-6),
    "sliding window": lambda: _attention(window=16),
    "chunked attention": lambda: _attention(chunk=16),
    "soft-capped scores": lambda: _attention(softcap=30.0),
    "attention sinks": lambda: _attention(sinks=True),
    "custom attention scale": lambda: _attention(scale=0.3),
    "clipped queries, keys, values": lambda: _attention(clip=8.0),
    "queries scaled by position": lambda: _attention(temperature=QueryTemperature(0.1, 8.0)),
    "keys that are also the values": lambda: _attention(value_is_key=True),
    "layers that reuse the keys of an earlier layer": lambda: _model(
        PLAIN, (replace(PLAIN, mixer=replace(PLAIN.attention, source=0)),)
    ),
    "values narrower than keys": lambda: _attention(value_dim=32),
    "head dimension 80": lambda: _head(80),
    "head dimension 256": lambda: _head(256),
    "head dimension 512": lambda: _head(512),
    "partial RoPE": lambda: _attention(rope=RopeParameters(1e4, 16, 64)),
    "interleaved RoPE": lambda: _attention(rope=RopeParameters(1e4, 64, 64, interleaved=True)),
    "no RoPE": lambda: _attention(rope=None),
    "ALiBi": lambda: _attention(rope=None, alibi=(0.5, 0.25, 0.125, 0.0625)),
    "gated heads": lambda: _attention(gate=True),
    "latent attention": lambda: _model(
        replace(
            PLAIN, mixer=LatentAttentionSpec(4, 32, 16, 16, 16, 0.2, RMS, RopeParameters(1e4, 16, 16, interleaved=True))
        )
    ),
    "compressed, chosen and latest tokens (NSA)": lambda: _model(
        replace(PLAIN, mixer=SparseAttentionSpec(4, 2, 64, 0.125, 32, RopeParameters(1e4, 64, 64)))
    ),
    "short convolution": lambda: _model(replace(PLAIN, mixer=ShortConvSpec(HIDDEN, 3))),
    "gated delta net": lambda: _model(replace(PLAIN, mixer=DeltaNetSpec(4, 2, 16, 16, 4, 1e-6))),
    "KDA: a gated delta net with decays of each channel": lambda: _model(
        replace(PLAIN, mixer=DeltaNetSpec(4, 4, 16, 16, 4, 1e-6, rank=16, gate="sigmoid"))
    ),
    "Mamba 1": lambda: _model(replace(PLAIN, mixer=Mamba1Spec(64, 16, 4, 4))),
    "Mamba 2": lambda: _model(replace(PLAIN, mixer=MAMBA2)),
    "attention and Mamba 2 in parallel": lambda: _model(
        replace(PLAIN, mixer=ParallelMixersSpec((PLAIN.attention, MAMBA2), (1.0, 1.0), (1.0, 1.0)))
    ),
    "layers of one part": lambda: _model(replace(PLAIN, ffn=None), (replace(PLAIN, mixer=None),)),
    "learned positions": lambda: _model(PLAIN, positions=LearnedPositions(CONTEXT)),
    "gated gelu": lambda: _ffn(GatedFFNSpec(128, "gelu_tanh")),
    "plain gelu": lambda: _ffn(PlainFFNSpec(128, "gelu", True)),
    "plain relu²": lambda: _ffn(PlainFFNSpec(128, "relu2")),
    "plain xIELU": lambda: _ffn(PlainFFNSpec(128, "xielu")),
    "mixture of experts": lambda: _ffn(
        ExpertsSpec(8, 2, GatedFFNSpec(32), RouterSpec(normalise=True), shared=GatedFFNSpec(32))
    ),
    "scaled embeddings": lambda: _model(PLAIN, embed_scale=8.0),
    "norm after the embeddings": lambda: _model(PLAIN, embed_norm=MEAN),
    "embeddings narrower than layers": lambda: _model(PLAIN, embed_size=32),
    "per-layer embeddings": _per_layer,
    "scaled or soft-capped logits": lambda: _model(PLAIN, logit_scale=0.5, logit_softcap=30.0),
}


def runs_of_parts(device: str, dtype: str) -> dict[str, LayerExecutorChoice]:
    """The executor of a layer with each part, for a model on `device`: that of its slowest layer.

    device, dtype: as torch names them.
    """
    found = {name: executors_of(made(), device, dtype) for name, made in PARTS.items()}
    return {name: next((ran for ran in each if ran.why is not None), each[0]) for name, each in found.items()}


def executors_of(model: ModelSpec, device: str, dtype: str) -> list[LayerExecutorChoice]:
    """For each layer of a model that is only described; on a CPU without torch. device, dtype: as torch names them."""
    if device == "cpu":
        return executors_on_cpu(model, dtype)
    import torch

    from ..decoder import Decoder
    from ..layer_executors import expected_executors

    return expected_executors(Decoder(model, getattr(torch, dtype), "meta"), torch.device(device))
