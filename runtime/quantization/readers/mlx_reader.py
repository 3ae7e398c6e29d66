"""MLX: integers of 2 to 8 bits in words, with a scale and an addend for each group; and its floats."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ..quantized_weight import QuantizedWeight
from . import float4_reader, float8_reader
from .bit_unpacking import WORD, stream
from .group_size import described
from .quantization_config import CheckpointQuantization, is_size
from .weight_reader_match import FLOATS, QuantizedModule, TensorHeader, WeightReader

SCALES, BIASES = "scales", "biases"
CALLED = {"weight_scale": SCALES}
FLOAT_BITS = {"mxfp4": 4, "nvfp4": 4, "mxfp8": 8}  # by mode
GROUPS = {"mxfp4": 32, "nvfp4": 16, "mxfp8": 32}
AFFINE = "affine"
OF_EXPERT = re.compile(r"experts\.\d+\.(\w+)$")  # whose matrices are in one tensor there
OF_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def claim(module: QuantizedModule, quant_config: CheckpointQuantization) -> WeightReader:
    """w[o, i] = q[o, i] * scales[o, g] + biases[o, g].

    Bits and groups stand in the configuration, where a module may have its own.
    """
    own = quant_config.keys.get(module.name, quant_config.keys.get(OF_EXPERT.sub(_together, module.name)))
    says: Mapping[str, object] = {**quant_config.keys, **own} if isinstance(own, Mapping) else quant_config.keys
    mode = says.get("mode") or AFFINE
    if isinstance(mode, str) and mode in FLOAT_BITS:
        return _floats(module, mode)
    bits, group = says.get("bits"), says.get("group_size")
    if (
        mode != AFFINE
        or not is_size(bits, 8)
        or not is_size(group)
        or not isinstance(bits, int)
        or not isinstance(group, int)
    ):
        raise module.wrong(
            "weight",
            f"has mode {mode!r:.20}, bits {bits!r:.20} and group_size {group!r:.20} in the configuration, and is not "
            "read so; correct the file",
        )
    out, words = module.matrix("weight", ("U32",))
    inputs = words * WORD // bits
    for name in (SCALES, BIASES):
        module.expect(name, FLOATS, (out, -(-inputs // group)))

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = stream(tensors["weight"], bits, inputs).contiguous()
        return QuantizedWeight(
            codes, tensors[SCALES], min(group, inputs), 16 if bits <= 4 else 256, offset=tensors[BIASES]
        )

    return module.claim(
        f"MLX, {bits} bits, {described(group, inputs)}", (out, inputs), ("weight", SCALES, BIASES), read
    )


def _together(expert: re.Match[str]) -> str:
    return f"switch_mlp.{OF_MIXTRAL.get(expert[1], expert[1])}"


def _floats(module: QuantizedModule, mode: str) -> WeightReader:
    """The same bytes that other formats have, in words and without the dtypes of floats."""
    out, words = module.matrix("weight", ("U32",))
    width, dtype = words * 4, torch.float8_e4m3fn if mode == "mxfp8" else torch.uint8
    inputs, of_scales = width * 8 // FLOAT_BITS[mode], torch.float8_e4m3fn if mode == "nvfp4" else torch.uint8
    shape = module.expect(SCALES, ("U8",), (out, -(-inputs // GROUPS[mode])))
    siblings = {name: sibling for name, sibling in module.siblings.items() if name != SCALES}
    names = {torch.uint8: "U8", torch.float8_e4m3fn: "F8_E4M3"}
    again = QuantizedModule(
        module.name,
        {
            **siblings,
            "weight": TensorHeader(names[dtype], (out, width)),
            "weight_scale": TensorHeader(names[of_scales], shape),
        },
        CALLED,
    )
    inner = float8_reader.claim(again, []) if mode == "mxfp8" else float4_reader.claim(again, "weight", alone=True)

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        weight = tensors["weight"].contiguous().view(torch.uint8)
        return inner.read({"weight": weight.view(dtype), "weight_scale": tensors[SCALES].view(of_scales)})

    return WeightReader(f"MLX, {inner.format}", inner.shape, ("weight", SCALES), inner.unused, read)
