"""Floats of four and six bits: NVFP4 in the two conventions for its global scale, MXFP4, MXFP6."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from ..quantized_weight import E2M1, QuantizedWeight
from .bit_unpacking import nibbles, stream
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader
from .weight_scales import ScaleBlock, plain, reach_of

BITS = {16: 4, 24: 6}  # of a code, by the bytes of 32 of them
OF_GROUPS = ("F8_E4M3", "F8_E8M0", "U8")
DIVIDES, MULTIPLIES = "weight_global_scale", "weight_scale_2"  # the name says which convention it is


def claim(module: QuantizedModule, codes: str, alone: bool = False) -> WeightReader:
    """codes: the sibling with the codes, uint8 [out, bytes]; its width relative to the scale's gives the bits.

    alone: NVFP4 may have no global scale.
    """
    out, width = module.matrix(codes, ("U8",))
    _, groups = module.matrix("weight_scale", OF_GROUPS)
    nvidia = module.dtype("weight_scale") == "F8_E4M3"
    group = 16 if nvidia else 32
    bits = 4 if nvidia else BITS.get(width // groups, 4)
    inputs = width * 8 // bits
    module.expect("weight_scale", OF_GROUPS, (out, -(-inputs // group)))
    reaches = {name: _reach(module, name, (out, inputs)) for name in (DIVIDES, MULTIPLIES) if module.has(name)}
    if nvidia and len(reaches) != 1 and not (alone and not reaches):
        raise module.wrong(
            "weight_scale", f"needs one of {DIVIDES} and {MULTIPLIES} next to it; take a complete checkpoint"
        )

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        factor = None
        for name, reach in reaches.items():
            each = reach.expanded(tensors[name].float(), (out, inputs))[:, 0]
            factor = 1 / each if name == DIVIDES else each
        return _grouped(tensors[codes], plain(tensors["weight_scale"]), group, bits, factor)

    form = "NVFP4" if nvidia else f"MXFP{bits}"
    return module.claim(
        f"{form}, groups of {group}", (out, inputs), (codes, "weight_scale", *reaches), read, ("weight_shape",)
    )


def claim_blocks(module: QuantizedModule) -> WeightReader:
    """gpt-oss' experts: `blocks`, uint8 [out, groups, 16], with a power of two of each group in `scales`, uint8 [out,
    groups].
    """
    shape = module.expect("blocks", ("U8",))
    if len(shape) != 3 or shape[2] != 16 or min(shape) < 1:
        raise module.wrong("blocks", "must be [outputs, groups, 16] in MXFP4; convert the checkpoint again")
    out, groups, _ = shape
    module.expect("scales", ("U8", "F8_E8M0"), (out, groups))

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        return _grouped(tensors["blocks"].flatten(1), plain(tensors["scales"]), 32, 4, None)

    return module.claim("MXFP4, groups of 32", (out, groups * 32), ("blocks", "scales"), read)


def _reach(module: QuantizedModule, name: str, weight: tuple[int, int]) -> ScaleBlock:
    module.expect(name, FLOATS)
    return reach_of(module, name, weight, [])


def _grouped(packed: Tensor, scale: Tensor, group: int, bits: int, factor: Tensor | None) -> QuantizedWeight:
    if bits == 4:
        table = torch.tensor(E2M1, device=packed.device)
        return QuantizedWeight(nibbles(packed), scale, group, factor=factor, table=table)
    codes = stream(packed, bits, packed.shape[1] * 8 // bits)
    return QuantizedWeight.float8(_e2m3().to(packed.device)[codes.int()].contiguous(), scale, group, factor)


@cache
def _e2m3() -> Tensor:
    """float8 [64]: what a code of six bits stands for; e4m3 has all of these numbers."""
    sizes = [n / 8 for n in range(8)] + [(1 + n / 8) * 2**e for e in range(3) for n in range(8)]
    return torch.tensor([*sizes, *(-size for size in sizes)]).to(torch.float8_e4m3fn)
