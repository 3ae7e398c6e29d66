"""How two half bytes of two words of 16 bits become two numbers, in PTX: $1 the words, $2 the scale, $3 the shift or minus the zero.

Whole numbers: a half byte is put behind the exponent of 128 (bfloat16) or 1024 (float16), which makes it that plus the code, exactly;
a sum takes it away again, and the zero. Floats of 4 bits: exponent, mantissa and sign are put where the type has its own; a power of 2
makes up for the bias. All arithmetic is by fused multiply-add, which every GPU has for two numbers at a time.
"""

from __future__ import annotations

from functools import cache

import torch

TYPES = {torch.bfloat16: "bf16x2", torch.float16: "f16x2"}
ONE = {torch.bfloat16: 0x3F80, torch.float16: 0x3C00}
ABOVE = {torch.bfloat16: 0x4300, torch.float16: 0x6400}  # 128 and 1024, whose last bits count ones
BIAS = {torch.bfloat16: 0x7E80, torch.float16: 0x7400}  # 2^126 and 2^14
PLACE = {torch.bfloat16: 6, torch.float16: 9}  # of the lowest bit of a mantissa with one
NONE = 0x8000  # -0, which a sum leaves as it is


@cache
def text(kind: str, dtype: torch.dtype, at: int, zero: int) -> str:
    """Of half byte `at`, 0 to 3; kind: of a `Packed` weight; zero: what is taken from every code."""
    lines = [".reg .b32 word, sign, number;", f"shr.u32 word, $1, {4 * at};"]
    lines += _floats(dtype) if kind.startswith("floats") else _whole(dtype, "$3" if kind.startswith("zeros") else _minus(zero, dtype))
    scale, shift = ("$2" if kind.endswith("scaled") or kind == "shifted" else None), "$3" if kind == "shifted" else _twice(NONE)
    if scale is None:
        lines.append("mov.b32 $0, word;")
    else:
        lines += [f"mov.b32 number, {shift};", f"fma.rn.{TYPES[dtype]} $0, word, {scale}, number;"]
    return "{\n" + "\n".join(lines) + "\n}"


def _whole(dtype: torch.dtype, away: str) -> list[str]:
    return [
        f"lop3.b32 word, word, {_twice(0xF)}, {_twice(ABOVE[dtype])}, 0xEA;",
        f"mov.b32 number, {_twice(ONE[dtype])};",
        f"mov.b32 sign, {away};",
        f"fma.rn.{TYPES[dtype]} word, word, number, sign;",
    ]


def _floats(dtype: torch.dtype) -> list[str]:
    return [
        "shl.b32 sign, word, 12;",
        f"and.b32 sign, sign, {_twice(0x8000)};",
        f"shl.b32 word, word, {PLACE[dtype]};",
        f"lop3.b32 word, word, {_twice(7 << PLACE[dtype])}, sign, 0xEA;",
        f"mov.b32 number, {_twice(BIAS[dtype])};",
        f"mov.b32 sign, {_twice(NONE)};",
        f"fma.rn.{TYPES[dtype]} word, word, number, sign;",
    ]


def _minus(zero: int, dtype: torch.dtype) -> str:
    """Minus the zero and what a code is on top of."""
    above = 128 if dtype == torch.bfloat16 else 1024
    bits = int(torch.tensor(-float(zero + above), dtype=dtype).view(torch.int16).item())
    return _twice(bits & 0xFFFF)


def _twice(half: int) -> str:
    return f"0x{half << 16 | half:08X}"
