"""AWQ (gemm), and auto-round in its packing: eight outputs in a word, in a special order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .group_size import described, group_of
from .quantization_config import CheckpointQuantization
from .weight_reader_match import QuantizedModule, WeightReader

EACH = 8  # codes in a word
PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # of the eight outputs, for the nibbles from the lowest
WHOLE = ("I32",)


def claim(module: QuantizedModule, quant_config: CheckpointQuantization) -> WeightReader:
    """w[o, i] = (q[i, o] - z[g, o]) * scales[g, o]."""
    inputs, words = module.matrix("qweight", WHOLE)
    out = words * EACH
    group = group_of(module, quant_config, inputs, out)
    module.expect("qzeros", WHOLE, (-(-inputs // group), words))

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        codes, zero = (unpacked(tensors[name]) for name in ("qweight", "qzeros"))
        return QuantizedWeight(codes, tensors["scales"].T.contiguous(), group, zero=zero)

    return module.claim(
        f"AWQ, 4 bits, {described(group, inputs)}", (out, inputs), ("qweight", "qzeros", "scales"), read
    )


def unpacked(words: Tensor) -> Tensor:
    """int32 [n, out / 8] -> uint8 [out, n]. The smaller tensor is transposed first: then whole rows are written."""
    words = words.T.contiguous()
    codes = torch.empty(len(words), EACH, words.shape[1], dtype=torch.uint8, device=words.device)
    for nibble, place in enumerate(PLACES):
        codes[:, place] = words >> 4 * nibble & 15
    return codes.flatten(0, 1)
