"""Merges two attention outputs of the same queries over different keys into one over all of them."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..launch.compile_ahead import entry


@entry
@triton.jit(do_not_specialize_on_alignment=("chosen",))
def _merge(out, lse, other, other_lse, chosen, DIM: tl.constexpr, DIM_P2: tl.constexpr):
    """Grid: rows, heads."""
    row = tl.program_id(0)
    if tl.load(chosen + row) > 0:
        place = row.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        first, second = tl.load(lse + place), tl.load(other_lse + place)
        highest = tl.maximum(first, second)
        first, second = tl.exp2(first - highest), tl.exp2(second - highest)
        columns = tl.arange(0, DIM_P2)
        inside = columns < DIM
        values = tl.load(out + place * DIM + columns, inside).to(tl.float32) * first
        values += tl.load(other + place * DIM + columns, inside).to(tl.float32) * second
        tl.store(out + place * DIM + columns, (values / (first + second)).to(out.dtype.element_ty), inside)


def merge_attention(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor, chosen: Tensor) -> None:
    """Merge `other` into `out`, in place, in the rows whose `chosen` is above 0.

    out, other: [rows, heads, head_dim], contiguous.  lse, other_lse: float32 [rows, heads], the log to base 2 of
    the sums that the two were divided by.  chosen: int32 [rows].
    """
    rows, heads, dim = out.shape
    _merge[(rows, heads)](out, lse, other, other_lse, chosen, DIM=dim, DIM_P2=triton.next_power_of_2(dim), num_warps=1)
