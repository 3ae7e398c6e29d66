"""HQQ along the inputs (axis 1): rows of one group each, the first rows in the highest bits of a byte."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader

SPARE = (
    "nbits",
    "group_size",
    "axis",
    "packing",
    "unpack_view_dtype",
    "view_as_float",
    "quant_scale",
    "quant_zero",
    "compute_dtype",
    "offload_meta",
    "encoded_state_dict",
    "stores_quant_config",
    "channel_wise",
    "optimize",
    "round_zero",
)
PARTS = (1, 2, 4, 8)  # of a byte


def claim(module: QuantizedModule) -> WeightReader:
    """w = (q - zero) * scale, both of floats. The weight's sizes stand in a tensor."""
    rows, group = module.matrix("W_q", ("U8",))
    groups, columns = module.matrix("scale", FLOATS)
    parts = groups // rows
    if columns != 1 or parts not in PARTS or parts * rows != groups:
        raise module.wrong(
            "scale",
            f"is not one for each group of {group} inputs; only axis=1 in 8, 4, 2 and 1 bits is read: quantise it "
            "again",
        )
    module.expect("zero", FLOATS, (groups, 1))
    module.expect("shape", ("I32", "I64"), (2,))

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        out, inputs = tensors["shape"].tolist()
        if out < 1 or inputs < 1 or out * inputs != groups * group or inputs % group:
            raise module.wrong(
                "shape",
                f"says {[out, inputs]}, which {groups} groups of {group} inputs do not make; convert the checkpoint "
                "again",
            )
        scale, zero = (tensors[name].view(out, -1) for name in ("scale", "zero"))
        return QuantizedWeight(
            _unpacked(tensors["W_q"], parts).view(out, inputs), scale, group, 256 if parts == 1 else 16, zero
        )

    form = f"HQQ, {8 // parts} bits, groups of {group}"
    return module.claim(form, (1, groups * group), ("W_q", "scale", "zero", "shape"), read, SPARE)


def _unpacked(filled: Tensor, parts: int) -> Tensor:
    bits = 8 // parts
    return torch.cat([filled >> 8 - bits * (part + 1) & 2**bits - 1 for part in range(parts)])
