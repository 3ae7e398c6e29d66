"""Weights of a step's selected experts, copied from main memory to the device on the compute stream.

Kernels read the locked memory themselves: only the device knows which experts are selected, the host never waits, and a
graph copies what its own rows select.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch.compile_ahead import entry
from .expert_align_blocks import CHUNK as PAIRS

PROGRAMS = 512  # that copy; each continues until nothing is left
WORDS = 4096  # that a program copies at a time
UNITS = (torch.int32, torch.int16, torch.int8)  # the copied bits have no meaning here: the widest type is fastest


class SelectedExperts(NamedTuple):
    """experts: int32 [count], the selected ones, in order, as many as total int32 [1] says."""

    experts: Tensor
    total: Tensor


@entry
@triton.jit(do_not_specialize=["count"])
def _choose(
    chosen,
    slots,
    experts,
    total,
    counter,
    count,
    TOP: tl.constexpr,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    SLOTTED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program. Pairs of rows whose slot is 0 select nothing."""
    lane, expert = tl.arange(0, CHUNK), tl.arange(0, BINS)
    found = tl.zeros([BINS], tl.int32)
    for start in range(0, count, CHUNK):
        counted = start + lane < count
        if SLOTTED:
            counted = counted & (tl.load(slots + (start + lane) // TOP, counted, other=0) != 0)
        found += tl.histogram(tl.load(chosen + start + lane, counted, other=EXPERTS), BINS)
    taken = ((found > 0) & (expert < EXPERTS)).to(tl.int32)
    tl.store(experts + tl.cumsum(taken, 0) - taken, expert, taken == 1)
    sum_ = tl.sum(taken, 0)
    tl.store(total, sum_)
    tl.store(counter, tl.load(counter) + sum_)


@entry
@triton.jit
def _copy_experts(source, room, experts, total, size, WORDS: tl.constexpr):
    """room[e] = source[e], [size] each, of the selected experts."""
    lane = tl.arange(0, WORDS)
    parts = tl.cdiv(size, WORDS)
    for item in range(tl.program_id(0), tl.load(total) * parts, tl.num_programs(0)):
        place = item % parts * WORDS + lane
        at = tl.load(experts + item // parts).to(tl.int64) * size + place
        tl.store(room + at, tl.load(source + at, place < size, eviction_policy="evict_first"), place < size)


def collect_selected(chosen: Tensor, experts: int, counter: Tensor, slots: Tensor | None = None) -> SelectedExperts:
    """chosen: int32 [T, k], numbers below `experts`.  counter: int64 [1], to which the number of selected ones is
    added.

    slots: [T]; rows whose slot is 0 are padding, which selects nothing.
    """
    found = SelectedExperts(*(torch.empty(size, dtype=torch.int32, device=chosen.device) for size in (experts, 1)))
    _choose[(1,)](
        chosen,
        chosen if slots is None else slots,
        *found,
        counter,
        chosen.numel(),
        TOP=chosen.shape[1],
        EXPERTS=experts,
        BINS=triton.next_power_of_2(experts + 1),
        SLOTTED=slots is not None,
        CHUNK=PAIRS,
        num_warps=4,
    )
    return found


def fetch_experts(source: Tensor, room: Tensor, chosen: SelectedExperts) -> None:
    """room[e] = source[e] of the selected experts.

    source: in locked main memory, room on the device; contiguous, alike, [experts, ...].
    """
    unit = next(unit for unit in UNITS if source[0].nbytes % unit.itemsize == 0)
    programs = PROGRAMS if room.is_cuda else 2  # an interpreter runs them sequentially
    size = source[0].nbytes // unit.itemsize
    _copy_experts[(programs,)](_as(source, unit), _as(room, unit), *chosen, size, WORDS=WORDS, num_warps=8)


def _as(tensor: Tensor, unit: torch.dtype) -> Tensor:
    return tensor.view(-1).view(torch.int8).view(unit)
