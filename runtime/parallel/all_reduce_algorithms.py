"""Which way ranks on GPUs add up, by the bytes of a sum."""

from __future__ import annotations

from typing import Literal, NamedTuple

Algorithm = Literal["push", "nccl"]

KB, MB = 2**10, 2**20


class AllReduceLimits(NamedTuple):
    """Bytes of the largest sum whose rows each rank sends to all others, and of the largest that is pushed at all."""

    to_all: int
    pushed: int


# By ranks. For 4 measured on H100s (benchmarks/results/gpu_ranks.txt): within CUDA graphs, with the addition and norm
# after it, rows sent to all take 6.1 us at 8 KB and 7.6 at 128 KB, NCCL 13.7 and 14.6; rows that owners add up 9.6 at
# 256 KB and 26.1 at 2 MB (14.5 and 31.1), 48.0 at 4 MB (46.1).
# For 2 the kernels before these were faster than NCCL up to 8 MB; for 8 nothing is measured.
LIMITS = {
    2: AllReduceLimits(8 * MB, 8 * MB),
    4: AllReduceLimits(128 * KB, 2 * MB),
    8: AllReduceLimits(128 * KB, 128 * KB),
}
# By calculation, bytes that each rank writes to rank 0 of logits (`kernels/comm`): 8 rows of 128,256 in 16 bits over 4
# ranks, where NCCL takes 8.5 us for 1 row, 19 for 8 and 49 for 64 in graphs. A message is twice as long as what it
# carries, so that of many rows NCCL should be the faster one.
GATHERED = {2: MB, 4: 512 * KB, 8: 128 * KB}
MOST_BROADCAST = 64 * KB  # of tokens that rank 0 writes to all
ORDERED = 8 * MB  # of a call where every sum is pushed


def algorithm(ranks: int, size: int, reach: bool, deterministic: bool) -> Algorithm:
    """For sums of so many bytes.

    reach: the GPUs reach each other's memory.  deterministic: a row's bits depend on no other row.
    """
    if not reach:
        return "nccl"
    if deterministic:
        return "push"
    return "push" if size <= limits(ranks).pushed else "nccl"


def limits(ranks: int) -> AllReduceLimits:
    return LIMITS[_known(ranks)]


def gathered(ranks: int) -> int:
    """Bytes of each rank that are written to rank 0 at most."""
    return GATHERED[_known(ranks)]


def _known(ranks: int) -> int:
    return next((known for known in LIMITS if known >= ranks), max(LIMITS))


def describe_algorithms(ranks: int) -> str:
    """How ranks add up whose GPUs reach each other's memory, for people."""
    return f"pushed up to {limits(ranks).pushed // KB} KB, then NCCL"
