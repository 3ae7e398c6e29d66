"""Point-to-point sends to a rank whose GPU memory this one reaches: parts are written there, each with its step's
turn.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch.compile_ahead import entry
from .all_reduce_kernels import _reached

PROGRAMS, BLOCK = 64, 2048  # of a part; a program has every PROGRAMS-th block


VARYING = ["room", "first", "turn", "wanted", "side"]


@entry
@triton.jit(do_not_specialize=VARYING)
def _post(numbers, rooms, turns, reads, side, room, first, turn, wanted, count, BLOCK: tl.constexpr):
    """rooms, turns: addresses there.  reads: here, the turns up to which the other one has read.

    room, first: where among them.
    """
    while not _reached(reads + side, wanted):
        pass
    tl.debug_barrier()
    room = tl.multiple_of(room, 4)
    theirs = tl.multiple_of(tl.load(rooms), 16).to(tl.pointer_type(tl.int32)) + room
    for start in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        columns = start + tl.arange(0, BLOCK)
        tl.store(theirs + columns, tl.load(numbers + columns, columns < count), columns < count)
    tl.debug_barrier()
    tl.atomic_xchg(
        tl.load(turns).to(tl.pointer_type(tl.int32)) + first + tl.program_id(0), turn, sem="release", scope="sys"
    )


@entry
@triton.jit(do_not_specialize=VARYING[:3])
def _take(out, rooms, turns, room, first, turn, count, BLOCK: tl.constexpr):
    """rooms, turns: addresses here."""
    while not _reached(tl.load(turns).to(tl.pointer_type(tl.int32)) + first + tl.program_id(0), turn):
        pass
    tl.debug_barrier()
    room = tl.multiple_of(room, 4)
    own = tl.multiple_of(tl.load(rooms), 16).to(tl.pointer_type(tl.int32)) + room
    for start in range(tl.program_id(0) * BLOCK, count, tl.num_programs(0) * BLOCK):
        columns = start + tl.arange(0, BLOCK)
        tl.store(out + columns, tl.load(own + columns, columns < count, cache_modifier=".cg"), columns < count)


@entry
@triton.jit(do_not_specialize=["side", "turn"])
def _tell(reads, side, turn):
    """reads: an address there."""
    tl.atomic_xchg(tl.load(reads).to(tl.pointer_type(tl.int32)) + side, turn, sem="release", scope="sys")


class P2PChannel:
    """One end of a channel from one rank to another: the parts of a step in a row, steps in two alternating buffers.

    memory, there: int64 [1], the addresses of this end's memory and of the other's, of `bytes_for` bytes each,
        initially zeros.
    own: int32, this end's memory.  numbers: int32 that a step has at most.  parts: of a step, at most.
    """

    def __init__(self, own: Tensor, memory: Tensor, there: Tensor, numbers: int, parts: int) -> None:
        numbers = whole(numbers)
        self._own, self._numbers, self._parts, self._turn, self._part, self._filled = own, numbers, parts, 0, 0, 0
        turns, reads = 8 * numbers, 8 * (numbers + parts * PROGRAMS)
        self._here = memory, memory + turns
        self._there, self._there_reads = (there, there + turns), there + reads
        self._read = own[reads // 4 :]

    @staticmethod
    def bytes_for(numbers: int, parts: int) -> int:
        return 8 * (whole(numbers) + parts * PROGRAMS + 2)

    def begin(self) -> None:
        """The next step, at both ends."""
        self._turn, self._part, self._filled = self._turn + 1, 0, 0

    def post(self, x: Tensor) -> None:
        """Send the next part of the step, contiguous, of a multiple of four bytes.

        It waits until the step before the last one is read.
        """
        numbers = x.reshape(-1).view(torch.int32)
        side, place = self._place(len(numbers))
        _post[(programs(len(numbers)),)](
            numbers,
            *self._there,
            self._read,
            side,
            place,
            self._flags(side),
            word(self._turn),
            word(self._turn - 2),
            len(numbers),
            BLOCK=BLOCK,
            num_warps=8,
        )
        self._next(len(numbers))

    def take(self, out: Tensor) -> None:
        """Wait for the next part of the step, which has the size of `out`."""
        numbers = out.view(-1).view(torch.int32)
        side, place = self._place(len(numbers))
        _take[(programs(len(numbers)),)](
            numbers, *self._here, place, self._flags(side), word(self._turn), len(numbers), BLOCK=BLOCK, num_warps=8
        )
        self._next(len(numbers))

    def read(self) -> None:
        """All parts of the step are read."""
        _tell[(1,)](self._there_reads, self._turn % 2, word(self._turn))

    def _place(self, count: int) -> tuple[int, int]:
        if self._part == self._parts or self._filled + count > self._numbers:
            raise RuntimeError(f"a step of more than {self._parts} parts or {self._numbers} numbers of 32 bits")
        side = self._turn % 2
        return side, side * self._numbers + self._filled

    def _flags(self, side: int) -> int:
        return (side * self._parts + self._part) * PROGRAMS

    def _next(self, count: int) -> None:
        self._part, self._filled = self._part + 1, self._filled + -(-count // 4) * 4


def word(turn: int) -> int:
    """As int32 counts."""
    return (turn + 2**31) % 2**32 - 2**31


def whole(numbers: int) -> int:
    return -(-numbers // 4) * 4


def programs(count: int) -> int:
    return max(1, min(PROGRAMS, -(-count // BLOCK)))
