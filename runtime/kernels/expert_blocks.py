"""Pairs of tokens and experts, sorted by expert into blocks of one expert each, on the device and without waiting for it."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .ahead import entry

CHUNK, LARGE_CHUNK = 1024, 4096  # pairs that a program looks at together
MANY = 8192  # pairs, from which on it takes the larger chunk


class Blocks(NamedTuple):
    """pairs int32 [most * rows]: of each block its pairs, filled up with the number of all pairs, which is none of them.

    experts: int32 [most], of each block.  total: int32 [1], how many blocks there are; what stands behind them is undefined.
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
def _sort(chosen, pairs, experts, total, count, EXPERTS: tl.constexpr, BINS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """One program an expert: counts the pairs of all, so that it knows where its own blocks begin, then lays them there in order."""
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


def most_blocks(pairs: int, experts: int, rows: int) -> int:
    """That so many pairs can fill."""
    return (pairs + min(pairs, experts) * (rows - 1)) // rows


def sorted_blocks(chosen: Tensor, experts: int, rows: int) -> Blocks:
    """chosen: int32 [T, k], numbers below `experts`; pair t * k + j is choice j of token t.  rows: of a block, a power of 2."""
    count, device = chosen.numel(), chosen.device
    most = most_blocks(count, experts, rows)
    pairs, owners, total = (torch.empty(size, dtype=torch.int32, device=device) for size in (most * rows, most, 1))
    found = Blocks(pairs, owners, total, rows)
    if count:
        chunk = CHUNK if count < MANY else LARGE_CHUNK
        _sort[(experts,)](
            chosen, pairs, owners, total, count,
            EXPERTS=experts, BINS=triton.next_power_of_2(experts + 1), ROWS=rows, CHUNK=chunk, num_warps=4 if chunk == CHUNK else 8,
        )  # fmt: skip
    return found
