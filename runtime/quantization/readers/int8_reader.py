"""int8 weights [out, in]: compressed-tensors', also of fewer bits, and those of bitsandbytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .compressed_tensors_schemes import CompressedTensorsScheme
from .float8_reader import described
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader
from .weight_scales import reach_of

MIDDLE = 128  # what is added, so that codes are not negative
SMALL = 4  # bits, up to which codes are kept in four
MIDDLES = {16: 8, 256: MIDDLE}  # by levels
FULL = 127  # of bitsandbytes: its scale is the largest magnitude


def claim(
    module: QuantizedModule, rounds_rows: bool = False, schemes: Sequence[CompressedTensorsScheme] = ()
) -> WeightReader:
    """w = (q - z) * s, with a scale and maybe a zero for all, for each output or for each group.

    rounds_rows: so is x, according to the checkpoint.  schemes: its configuration of integers; 4-bit codes may be
        stored in bytes.
    """
    weight = module.matrix("weight", ("I8",))
    module.expect("weight_scale", FLOATS)
    reach = reach_of(module, "weight_scale", weight, [])
    bits, group = _bits(schemes, reach.grid(weight)[1], weight[1]), reach.inputs
    levels = levels_of(bits)
    names = ("weight", "weight_scale", *(["weight_zero_point"] if module.has("weight_zero_point") else []))
    if len(names) == 3:
        module.expect(names[2], ("I8",), module.siblings["weight_scale"].shape)

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        scale = reach.expanded(tensors["weight_scale"], weight)
        zero = (
            zeros_of(reach.expanded(tensors[names[2]].short(), weight), levels)
            if len(names) == 3
            else float(MIDDLES[levels])
        )
        return QuantizedWeight(
            codes_of(module, tensors["weight"], bits), scale, group, levels, zero, rounds_rows=rounds_rows
        )

    form = "int8" if bits == 8 else f"{bits} bits in bytes"
    return module.claim(
        f"{form}, {described(reach, weight)}{', rows of activations too' if rounds_rows else ''}", weight, names, read
    )


def _bits(schemes: Sequence[CompressedTensorsScheme], groups: int, inputs: int) -> int:
    """The most that a scheme with so many groups has: where several have them, a module's name does not tell for sure
    which is its own.
    """
    return max(
        (scheme.bits for scheme in schemes if groups == (-(-inputs // scheme.group) if scheme.group else 1)), default=8
    )


def levels_of(bits: int) -> int:
    return 16 if bits <= SMALL else 256


def codes_of(module: QuantizedModule, q: Tensor, bits: int) -> Tensor:
    """int8 of -2^(bits - 1) and up -> uint8, the middle of the levels added.

    Raises CheckpointError for numbers that so few bits have not.
    """
    half = 2 ** (bits - 1)
    low, high = (int(each) for each in q.aminmax()) if bits < 8 else (0, 0)
    if low < -half or high >= half:
        raise module.wrong(
            "weight", f"holds numbers from {low} to {high}, {bits} bits have {-half} to {half - 1}; quantise it again"
        )
    return unsigned(q) if bits > SMALL else (q.contiguous() + MIDDLES[16]).view(torch.uint8)


def zeros_of(zero: Tensor, levels: int) -> Tensor | float:
    """With the same added; one where all of them are the middle: kernels need no number a group then."""
    middle = MIDDLES[levels]
    return float(middle) if not bool(zero.any()) else zero + middle


def claim_bitsandbytes(module: QuantizedModule) -> WeightReader:
    """w = q * SCB / 127. Its outliers are columns of x, found at run time: the file holds nothing of them."""
    weight = module.matrix("weight", ("I8",))
    module.expect("SCB", FLOATS, weight[:1])

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        scale = tensors["SCB"].float()[:, None] / FULL
        return QuantizedWeight(unsigned(tensors["weight"]), scale, weight[1], 256, float(MIDDLE))

    return module.claim("bitsandbytes, int8", weight, ("weight", "SCB"), read, ("weight_format",))


def unsigned(q: Tensor) -> Tensor:
    """int8 -> uint8, 128 more."""
    return q.contiguous().view(torch.uint8) ^ MIDDLE
