"""torchao's tensors: what its file says of each tells the class; int8, float8, MX and NVFP4 have other names for what other formats have."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..grouped import Grouped
from . import float4, float8, int8
from .claim import FLOATS, Claim, Module
from .inputs import scaled, without
from .scales import Reach
from .swizzled import straight
from .torchao_int4 import claim_plain, claim_tiles, claim_unpacked, claim_words
from .torchao_said import Said, said_of

CALLED = {
    "weight": "_weight_qdata", "weight_scale": "_weight_scale", "weight_zero_point": "_weight_zero_point", "weight_scale_2": "_weight_per_tensor_scale",
    "weight_scale_and_zero": "_weight_scale_and_zero", "input_scale": "_weight_act_quant_scale", "input_zero_point": "_weight_act_quant_zero_point",
    "input_global_scale": "_weight_act_per_tensor_scale",
}  # fmt: skip
PLAIN = {theirs: ours for ours, theirs in CALLED.items()}
INT4 = {"Int4Tensor": claim_plain, "Int4PlainInt32Tensor": claim_words, "Int4TilePackedTo4dTensor": claim_tiles, "IntxUnpackedToInt8Tensor": claim_unpacked}
BYTES, MX, NV = ("Int8Tensor", "Float8Tensor"), "MXTensor", "NVFP4Tensor"
OF_INPUTS = "_weight_act_pre_scale"


def claim(module: Module, blocks: list[Reach], text: object = None, rounds_rows: bool = False) -> Claim:
    """text: what the file says of the weight; where it says nothing, int8 and float8 are read.  rounds_rows: see `int8.claim`."""
    if module.has(OF_INPUTS):
        return scaled(module, OF_INPUTS, claim(without(module, OF_INPUTS), blocks, text))
    again = Module(module.name, {PLAIN.get(name, name): sibling for name, sibling in module.siblings.items()}, CALLED)
    inner = _inner(again, blocks, said_of(again, text), rounds_rows)
    names, unused = (tuple(CALLED.get(name, name) for name in part) for part in (inner.names, inner.unused))

    def read(tensors: Mapping[str, Tensor]) -> Grouped:
        return inner.read({PLAIN.get(name, name): tensor for name, tensor in tensors.items()})

    return Claim(f"torchao, {inner.format}", inner.shape, names, unused, read)


def _inner(module: Module, blocks: list[Reach], said: Said, rounds_rows: bool) -> Claim:
    if said.kind in INT4:
        return INT4[said.kind](module, said)
    if said.kind in (MX, NV):
        return _floats(module, said)
    if said.kind not in ("", *BYTES):
        raise module.wrong("weight", f"is of the class {said.kind[:60]!r}, which is not read; quantise it again as one of {', '.join((*BYTES, *INT4, MX, NV))}")
    if module.dtype("weight") not in ("I8", *float8.FLOAT8) or module.dtype("weight_zero_point") in FLOATS:
        raise module.wrong("weight", "is none of int8 or float8, and its file does not say beside it what else; save the model by transformers again")
    return int8.claim(module, rounds_rows) if module.dtype("weight") == "I8" else float8.claim(module, blocks)


def _floats(module: Module, said: Said) -> Claim:
    """Floats of four or eight bits whose scales lie in order, or as tensor cores read them."""
    group = 16 if said.kind == NV else 32
    if said.keys.get("block_size") != group:
        raise said.wrong("block_size")
    out, width = module.matrix("weight", ("U8", *float8.FLOAT8))
    four = module.dtype("weight") == "U8"
    module.expect("weight_scale", ("F8_E4M3",) if said.kind == NV else float8.EXPONENTS)
    plain, order = straight(module, "weight_scale", (out, -(-(2 * width if four else width) // group)))
    if not four:
        return order(float8.claim(plain, []))
    return order(float4.claim(plain, "weight", alone=True))
