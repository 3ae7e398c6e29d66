"""The device side of `all_reduce`.

Numbers travel as messages of 64 bits: 32 bits of data and the turn of the call. A receiver sees from each message that
it has arrived, without a fence. Every call of any of these kernels is a turn, the same on all ranks.

Messages to all are in separate buffers by the turn's parity: a rank in turn t has heard in t - 1 from every other,
directly or through owners, which therefore have ended t - 2. It is the same if products post a row to all and a later
kernel waits (`of_all`): they begin when this rank's kernel of turn t - 1 has ended.
Rows that go to owners need no parity: the sender in turn t had got every sum of turn t - 1, made of what it sent then.
Sums need none either: an owner has heard everybody's turn t before it sends one.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch.compile_ahead import entry
from ..rms_norm import _normalised, _scaled

PROGRAMS: tl.constexpr = tl.constexpr(256)  # at most; each waits only for its counterparts on other ranks


@triton.jit
def _reached(turn, wanted):
    return tl.atomic_add(turn, 0, sem="acquire", scope="sys") - wanted >= 0


@triton.jit
def _coming(counted, DEPENDENT: tl.constexpr):
    """The program's turn, which it has still to count, once the preceding kernels have ended."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    turn = tl.load(counted + tl.program_id(0)) + 1
    tl.debug_barrier()  # all threads have it
    return turn


@triton.jit
def _begin(counted, DEPENDENT: tl.constexpr):
    """The turn of this call. Each program counts for itself and for those that this call does not launch."""
    turn = _coming(counted, DEPENDENT)
    every = tl.arange(0, PROGRAMS)
    tl.store(counted + every, turn, every % tl.num_programs(0) == tl.program_id(0))
    return turn


@triton.jit
def _room(places, rank):
    """places: addresses of all ranks' int64."""
    return tl.multiple_of(tl.load(places + rank), 16).to(tl.pointer_type(tl.int64))


