"""PTX that unpacks two half bytes of two 16-bit words, or two bytes, to two numbers.

For half bytes: $1 the words, $2 the scale, $3 the shift or minus the zero.
Integers: a half byte is put after the exponent of 128 (bfloat16) or 1024 (float16), which makes it that plus the code,
exactly; a sum subtracts it again, and the zero. Floats of 4 bits: exponent, mantissa and sign are put in the type's
places; a power of 2 corrects the bias. Codes of a table: bytes are selected by byte permutations, four half bytes of a
word at a time; the assembler computes the common parts of the four texts once. All arithmetic is by fused multiply-add,
which every GPU has for two numbers at a time.
"""

from __future__ import annotations

from functools import cache

import torch

TYPES = {torch.bfloat16: "bf16x2", torch.float16: "f16x2"}
ONE = {torch.bfloat16: 0x3F80, torch.float16: 0x3C00}
ABOVE = {torch.bfloat16: 0x4300, torch.float16: 0x6400}  # 128 and 1024, whose last bits count ones
BIAS = {torch.bfloat16: 0x7E80, torch.float16: 0x7400}  # 2^126 and 2^14
BIAS_OF_BYTES = {torch.bfloat16: 0x7B80, torch.float16: 0x5C00}  # 2^120 and 2^8
PLACE = {torch.bfloat16: 6, torch.float16: 9}  # of the lowest bit of a mantissa with one
NONE = 0x8000  # -0, which does not change a sum


def scaled_texts(
    kind: str, dtype: torch.dtype, zero: int, table: tuple[float, ...], words: torch.dtype
) -> tuple[str, ...]:
    """Of each half byte of words int16; of bytes all are the same.  See `PackedWeight`."""
    if words != torch.int16:
        return (text_of_bytes(kind, dtype, words == torch.float8_e4m3fn),) * 4
    return tuple(text(kind, dtype, at, zero, table) for at in range(4))


def unscaled_texts(
    kind: str, dtype: torch.dtype, zero: int, table: tuple[float, ...], words: torch.dtype
) -> tuple[str, ...]:
    """The same for bfloat16 without scales and shifts, which go into sums, of both bytes of a word.

    $1: the words, $2: minus the zero, if there is one.
    """
    if words != torch.int16:
        return tuple((_signed_at if words == torch.int8 else _small_float_at)(at) for at in range(2))
    if kind.startswith(("floats", "table")):
        return tuple(text(kind.partition(",")[0], dtype, at, 0, table) for at in range(4))
    return tuple(_whole_at(at, None if kind.startswith("zeros") else zero) for at in range(4))


@cache
def text(kind: str, dtype: torch.dtype, at: int, zero: int, table: tuple[float, ...] = ()) -> str:
    """For half byte `at`, 0 to 3; kind: of a `PackedWeight` weight.

    zero: subtracted from every code; table: the numbers of the 16 codes.
    """
    lines = [".reg .b32 word, sign, number;", *_numbers(kind, dtype, at, zero, table)]
    scale, shift = (
        ("$2" if kind.endswith("scaled") or kind == "shifted" else None),
        "$3" if kind == "shifted" else _twice(NONE),
    )
    if scale is None:
        lines.append("mov.b32 $0, word;")
    else:
        lines += [f"mov.b32 number, {shift};", f"fma.rn.{TYPES[dtype]} $0, word, {scale}, number;"]
    return "{\n" + "\n".join(lines) + "\n}"


def _numbers(kind: str, dtype: torch.dtype, at: int, zero: int, table: tuple[float, ...]) -> list[str]:
    """`word`: without scale and shift."""
    if kind.startswith("table"):
        return _looked_up(dtype, at, table)
    half = [f"shr.u32 word, $1, {4 * at};"]
    return half + (
        _floats(dtype)
        if kind.startswith("floats")
        else _whole(dtype, "$3" if kind.startswith("zeros") else _minus(zero, dtype))
    )


def _looked_up(dtype: torch.dtype, at: int, table: tuple[float, ...]) -> list[str]:
    """A permutation chooses among eight bytes by three bits each; the fourth bit chooses between two of them."""
    lines = [
        ".reg .b32 code, upper, low, high, left, right;",
        "and.b32 code, $1, 0x77777777;",
        "shr.u32 upper, $1, 1;",
        "lop3.b32 upper, upper, 0x44444444, 0x32103210, 0xEA;",
    ]
    bits = torch.tensor(table, dtype=dtype).view(torch.uint8).view(16, 2)
    for into in ("left", "right"):  # the two words
        for name, column in (("low", 0), ("high", 1)):
            four = [
                f"0x{int(part):08X}"
                for part in bits[:, column].contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
            ]
            lines += [
                f"prmt.b32 sign, {four[0]}, {four[1]}, code;",
                f"prmt.b32 number, {four[2]}, {four[3]}, code;",
                f"prmt.b32 {name}, sign, number, upper;",
            ]
        lines.append(f"prmt.b32 {into}, low, high, {'0x5140' if at < 2 else '0x7362'};")
        lines += ["shr.u32 code, code, 16;", "shr.u32 upper, upper, 16;"] if into == "left" else []
    return [*lines, f"prmt.b32 word, left, right, {'0x5410' if at % 2 == 0 else '0x7632'};"]


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


