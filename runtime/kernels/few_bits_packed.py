"""A weight as the GPU's kernels of few rows read it: of 4 or 8 bits, or as it lies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

NIBBLES, FLOATS, BYTES, TABLE, NUMBERS = range(5)  # what the words are of
MOST_TILES = 1024  # of a product whose inputs are split
DTYPES = (torch.bfloat16, torch.float16)  # of what is multiplied
ABOVE = {torch.bfloat16: 128, torch.float16: 1024}  # what a code is put on top of, see few_bits_assembly


@cache
def counters_on(device: torch.device) -> Tensor:
    """Of weights that have none of their own: a kernel leaves zeros, and looks at them after the one before it has ended."""
    return torch.zeros(MOST_TILES, dtype=torch.int32, device=device)


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight [out, in] for activations in `dtype`: w = (v * scale + shift) * outer, v a stored code less its group's zero.

    words: int16 [blocks, out, words of a block], word j of a block holds its inputs j, j + words, j + 2 words, j + 3 words, low
    half byte first; or int8 or float8_e4m3fn [out, in]; or the weight itself.  form: NIBBLES (whole numbers), FLOATS (of 4 bits), BYTES, TABLE
    (of 16 numbers: `table`, numbers of `dtype`), NUMBERS (of bfloat16, which few_rows_parts alone reads).
    kind: "plain", "scaled", "shifted", or with zeros of their own, as floats or of a table ("zeros, scaled", ...).
    meta: int32 [groups, out], the bits of the scale in the low half, above those of the shift, or of minus the zero; all in `dtype`,
    so that scales and shifts of more bits are rounded.
    outer: float32 [out] or None.  order: int64 [in], which input each column belongs to.  counters: the kernels' own, zeros.
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

    @classmethod
    def as_it_lies(cls, weight: Tensor) -> Packed:
        """weight: bfloat16 [out, in], contiguous."""
        outputs, inputs = weight.shape
        return cls(NUMBERS, "plain", weight, outputs, inputs, inputs, 32, 0, None, None, None, counters_on(weight.device), weight.dtype)

    def tensors(self) -> list[Tensor]:
        """What it holds."""
        return [part for part in (self.words, self.meta, self.outer, self.order, self.counters) if part is not None]
