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


# By calculation from the same tables, not measured. Latency counts up to some MB: over four cards NCCL takes 95 us for 16 MB and 59 for 8 MB, where a quarter
# and an eighth of the 324 us for 64 MB would be 81 and 40; over two 88 and 50 (of 266: 66 and 33). Sums are hidden but for the last piece and what the first
# waits for, so that four pieces leave about 95 us exposed of each layer's 648 (8,192 rows of 8 KB, four ranks), two 275, and six some 60, with products that fill their
# last wave of tiles less. A piece of 8 MB of bfloat16 is 128 tiles of 128 x 256 numbers, one wave of 132 multiprocessors, whatever the width; 16 MB are two,
# and three while NCCL holds more than four of them: then fewer pieces lose less. With experts, or weights in few bits, only what is not read anew for each piece is cut.
# A sum of 16 MB is cut in two of 8 MB: 24 us longer in all, of which 59 are exposed instead of 95.
BESIDE = {2: Beside(16 * MB, 16 * MB, 4), 4: Beside(16 * MB, 16 * MB, 4), 8: Beside(16 * MB, 16 * MB, 4)}  # most=1: none is cut
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


def _known(ranks: int, known: Iterable[int]) -> int:
    return next((each for each in known if each >= ranks), max(known))


def told(ranks: int) -> str:
    """How ranks add up whose cards reach each other's memory, for people."""
    cut = beside(ranks)
    pieces = f", from {cut.least // MB} MB on in up to {cut.most} pieces beside products" if cut.most > 1 else ""
    return f"pushed up to {limits(ranks).pushed // KB} KB, then NCCL{pieces}"
