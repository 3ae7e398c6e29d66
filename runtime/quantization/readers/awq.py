"""AWQ (gemm), and auto-round in its packing: eight outputs in a word, in an order of their own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..grouped import Grouped
from .asked import Asked
from .bits import nibbles
from .claim import Claim, Module
from .grouping import described, group_of

EACH = 8  # codes in a word
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of the eight outputs' nibbles, the lowest first
WHOLE = ("I32",)


def claim(module: Module, asked: Asked) -> Claim:
    """w[o, i] = (q[i, o] - z[g, o]) * scales[g, o]."""
    inputs, words = module.matrix("qweight", WHOLE)
    out = words * EACH
    group = group_of(module, asked, inputs, out)
    module.expect("qzeros", WHOLE, (-(-inputs // group), words))

    def read(tensors: Mapping[str, Tensor]) -> Grouped:
        codes, zero = (_unpacked(tensors[name]) for name in ("qweight", "qzeros"))
        return Grouped(codes, tensors["scales"].T.contiguous(), group, zero=zero)

    return module.claim(f"AWQ, 4 bits, {described(group, inputs)}", (out, inputs), ("qweight", "qzeros", "scales"), read)


def _unpacked(words: Tensor) -> Tensor:
    """int32 [n, out / 8] -> uint8 [out, n]."""
    codes = nibbles(words.contiguous().view(torch.uint8)).unflatten(1, (-1, EACH))
    return codes[..., list(PLACES)].flatten(1).T.contiguous()
