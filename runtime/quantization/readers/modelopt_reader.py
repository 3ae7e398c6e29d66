"""ModelOpt's four bits: codes of two outputs in a byte, the first in its lower half."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .group_size import described
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader

MIDDLE = 8  # what is added, so that codes are not negative
OF_FLOAT8 = ("weight_scale_2",)  # by which weights would be rounded to float8 once more, to be multiplied


def claim(module: QuantizedModule) -> WeightReader:
    """w[o, i] = q[o, i] * scale[o, g], q of -8 to 7."""
    pairs, inputs = module.matrix("weight", ("U8",))
    out, groups = module.matrix("weight_scale", FLOATS)
    if out != 2 * pairs or inputs % groups:
        raise module.wrong(
            "weight_scale",
            f"fits no weight [{2 * pairs}, {inputs}] of four bits, two outputs in a byte; convert the checkpoint again",
        )

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        both = tensors["weight"] ^ 16 * MIDDLE + MIDDLE
        codes = torch.stack((both & 15, both >> 4), 1).flatten(0, 1)
        return QuantizedWeight(codes, tensors["weight_scale"], inputs // groups, zero=float(MIDDLE))

    return module.claim(
        f"ModelOpt, 4 bits, {described(inputs // groups, inputs)}",
        (out, inputs),
        ("weight", "weight_scale"),
        read,
        OF_FLOAT8,
    )
