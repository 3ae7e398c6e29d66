"""Blocks of GGUF files, against their formulas number by number and against the format's own package."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch
from gguf_writer import packed, random_blocks

from sgl.runtime.errors import CheckpointError
from sgl.runtime.quantization.quantized_weight import E2M1, e4m3_values
from sgl.runtime.quantization.readers.gguf_block_kinds import BLOCKS, REFUSED
from sgl.runtime.quantization.readers.gguf_blocks import IQ4, decode

KINDS = list(BLOCKS)


def f16(data: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", data, at)[0])


def nibble(data: bytes, i: int, half: int) -> int:
    """Of a run of 2 `half` numbers, the first half of them in the low bits."""
    return data[i] & 15 if i < half else data[i - half] >> 4


def rounded(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).float())


def six_bits(both: bytes, j: int) -> tuple[int, int]:
    a, m, rest = both[0:4], both[4:8], both[8:12]
    if j < 4:
        return a[j] & 63, m[j] & 63
    return (rest[j - 4] & 15) + 16 * (a[j - 4] >> 6), (rest[j - 4] >> 4) + 16 * (m[j - 4] >> 6)


def fifth(data: bytes, at: int, i: int) -> int:
    return (int.from_bytes(data[at : at + 4], "little") >> i & 1) << 4


def slow_q2_k(b: bytes, i: int) -> float:
    half, run, j = i // 128, i % 128 // 32, i % 32
    q = b[16 + 32 * half + j] >> 2 * run & 3
    both = b[i // 16]
    return rounded(f16(b, 80) * (both & 15) * q - f16(b, 82) * (both >> 4))


def slow_q3_k(b: bytes, i: int) -> float:
    half, run, j, g = i // 128, i % 128 // 32, i % 32, i // 16
    q = (b[32 + 32 * half + j] >> 2 * run & 3) - (0 if b[j] >> (4 * half + run) & 1 else 4)
    s = b[96:108]
    four = s[g] & 15 if g < 8 else s[g - 8] >> 4
    return f16(b, 108) * (four + 16 * (s[8 + g % 4] >> 2 * (g // 4) & 3) - 32) * q


def slow_q4_k(b: bytes, i: int) -> float:
    s, m = six_bits(b[4:16], i // 32)
    byte = b[16 + 32 * (i // 64) + i % 32]
    return rounded(f16(b, 0) * s * (byte >> 4 if i // 32 % 2 else byte & 15) - f16(b, 2) * m)


def slow_q5_k(b: bytes, i: int) -> float:
    s, m = six_bits(b[4:16], i // 32)
    byte = b[48 + 32 * (i // 64) + i % 32]
    q = (byte >> 4 if i // 32 % 2 else byte & 15) + 16 * (b[16 + i % 32] >> i // 32 & 1)
    return rounded(f16(b, 0) * s * q - f16(b, 2) * m)


def slow_q6_k(b: bytes, i: int) -> float:
    half, run, j = i // 128, i % 128 // 32, i % 32
    byte = b[64 * half + 32 * (run % 2) + j]
    q = (byte & 15 if run < 2 else byte >> 4) + 16 * (b[128 + 32 * half + j] >> 2 * run & 3)
    return rounded(f16(b, 208) * struct.unpack_from("b", b, 192 + i // 16)[0] * (q - 32))


def slow_iq4_xs(b: bytes, i: int) -> float:
    g = i // 32
    four = b[4 + g // 2] >> 4 if g % 2 else b[4 + g // 2] & 15
    s = four + 16 * (int.from_bytes(b[2:4], "little") >> 2 * g & 3) - 32
    return rounded(f16(b, 0) * s * IQ4[nibble(b[8 + 16 * g : 24 + 16 * g], i % 32, 16)])


SLOW: dict[str, Callable[[bytes, int], float]] = {
    "Q4_0": lambda b, i: f16(b, 0) * (nibble(b[2:], i, 16) - 8),
    "Q4_1": lambda b, i: rounded(f16(b, 0) * nibble(b[4:], i, 16) + f16(b, 2)),
    "Q5_0": lambda b, i: f16(b, 0) * (nibble(b[6:], i, 16) + fifth(b, 2, i) - 16),
    "Q5_1": lambda b, i: rounded(f16(b, 0) * (nibble(b[8:], i, 16) + fifth(b, 4, i)) + f16(b, 2)),
    "Q8_0": lambda b, i: f16(b, 0) * struct.unpack_from("b", b, 2 + i)[0],
    "IQ4_NL": lambda b, i: f16(b, 0) * IQ4[nibble(b[2:], i, 16)],
    "MXFP4": lambda b, i: E2M1[nibble(b[1:], i, 16)] * 2.0 ** (b[0] - 127),
    "NVFP4": lambda b, i: (
        E2M1[nibble(b[4 + 8 * (i // 16) :], i % 16, 8)]
        * (0.0 if b[i // 16] == 127 else float(e4m3_values()[b[i // 16]]))
    ),
    "Q2_K": slow_q2_k,
    "Q3_K": slow_q3_k,
    "Q4_K": slow_q4_k,
    "Q5_K": slow_q5_k,
    "Q6_K": slow_q6_k,
    "IQ4_XS": slow_iq4_xs,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_what_its_formula_says(kind: str) -> None:
    block, raw = BLOCKS[kind], random_blocks(kind, 2, 2, 0)
    found = decode(kind, raw, (2, 2 * block.elements)).dense()
    for row in range(2):
        data = bytes(raw[row].tolist())
        expected = [
            SLOW[kind](data[n * block.bytes : (n + 1) * block.bytes], i)
            for n in range(2)
            for i in range(block.elements)
        ]
        assert found[row].tolist() == torch.tensor(expected, dtype=torch.float64).float().tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_weights_equal_those_of_the_formats_own_package(kind: str, seed: int) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    block, raw = BLOCKS[kind], random_blocks(kind, 24, 3, seed)
    expected = torch.from_numpy(gguf.dequantize(raw.numpy(), gguf.GGMLQuantizationType[kind]))
    found = decode(kind, raw, (24, 3 * block.elements))
    assert torch.equal(found.dense(), expected)
    assert found.levels >= int(found.codes.max()) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_the_rows_is_that_part_of_the_weight(kind: str) -> None:
    """Rows are whole in every kind: what is cut or reordered in bytes is so in numbers."""
    block, raw = BLOCKS[kind], random_blocks(kind, 8, 2, 1)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    whole = decode(kind, raw, (8, 2 * block.elements)).dense()
    assert torch.equal(decode(kind, raw[order], (8, 2 * block.elements)).dense(), whole[order])
    assert torch.equal(decode(kind, raw[2:5], (3, 2 * block.elements)).dense(), whole[2:5])
    strided = torch.stack((raw, raw), 1)[:, 1]
    assert torch.equal(decode(kind, strided, (8, 2 * block.elements)).dense(), whole)


def test_the_numbers_of_the_kinds_are_those_of_the_package() -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    for kind, block in BLOCKS.items():
        number = gguf.GGMLQuantizationType[kind]
        assert (int(number), *gguf.GGML_QUANT_SIZES[number]) == block
    known = {int(number): number.name for number in gguf.GGMLQuantizationType}
    assert all(known.get(number, name) == name for number, name in REFUSED.items())


@pytest.mark.parametrize(
    ("kind", "raw", "shape", "named"),
    [
        ("IQ2_XXS", torch.zeros(1, 66, dtype=torch.uint8), (1, 256), "IQ2_XXS are not supported"),
        ("Q4_0", torch.zeros(1, 18, dtype=torch.uint8), (1, 40), r"\[1, 40\]"),
        ("Q4_0", torch.zeros(1, 17, dtype=torch.uint8), (1, 32), "blocks of 18 bytes"),
        ("Q4_K", torch.zeros(2, 144, dtype=torch.uint8), (1, 256), r"\[2, 144\]"),
        ("Q8_0", torch.zeros(1, 34, dtype=torch.int8), (1, 32), "torch.int8"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, raw: torch.Tensor, shape: tuple[int, int], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        decode(kind, raw, shape)


@pytest.mark.parametrize("kind, error", [("Q8_0", 0.01), ("Q6_K", 0.03), ("Q4_K", 0.1)])
def test_blocks_that_tests_write_hold_what_was_given(kind: str, error: float) -> None:
    weight = torch.randn(20, 512, generator=torch.Generator().manual_seed(0))
    raw = torch.frombuffer(bytearray(packed(weight, kind).data), dtype=torch.uint8).view(20, -1)
    assert (decode(kind, raw, (20, 512)).dense() - weight).norm() < error * weight.norm()
