"""torchao's integers of few bits: packed in bytes, in words, in the tiles of tensor cores, and one in a byte."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..quantized_weight import QuantizedWeight
from .bit_unpacking import nibbles, stream
from .group_size import described
from .int8_reader import codes_of, levels_of, zeros_of
from .torchao_metadata import TorchAOMetadata
from .weight_reader_match import FLOATS, QuantizedModule, WeightReader

SCALE, ZERO = "weight_scale", "weight_zero_point"
TILES = "weight_scale_and_zero"
MIDDLE = 8  # of four bits
ROWS, LANES = 8, 4  # of a tile: outputs, and lanes that share one
WORDS = (1, 2, 4)  # of a lane, one after the other


def claim_plain(module: QuantizedModule, metadata: TorchAOMetadata) -> WeightReader:
    """Int4Tensor: w[o, i] = q[i, o] * scale[g, o] + zero[g, o], q of -8 to 7, two in a byte, the even input in the
    lower half.
    """
    out, width = module.matrix("weight", ("I8", "U8"))
    weight = _sized(module, metadata, (out, 2 * width))
    group = _group(module, metadata, weight, (SCALE, ZERO), FLOATS)

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = nibbles(tensors["weight"].contiguous().view(torch.uint8)) ^ MIDDLE
        return _around_middle(codes, tensors[SCALE].T, tensors[ZERO].T, group)

    return module.claim(f"4 bits, {described(group, weight[1])}", weight, ("weight", SCALE, ZERO), read)


def claim_words(module: QuantizedModule, metadata: TorchAOMetadata) -> WeightReader:
    """Int4PlainInt32Tensor of an XPU: w[o, i] = (q[o, i] - zero[g, o]) * scale[g, o], eight in a word from the lowest
    bits on.
    """
    out, words = module.matrix("weight", ("I32",))
    weight = _sized(module, metadata, (out, 8 * words))
    if module.dtype(ZERO) in FLOATS:
        raise module.wrong(
            ZERO,
            "belongs to a weight that was packed for an NPU, whose layout is not read; quantise it in the format "
            "'plain'",
        )
    group = _group(module, metadata, weight, (SCALE,), FLOATS)
    _group(module, metadata, weight, (ZERO,), ("I8",))

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        zero = tensors[ZERO].T.contiguous()
        codes = stream(tensors["weight"], 4, weight[1]).contiguous()
        return QuantizedWeight(codes, tensors[SCALE].T.contiguous(), group, zero=zeros_of(zero.short() - MIDDLE, 16))

    return module.claim(f"4 bits in words, {described(group, weight[1])}", weight, ("weight", SCALE, ZERO), read)


def claim_tiles(module: QuantizedModule, metadata: TorchAOMetadata) -> WeightReader:
    """Int4TilePackedTo4dTensor of a CUDA GPU: w[o, i] = (q[o, i] - 8) * s[g, o] + z[g, o].

    s and z are interleaved; sizes are padded with zeros.
    """
    stored = module.expect("weight", ("I32",))
    if len(stored) != 4 or stored[2] != ROWS * LANES or stored[3] not in WORDS or min(stored) < 1:
        raise module.wrong(
            "weight",
            f"must be [outputs / {ROWS}, inputs / ..., {ROWS * LANES}, {' or '.join(map(str, WORDS))}] in tiles; "
            "quantise it again",
        )
    weight, group = metadata.shape(), metadata.group()
    filled = stored[0] * ROWS, stored[1] * stored[3] * 32
    if weight[0] > filled[0] or weight[1] > filled[1]:
        raise metadata.wrong("shape")
    module.expect(TILES, FLOATS, (-(-filled[1] // group), filled[0], 2))

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = untile(tensors["weight"])[: weight[0], : weight[1]].contiguous()
        scale, zero = tensors[TILES][: -(-weight[1] // group), : weight[0]].unbind(-1)
        return _around_middle(codes, scale.T, zero.T, group)

    return module.claim(f"4 bits in tiles, {described(group, weight[1])}", weight, ("weight", TILES), read)


def untile(tiles: Tensor) -> Tensor:
    """int32 [outputs / 8, inputs / (32 words), 32, words] -> uint8 [outputs, inputs].

    As mma.m16n8k16 has its second matrix: lane 4 r + c holds of output r, in each 8 inputs, the two from 2 c on. A word
    holds those of 32 inputs: the first of each two in its lower half, four times eight inputs from the lowest bits on.
    """
    outputs, inputs, _, words = tiles.shape
    codes = nibbles(tiles.contiguous().view(torch.uint8)).view(outputs, inputs, ROWS, LANES, words, 2, 4)
    return codes.permute(0, 2, 1, 4, 6, 3, 5).reshape(outputs * ROWS, inputs * words * 32)


def claim_unpacked(module: QuantizedModule, metadata: TorchAOMetadata) -> WeightReader:
    """IntxUnpackedToInt8Tensor: w = (q - zero) * scale, q of -2^(bits - 1) and up, each in a byte."""
    bits, reach = metadata.bits(), metadata.reach()
    weight = module.matrix("weight", ("I8",))
    module.expect(SCALE, FLOATS, reach.grid(weight))
    module.expect(ZERO, ("I8", *FLOATS), reach.grid(weight))
    levels = levels_of(bits)
    group = min(reach.inputs, weight[1])

    def read(tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        codes, zero = codes_of(module, tensors["weight"], bits), tensors[ZERO]
        spread = reach.expanded(zero.short() if zero.dtype == torch.int8 else zero.float(), weight)
        return QuantizedWeight(codes, reach.expanded(tensors[SCALE], weight), group, levels, zeros_of(spread, levels))

    return module.claim(f"{bits} bits in bytes, {described(group, weight[1])}", weight, ("weight", SCALE, ZERO), read)


def _around_middle(codes: Tensor, scale: Tensor, zero: Tensor, group: int) -> QuantizedWeight:
    offset = zero.contiguous() if bool((zero != 0).any()) else None
    return QuantizedWeight(codes, scale.contiguous(), group, zero=float(MIDDLE), offset=offset)


def _sized(module: QuantizedModule, metadata: TorchAOMetadata, weight: tuple[int, int]) -> tuple[int, int]:
    if metadata.shape() != weight:
        raise metadata.wrong("shape")
    return weight


def _group(
    module: QuantizedModule,
    metadata: TorchAOMetadata,
    weight: tuple[int, int],
    names: tuple[str, ...],
    dtypes: tuple[str, ...],
) -> int:
    """How many inputs share the numbers of these tensors [groups, out]."""
    group = metadata.group()
    for name in names:
        module.expect(name, dtypes, (-(-weight[1] // group), weight[0]))
    return min(group, weight[1])
