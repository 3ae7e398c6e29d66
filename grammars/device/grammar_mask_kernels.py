"""Triton kernels of constrained decoding: advance states by tokens, work out mask rows, apply them to logits.

None waits for the host or allocates, so that a CUDA graph may hold them all. The tables are in
`device/device_grammar_tables.py`, which launches the kernels; `device/device_state_codes.py` names the numbers. With
TRITON_INTERPRET=1 they run on the CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sgl.grammars.device import device_state_codes

LANES = tl.constexpr(device_state_codes.LANES)
DEAD, UNKNOWN = tl.constexpr(device_state_codes.DEAD), tl.constexpr(device_state_codes.UNKNOWN)
FREE, ENDED = tl.constexpr(device_state_codes.FREE), tl.constexpr(device_state_codes.ENDED)
NO_ROW, CLAIMED = tl.constexpr(device_state_codes.NO_ROW), tl.constexpr(device_state_codes.CLAIMED)
NO_MASK, BLOCKED = tl.constexpr(device_state_codes.NO_MASK), tl.constexpr(device_state_codes.BLOCKED)
NO_TOKEN = tl.constexpr(device_state_codes.NO_TOKEN)
NO_PLACE, END_PLACE = tl.constexpr(device_state_codes.NO_PLACE), tl.constexpr(device_state_codes.END_PLACE)
SEEN, UNSEEN, REFUSED = (
    tl.constexpr(device_state_codes.SEEN),
    tl.constexpr(device_state_codes.UNSEEN),
    tl.constexpr(device_state_codes.REFUSED),
)


@triton.jit
def _forbid_all(logits, first, width, BLOCK: tl.constexpr):
    ids = first + tl.arange(0, BLOCK)
    tl.store(logits + ids, tl.full((BLOCK,), float("-inf"), logits.dtype.element_ty), ids < width)


@triton.jit
def _forbid_some(logits, mask, first, width, row_words, BLOCK: tl.constexpr, PIECE: tl.constexpr):
    """Piece by piece, one logit a thread, so that a warp's stores are coalesced."""
    for piece in tl.static_range(BLOCK // PIECE):
        ids = first + piece * PIECE + tl.arange(0, PIECE)
        word = tl.load(mask + ids // 32, ids // 32 < row_words, other=0)
        forbidden = (word >> (ids % 32)) & 1 == 0
        tl.store(logits + ids, float("-inf"), forbidden & (ids < width))


@triton.jit
def apply_masks(logits, rows, masks, width, row_words, stride, BLOCK: tl.constexpr, PIECE: tl.constexpr):
    """-inf where a sequence's mask row has no bit; grid (ceil(width / BLOCK), sequences)."""
    sequence = tl.program_id(1)
    row = tl.load(rows + sequence)
    if row >= 0:
        first = tl.program_id(0) * BLOCK
        mask = masks + row.to(tl.int64) * row_words
        start = logits + sequence.to(tl.int64) * stride
        at = first // 32 + tl.arange(0, BLOCK // 32)
        allowed = tl.load(mask + at, at < row_words, other=0) != 0
        if tl.max(allowed.to(tl.int32), 0) == 0:
            _forbid_all(start, first, width, BLOCK)
        else:
            _forbid_some(start, mask, first, width, row_words, BLOCK, PIECE)


@triton.jit
def _walk_bytes(state, place, walking, lengths, offsets, words, transitions):
    """The states after the tokens at some places, each walked from its own state."""
    block = tl.where(walking, place // LANES, 0)
    length = tl.load(lengths + block, walking, other=0)
    first = words + tl.load(offsets + block, walking, other=0) + place % LANES
    longest = tl.max(length, 0)
    i = 0
    while i < longest:
        inside = (i < length) & (state >= 0)
        quad = tl.load(first + i // 4 * LANES, inside, other=0)
        byte = (quad >> (8 * (i % 4))) & 255
        target = tl.load(transitions + state * 256 + byte, inside, other=DEAD)
        state = tl.where(inside, target, state)
        i += 1
    return state


@triton.jit
def _move(state, token, moving, size, places, lengths, offsets, words, transitions, finals):
    """The states after some tokens: DEAD where one is not allowed, UNKNOWN where a row is not on the device."""
    known = moving & (token >= 0) & (token < size)
    place = tl.load(places + token, known, other=NO_PLACE)
    walking = place >= 0
    target = _walk_bytes(tl.where(walking, state, DEAD), place, walking, lengths, offsets, words, transitions)
    ending = place == END_PLACE
    final = tl.load(finals + state, ending, other=0)
    end = tl.where(final > 0, ENDED, tl.where(final == UNKNOWN, UNKNOWN, DEAD))
    return tl.where(ending, end, target)


@triton.jit
def _claim_rows(alike, most_rows, rows_of, row_states, incomplete, counters):
    """Number a row for each state that has none; the first of equal states wins.

    Rows are numbered one after another: those from counters[0] to counters[1] are to be worked out.
    """
    before = tl.atomic_max(rows_of + alike, CLAIMED, mask=alike >= 0)
    winner = (alike >= 0) & (before == NO_ROW)
    count = tl.load(counters + 1)
    row = count + tl.cumsum(winner.to(tl.int32), 0) - 1
    fits = winner & (row < most_rows)
    tl.store(rows_of + alike, tl.where(fits, row, NO_ROW), winner)
    tl.store(row_states + row, alike, fits)
    tl.store(incomplete + row, 0, fits)
    tl.debug_barrier()
    tl.store(counters, count)
    tl.store(counters + 1, tl.minimum(count + tl.sum(winner.to(tl.int32), 0), most_rows))


@triton.jit
def advance(
    states,
    tokens,
    misses,
    stuck,
    count,
    size,
    most_rows,
    places,
    lengths,
    offsets,
    words,
    transitions,
    finals,
    canonical,
    rows_of,
    row_states,
    incomplete,
    counters,
    BLOCK: tl.constexpr,
):
    """Move `count` sequences by a token each and number the rows they need; one program, BLOCK >= count.

    A sequence with a miss stands still until the host has put it right.
    """
    at = tl.arange(0, BLOCK)
    state = tl.load(states + at, at < count, other=FREE)
    token = tl.load(tokens + at, at < count, other=NO_TOKEN).to(tl.int32)
    miss = tl.load(misses + at, at < count, other=SEEN)
    moving = (state >= 0) & (miss == SEEN) & (token != NO_TOKEN)
    target = _move(state, token, moving, size, places, lengths, offsets, words, transitions, finals)
    missed = tl.where(target >= 0, SEEN, tl.where(target == DEAD, REFUSED, UNSEEN))
    miss = tl.where(moving, missed, miss)
    state = tl.where(moving & (target >= 0), target, state)
    tl.store(states + at, state, at < count)
    tl.store(misses + at, miss, at < count)
    tl.store(stuck + at, token, moving & (target < 0))
    alike = tl.load(canonical + state, (state >= 0) & (miss == SEEN), other=UNKNOWN)
    _claim_rows(alike, most_rows, rows_of, row_states, incomplete, counters)


@triton.jit
def _walk_block(start, block, lengths, offsets, words, transitions):
    """The states after the tokens of one block, all from one state; stops early when none is left."""
    length = tl.load(lengths + block)
    nothing = tl.zeros((LANES,), tl.int32)
    first = words + tl.load(offsets + block) + tl.arange(0, LANES)
    state = start + nothing
    alive = start
    i = 0
    while (i < length) & (alive >= 0):
        quad = tl.load(first + i // 4 * LANES)
        for k in tl.static_range(4):
            inside = (state >= 0) & (i + k + nothing < length)
            target = tl.load(transitions + state * 256 + ((quad >> (8 * k)) & 255), inside, other=DEAD)
            state = tl.where(inside, target, state)
        alive = tl.max(state, 0)
        i += 4
    return state


@triton.jit
def walk_tokens(counters, row_states, incomplete, blocks, lengths, offsets, words, transitions, bits):
    """For each row to be worked out and each token whether it is allowed, in the order of the token blocks.

    bits: int32 [sequences, blocks * LANES / 32]. A row is incomplete where an UNKNOWN target was met. Any grid.
    """
    done = tl.load(counters)
    span: tl.constexpr = LANES // 32
    lane = tl.arange(0, 32)[None, :]
    for item in range(tl.program_id(0), (tl.load(counters + 1) - done) * blocks, tl.num_programs(0)):
        row, block = done + item // blocks, item % blocks
        state = _walk_block(tl.load(row_states + row), block, lengths, offsets, words, transitions)
        allowed = tl.reshape((state >= 0).to(tl.int32), (span, 32))
        at = (item // blocks * blocks + block) * span + tl.arange(0, span)
        tl.store(bits + at, tl.sum(allowed << lane, 1))
        if tl.min(state, 0) == UNKNOWN:
            tl.store(incomplete + row, 1)


@triton.jit
def _look_up(states, misses, rows, count, canonical, rows_of, incomplete, BLOCK: tl.constexpr):
    """The row of each sequence; BLOCKED, and a miss, where it has none."""
    at = tl.arange(0, BLOCK)
    state = tl.load(states + at, at < count, other=FREE)
    miss = tl.load(misses + at, at < count, other=SEEN)
    constrained = (state >= 0) & (miss == SEEN)
    alike = tl.load(canonical + state, constrained, other=UNKNOWN)
    row = tl.load(rows_of + alike, alike >= 0, other=NO_ROW)
    whole = tl.load(incomplete + row, row >= 0, other=1) == 0
    tl.store(misses + at, tl.where(constrained & (whole == 0), UNSEEN, miss), at < count)
    tl.store(rows + at, tl.where(state < 0, NO_MASK, tl.where(whole, row, BLOCKED)), at < count)


@triton.jit
def order_rows(
    counters,
    row_states,
    finals,
    places,
    bits,
    blocks,
    masks,
    size,
    row_words,
    states,
    misses,
    rows,
    count,
    canonical,
    rows_of,
    incomplete,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Write the rows just walked in the order of token ids, and look up the row of each sequence. Any grid."""
    done = tl.load(counters)
    chunks = tl.cdiv(size, TOKENS)
    lane = tl.arange(0, 32)[None, :]
    for item in range(tl.program_id(0), (tl.load(counters + 1) - done) * chunks, tl.num_programs(0)):
        row, chunk = done + item // chunks, item % chunks
        ids = chunk * TOKENS + tl.arange(0, TOKENS)
        place = tl.load(places + ids, ids < size, other=NO_PLACE)
        word = tl.load(bits + item // chunks * blocks * (LANES // 32) + place // 32, place >= 0, other=0)
        final = tl.load(finals + tl.load(row_states + row)) > 0
        bit = ((word >> (place & 31)) & 1) | ((place == END_PLACE) & final).to(tl.int32)
        at = chunk * (TOKENS // 32) + tl.arange(0, TOKENS // 32)
        packed = tl.sum(tl.reshape(bit, (TOKENS // 32, 32)) << lane, 1)
        tl.store(masks + row.to(tl.int64) * row_words + at, packed, at < row_words)
    if tl.program_id(0) == 0:
        _look_up(states, misses, rows, count, canonical, rows_of, incomplete, BLOCK)
