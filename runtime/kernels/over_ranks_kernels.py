"""The device's side of `over_ranks`.

Short rows travel as messages of 64 bits: 32 bits of numbers and beside them the turn of the call, so that who waits sees from each of them
that it is there, without a fence. More rows travel as they are; each is added up by one rank, its owner, which hands the sum to the others (with two
ranks both own all rows). A program that has written its rows then writes its turn, once for all of them, behind a fence.

Every call of any of these kernels is a turn, the same on all ranks. A rank in turn t has heard of turn t - 1, directly or through owners, of
every other, which therefore have ended t - 2: so what is written in turns of the same parity has been read. An owner hears of everybody's turn t
before it writes a sum, so that sums need not lie apart by parity, nor the parts that owners alone read.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .ahead import entry
from .norm import _normalised

PROGRAMS: tl.constexpr = tl.constexpr(256)  # at most: all of them must run at the same time on the card


@triton.jit
def _reached(turn, wanted):
    return tl.atomic_add(turn, 0, sem="acquire", scope="sys") - wanted >= 0


@triton.jit
def _begin(counted, DEPENDENT: tl.constexpr):
    """The turn of this call. Each program counts for itself and for those that this call does without."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    turn = tl.load(counted + tl.program_id(0)) + 1
    tl.debug_barrier()  # all threads have it
    every = tl.arange(0, PROGRAMS)
    tl.store(counted + every, turn, every % tl.num_programs(0) == tl.program_id(0))
    return turn


