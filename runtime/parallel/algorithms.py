"""Which way ranks on GPUs add up, by the bytes of a sum."""

from __future__ import annotations

from typing import Literal, NamedTuple

Algorithm = Literal["push", "nccl"]

KB, MB = 2**10, 2**20


class Limits(NamedTuple):
    """Bytes of the largest sum whose rows each rank sends to all others, and of the largest that is pushed at all (kernels/over_ranks.py)."""

    to_all: int
    pushed: int


LIMITS = {2: Limits(128 * KB, 16 * MB), 4: Limits(256 * KB, 8 * MB), 8: Limits(64 * KB, 8 * MB)}


def algorithm(ranks: int, size: int, reach: bool, deterministic: bool) -> Algorithm:
    """For sums of so many bytes. reach: the cards reach each other's memory.  deterministic: a row's bits depend on no other row."""
    if not reach:
        return "nccl"
    if deterministic:
        return "push"
    return "push" if size <= limits(ranks).pushed else "nccl"


def limits(ranks: int) -> Limits:
    return LIMITS[next((known for known in LIMITS if known >= ranks), max(LIMITS))]
