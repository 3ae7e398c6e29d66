"""The blocks that GGUF files keep weights in: whole numbers of 2 to 8 bits, with their scales between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import CheckpointError
from ..quantized_weight import E2M1, DoubleQuantized, QuantizedWeight, e4m3_values
from ..stored_codes import StoredCodes
from .gguf_block_kinds import BLOCKS, unsupported

IQ4 = (
    -127,
    -104,
    -83,
    -65,
    -49,
    -35,
    -22,
    -10,
    1,
    13,
    25,
    38,
    53,
    69,
    89,
    113,
)  # what the codes of IQ4_NL and IQ4_XS stand for


def decode(kind: str, raw: Tensor, shape: tuple[int, int]) -> QuantizedWeight:
    """The weight [out, in] that blocks hold, exactly.

    kind: a key of BLOCKS.  raw: uint8 [out, bytes of a row].  Scales are float16 where the file has one a group,
        float32
    where it has two levels of them (the K kinds and IQ4_XS), bfloat16 in MXFP4; minimums are offsets. For NVFP4, pass
    the scale of the whole tensor, which is stored separately, as `factor`. Raises CheckpointError for a kind that is
    not supported, and for bytes or sizes that do not fit.
    """
    outputs, inputs = shape
    if kind not in BLOCKS:
        raise CheckpointError(unsupported(kind))
    _, elements, size = BLOCKS[kind]
    if inputs % elements or raw.dtype != torch.uint8 or list(raw.shape) != [outputs, inputs // elements * size]:
        raise CheckpointError(
            f"{raw.dtype} {list(raw.shape)} is no {kind} weight of shape {[outputs, inputs]}: blocks of {size} bytes "
            f"hold {elements} numbers of a row; fetch the file again"
        )
    found = _DECODERS[kind](raw.reshape(outputs, inputs // elements, size))
    compiled = StoredCodes.of(raw, inputs, BLOCKS[kind].id)
    return QuantizedWeight(found.codes().flatten(1) if compiled is None else compiled, **found.numbers)


class _DecodedBlocks(NamedTuple):
    """codes: makes them by torch, uint8 [out, in] in any shape; csrc/quantized/stored_codes.c does the same.

    numbers: the rest of the QuantizedWeight.
    """

    codes: Callable[[], Tensor]
    numbers: dict[str, Any]


# The decoders below take blocks: uint8 [out, blocks of a row, bytes].


def _parts(blocks: Tensor, *sizes: int) -> Iterator[Tensor]:
    return iter(blocks.split_with_sizes(sizes, -1))


def _half(part: Tensor) -> Tensor:
    """float16 [..., 1] of two bytes."""
    return part.view(torch.float16).contiguous()


def _runs(part: Tensor, bits: int) -> Tensor:
    """uint8 [..., 8 / bits, n] of bytes [..., n]: the lowest bits of all of them, then the next."""
    return torch.stack(
        [part >> shift & 2**bits - 1 for shift in range(0, 8, bits)], -2
    )  # torch shifts by a tensor slowly


def _in_turn(part: Tensor, bits: int) -> Tensor:
    """uint8 [..., 8 n / bits]: all of the first byte, lowest bits first, then of the next."""
    return _runs(part, bits).mT.flatten(-2)


def _nibbles(part: Tensor) -> Tensor:
    """uint8 [..., 2 n]: the first half of the codes is low in the bytes, the second high."""
    return _runs(part, 4).flatten(-2)


def _fifth(part: Tensor) -> Tensor:
    return _in_turn(part, 1) << 4


def _grouped(
    codes: Callable[[], Tensor], scale: Tensor, group: int, levels: int = 16, offset: Tensor | None = None, **rest: Any
) -> _DecodedBlocks:
    """scale, offset: of each row in any shape."""
    flat = None if offset is None else offset.flatten(1)
    return _DecodedBlocks(codes, {"scale": scale.flatten(1), "group": group, "levels": levels, "offset": flat, **rest})


# one scale a block


def _q4_0(blocks: Tensor) -> _DecodedBlocks:
    d, codes = _parts(blocks, 2, 16)
    return _grouped(lambda: _nibbles(codes), _half(d), 32, zero=8.0)


def _q4_1(blocks: Tensor) -> _DecodedBlocks:
    d, m, codes = _parts(blocks, 2, 2, 16)
    return _grouped(lambda: _nibbles(codes), _half(d), 32, offset=_half(m))


def _q5_0(blocks: Tensor) -> _DecodedBlocks:
    d, high, codes = _parts(blocks, 2, 4, 16)
    return _grouped(lambda: _nibbles(codes) | _fifth(high), _half(d), 32, 256, zero=16.0)


def _q5_1(blocks: Tensor) -> _DecodedBlocks:
    d, m, high, codes = _parts(blocks, 2, 2, 4, 16)
    return _grouped(lambda: _nibbles(codes) | _fifth(high), _half(d), 32, 256, _half(m))


def _q8_0(blocks: Tensor) -> _DecodedBlocks:
    d, codes = _parts(blocks, 2, 32)
    return _grouped(lambda: codes ^ 128, _half(d), 32, 256, zero=128.0)  # signed numbers, raised by 128


def _iq4_nl(blocks: Tensor) -> _DecodedBlocks:
    d, codes = _parts(blocks, 2, 16)
    return _grouped(lambda: _nibbles(codes), _half(d), 32, table=_table(IQ4, blocks))


def _mxfp4(blocks: Tensor) -> _DecodedBlocks:
    exponent, codes = _parts(blocks, 1, 16)
    scale = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent.int() - 127)
    return _grouped(lambda: _nibbles(codes), scale.bfloat16(), 32, table=_table(E2M1, blocks))


def _nvfp4(blocks: Tensor) -> _DecodedBlocks:
    """Scales are e4m3 without a sign; the byte that would be NaN stands for 0."""
    scales, codes = _parts(blocks, 4, 32)
    values = e4m3_values().to(blocks.device)[(scales & 127).int()].nan_to_num(0.0)
    return _grouped(lambda: _nibbles(codes.unflatten(-1, (4, 8))), values.half(), 16, table=_table(E2M1, blocks))


def _table(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)


# 256 numbers with scales of scales


def _folded(
    codes: Callable[[], Tensor],
    scale: DoubleQuantized,
    group: int,
    levels: int = 16,
    offset: DoubleQuantized | None = None,
    **rest: Any,
) -> _DecodedBlocks:
    numbers = None if offset is None else offset.numbers()
    return _grouped(codes, scale.numbers(), group, levels, numbers, fine_scale=scale, fine_offset=offset, **rest)


def _q2_k(blocks: Tensor) -> _DecodedBlocks:
    both, codes, d, least = _parts(blocks, 16, 64, 2, 2)
    scales, minimums = _runs(both, 4).unbind(-2)
    return _folded(lambda: _quarters(codes), _times(d, scales), 16, offset=_times(least, -minimums.int()))


def _q3_k(blocks: Tensor) -> _DecodedBlocks:
    """The third bit stands apart: without it 4 is taken away."""
    third, codes, scales, d = _parts(blocks, 32, 64, 12, 2)
    low, high = _parts(scales, 8, 4)
    six = _nibbles(low) | _runs(high, 2).flatten(-2) << 4
    return _folded(lambda: _quarters(codes) | _runs(third, 1).flatten(-2) << 2, _times(d, six.int() - 32), 16, zero=4.0)


def _q4_k(blocks: Tensor) -> _DecodedBlocks:
    d, least, both, codes = _parts(blocks, 2, 2, 12, 128)
    scales, minimums = _six_bits(both)
    return _folded(lambda: _pairs(codes), _times(d, scales), 32, offset=_times(least, -minimums.int()))


def _q5_k(blocks: Tensor) -> _DecodedBlocks:
    d, least, both, fifth, codes = _parts(blocks, 2, 2, 12, 32, 128)
    scales, minimums = _six_bits(both)
    return _folded(
        lambda: _pairs(codes) | _runs(fifth, 1).flatten(-2) << 4,
        _times(d, scales),
        32,
        256,
        _times(least, -minimums.int()),
    )


def _q6_k(blocks: Tensor) -> _DecodedBlocks:
    low, high, scales, d = _parts(blocks, 128, 64, 16, 2)
    scale = _times(d, scales.view(torch.int8))
    return _folded(
        lambda: _runs(low.unflatten(-1, (2, 64)), 4).flatten(-3) | _quarters(high) << 4, scale, 16, 256, zero=32.0
    )


def _iq4_xs(blocks: Tensor) -> _DecodedBlocks:
    d, high, low, codes = _parts(blocks, 2, 2, 4, 128)
    scales = (_in_turn(low, 4) | _in_turn(high, 2) << 4).int() - 32
    return _folded(lambda: _nibbles(codes.unflatten(-1, (8, 16))), _times(d, scales), 32, table=_table(IQ4, blocks))


def _times(d: Tensor, scales: Tensor) -> DoubleQuantized:
    """scales: whole numbers of a block [out, blocks, n]."""
    return DoubleQuantized(scales.to(torch.int8).flatten(1), _half(d).flatten(1), scales.shape[2])


def _quarters(part: Tensor) -> Tensor:
    """Two bits of each number; each 32 bytes hold 128 of them, in runs of 32."""
    return _runs(part.unflatten(-1, (2, 32)), 2).flatten(-3)


def _pairs(part: Tensor) -> Tensor:
    """Four bits of each number; each 32 bytes hold two groups of 32."""
    return _runs(part.unflatten(-1, (4, 32)), 4).flatten(-3)


def _six_bits(part: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minimums of six bits, in twelve bytes: the last four hold low bits of the second
    halves."""
    a, m, low = _parts(part, 4, 4, 4)
    return tuple(torch.cat((first & 63, rest | first >> 6 << 4), -1) for first, rest in ((a, low & 15), (m, low >> 4)))  # type: ignore[return-value]


_DECODERS: dict[str, Callable[[Tensor], _DecodedBlocks]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}
