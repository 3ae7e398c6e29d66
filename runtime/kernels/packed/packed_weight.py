"""A 4-bit or 8-bit weight in the layout of the GPU kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NIBBLES, FLOATS, BYTES, TABLE = range(4)  # the kinds of words
MOST_TILES = 1024  # of a product whose inputs are split
DTYPES = (torch.bfloat16, torch.float16)  # of the other factor
ABOVE = {torch.bfloat16: 128, torch.float16: 1024}  # what a code is put on top of, see `unpack_ptx`


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [out, in] for activations in `dtype`: w = (v * scale + shift) * outer, v a stored code less its group's
    zero.

    words: int16 [blocks, out, words of a block], word j of a block holds its inputs j, j + words, j + 2 words, j + 3
        words, low half byte first; or int8 or float8_e4m3fn [out, in].  form: NIBBLES (integers), FLOATS (of 4 bits),
        BYTES, TABLE
        (of 16 numbers: `table`, numbers of `dtype`).
    kind: "plain", "scaled", "shifted", or with explicit zeros, as floats or of a table ("zeros, scaled", ...).
    meta: int32 [groups, out], the bits of the scale in the low half, above those of the shift, or of minus the zero;
        all in `dtype`, so that scales and shifts of more bits are rounded.
    outer: float32 [out] or None.  order: int64 [in], which input each column belongs to.  counters: for the kernels
        only, zeros.
    """

    form: int
    kind: str
    words: Tensor
    outputs: int
    inputs: int
    group: int
    block: int
    zero: int
    meta: Tensor | None
    outer: Tensor | None
    order: Tensor | None
    counters: Tensor
    dtype: torch.dtype
    table: tuple[float, ...] = ()

    def tensors(self) -> list[Tensor]:
        """Its tensors."""
        return [part for part in (self.words, self.meta, self.outer, self.order, self.counters) if part is not None]
