"""GPTQ of both versions, and auto-round in its packing: codes as one stream of bits along the inputs of each output."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .activation_order import order_of
from .bit_unpacking import WORD, stream, words_of
from .group_size import described, group_of
from .quantization_config import CheckpointQuantization
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader

BITS = (2, 3, 4, 8)
WHOLE = ("I32",)
V2 = "gptq_v2"


def claim(module: QuantizedModule, quant_config: CheckpointQuantization) -> WeightReader:
    """w[o, i] = scales[g, o] * (q[i, o] - z[g, o]). Version 1 keeps each z one less, in its own bits."""
    rows, out = module.matrix("qweight", WHOLE)
    bits, inputs = _sizes(module, quant_config, rows, out)
    group = group_of(module, quant_config, inputs, out)
    module.expect("qzeros", WHOLE, (-(-inputs // group), words_of(out, bits)))
    less = 0 if V2 in (quant_config.keys.get("checkpoint_format"), quant_config.keys.get("format")) else 1

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = stream(tensors["qweight"].T, bits, inputs)
        order = order_of(module, "g_idx", tensors["g_idx"], group) if "g_idx" in tensors else None
        codes = codes.contiguous() if order is None else codes[:, order]
        zero = _zeros(stream(tensors["qzeros"], bits, out), bits, less, bool(quant_config.keys.get("sym")))
        return QuantizedWeight(
            codes, tensors["scales"].T.contiguous(), group, 16 if bits <= 4 else 256, zero, order=order
        )

    names = ["qweight", "qzeros", "scales", *(["g_idx"] if module.has("g_idx") else [])]
    ordered = ", ordered by activation" if quant_config.keys.get("desc_act") else ""
    return module.claim(f"GPTQ, {bits} bits, {described(group, inputs)}{ordered}", (out, inputs), names, read)


def _sizes(module: QuantizedModule, quant_config: CheckpointQuantization, rows: int, out: int) -> tuple[int, int]:
    """Bits and inputs: layers may differ from the configuration, which decides only where several fit."""
    known = None
    if module.has("g_idx"):
        known = module.vector("g_idx", ("I32", "I64"))
    _, words = module.matrix("qzeros", WHOLE)
    module.matrix("scales", FLOATS)
    asked_bits = quant_config.size("bits", most=8)
    fits = [(bits, known or rows * WORD // bits) for bits in sorted(BITS, key=lambda bits: bits != asked_bits)]
    fits = [(bits, inputs) for bits, inputs in fits if words_of(out, bits) == words and inputs * bits == rows * WORD]
    if not fits:
        raise module.wrong(
            "qweight",
            f"and qzeros of {words} words fit no weight of {', '.join(map(str, BITS))} bits; other bits are not read",
        )
    return fits[0]


def _zeros(stored: Tensor, bits: int, less: int, symmetric: bool) -> Tensor | float:
    """stored: uint8 [groups, out] -> [out, groups], or the middle where all of them are.

    A symmetric file has the middle by definition, also one of version 2 that does not say that it is.
    """
    half = 2 ** (bits - 1)
    zero = stored + less & 2**bits - 1
    if bool((zero == half).all()) or (symmetric and bool((stored == half).all())):
        return float(half)
    return zero.T.contiguous()
