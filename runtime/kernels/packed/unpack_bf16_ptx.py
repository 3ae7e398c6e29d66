"""PTX that unpacks two half bytes, or bytes, of two 16-bit words to two bfloat16 numbers.

$1: the words, $2: minus the zero, if there is one. Scales are not applied: they go into sums.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .packed_weight import BYTES, NIBBLES, PackedWeight
from .unpack_ptx import text


def texts_of(weight: PackedWeight) -> str:
    """Of each half byte of a word, or of both bytes, "#" between them."""
    return "#".join(_texts(weight))


def _texts(weight: PackedWeight) -> Iterator[str]:
    if weight.form == BYTES:
        yield from ((_signed if weight.words.dtype == torch.int8 else _small_float)(at) for at in range(2))
    elif weight.form == NIBBLES:
        yield from (_whole(at, None if weight.kind.startswith("zeros") else weight.zero) for at in range(4))
    else:
        yield from (text(weight.kind.partition(",")[0], torch.bfloat16, at, 0, weight.table) for at in range(4))


def _whole(at: int, zero: int | None) -> str:
    """After the exponent of 128, with that and the zero subtracted; None: nothing is subtracted."""
    shift = "mov.b32 w, $1;" if at == 0 else f"shr.u32 w, $1, {4 * at};"
    put = f"{shift} lop3.b32 w, w, 0x000F000F, 0x43004300, 0xEA;"
    if zero is None:
        return f"{{ .reg .b32 w; {put} add.rn.bf16x2 $0, w, $2; }}"
    bits = 0xC300 + zero  # of -(128 + zero)
    return f"{{ .reg .b32 w, z; mov.b32 z, {bits << 16 | bits}; {put} add.rn.bf16x2 $0, w, z; }}"


def _signed(at: int) -> str:
    """Seven bits on top of a power of 2, plus minus that, or minus that and 128 if the sign is set."""
    pick = f"prmt.b32 w, $1, 0, {'0x4240' if at == 0 else '0x4341'};"  # below bytes of zeros
    parts = "lop3.b32 s, w, 0x00800080, 0xC300C300, 0xEA; lop3.b32 w, w, 0x007F007F, 0x43004300, 0xEA;"
    return f"{{ .reg .b32 w, s; {pick} {parts} add.rn.bf16x2 $0, w, s; }}"


def _small_float(at: int) -> str:
    """e4m3 without NaN: sign, exponent and mantissa in bfloat16's places; a power of 2 corrects the bias."""
    pick = f"prmt.b32 w, $1, 0, {'0x2404' if at == 0 else '0x3414'};"  # above bytes of zeros
    spread = "and.b32 s, w, 0x80008000; shr.u32 w, w, 4; lop3.b32 w, w, 0x07F007F0, s, 0xEA;"
    return (
        f"{{ .reg .b32 w, s, m, z; {pick} {spread} mov.b32 m, 0x7B807B80; mov.b32 z, 0x80008000; fma.rn.bf16x2 "
        f"$0, w, m, z; }}"
    )
