"""Which way ranks on GPUs add up, by the bytes of a sum."""

from __future__ import annotations

from typing import Literal

Algorithm = Literal["push", "nccl"]

KB, MB = 2**10, 2**20

# By ranks: bytes of the largest sum that is pushed (kernels/over_ranks.py); a larger one is left to NCCL. For 2 ranks measured on H100s
# (benchmarks/results/gpu_ranks.txt): within CUDA graphs, with the addition and norm behind it, 6.5 us against NCCL's 10.2 at 8 KB, 49 against 61 at
# 8 MB. torch's symmetric memory is slower at every size as long as a sum is copied to where it adds up. For 4 and 8 ranks not measured: what a
# rank sends grows with their number.
PUSHED = {2: 8 * MB, 4: 1 * MB, 8: 256 * KB}


def algorithm(ranks: int, size: int, reach: bool, deterministic: bool) -> Algorithm:
    """For sums of so many bytes. reach: the cards reach each other's memory.  deterministic: a row's bits depend on no other row."""
    if not reach:
        return "nccl"
    if deterministic:
        return "push"
    return "push" if size <= most_pushed(ranks) else "nccl"


def most_pushed(ranks: int) -> int:
    """Bytes of the largest sum that is pushed."""
    return PUSHED[next((known for known in PUSHED if known >= ranks), max(PUSHED))]
