"""The device side of `gather_broadcast`.

A program and its counterpart on another rank are a channel: they count its turns on either side, and have every
PROGRAMS-th block of its memory, the same ones whatever a call's size is. Numbers travel as in `all_reduce_kernels`,
with the turn in each message, in two buffers by the turn's parity.

The sender gets no data from the receiver, and could run ahead. So the receiver reports, when its turn t begins, that it
has read t - 1: by then that kernel has ended, and no fence is needed. The sender in turn t waits until t - 2 is read,
whose buffer it overwrites; usually that was long before.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..launch.compile_ahead import entry
from .all_reduce_kernels import _awaited, _coming, _post, _room

PROGRAMS: tl.constexpr = tl.constexpr(256)  # at most, to or from each rank


@triton.jit
def _next_turn(counted, DEPENDENT: tl.constexpr):
    """counted: of the programs that exchange with the same rank."""
    turn = _coming(counted, DEPENDENT)
    tl.store(counted + tl.program_id(0), turn)
    return turn


@triton.jit
def _read_by(places, sender, taker, most, RANKS: tl.constexpr):
    """Address of the turn up to which this program's receiving counterpart has read: after the messages."""
    zero = tl.full((), 0, tl.int64)
    start = tl.load(places + sender) + 16 * RANKS * (zero + most)
    return start.to(tl.pointer_type(tl.int32)) + taker * PROGRAMS + tl.program_id(0)


@triton.jit
def _at(block, sender, turn, most, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """Address of a block's messages, which a sender posts."""
    zero = tl.full((), 0, tl.int64)
    return ((turn & 1) * RANKS + sender) * (zero + most) + block * BLOCK


@triton.jit
def _span(block, sender, each, columns, NUMBERS: tl.constexpr):
    """Of a block, its row, its first column among the sender's, and how many columns it has."""
    chunks = tl.cdiv(each, NUMBERS)
    start = block % chunks * NUMBERS
    return block // chunks, start, tl.minimum(tl.minimum(each, columns - sender * each) - start, NUMBERS)


@entry
@triton.jit
def post(
    numbers,
    places,
    counted,
    stride,
    rows,
    each,
    columns,
    most,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """numbers [rows, up to `each`] to ranks FIRST and on; grid (programs, ranks).

    places: addresses of int64 [2, RANKS, most] of every rank, followed by int32 [RANKS, PROGRAMS].
    counted: int32 [RANKS, PROGRAMS].  columns: of all ranks, concatenated.  BLOCK: messages.
    """
    PER: tl.constexpr = 32 // numbers.dtype.element_ty.primitive_bitwidth
    to = FIRST + tl.program_id(1)
    room = _room(places, to)
    turn = _next_turn(counted + to * PROGRAMS, DEPENDENT)
    read, lane, zero = _read_by(places, RANK, to, most, RANKS), tl.arange(0, PER * BLOCK), tl.full((), 0, tl.int64)
    for block in range(tl.program_id(0), rows * tl.cdiv(each, PER * BLOCK), tl.num_programs(0)):
        row, start, count = _span(block, RANK, each, columns, PER * BLOCK)
        found = tl.load(numbers + (zero + row) * stride + start + lane, lane < count, other=0)
        while turn - 2 - tl.load(read, volatile=True) > 0:
            pass
        _post(room, _at(block, RANK, turn, most, RANKS, BLOCK), found, turn, tl.cdiv(count, PER) * PER, PER * BLOCK)


@entry
@triton.jit
def take(
    own,
    out,
    places,
    counted,
    stride,
    rows,
    each,
    columns,
    most,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out [rows, columns]: what the ranks from 0 on post, and this one's own; grid (programs, ranks). See `post`.

    The grid says how many ranks post.
    """
    PER: tl.constexpr = 32 // out.dtype.element_ty.primitive_bitwidth
    sender = tl.program_id(1)
    turn = _next_turn(counted + sender * PROGRAMS, DEPENDENT)
    if sender != RANK:
        tl.store(_read_by(places, sender, RANK, most, RANKS), turn - 1)
    lane, zero = tl.arange(0, PER * BLOCK), tl.full((), 0, tl.int64)
    for block in range(tl.program_id(0), rows * tl.cdiv(each, PER * BLOCK), tl.num_programs(0)):
        row, start, count = _span(block, sender, each, columns, PER * BLOCK)
        to = out + (zero + row) * columns + sender * each + start + lane
        if sender == RANK:
            tl.store(to, tl.load(own + (zero + row) * stride + start + lane, lane < count, other=0), lane < count)
        else:
            at = _at(block, sender, turn, most, RANKS, BLOCK)
            found = _awaited(places, RANK, at, turn, tl.cdiv(count, PER) * PER, out.dtype.element_ty, PER * BLOCK)
            tl.store(to, found, lane < count)
