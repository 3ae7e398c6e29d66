"""float8 weights: with a scale for all, for each output, or for each block.

The layouts of DeepSeek, fbgemm, ModelOpt and compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader
from .weight_scales import ScaleBlock, reach_of

FLOAT8 = ("F8_E4M3",)
SCALES = ("weight_scale_inv", "weight_scale", "scale")  # all of them multiply, whatever they are called
EXPONENTS = ("F8_E8M0", "U8")  # 2^(byte - 127)
DEFAULT_BLOCK = ScaleBlock(128, 128)


def claim(module: QuantizedModule, blocks: list[ScaleBlock]) -> WeightReader:
    """blocks: as the configuration has them; without any, blocks of 128 x 128 are looked for."""
    weight = module.matrix("weight", FLOAT8)
    name = next((name for name in SCALES if module.has(name)), SCALES[1])
    module.expect(name, (*FLOATS, *EXPONENTS))
    reach = reach_of(module, name, weight, blocks or [DEFAULT_BLOCK])

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        return QuantizedWeight.float8(tensors["weight"], reach.expanded(tensors[name], weight), reach.inputs)

    return module.claim(f"FP8, {described(reach, weight)}", weight, ("weight", name), read)


def described(reach: ScaleBlock, weight: tuple[int, int]) -> str:
    if reach == weight:
        return "one scale"
    if reach.rows > 1:
        return f"blocks of {reach.rows} x {reach.inputs}"
    return "a scale per output" if reach.inputs == weight[1] else f"groups of {reach.inputs}"
