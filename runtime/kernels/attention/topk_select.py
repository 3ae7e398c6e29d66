"""Selects the tokens that a query attends to, over pages (DSA, of DeepSeek V3.2): scores of all, then the top k.

A query's scores are in a row of scratch, of which only the visible part is written. The best are found by radix select
on the bits of the scores: four counts of eight bits each give the lowest selected score. One pass over the row then
takes what is above it and the first of its ties.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch.compile_ahead import entry

VIEWS = ("positions_ptr", "rows_ptr", "table_ptr")  # parts of larger buffers, with any alignment
ROOM = 1 << 24  # scores that are kept at a time
SPAN = 256  # keys of a program
BLOCK, WARPS = 1024, 8  # scores that one iteration of the selection reads
LEAST = 16  # numbers of a side of a product on tensor cores, and of a row's alignment


@triton.jit
def _slots(table_ptr, row, table_row, places, wanted, PAGE: tl.constexpr):
    """Slots of positions of a sequence; 0 for masked ones."""
    pages = tl.load(table_ptr + row.to(tl.int64) * table_row + places // PAGE, mask=wanted, other=0)
    return tl.where(wanted, pages * PAGE + places % PAGE, 0)


@entry
@triton.jit(do_not_specialize=["first", "most", "table_row"], do_not_specialize_on_alignment=VIEWS)
def score_kernel(
    q_ptr,
    shares_ptr,
    keys_ptr,
    scores_ptr,
    positions_ptr,
    rows_ptr,
    table_ptr,
    first,
    most,
    scale,
    q_token,
    table_row,
    scores_row,
    HEADS: tl.constexpr,
    HEADS_P2: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P2: tl.constexpr,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: tokens from `first` on, spans of keys. Nothing is written for tokens that see no more than `most`."""
    token = first + tl.program_id(0)
    context = tl.load(positions_ptr + token) + 1
    begin = tl.program_id(1) * SPAN
    if (context <= most) | (begin >= context):
        return
    row = tl.load(rows_ptr + token)
    heads, numbers = tl.arange(0, HEADS_P2), tl.arange(0, DIM_P2)
    real = heads < HEADS
    places = token.to(tl.int64) * q_token + heads[:, None] * DIM + numbers[None, :]
    q = tl.load(q_ptr + places, mask=real[:, None] & (numbers[None, :] < DIM), other=0.0)
    shares = tl.load(shares_ptr + token.to(tl.int64) * HEADS + heads, mask=real, other=0.0)
    for block in range(0, SPAN, KEYS):
        at = begin + block + tl.arange(0, KEYS)
        there = at < context
        slots = _slots(table_ptr, row, table_row, at, there, PAGE).to(tl.int64)
        keys = tl.load(
            keys_ptr + slots[:, None] * DIM + numbers[None, :],
            mask=there[:, None] & (numbers[None, :] < DIM),
            other=0.0,
        )
        products = tl.dot(q, tl.trans(keys.to(q.dtype)), input_precision=PRECISION)  # [HEADS_P2, KEYS]
        sums = tl.sum(tl.maximum(products * scale, 0.0) * shares[:, None], 0)
        tl.store(scores_ptr + tl.program_id(0).to(tl.int64) * scores_row + at, sums, mask=there)


@triton.jit
def _rank(scores_ptr, at, there):
    """Scores as numbers that rise with them: uint32, never zero."""
    scores = tl.load(scores_ptr + at, mask=there, other=0.0)
    bits = tl.where(scores == 0, 0.0, scores).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)


