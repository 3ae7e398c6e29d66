"""torchao's tensors: the file's metadata gives the class; int8, float8, MX and NVFP4 are other formats' by other
names.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..quantized_weight import QuantizedWeight
from . import float4_reader, float8_reader, int8_reader
from .input_scales import scaled, without
from .swizzled_scales import unswizzled
from .torchao_int4_reader import claim_plain, claim_tiles, claim_unpacked, claim_words
from .torchao_metadata import TorchAOMetadata, metadata_of
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader
from .weight_scales import ScaleBlock

CALLED = {
    "weight": "_weight_qdata",
    "weight_scale": "_weight_scale",
    "weight_zero_point": "_weight_zero_point",
    "weight_scale_2": "_weight_per_tensor_scale",
    "weight_scale_and_zero": "_weight_scale_and_zero",
    "input_scale": "_weight_act_quant_scale",
    "input_zero_point": "_weight_act_quant_zero_point",
    "input_global_scale": "_weight_act_per_tensor_scale",
}
PLAIN = {theirs: ours for ours, theirs in CALLED.items()}
INT4 = {
    "Int4Tensor": claim_plain,
    "Int4PlainInt32Tensor": claim_words,
    "Int4TilePackedTo4dTensor": claim_tiles,
    "IntxUnpackedToInt8Tensor": claim_unpacked,
}
BYTES, MX, NV = ("Int8Tensor", "Float8Tensor"), "MXTensor", "NVFP4Tensor"
OF_INPUTS = "_weight_act_pre_scale"


def claim(
    module: QuantizedModule, blocks: list[ScaleBlock], text: object = None, rounds_rows: bool = False
) -> WeightReader:
    """text: what the file says of the weight; where it says nothing, int8 and float8 are
    read.  rounds_rows: see `int8_reader.claim`.
    """
    if module.has(OF_INPUTS):
        return scaled(module, OF_INPUTS, claim(without(module, OF_INPUTS), blocks, text))
    again = QuantizedModule(
        module.name, {PLAIN.get(name, name): sibling for name, sibling in module.siblings.items()}, CALLED
    )
    inner = _inner(again, blocks, metadata_of(again, text), rounds_rows)
    names, unused = (tuple(CALLED.get(name, name) for name in part) for part in (inner.names, inner.unused))

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        return inner.read({PLAIN.get(name, name): tensor for name, tensor in tensors.items()})

    return WeightReader(f"torchao, {inner.format}", inner.shape, names, unused, read)


def _inner(
    module: QuantizedModule, blocks: list[ScaleBlock], metadata: TorchAOMetadata, rounds_rows: bool
) -> WeightReader:
    if metadata.kind in INT4:
        return INT4[metadata.kind](module, metadata)
    if metadata.kind in (MX, NV):
        return _floats(module, metadata)
    if metadata.kind not in ("", *BYTES):
        raise module.wrong(
            "weight",
            f"is of the class {metadata.kind[:60]!r}, which is not read; quantise it again as one of "
            f"{', '.join((*BYTES, *INT4, MX, NV))}",
        )
    if module.dtype("weight") not in ("I8", *float8_reader.FLOAT8) or module.dtype("weight_zero_point") in FLOATS:
        raise module.wrong(
            "weight",
            "is none of int8 or float8, and its file's metadata does not say what else; save the model by "
            "transformers again",
        )
    return (
        int8_reader.claim(module, rounds_rows)
        if module.dtype("weight") == "I8"
        else float8_reader.claim(module, blocks)
    )


def _floats(module: QuantizedModule, metadata: TorchAOMetadata) -> WeightReader:
    """Floats of four or eight bits whose scales are in order, or swizzled for tensor cores."""
    group = 16 if metadata.kind == NV else 32
    if metadata.keys.get("block_size") != group:
        raise metadata.wrong("block_size")
    out, width = module.matrix("weight", ("U8", *float8_reader.FLOAT8))
    four = module.dtype("weight") == "U8"
    module.expect("weight_scale", ("F8_E4M3",) if metadata.kind == NV else float8_reader.EXPONENTS)
    plain, order = unswizzled(module, "weight_scale", (out, -(-(2 * width if four else width) // group)))
    if not four:
        return order(float8_reader.claim(plain, []))
    return order(float4_reader.claim(plain, "weight", alone=True))
