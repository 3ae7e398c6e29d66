"""int8 weights [out, in]: compressed-tensors', and those of bitsandbytes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..grouped import Grouped
from .claim import FLOATS, Claim, Module
from .float8 import described
from .scales import reach_of

MIDDLE = 128  # what is added, so that codes are not negative
FULL = 127  # of bitsandbytes: its scale is the largest magnitude


def claim(module: Module, rounds_rows: bool = False) -> Claim:
    """w = (q - z) * s, with a scale and maybe a zero for all, for each output or for each group. rounds_rows: so is x, the checkpoint says."""
    weight = module.matrix("weight", ("I8",))
    module.expect("weight_scale", FLOATS)
    reach = reach_of(module, "weight_scale", weight, [])
    names = ("weight", "weight_scale", *(["weight_zero_point"] if module.has("weight_zero_point") else []))
    if len(names) == 3:
        module.expect(names[2], ("I8",), module.siblings["weight_scale"].shape)

    def read(tensors: Mapping[str, Tensor]) -> Grouped:
        scale = reach.spread(tensors["weight_scale"], weight)
        zero = one_zero(reach.spread(tensors[names[2]].short(), weight) + MIDDLE, MIDDLE) if len(names) == 3 else float(MIDDLE)
        return Grouped(unsigned(tensors["weight"]), scale, reach.inputs, 256, zero, rounds_rows=rounds_rows)

    return module.claim(f"int8, {described(reach, weight)}{', rows of activations too' if rounds_rows else ''}", weight, names, read)


def claim_bitsandbytes(module: Module) -> Claim:
    """w = q * SCB / 127. Its outliers are columns of x, found at run time: the file holds nothing of them."""
    weight = module.matrix("weight", ("I8",))
    module.expect("SCB", FLOATS, weight[:1])

    def read(tensors: Mapping[str, Tensor]) -> Grouped:
        scale = tensors["SCB"].float()[:, None] / FULL
        return Grouped(unsigned(tensors["weight"]), scale, weight[1], 256, float(MIDDLE))

    return module.claim("bitsandbytes, int8", weight, ("weight", "SCB"), read, ("weight_format",))


def one_zero(zero: Tensor, middle: int) -> Tensor | float:
    """The middle where all of them are it: kernels need no number a group then."""
    return float(middle) if bool((zero == middle).all()) else zero


def unsigned(q: Tensor) -> Tensor:
    """int8 -> uint8, 128 more."""
    return q.contiguous().view(torch.uint8) ^ MIDDLE