@triton.jit
def _words(numbers):
    """[BLOCK] of 32 bits, or [BLOCK] of 16 bits two by two -> int32."""
    if numbers.dtype.primitive_bitwidth == 32:
        return numbers.to(tl.int32, bitcast=True)
    low, high = tl.split(tl.reshape(numbers.to(tl.int16, bitcast=True), (numbers.shape[0] // 2, 2)))
    return (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16)


@triton.jit
def _numbers(words, KIND: tl.constexpr):
    """float32, of what `_words` packed."""
    if KIND.primitive_bitwidth == 32:
        return words.to(KIND, bitcast=True).to(tl.float32)
    pairs = tl.join(words.to(tl.int16), (words >> 16).to(tl.int16))
    return tl.reshape(pairs, (2 * words.shape[0],)).to(KIND, bitcast=True).to(tl.float32)


@triton.jit
def _finish(states, weights, out, total, row, stride, size, eps, BLOCK: tl.constexpr, NORMED: tl.constexpr, KIND: tl.constexpr):
    """What is added, or given, is the sum as it would be stored, rounded; what is normalised is the state as it is stored."""
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    total = total.to(KIND)
    if NORMED:
        place = states + row * stride + columns
        stored = (tl.load(place, inside, other=0.0).to(tl.float32) + total.to(tl.float32)).to(states.dtype.element_ty)
        tl.store(place, stored, inside)
        tl.store(out + row * size + columns, _normalised(stored.to(tl.float32), weights, columns, inside, size, eps), inside)
    else:
        tl.store(out + row * size + columns, total, inside)


@entry
@triton.jit
def by_messages(
    parts, states, weights, out, places, counted, part_stride, stride, count, size, rows, words, eps,
    RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, NORMED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Each rank sends its rows to all others. places: addresses of int64 [2, RANKS, rows, words] of every rank."""
    turn = _begin(counted, DEPENDENT)
    kind: tl.constexpr = parts.dtype.element_ty
    each: tl.constexpr = 32 // kind.primitive_bitwidth
    columns, places_of = tl.arange(0, BLOCK), tl.arange(0, BLOCK // each)
    inside, there = columns < size, places_of < size // each
    side = (turn & 1).to(tl.int64) * RANKS
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        at = tl.full((), 0, tl.int64) + row
        part = tl.load(parts + at * part_stride + columns, inside, other=0.0)
        messages = (_words(part).to(tl.int64) & 0xFFFFFFFF) | (turn.to(tl.int64) << 32)
        for other in tl.static_range(RANKS):
            if other != RANK:
                theirs = tl.multiple_of(tl.load(places + other), 16).to(tl.pointer_type(tl.int64))
                tl.store(theirs + ((side + RANK) * rows + at) * words + places_of, messages, there)
    own = tl.multiple_of(tl.load(places + RANK), 16).to(tl.pointer_type(tl.int64))
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        at = tl.full((), 0, tl.int64) + row
        total = tl.zeros((BLOCK,), tl.float32)
        for other in tl.static_range(RANKS):
            if other == RANK:
                total += tl.load(parts + at * part_stride + columns, inside, other=0.0).to(tl.float32)
            else:
                come = own + ((side + other) * rows + at) * words + places_of
                messages = tl.load(come, there, other=turn.to(tl.int64) << 32, volatile=True)
                while tl.sum(((messages >> 32).to(tl.int32) != turn).to(tl.int32), 0) > 0:
                    messages = tl.load(come, there, other=turn.to(tl.int64) << 32, volatile=True)
                total += tl.where(inside, _numbers(messages.to(tl.int32), kind), 0.0)
        _finish(states, weights, out, total, at, stride, size, eps, BLOCK, NORMED, kind)


@triton.jit
def _owner(row, RANKS: tl.constexpr):
    """Rows of a program belong to the ranks in turns, and so do first rows of programs."""
    return (tl.program_id(0) + row // tl.num_programs(0)) % RANKS


@triton.jit
def _slot(row, RANKS: tl.constexpr):
    """Where among the rows that its owner adds up; with two ranks, that are sent."""
    if RANKS == 2:
        return row
    return row // tl.num_programs(0) // RANKS * tl.num_programs(0) + tl.program_id(0)


@triton.jit
def _say(places, turns, turn, RANK: tl.constexpr, RANKS: tl.constexpr):
    """To all others: what this program has written to them is there. turns: bytes up to int32 [RANKS, PROGRAMS]."""
    tl.debug_barrier()
    for other in tl.static_range(RANKS):
        if other != RANK:
            theirs = (tl.load(places + other) + turns).to(tl.pointer_type(tl.int32))
            tl.atomic_xchg(theirs + RANK * PROGRAMS + tl.program_id(0), turn, sem="release", scope="sys")


@triton.jit
def _hear(places, turns, turn, other, RANK: tl.constexpr):
    heard = (tl.load(places + RANK) + turns).to(tl.pointer_type(tl.int32)) + other * PROGRAMS + tl.program_id(0)
    while not _reached(heard, turn):
        pass
    tl.debug_barrier()


@triton.jit
def _send(
    parts, places, owner, row, part_stride, size, slots, width, side, RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    theirs = tl.multiple_of(tl.load(places + owner), 16).to(tl.pointer_type(parts.dtype.element_ty))
    part = tl.load(parts + row * part_stride + columns, inside, other=0.0)
    tl.store(theirs + ((side + RANK) * slots + _slot(row, RANKS)) * width + columns, part, inside)


@triton.jit
def _total(
    parts, places, row, part_stride, size, slots, width, side, RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """float32 [BLOCK], in the order of the ranks."""
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    own = tl.multiple_of(tl.load(places + RANK), 16).to(tl.pointer_type(parts.dtype.element_ty))
    total = tl.zeros((BLOCK,), tl.float32)
    for other in tl.static_range(RANKS):
        if other == RANK:
            total += tl.load(parts + row * part_stride + columns, inside, other=0.0).to(tl.float32)
        else:
            come = own + ((side + other) * slots + _slot(row, RANKS)) * width + columns
            total += tl.load(come, inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    return total


@entry
@triton.jit
def by_owners(
    parts, states, weights, out, places, counted, part_stride, stride, count, size, slots, width, totals, said, told, eps,
    RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, NORMED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """places: addresses of [2 or 1, RANKS, slots, width] of every rank, of what others send; the bytes from there to what owners send, [rows, width]
    (`totals`), and to the turns of both, int32 [RANKS, PROGRAMS] each (`said`, `told`)."""
    turn = _begin(counted, DEPENDENT)
    kind: tl.constexpr = parts.dtype.element_ty
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    zero = tl.full((), 0, tl.int64)
    side = zero
    if RANKS == 2:
        side += (turn & 1).to(tl.int64) * RANKS
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        if RANKS == 2:
            _send(parts, places, 1 - RANK, zero + row, part_stride, size, slots, width, side, RANK, RANKS, BLOCK)
        else:
            owner = _owner(row, RANKS)
            if owner != RANK:
                _send(parts, places, owner, zero + row, part_stride, size, slots, width, side, RANK, RANKS, BLOCK)
    _say(places, said, turn, RANK, RANKS)
    for other in tl.static_range(RANKS):
        if other != RANK:
            _hear(places, said, turn, other, RANK)
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        at = zero + row
        if RANKS == 2:
            total = _total(parts, places, at, part_stride, size, slots, width, side, RANK, RANKS, BLOCK)
            _finish(states, weights, out, total, at, stride, size, eps, BLOCK, NORMED, kind)
        else:
            if _owner(row, RANKS) == RANK:
                total = _total(parts, places, at, part_stride, size, slots, width, side, RANK, RANKS, BLOCK)
                for other in tl.static_range(RANKS):
                    if other != RANK:
                        theirs = (tl.multiple_of(tl.load(places + other), 16) + totals).to(tl.pointer_type(kind))
                        tl.store(theirs + at * width + columns, total.to(kind), inside)
                _finish(states, weights, out, total, at, stride, size, eps, BLOCK, NORMED, kind)
    if RANKS > 2:
        _say(places, told, turn, RANK, RANKS)
        for other in tl.static_range(RANKS):
            if other != RANK:
                _hear(places, told, turn, other, RANK)
        sums = (tl.multiple_of(tl.load(places + RANK), 16) + totals).to(tl.pointer_type(kind))
        for row in range(tl.program_id(0), count, tl.num_programs(0)):
            if _owner(row, RANKS) != RANK:
                at = zero + row
                total = tl.load(sums + at * width + columns, inside, other=0.0, cache_modifier=".cg").to(tl.float32)
                _finish(states, weights, out, total, at, stride, size, eps, BLOCK, NORMED, kind)
