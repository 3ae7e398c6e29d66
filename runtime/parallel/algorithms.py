"""Which way ranks on GPUs add up, by the bytes of a sum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Algorithm = Literal["push", "nccl"]

KB, MB = 2**10, 2**20


class Limits(NamedTuple):
    """Bytes of the largest sum whose rows each rank sends to all others, and of the largest that is pushed at all (kernels/over_ranks.py)."""

    to_all: int
    pushed: int


# By ranks. For 4 measured on H100s (benchmarks/results/gpu_ranks.txt): within CUDA graphs, with the addition and norm behind it, rows sent to all take
# 6.1 us at 8 KB and 7.6 at 128 KB, NCCL 13.7 and 14.6; rows that owners add up 9.6 at 256 KB and 26.1 at 2 MB (14.5 and 31.1), 48.0 at 4 MB (46.1).
# For 2 the kernels before these were faster than NCCL up to 8 MB; for 8 nothing is measured.
LIMITS = {2: Limits(8 * MB, 8 * MB), 4: Limits(128 * KB, 2 * MB), 8: Limits(128 * KB, 128 * KB)}
# Bytes that each rank gives of logits which all write to rank 0 (kernels/one_way.py): 8 rows of 128,256 in 16 bits over 4 ranks, where NCCL takes 8.5 us for
# 1 row, 19 for 8 and 49 for 64 in graphs. A message is twice as long as what it carries, so that of many rows NCCL is the faster one.
GATHERED = {2: MB, 4: 512 * KB, 8: 128 * KB}
TOLD = 64 * KB  # of tokens that rank 0 writes to all
ORDERED = 8 * MB  # of a call where every sum is pushed


class Beside(NamedTuple):
    """Sums of at least so many bytes are taken in pieces beside products. A piece has about so many; there are at most so many pieces.

    ctas: multiprocessors that NCCL takes from the products at most, by a communicator of its own with memory of its own; None: as
    many as it likes, by the one that there is.
    """

    least: int
    piece: int
    most: int
    ctas: int | None = None


# Measured on 4 H200 (benchmarks/results/gpu_ranks.txt): a layer of Llama-3.1-8B's shape behind its attention, 8,192 rows, takes 2,056 us with sums at once, 1,921 in two
# pieces, 2,363 in three and 3,338 in four; of 70B's 6,404, 6,272, 6,262, 6,251. A piece costs the host some 300 us a layer, so that smaller sums and more pieces
# lose: with 2,048 rows two pieces take 1,795 us in place of 789. Fewer multiprocessors for NCCL (8, 16) lose too. Of two and eight ranks nothing is measured.
BESIDE = {2: Beside(64 * MB, 32 * MB, 2), 4: Beside(64 * MB, 32 * MB, 2), 8: Beside(64 * MB, 32 * MB, 2)}  # most=1: none is cut
TILE = 128  # rows that products compute at a time


def pieces(ranks: int, rows: int, size: int) -> tuple[slice, ...]:
    """Of the rows of a sum of so many bytes by NCCL, each but the last whole tiles; (): it is not cut."""
    least, piece, most, _ = beside(ranks)
    if size < least or (count := min(max(2, size // piece), most)) < 2:
        return ()
    each = -(-rows // (count * TILE)) * TILE
    return tuple(slice(first, min(first + each, rows)) for first in range(0, rows, each)) if each < rows else ()


def algorithm(ranks: int, size: int, reach: bool, deterministic: bool) -> Algorithm:
    """For sums of so many bytes. reach: the cards reach each other's memory.  deterministic: a row's bits depend on no other row."""
    if not reach:
        return "nccl"
    if deterministic:
        return "push"
    return "push" if size <= limits(ranks).pushed else "nccl"


def limits(ranks: int) -> Limits:
    return LIMITS[_known(ranks, LIMITS)]


def beside(ranks: int) -> Beside:
    return BESIDE[_known(ranks, BESIDE)]


def gathered(ranks: int) -> int:
    """Bytes of each rank that are written to rank 0 at most."""
    return GATHERED[_known(ranks, GATHERED)]


def _known(ranks: int, known: Iterable[int]) -> int:
    return next((each for each in known if each >= ranks), max(known))


def told(ranks: int) -> str:
    """How ranks add up whose cards reach each other's memory, for people."""
    cut = beside(ranks)
    pieces = f", from {cut.least // MB} MB on in up to {cut.most} pieces beside products" if cut.most > 1 else ""
    return f"pushed up to {limits(ranks).pushed // KB} KB, then NCCL{pieces}"