@triton.jit
def _post(room, at, numbers, turn, size, BLOCK: tl.constexpr):
    """Numbers [BLOCK], of 32 bits or two by two of 16, to a rank's buffer. at: the offset there."""
    if numbers.dtype.primitive_bitwidth == 32:
        words, columns, length = numbers.to(tl.int32, bitcast=True), tl.arange(0, BLOCK), size
    else:
        low, high = tl.split(tl.reshape(numbers.to(tl.int16, bitcast=True), (BLOCK // 2, 2)))
        words, columns, length = (
            (low.to(tl.int32) & 0xFFFF) | (high.to(tl.int32) << 16),
            tl.arange(0, BLOCK // 2),
            size // 2,
        )
    messages = (words.to(tl.int64) & 0xFFFFFFFF) | (turn.to(tl.int64) << 32)
    tl.store(room + at + columns, messages, columns < length)


@triton.jit
def _awaited(places, rank, at, turn, size, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """KIND [BLOCK], zeros beyond `size`: what was posted to this rank in this turn."""
    each: tl.constexpr = 32 // KIND.primitive_bitwidth
    columns = tl.arange(0, BLOCK // each)
    there, nothing = columns < size // each, turn.to(tl.int64) << 32
    come = _room(places, rank) + at + columns
    messages = tl.load(come, there, other=nothing, volatile=True)
    while tl.sum(((messages >> 32).to(tl.int32) != turn).to(tl.int32), 0) > 0:
        messages = tl.load(come, there, other=nothing, volatile=True)
    words = messages.to(tl.int32)
    if each == 1:
        numbers = words.to(KIND, bitcast=True)
    else:
        pairs = tl.join(words.to(tl.int16), (words >> 16).to(tl.int16))
        numbers = tl.reshape(pairs, (BLOCK,)).to(KIND, bitcast=True)
    return numbers


@triton.jit
def _total(
    parts, places, row, part_stride, at, apart, turn, size, RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr
):
    """float32 [BLOCK] of all ranks, in their order.

    at, apart: the offset of rank 0's messages, and the distance to the next rank's.
    """
    columns = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for other in tl.static_range(RANKS):
        if other == RANK:
            total += tl.load(parts + row * part_stride + columns, columns < size, other=0.0).to(tl.float32)
        else:
            total += _awaited(places, RANK, at + other * apart, turn, size, parts.dtype.element_ty, BLOCK).to(
                tl.float32
            )
    return total


@triton.jit
def _finish(
    states, weights, out, total, row, stride, size, eps, BLOCK: tl.constexpr, NORMED: tl.constexpr, KIND: tl.constexpr
):
    """The addend, or result, is the sum as it would be stored, rounded; the norm is of the state as it is stored."""
    columns = tl.arange(0, BLOCK)
    inside = columns < size
    total = total.to(KIND)
    if NORMED:
        place = states + row * stride + columns
        stored = (tl.load(place, inside, other=0.0).to(tl.float32) + total.to(tl.float32)).to(states.dtype.element_ty)
        tl.store(place, stored, inside)
        tl.store(
            out + row * size + columns, _normalised(stored.to(tl.float32), weights, columns, inside, size, eps), inside
        )
    else:
        tl.store(out + row * size + columns, total, inside)


@entry
@triton.jit
def to_all(
    parts,
    states,
    weights,
    out,
    places,
    counted,
    part_stride,
    stride,
    count,
    size,
    rows,
    words,
    eps,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORMED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Each rank posts its rows to all others. places: addresses of int64 [2, RANKS, rows, words] of every rank."""
    turn = _begin(counted, DEPENDENT)
    columns, zero = tl.arange(0, BLOCK), tl.full((), 0, tl.int64)
    apart = (zero + rows) * words
    side = (turn & 1) * RANKS * apart
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        part = tl.load(parts + (zero + row) * part_stride + columns, columns < size, other=0.0)
        for other in tl.static_range(RANKS):
            if other != RANK:
                _post(_room(places, other), side + RANK * apart + row * words, part, turn, size, BLOCK)
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        total = _total(
            parts, places, zero + row, part_stride, side + row * words, apart, turn, size, RANK, RANKS, BLOCK
        )
        _finish(states, weights, out, total, zero + row, stride, size, eps, BLOCK, NORMED, parts.dtype.element_ty)


@triton.jit
def _all_there(own, at, apart, turn, size, KIND: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """float32 [BLOCK]: the sum of all ranks' posts in their order.

    All are polled together until all are of this turn.
    """
    EACH: tl.constexpr = 32 // KIND.primitive_bitwidth
    columns = tl.arange(0, BLOCK // EACH)
    there, nothing = columns < size // EACH, turn.to(tl.int64) << 32
    first, second = tl.zeros((BLOCK // EACH,), tl.float32), tl.zeros((BLOCK // EACH,), tl.float32)
    missing = 1
    while missing > 0:
        posts = ()  # type: tuple
        for other in tl.static_range(RANKS):
            posts = posts + (tl.load(own + at + other * apart + columns, there, other=nothing, volatile=True),)
        first, second = tl.zeros((BLOCK // EACH,), tl.float32), tl.zeros((BLOCK // EACH,), tl.float32)
        late = tl.zeros((BLOCK // EACH,), tl.int32)
        for other in tl.static_range(RANKS):
            late += ((posts[other] >> 32).to(tl.int32) != turn).to(tl.int32)
            words = posts[other].to(tl.int32)
            if EACH == 1:
                first += words.to(KIND, bitcast=True).to(tl.float32)
            else:
                first += words.to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
                second += (words >> 16).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
        missing = tl.sum(late, 0)
    if EACH == 1:
        total = first
    else:
        total = tl.reshape(tl.join(first, second), (BLOCK,))
    return total


@entry
@triton.jit
def of_all(
    states,
    weights,
    out,
    places,
    counted,
    size,
    rows,
    words,
    eps,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORMED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Waits for one row that products of all ranks post (`gemv_all_reduce`), this one's too; then as `to_all`.

    Grid (1,). It uses the places of `to_all`.
    """
    columns, own = tl.arange(0, BLOCK), _room(places, RANK)
    inside = columns < size
    if NORMED:
        weight = tl.load(weights + columns, inside, other=0.0).to(tl.float32)
    turn = _begin(counted, DEPENDENT)
    if NORMED:
        state = tl.load(states + columns, inside, other=0.0).to(tl.float32)
    apart = (tl.full((), 0, tl.int64) + rows) * words
    total = _all_there(own, (turn & 1) * RANKS * apart, apart, turn, size, out.dtype.element_ty, RANKS, BLOCK).to(
        out.dtype.element_ty
    )
    if NORMED:
        stored = (state + total.to(tl.float32)).to(states.dtype.element_ty)
        tl.store(states + columns, stored, inside)
        tl.store(out + columns, _scaled(stored.to(tl.float32), weight, size, eps), inside)
    else:
        tl.store(out + columns, total, inside)


@triton.jit
def _owner(row, RANKS: tl.constexpr):
    """Rows of a program belong to the ranks round-robin, and so do first rows of programs."""
    return (tl.program_id(0) + row // tl.num_programs(0)) % RANKS


@triton.jit
def _slot(row, RANKS: tl.constexpr):
    """A row's position among those that go to the same owner."""
    return row // tl.num_programs(0) // RANKS * tl.num_programs(0) + tl.program_id(0)


@entry
@triton.jit
def by_owners(
    parts,
    states,
    weights,
    out,
    places,
    counted,
    part_stride,
    stride,
    count,
    size,
    slots,
    words,
    eps,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORMED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """A row goes to its owner, and its sum from there to all.

    places: addresses of int64 [RANKS, slots, words] of every rank, followed by [rows, words].
    """
    turn = _begin(counted, DEPENDENT)
    kind: tl.constexpr = parts.dtype.element_ty
    columns, zero = tl.arange(0, BLOCK), tl.full((), 0, tl.int64)
    apart = (zero + slots) * words
    sums = RANKS * apart
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        owner = _owner(row, RANKS)
        if owner != RANK:
            part = tl.load(parts + (zero + row) * part_stride + columns, columns < size, other=0.0)
            _post(_room(places, owner), RANK * apart + (zero + _slot(row, RANKS)) * words, part, turn, size, BLOCK)
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        if _owner(row, RANKS) == RANK:
            total = _total(
                parts,
                places,
                zero + row,
                part_stride,
                (zero + _slot(row, RANKS)) * words,
                apart,
                turn,
                size,
                RANK,
                RANKS,
                BLOCK,
            )
            for other in tl.static_range(RANKS):
                if other != RANK:
                    _post(_room(places, other), sums + (zero + row) * words, total.to(kind), turn, size, BLOCK)
            _finish(states, weights, out, total, zero + row, stride, size, eps, BLOCK, NORMED, kind)
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        if _owner(row, RANKS) != RANK:
            total = _awaited(places, RANK, sums + (zero + row) * words, turn, size, kind, BLOCK).to(tl.float32)
            _finish(states, weights, out, total, zero + row, stride, size, eps, BLOCK, NORMED, kind)