@triton.jit
def _digit(scores_ptr, context, found, needed, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """The next eight bits of the lowest selected rank, after the bits `found`, and how many ranks with these are
    needed.
    """
    counts = tl.zeros([256], tl.int32)
    for start in range(0, context, BLOCK):
        at = start + tl.arange(0, BLOCK)
        ranks = _rank(scores_ptr, at, at < context)
        alike = at < context
        if SHIFT < 24:
            alike = alike & ((ranks >> (SHIFT + 8)) == found)
        counts += tl.histogram(((ranks >> SHIFT) & 255).to(tl.int32), 256, mask=alike)
    digits = tl.arange(0, 256)
    at_least = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
    digit = tl.sum((at_least >= needed).to(tl.int32), 0) - 1
    above = tl.sum(tl.where(digits > digit, counts, 0), 0)
    return (found << 8) | digit.to(tl.uint32), needed - above


@entry
@triton.jit(do_not_specialize=["first", "most", "table_row"], do_not_specialize_on_alignment=VIEWS)
def select_topk_kernel(
    scores_ptr,
    slots_ptr,
    counts_ptr,
    positions_ptr,
    rows_ptr,
    table_ptr,
    first,
    most,
    table_row,
    scores_row,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: tokens from `first` on."""
    token = first + tl.program_id(0)
    context = tl.load(positions_ptr + token) + 1
    row = tl.load(rows_ptr + token)
    slots_ptr += token.to(tl.int64) * most
    scores_ptr += tl.program_id(0).to(tl.int64) * scores_row
    tl.store(counts_ptr + token, tl.minimum(context, most))
    if context <= most:
        for start in range(0, context, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(slots_ptr + at, _slots(table_ptr, row, table_row, at, at < context, PAGE), mask=at < context)
        return
    lowest, needed = _digit(scores_ptr, context, tl.zeros([], tl.uint32), most, 24, BLOCK)
    lowest, needed = _digit(scores_ptr, context, lowest, needed, 16, BLOCK)
    lowest, needed = _digit(scores_ptr, context, lowest, needed, 8, BLOCK)
    lowest, needed = _digit(scores_ptr, context, lowest, needed, 0, BLOCK)
    taken, equal = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    for start in range(0, context, BLOCK):
        at = start + tl.arange(0, BLOCK)
        ranks = _rank(scores_ptr, at, at < context)
        equals = ((ranks == lowest) & (at < context)).to(tl.int32)
        first_equals = (equals > 0) & (equal + tl.cumsum(equals, 0) <= needed)
        wanted = ((ranks > lowest) & (at < context)) | first_equals
        places = taken + tl.cumsum(wanted.to(tl.int32), 0) - 1
        tl.store(slots_ptr + places, _slots(table_ptr, row, table_row, at, wanted, PAGE), mask=wanted)
        taken += tl.sum(wanted.to(tl.int32), 0)
        equal += tl.sum(equals, 0)


def select_topk(
    queries: Tensor,
    shares: Tensor,
    keys: Tensor,
    positions: Tensor,
    rows: Tensor,
    table: Tensor,
    *,
    longest: int,
    most: int,
    page_size: int,
) -> tuple[Tensor, Tensor]:
    """The slots, int32 [T, most], of the `most` visible tokens with the highest scores, and their number, int32 [T].

    Slots are in order of position; a row's rest is undefined. Ties go to the first tokens. A score is the sum over
    heads of share * relu(query * key / sqrt(dim)).

    queries: [T, heads, dim], a token's numbers adjacent.  shares: float32 [T, heads], contiguous.  keys: [slots, dim],
        contiguous.
    positions, rows: int32 [T], each token's place in its sequence and the sequence's row of `table`.
    table: int32 [rows, pages].  longest: at least what any token sees; it fixes sizes only.
    """
    tokens, (heads, dim) = len(queries), queries.shape[1:]
    slots = torch.empty(tokens, most, dtype=torch.int32, device=queries.device)
    counts = torch.empty(tokens, dtype=torch.int32, device=queries.device)
    width = triton.cdiv(longest, LEAST) * LEAST
    together = max(1, min(tokens, ROOM // width))
    scores = torch.empty(together, width, dtype=torch.float32, device=queries.device)
    exact = queries.dtype == torch.float32
    for first in range(0, tokens, together):
        count = min(together, tokens - first)
        score_kernel[(count, triton.cdiv(longest, SPAN))](
            queries,
            shares,
            keys,
            scores,
            positions,
            rows,
            table,
            first,
            most,
            dim**-0.5,
            queries.stride(0),
            table.stride(0),
            width,
            HEADS=heads,
            HEADS_P2=padded(heads),
            DIM=dim,
            DIM_P2=padded(dim),
            PAGE=page_size,
            SPAN=SPAN,
            KEYS=16 if exact else 64,
            PRECISION="ieee" if exact else "tf32",
            num_warps=4,
        )
        select_topk_kernel[(count,)](
            scores,
            slots,
            counts,
            positions,
            rows,
            table,
            first,
            most,
            table.stride(0),
            width,
            PAGE=page_size,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
    return slots, counts


def padded(size: int) -> int:
    return max(LEAST, triton.next_power_of_2(size))