@cache
def text_of_bytes(kind: str, dtype: torch.dtype, floats: bool) -> str:
    """Two bytes of the half register $1 as two numbers in $0; $2: their scales; $3: their shifts.

    floats: e4m3 without NaN, or int8.
    """
    lines = [
        ".reg .b32 word, sign, number;",
        "cvt.u32.u16 word, $1;",
        *(_small_floats(dtype) if floats else _signed(dtype)),
    ]
    if kind != "plain":
        lines += [
            f"mov.b32 number, {'$3' if kind == 'shifted' else _twice(NONE)};",
            f"fma.rn.{TYPES[dtype]} word, word, $2, number;",
        ]
    return "{\n" + "\n".join([*lines, "mov.b32 $0, word;"]) + "\n}"


def _small_floats(dtype: torch.dtype) -> list[str]:
    """Sign, exponent and mantissa in the type's places; a power of 2 corrects the bias, of subnormal numbers too."""
    down, kept = (4, 0x07F0) if dtype == torch.bfloat16 else (1, 0x3F80)
    return [
        "prmt.b32 word, word, 0, 0x1404;",  # each above a byte of zeros
        f"and.b32 sign, word, {_twice(0x8000)};",
        f"shr.u32 word, word, {down};",
        f"lop3.b32 word, word, {_twice(kept)}, sign, 0xEA;",
        f"mov.b32 number, {_twice(BIAS_OF_BYTES[dtype])};",
        f"mov.b32 sign, {_twice(NONE)};",
        f"fma.rn.{TYPES[dtype]} word, word, number, sign;",
    ]


def _signed(dtype: torch.dtype) -> list[str]:
    """Seven bits on top of a power of 2, plus minus that, or minus that and 128 if the sign is set."""
    above = ABOVE[dtype]
    return [
        "prmt.b32 word, word, 0, 0x4140;",  # each below a byte of zeros
        "and.b32 sign, word, 0x00800080;",
        f"or.b32 sign, sign, {_twice(above | 0x8000)};",
        f"lop3.b32 word, word, 0x007F007F, {_twice(above)}, 0xEA;",
        f"mov.b32 number, {_twice(ONE[dtype])};",
        f"fma.rn.{TYPES[dtype]} word, word, number, sign;",
    ]


def _minus(zero: int, dtype: torch.dtype) -> str:
    """Minus the zero and the constant that a code is put on top of."""
    above = 128 if dtype == torch.bfloat16 else 1024
    bits = int(torch.tensor(-float(zero + above), dtype=dtype).view(torch.int16).item())
    return _twice(bits & 0xFFFF)


def _twice(half: int) -> str:
    return f"0x{half << 16 | half:08X}"


def _whole_at(at: int, zero: int | None) -> str:
    """After the exponent of 128, with that and the zero subtracted; None: nothing is subtracted."""
    shift = "mov.b32 w, $1;" if at == 0 else f"shr.u32 w, $1, {4 * at};"
    put = f"{shift} lop3.b32 w, w, 0x000F000F, 0x43004300, 0xEA;"
    if zero is None:
        return f"{{ .reg .b32 w; {put} add.rn.bf16x2 $0, w, $2; }}"
    bits = 0xC300 + zero  # of -(128 + zero)
    return f"{{ .reg .b32 w, z; mov.b32 z, {bits << 16 | bits}; {put} add.rn.bf16x2 $0, w, z; }}"


def _signed_at(at: int) -> str:
    """Seven bits on top of a power of 2, plus minus that, or minus that and 128 if the sign is set."""
    pick = f"prmt.b32 w, $1, 0, {'0x4240' if at == 0 else '0x4341'};"  # below bytes of zeros
    parts = "lop3.b32 s, w, 0x00800080, 0xC300C300, 0xEA; lop3.b32 w, w, 0x007F007F, 0x43004300, 0xEA;"
    return f"{{ .reg .b32 w, s; {pick} {parts} add.rn.bf16x2 $0, w, s; }}"


def _small_float_at(at: int) -> str:
    """e4m3 without NaN: sign, exponent and mantissa in bfloat16's places; a power of 2 corrects the bias."""
    pick = f"prmt.b32 w, $1, 0, {'0x2404' if at == 0 else '0x3414'};"  # above bytes of zeros
    spread = "and.b32 s, w, 0x80008000; shr.u32 w, w, 4; lop3.b32 w, w, 0x07F007F0, s, 0xEA;"
    return (
        f"{{ .reg .b32 w, s, m, z; {pick} {spread} mov.b32 m, 0x7B807B80; mov.b32 z, 0x80008000; fma.rn.bf16x2 "
        f"$0, w, m, z; }}"
    )
