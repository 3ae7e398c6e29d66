"""A 4-bit or 8-bit weight in the layout of the GPU kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from .unpack_ptx import scaled_texts, unscaled_texts

NIBBLES, FLOATS, BYTES, TABLE = range(4)  # the kinds of words
MOST_TILES = 1024  # of a product whose inputs are split
DTYPES = (torch.bfloat16, torch.float16)  # of the other factor
ABOVE = {torch.bfloat16: 128, torch.float16: 1024}  # what a code is put on top of, see `unpack_ptx`


class PackedFormat(NamedTuple):
    """What kernels are compiled for: form, kind and group of a `PackedWeight`.

    words: of a block, each with four codes; or a quarter of a block's bytes.  zero: what to subtract from a code, and
    from minus the zero of its group; of a table, its numbers.  outer: whether outputs have scales.
    texts: PTX that unpacks and scales, of each half byte of a word; "" for the interpreter.  unscaled: see
        `unpack_ptx`.
    outputs, inputs: 0 in kernels for all sizes.
    """

    form: int
    kind: str
    group: int
    words: int
    zero: int | tuple[float, ...]
    outer: bool
    dtype: str
    texts: tuple[str, ...]
    unscaled: tuple[str, ...]
    outputs: int
    inputs: int


@cache
def format_of(
    form: int,
    kind: str,
    group: int,
    block: int,
    zero: int,
    table: tuple[float, ...],
    outer: bool,
    dtype: torch.dtype,
    words: torch.dtype,
    compiled: bool,
    outputs: int,
    inputs: int,
) -> PackedFormat:
    """zero: less what a code is put on top of, which is in explicit zeros already."""
    about = (kind, dtype, zero, table, words)
    texts = scaled_texts(*about) if compiled else ("",) * 4
    unscaled = unscaled_texts(*about) if compiled and dtype == torch.bfloat16 else ()
    kept = table or zero - (ABOVE[dtype] if kind.startswith("zeros") else 0)
    name = str(dtype).removeprefix("torch.")
    return PackedFormat(form, kind, group, block // 4, kept, outer, name, texts, unscaled, outputs, inputs)


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

    def format(self, sized: bool) -> PackedFormat:
        """sized: for kernels that are compiled for its outputs and inputs."""
        return format_of(
            self.form,
            self.kind,
            self.group,
            self.block,
            self.zero,
            self.table,
            self.outer is not None,
            self.dtype,
            self.words.dtype,
            self.words.is_cuda,
            self.outputs if sized else 0,
            self.inputs if sized else 0,
        )

    def kernel_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Words, meta and outer; those that there are not are never read."""
        words = self.words
        return words, words if self.meta is None else self.meta, words if self.outer is None else self.outer

    def tensors(self) -> list[Tensor]:
        """Its tensors."""
        return [part for part in (self.words, self.meta, self.outer, self.order, self.counters) if part is not None]
