"""torchao's plain tensors, int8 and float8: other names for what compressed-tensors has."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..grouped import Grouped
from . import float8, int8
from .claim import Claim, Module
from .scales import Reach

CALLED = {"weight": "_weight_qdata", "weight_scale": "_weight_scale", "weight_zero_point": "_weight_zero_point", "input_scale": "_weight_act_quant_scale"}
PLAIN = {theirs: ours for ours, theirs in CALLED.items()}


def claim(module: Module, blocks: list[Reach]) -> Claim:
    """Its packed int4 is laid out for one device, and refused."""
    again = Module(module.name, {PLAIN.get(name, name): sibling for name, sibling in module.siblings.items()}, CALLED)
    if again.dtype("weight") not in ("I8", *float8.FLOAT8):
        raise again.wrong("weight", "is packed for one device; only its int8 and float8 are read: quantise it again")
    inner = int8.claim(again) if again.dtype("weight") == "I8" else float8.claim(again, blocks)
    names, unused = (tuple(CALLED.get(name, name) for name in part) for part in (inner.names, inner.unused))

    def read(tensors: Mapping[str, Tensor]) -> Grouped:
        return inner.read({PLAIN.get(name, name): tensor for name, tensor in tensors.items()})

    return Claim(f"torchao, {inner.format}", inner.shape, names, unused, read)
