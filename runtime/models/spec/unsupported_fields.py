"""What of a model's parts an executor knows: whatever else a part has, now or one day, it leaves to the reference."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

WORDS = {
    "LatentAttention": "latent attention",
    "ParallelMixers": "attention in parallel with Mamba",
}  # where the name of the class says too little, see `name_of`

Known = Mapping[type, Collection[str]]  # the fields of each kind of part


def name_of(part: Any) -> str:
    """What users read of a part: the name of its class, `RouterSpec` as "Router"."""
    return type(part).__name__.removesuffix("Spec")


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
    """What an executor does not know, for people.

    one: it knows layers of a mixer alone, or of a feedforward network alone.
    """
    if not one:
        yield from (
            f"a layer without {name}"
            for name, part in (("mixer", layer.mixer), ("feedforward network", layer.ffn))
            if part is None
        )
    for part in parts_of(layer):
        if type(part) not in known:
            yield f"{WORDS.get(name_of(part), name_of(part))} is none of its parts"
            continue
        for each in fields(part):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            if each.name not in known[type(part)] and getattr(part, each.name) != default:
                yield f"{name_of(part).lower()} with {each.name}"
