"""Which fields of a model's parts an executor supports: layers with any other field are left to the reference."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

PART_NAMES = {
    "AttentionSpec": "attention",
    "DeltaNetSpec": "DeltaNet",
    "ExpertsSpec": "experts",
    "GatedFFNSpec": "gated",
    "LatentAttentionSpec": "latent attention",
    "LayerNorms": "norms",
    "LayerSpec": "layer",
    "Mamba1Spec": "Mamba1",
    "Mamba2Spec": "Mamba2",
    "NormSpec": "norm",
    "ParallelMixersSpec": "attention in parallel with Mamba",
    "PlainFFNSpec": "plain",
    "QkNormSpec": "QK-norm",
    "RouterSpec": "router",
    "ShortConvSpec": "short convolution",
    "SparseAttentionSpec": "sparse attention",
}  # by class; the other parts go by the name of their class

Known = Mapping[type, Collection[str]]  # the fields of each kind of part


def part_name(part: Any) -> str:
    """What messages call a part."""
    return PART_NAMES.get(type(part).__name__, type(part).__name__)


def parts_of(layer: Any) -> Iterator[Any]:
    """A layer's parts, itself first."""
    yield from (layer, layer.norms)
    yield from (part for part in (layer.mixer, layer.ffn) if part is not None)
    if getattr(layer.mixer, "norm", None) is not None:
        yield layer.mixer.norm
    if hasattr(layer.ffn, "router"):
        yield from (layer.ffn.router, layer.ffn.expert)
        if layer.ffn.shared is not None:
            yield layer.ffn.shared


def unsupported_fields(layer: Any, known: Known, one: bool = False) -> Iterator[str]:
    """The fields that an executor does not support, for people.

    one: it supports layers with only a mixer, or only a feedforward network.
    """
    if not one:
        yield from (
            f"a layer without {name}"
            for name, part in (("mixer", layer.mixer), ("feedforward network", layer.ffn))
            if part is None
        )
    for part in parts_of(layer):
        if type(part) not in known:
            yield f"{part_name(part)} is none of its parts"
            continue
        for each in fields(part):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            if each.name not in known[type(part)] and getattr(part, each.name) != default:
                yield f"{part_name(part)} with {each.name}"
