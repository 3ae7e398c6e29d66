"""Where each pair of a token and an expert is computed, for experts replicated on several ranks: one kernel.

It waits for nothing. The reference is models/placement/expert_parallel_plan.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch.compile_ahead import entry
from ..launch.programmatic_launch import launched

FEW, CHUNK = 128, 2048  # pairs that a program looks at together


@dataclass(frozen=True, slots=True)
class ExpertReplicaTable:
    """Where experts are stored; other numbers may be written into the tensors at any time, also between runs of a
    graph.

    copies: int64 [experts].  table: int64 [experts, most copies], the place here of each copy, negative elsewhere.
        shared: int64 [most], the experts that have copies, then negative numbers.  here: places of this rank.  places:
        of all ranks.
    """

    copies: Tensor
    table: Tensor
    shared: Tensor
    here: int
    places: int


@triton.jit
def _among(chosen, slots, pair, count, mine, TOP: tl.constexpr, SLOTTED: tl.constexpr):
    """1 if a row that counts has chosen this expert."""
    inside = pair < count
    found = inside & (tl.load(chosen + pair, inside, other=-1) == mine)
    if SLOTTED:
        found = found & (tl.load(slots + pair // TOP, inside, other=0) != 0)
    return found.to(tl.int32)


@entry
@triton.jit(do_not_specialize=["count", "here"])
def _select_replicas(
    chosen,
    slots,
    counts,
    copies,
    table,
    shared,
    places,
    count,
    here,
    TOP: tl.constexpr,
    COPIES: tl.constexpr,
    CHUNK: tl.constexpr,
    SLOTTED: tl.constexpr,
    COUNTED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """places int32 [count]: of each pair its place here, or `here` if it has none.

    Grid (chunks of pairs + length of `shared`,). A program of a chunk writes the places of experts without copies and
    of rows that do not count. Each of the others handles one expert with copies, whose rows it numbers.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    chunks, program, lane = tl.cdiv(count, CHUNK), tl.program_id(0), tl.arange(0, CHUNK)
    if program < chunks:
        pair = program * CHUNK + lane
        inside = pair < count
        counted = inside
        if SLOTTED:
            counted = counted & (tl.load(slots + pair // TOP, inside, other=0) != 0)
        expert = tl.load(chosen + pair, inside, other=0)
        alone = tl.load(copies + expert, inside, other=1) == 1
        place = tl.load(table + expert * COPIES, inside, other=-1)
        found = tl.where(counted & (place >= 0), place, here)
        tl.store(places + pair, found.to(tl.int32), inside & (alone | (counted == 0)))
    else:
        mine = tl.load(shared + program - chunks)
        if mine >= 0:
            number = tl.zeros([], tl.int64)
            if COUNTED:
                number += tl.load(counts + mine)
                for start in range(0, count, CHUNK):
                    number -= tl.sum(_among(chosen, slots, start + lane, count, mine, TOP, SLOTTED), 0)
            turns = tl.load(copies + mine)
            for start in range(0, count, CHUNK):
                taken = _among(chosen, slots, start + lane, count, mine, TOP, SLOTTED)
                turn = (number + tl.cumsum(taken, 0) - taken) % turns
                place = tl.load(table + mine * COPIES + turn, taken == 1, other=-1)
                tl.store(places + start + lane, tl.where(place >= 0, place, here).to(tl.int32), taken == 1)
                number += tl.sum(taken, 0)


def select_replicas(
    chosen: Tensor, turns: ExpertReplicaTable, counts: Tensor | None, slots: Tensor | None = None, overlap: bool = False
) -> Tensor:
    """int32 [T, k]: of each choice its place here, or `turns.here` if it is computed elsewhere or is padding.

    Rows whose slot is 0 are padding.
    chosen: int32 [T, k].  counts: int64 [experts], how often each was chosen, including these rows but for padding;
        None:
        never before.  overlap: see `overlap`.
    """
    places, count = torch.empty_like(chosen), chosen.numel()
    chunk = FEW if count <= FEW else CHUNK
    if count:
        _select_replicas[(triton.cdiv(count, chunk) + len(turns.shared),)](
            chosen,
            chosen if slots is None else slots,
            chosen if counts is None else counts,
            turns.copies,
            turns.table,
            turns.shared,
            places,
            count,
            turns.here,
            TOP=chosen.shape[1],
            COPIES=turns.table.shape[1],
            CHUNK=chunk,
            SLOTTED=slots is not None,
            COUNTED=counts is not None,
            num_warps=4 if chunk > FEW else 1,
            **launched(overlap),
        )
    return places
