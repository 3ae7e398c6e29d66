"""Pairs of tokens and experts, sorted by expert into blocks of one expert each, on the device and without waiting."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch.compile_ahead import entry
from ..launch.programmatic_launch import launched

CHUNK, LARGE_CHUNK = 1024, 2048  # pairs that a program looks at together
MANY = 4096  # pairs, above which each chunk has a separate program
PLACED = (
    2**13
)  # numbers that such a program holds at most; more, as of 65,536 pairs of 512 experts, do not fit in its registers


class ExpertBlocks(NamedTuple):
    """pairs int32 [most * rows]: of each block its pairs, padded with the number of all pairs, which is no valid pair.

    experts: int32 [most], of each block.  total: int32 [1], how many blocks there are; entries after them are
        undefined.
    """

    pairs: Tensor
    experts: Tensor
    total: Tensor
    rows: int

    @property
    def most(self) -> int:
        return len(self.experts)


@entry
@triton.jit(do_not_specialize=["count"])
def _sort(
    chosen,
    pairs,
    experts,
    total,
    count,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program an expert: counts all pairs, so that it knows where its blocks begin, then stores them there in
    order.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    mine = tl.program_id(0)
    lane, expert = tl.arange(0, CHUNK), tl.arange(0, BINS)
    found = tl.zeros([BINS], tl.int32)
    for start in range(0, count, CHUNK):
        found += tl.histogram(tl.load(chosen + start + lane, start + lane < count, other=EXPERTS), BINS)
    blocks = tl.where(expert < EXPERTS, (found + ROWS - 1) // ROWS, 0)
    if mine == 0:
        tl.store(total, tl.sum(blocks, 0))
    first = tl.sum(tl.where(expert < mine, blocks, 0), 0)
    own = tl.sum(tl.where(expert == mine, blocks, 0), 0)
    for block in range(own):
        tl.store(experts + first + block, mine)
    if own > 0:
        place = first * ROWS
        for start in range(0, count, CHUNK):
            here = (tl.load(chosen + start + lane, start + lane < count, other=EXPERTS) == mine).to(tl.int32)
            tl.store(pairs + place + tl.cumsum(here, 0) - here, start + lane, here == 1)
            place += tl.sum(here, 0)
        rest = place + tl.arange(0, ROWS)
        tl.store(pairs + rest, tl.zeros([ROWS], tl.int32) + count, rest < (first + own) * ROWS)


@entry
@triton.jit(do_not_specialize=["count"])
def _count(
    chosen, counts, count, EXPERTS: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr, DEPENDENT: tl.constexpr
):
    """counts [chunks, BINS]: how many pairs of each chunk each expert has. One program a chunk."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    chunk = tl.program_id(0)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    found = tl.histogram(tl.load(chosen + pair, pair < count, other=EXPERTS), BINS)
    tl.store(counts + chunk * BINS + tl.arange(0, BINS), found)


@entry
@triton.jit(do_not_specialize=["count", "chunks"])
def _place(
    chosen,
    counts,
    pairs,
    experts,
    total,
    count,
    chunks,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Grid (experts, chunks): stores an expert's pairs of a chunk in order, after those of the chunks before.

    CHUNKS: at least `chunks`.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    mine, chunk = tl.program_id(0), tl.program_id(1)
    lane, expert, number = tl.arange(0, CHUNK), tl.arange(0, BINS)[None, :], tl.arange(0, CHUNKS)[:, None]
    each = tl.load(counts + number * BINS + expert, number < chunks, other=0)
    found = tl.sum(each, 0)
    here, index = tl.sum(tl.sum(tl.where((expert == mine) & (number < chunk), each, 0), 1), 0), tl.arange(0, BINS)
    blocks = tl.where(index < EXPERTS, (found + ROWS - 1) // ROWS, 0)
    first = tl.sum(tl.where(index < mine, blocks, 0), 0)
    if chunk == 0:
        own, all_mine = tl.sum(tl.where(index == mine, blocks, 0), 0), tl.sum(tl.where(index == mine, found, 0), 0)
        if mine == 0:
            tl.store(total, tl.sum(blocks, 0))
        for block in range(own):
            tl.store(experts + first + block, mine)
        rest = first * ROWS + all_mine + tl.arange(0, ROWS)
        tl.store(pairs + rest, tl.zeros([ROWS], tl.int32) + count, rest < (first + own) * ROWS)
    pair = chunk * CHUNK + lane
    taken = (tl.load(chosen + pair, pair < count, other=EXPERTS) == mine).to(tl.int32)
    tl.store(pairs + first * ROWS + here + tl.cumsum(taken, 0) - taken, pair, taken == 1)


def most_blocks(pairs: int, experts: int, rows: int) -> int:
    """The most blocks that so many pairs can fill."""
    return (pairs + min(pairs, experts) * (rows - 1)) // rows


def sorted_blocks(chosen: Tensor, experts: int, rows: int, overlap: bool = False) -> ExpertBlocks:
    """chosen: int32 [T, k], numbers below `experts`; pair t * k + j is choice j of token t.  rows: of a block, a power
    of 2.

    overlap: see `overlap`.
    """
    count, device = chosen.numel(), chosen.device
    most = most_blocks(count, experts, rows)
    pairs, owners, total = (torch.empty(size, dtype=torch.int32, device=device) for size in (most * rows, most, 1))
    sizes = {"EXPERTS": experts, "BINS": triton.next_power_of_2(experts + 1), "num_warps": 4} | launched(overlap)
    chunks = triton.cdiv(count, LARGE_CHUNK)
    most_chunks = triton.next_power_of_2(chunks)
    if count > MANY and most_chunks * sizes["BINS"] <= PLACED:
        counts = torch.empty(chunks, sizes["BINS"], dtype=torch.int32, device=device)
        _count[(chunks,)](chosen, counts, count, CHUNK=LARGE_CHUNK, **sizes)
        _place[experts, chunks](
            chosen,
            counts,
            pairs,
            owners,
            total,
            count,
            chunks,
            ROWS=rows,
            CHUNK=LARGE_CHUNK,
            CHUNKS=most_chunks,
            **sizes,
        )
    elif count:
        _sort[(experts,)](
            chosen, pairs, owners, total, count, ROWS=rows, CHUNK=CHUNK if count <= CHUNK else LARGE_CHUNK, **sizes
        )
    return ExpertBlocks(pairs, owners, total, rows)
