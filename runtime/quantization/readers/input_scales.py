"""Weights whose inputs are multiplied first, each with a separate number (AWQ, SmoothQuant)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader

NUMBERS = ("scale", "zero", "offset")  # of groups


def without(module: QuantizedModule, name: str) -> QuantizedModule:
    """The module as if it had none of these numbers."""
    return replace(module, siblings={other: sibling for other, sibling in module.siblings.items() if other != name})


def scaled(module: QuantizedModule, name: str, claim: WeightReader) -> WeightReader:
    """claim: of the weight for multiplied inputs.

    Input scales cannot be combined with groups, so each input is a group.
    """
    wide = claim.shape[1]
    if module.expect(name, FLOATS) not in ((wide,), (1, wide)):
        raise module.wrong(name, f"must be a number for each of {wide} inputs; quantise it again")

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        weight, inputs = claim.read(tensors), tensors[name].float().view(-1)
        there = {part: found for part in NUMBERS if isinstance(found := getattr(weight, part), Tensor)}
        spread = {part: found.float().repeat_interleave(weight.group, 1)[:, :wide] for part, found in there.items()}
        parts: dict[str, Any] = {part: found if part == "zero" else found * inputs for part, found in spread.items()}
        return replace(weight, group=1, **parts)

    return claim._replace(format=f"{claim.format}, inputs multiplied", names=(*claim.names, name), read=read)
