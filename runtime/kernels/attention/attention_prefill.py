"""Attention of new tokens over KV pages, cached prefix included: causal, with an optional window or chunk.

A program attends one tile: some neighbouring queries of one sequence, times the query heads that share a KV head, as
rows of one matrix. It finds its tile on the device from the starts of the sequences. With `ORDERED` every query goes
through the same operations in the same order whatever else is in its tile: keys in blocks at fixed positions, all of
them masked, summed up in segments between fixed positions, which are merged in order; blocks and segments that a query
does not see leave its sums as they were. So its bits depend on its own tokens, and not on whether one program goes
through all segments of a tile, or one each, of which the last to finish merges what all of them left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch.compile_ahead import entry
from .attention_decode import scales, share, tanh

INDICES = [
    "rows_ptr",
    "starts_ptr",
    "contexts_ptr",
    "table_ptr",
    "sinks_ptr",
]  # parts of larger buffers, with any alignment
EVEN, OCTAVE = 8, 4  # segments of equal length; then segments for each doubling of the position


@triton.jit
def _bound(number, SEGMENT: tl.constexpr):
    """Where segment `number` begins. Its length is an eighth to a quarter of all before it, so few segments go far."""
    octave = tl.maximum(number - 8, 0) // 4
    steps = tl.where(number < 8, number, 8 + (number - 8) % 4 * 2)
    return (steps * SEGMENT) << octave


@triton.jit
def _fold(top, total, result, highest, weight, mixed):
    """Adds the sums of one more segment to those of the segments before it."""
    higher = tl.maximum(top, highest)
    finite = tl.where(higher == float("-inf"), 0.0, higher)
    fade, factor = tl.exp2(top - finite), tl.exp2(highest - finite)
    return higher, total * fade + weight * factor, result * fade[:, None] + mixed * factor[:, None]


@triton.jit
def _block(
    q,
    highest,
    weight,
    mixed,
    block,
    positions,
    lowest,
    context,
    page_row,
    k_base,
    v_base,
    kv_slot,
    scale,
    inner,
    DIM: tl.constexpr,
    DIM_P2: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    CAPPED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    UNSEEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One iteration of the online softmax: the keys from `block` on.

    lowest: the first one that a query sees; rows before it may be anything.
    """
    keys = block + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, DIM_P2)
    if MASKED:
        there = keys < context
        if WINDOW + CHUNK > 0:
            there = there & (keys >= lowest)
        pages = tl.load(page_row + keys // PAGE, mask=there, other=0)
        slots = tl.where(there, pages * PAGE + keys % PAGE, 0).to(tl.int64)  # slot 0 is always zero
    else:
        slots = (tl.load(page_row + keys // PAGE) * PAGE + keys % PAGE).to(tl.int64)
    places = slots[:, None] * kv_slot + dims[None, :]
    if DIM == DIM_P2:
        k = tl.load(k_base + places)
    else:
        k = tl.load(k_base + places, mask=dims[None, :] < DIM, other=0.0)
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    if CAPPED:
        scores = tanh(scores * inner)
    if MASKED:
        seen = keys[None, :] <= positions[:, None]
        if WINDOW > 0:
            seen = seen & (keys[None, :] > positions[:, None] - WINDOW)
        if CHUNK > 0:
            seen = seen & (keys[None, :] >= positions[:, None] // CHUNK * CHUNK)
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, 1) * scale)
    finite = higher
    if UNSEEN:  # a row may have seen nothing yet
        finite = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores * scale - finite[:, None])
    fade = tl.exp2(highest - finite)
    weight = weight * fade + tl.sum(weights, 1)
    if DIM == DIM_P2:
        v = tl.load(v_base + places)
    else:
        v = tl.load(v_base + places, mask=dims[None, :] < DIM, other=0.0)
    mixed = mixed * fade[:, None]
    mixed = tl.dot(weights.to(q.dtype), v.to(q.dtype), mixed, input_precision=PRECISION)
    return higher, weight, mixed


@triton.jit
def _nothing(BLOCK_M: tl.constexpr, DIM_P2: tl.constexpr):
    """Sums over no keys: the highest score, the sum of weights, and the mixed values, not divided yet."""
    return (
        tl.full([BLOCK_M], float("-inf"), tl.float32),
        tl.zeros([BLOCK_M], tl.float32),
        tl.zeros([BLOCK_M, DIM_P2], tl.float32),
    )


@triton.jit
def _first_seen(first_position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """The first key that a tile's first query sees."""
    found = 0
    if WINDOW > 0:
        found = tl.maximum(first_position - WINDOW + 1, 0)
    if CHUNK > 0:
        found = tl.maximum(found, first_position // CHUNK * CHUNK)
    return found


@triton.jit
def _write(result, highest, weight, out_ptr, places, wanted, sinks_ptr, heads, real, v_scale):
    done = result * (v_scale * share(highest, weight, sinks_ptr, heads, real))[:, None]
    tl.store(out_ptr + places, done.to(out_ptr.dtype.element_ty), mask=wanted)


@triton.jit
def _seen(
    q,
    positions,
    lowest,
    begin,
    stop,
    first_position,
    context,
    page_row,
    k_base,
    v_base,
    kv_slot,
    scale,
    inner,
    DIM: tl.constexpr,
    DIM_P2: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    CAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums over the keys from `begin` to `stop`; those that all queries see skip the masks."""
    LIMITED: tl.constexpr = WINDOW + CHUNK > 0
    highest, weight, mixed = _nothing(BLOCK_M, DIM_P2)
    if not LIMITED:
        seen_by_all = (first_position + 1) // BLOCK_N * BLOCK_N
        for block in tl.range(0, seen_by_all, BLOCK_N, num_stages=STAGES):
            highest, weight, mixed = _block(
                q,
                highest,
                weight,
                mixed,
                block,
                positions,
                lowest,
                context,
                page_row,
                k_base,
                v_base,
                kv_slot,
                scale,
                inner,
                DIM,
                DIM_P2,
                PAGE,
                WINDOW,
                CHUNK,
                CAPPED,
                BLOCK_N,
                False,
                False,
                PRECISION,
            )
        begin = seen_by_all
    for block in tl.range(begin, stop, BLOCK_N, num_stages=STAGES):
        highest, weight, mixed = _block(
            q,
            highest,
            weight,
            mixed,
            block,
            positions,
            lowest,
            context,
            page_row,
            k_base,
            v_base,
            kv_slot,
            scale,
            inner,
            DIM,
            DIM_P2,
            PAGE,
            WINDOW,
            CHUNK,
            CAPPED,
            BLOCK_N,
            True,
            LIMITED,
            PRECISION,
        )
    return highest, weight, mixed


@triton.jit
def _in_order(
    q,
    positions,
    lowest,
    begin,
    stop,
    one,
    other,
    context,
    page_row,
    k_base,
    v_base,
    kv_slot,
    scale,
    inner,
    DIM: tl.constexpr,
    DIM_P2: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    CAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEGMENT: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums over segments `one` to `other`, each by itself and then merged in order."""
    top, total, result = _nothing(BLOCK_M, DIM_P2)
    for segment in range(one, other):
        highest, weight, mixed = _nothing(BLOCK_M, DIM_P2)
        from_key = tl.maximum(_bound(segment, SEGMENT), begin)
        to_key = tl.minimum(_bound(segment + 1, SEGMENT), stop)
        for block in tl.range(from_key, to_key, BLOCK_N, num_stages=STAGES):
            highest, weight, mixed = _block(
                q,
                highest,
                weight,
                mixed,
                block,
                positions,
                lowest,
                context,
                page_row,
                k_base,
                v_base,
                kv_slot,
                scale,
                inner,
                DIM,
                DIM_P2,
                PAGE,
                WINDOW,
                CHUNK,
                CAPPED,
                BLOCK_N,
                True,
                True,
                PRECISION,
            )
        top, total, result = _fold(top, total, result, highest, weight, mixed)
    return top, total, result


@triton.jit
def _leave(
    top, total, result, partial_ptr, maxima_ptr, sums_ptr, place, real, BLOCK_M: tl.constexpr, DIM_P2: tl.constexpr
):
    """Sums of a program for the one that merges."""
    members, dims = tl.arange(0, BLOCK_M), tl.arange(0, DIM_P2)
    tl.store(maxima_ptr + place * BLOCK_M + members, top, mask=real)
    tl.store(sums_ptr + place * BLOCK_M + members, total, mask=real)
    tl.store(
        partial_ptr + place.to(tl.int64) * BLOCK_M * DIM_P2 + (members[:, None] * DIM_P2 + dims[None, :]),
        result,
        mask=real[:, None],
    )


@triton.jit
def _merged(
    partial_ptr, maxima_ptr, sums_ptr, first, earliest, latest, real, BLOCK_M: tl.constexpr, DIM_P2: tl.constexpr
):
    """Sums over the segments that programs have left, in their order. first: the place of segment 0."""
    members, dims = tl.arange(0, BLOCK_M), tl.arange(0, DIM_P2)
    whole = members[:, None] * DIM_P2 + dims[None, :]
    top, total, result = _nothing(BLOCK_M, DIM_P2)
    for segment in range(earliest, latest):
        left = first + segment
        highest = tl.load(maxima_ptr + left * BLOCK_M + members, mask=real, other=float("-inf"), cache_modifier=".cg")
        weight = tl.load(sums_ptr + left * BLOCK_M + members, mask=real, other=0.0, cache_modifier=".cg")
        mixed = tl.load(
            partial_ptr + left.to(tl.int64) * BLOCK_M * DIM_P2 + whole,
            mask=real[:, None],
            other=0.0,
            cache_modifier=".cg",
        )
        top, total, result = _fold(top, total, result, highest, weight, mixed)
    return top, total, result


@triton.jit
def _tiles(starts_ptr, first, sequences, SEQUENCES_P2: tl.constexpr, QUERIES: tl.constexpr):
    """Of each sequence."""
    every = tl.arange(0, SEQUENCES_P2)
    inside = every < sequences
    begins = tl.load(starts_ptr + first + every, mask=inside, other=0)
    ends = tl.load(starts_ptr + first + every + 1, mask=inside, other=0)
    return tl.cdiv(ends - begins, QUERIES)


@triton.jit
def _sequence_of(tiles, tile, sequences, SEQUENCES_P2: tl.constexpr):
    """The sequence of a tile that is counted over all of them, and which of its tiles it is."""
    every = tl.arange(0, SEQUENCES_P2)
    last_tiles = tl.cumsum(tiles, 0)
    found = tl.sum(((every < sequences) & (last_tiles <= tile)).to(tl.int32), 0)
    return found, tile - tl.sum(tl.where(every < found, tiles, 0), 0)


@entry
@triton.jit(do_not_specialize=["first", "sequences", "table_row", "parts"], do_not_specialize_on_alignment=INDICES)
def prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    rows_ptr,
    starts_ptr,
    contexts_ptr,
    table_ptr,
    sinks_ptr,
    partial_ptr,
    maxima_ptr,
    sums_ptr,
    counter_ptr,
    first,
    sequences,
    parts,
    scale,
    inner,
    v_scale,
    q_token,
    q_head,
    kv_slot,
    kv_head,
    table_row,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P2: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    CAPPED: tl.constexpr,
    SEQUENCES_P2: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEGMENT: tl.constexpr,
    STAGES: tl.constexpr,
    ORDERED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: tiles * parts * KV_HEADS or more; sequences first .. first + sequences. scale, inner: see attention_decode.

    parts: 1, or with ORDERED the number of a tile's programs, each for one segment.
    """
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    head = tl.program_id(0) % KV_HEADS
    unit = tl.program_id(0) // KV_HEADS
    tiles = _tiles(starts_ptr, first, sequences, SEQUENCES_P2, QUERIES)
    tile = tl.sum(tiles, 0) - 1 - unit // parts  # the last ones first, they see the most keys
    if tile < 0:
        return
    found, tile = _sequence_of(tiles, tile, sequences, SEQUENCES_P2)
    sequence = first + found

    start = tl.load(starts_ptr + sequence)
    queries = tl.load(starts_ptr + sequence + 1) - start
    context = tl.load(contexts_ptr + sequence)
    page_row = table_ptr + tl.load(rows_ptr + sequence).to(tl.int64) * table_row
    k_base = k_ptr + head * kv_head
    v_base = v_ptr + head * kv_head

    members = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM_P2)
    query = tile * QUERIES + members // GROUP
    real = (members // GROUP < QUERIES) & (query < queries)
    tokens = (start + query).to(tl.int64)
    heads = head * GROUP + members % GROUP
    q_places = tokens[:, None] * q_token + heads[:, None] * q_head + dims[None, :]
    wanted = real[:, None] & (dims[None, :] < DIM)
    q = tl.load(q_ptr + q_places, mask=wanted, other=0.0)  # [BLOCK_M, DIM_P2]
    out_places = (tokens * (KV_HEADS * GROUP) + heads)[:, None] * DIM + dims[None, :]

    cached = context - queries
    positions = cached + query  # [BLOCK_M]; beyond the context in padding rows: they see all keys
    first_position = cached + tile * QUERIES
    stop = tl.minimum(context, first_position + QUERIES)
    lowest = _first_seen(first_position, WINDOW, CHUNK)
    begin = lowest
    if WINDOW + CHUNK > 0:
        begin = lowest // BLOCK_N * BLOCK_N
    if not ORDERED:
        highest, weight, mixed = _seen(
            q,
            positions,
            lowest,
            begin,
            stop,
            first_position,
            context,
            page_row,
            k_base,
            v_base,
            kv_slot,
            scale,
            inner,
            DIM,
            DIM_P2,
            PAGE,
            WINDOW,
            CHUNK,
            CAPPED,
            BLOCK_M,
            BLOCK_N,
            STAGES,
            PRECISION,
        )
        _write(mixed, highest, weight, out_ptr, out_places, wanted, sinks_ptr, heads, real, v_scale)
    else:
        numbers = tl.arange(0, 64)
        earliest = tl.sum((_bound(numbers + 1, SEGMENT) <= begin).to(tl.int32), 0)
        latest = tl.sum((_bound(numbers, SEGMENT) < stop).to(tl.int32), 0)
        part = unit % parts
        one = tl.where(parts > 1, tl.maximum(part, earliest), earliest)
        other = tl.where(parts > 1, tl.minimum(part + 1, latest), latest)
        if one >= other:
            return
        top, total, result = _in_order(
            q,
            positions,
            lowest,
            begin,
            stop,
            one,
            other,
            context,
            page_row,
            k_base,
            v_base,
            kv_slot,
            scale,
            inner,
            DIM,
            DIM_P2,
            PAGE,
            WINDOW,
            CHUNK,
            CAPPED,
            BLOCK_M,
            BLOCK_N,
            SEGMENT,
            STAGES,
            PRECISION,
        )
        if other - one == latest - earliest:
            _write(result, top, total, out_ptr, out_places, wanted, sinks_ptr, heads, real, v_scale)
            return

        program = unit // parts * KV_HEADS + head
        _leave(top, total, result, partial_ptr, maxima_ptr, sums_ptr, program * parts + one, real, BLOCK_M, DIM_P2)
        tl.debug_barrier()
        arrived = tl.atomic_add(counter_ptr + program, 1, sem="acq_rel")
        if arrived == latest - earliest - 1:
            tl.debug_barrier()
            top, total, result = _merged(
                partial_ptr, maxima_ptr, sums_ptr, program * parts, earliest, latest, real, BLOCK_M, DIM_P2
            )
            _write(result, top, total, out_ptr, out_places, wanted, sinks_ptr, heads, real, v_scale)
            tl.store(counter_ptr + program, 0)


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """How a prefill launch is divided. rows: queries times group of a tile; block: keys an iteration.

    segment: keys of the first segments of ordered sums, a multiple of block.
    """

    rows: int = 128
    block: int = 64
    warps: int = 4
    stages: int = 3
    segment: int = 512

    def tiles(self, queries: int, group: int) -> int:
        return -(-queries // (self.rows // group))

    def segments(self, context: int) -> int:
        """How many segments so many keys have."""
        pieces, octave = -(-context // self.segment), 0
        while pieces > 2 * EVEN:
            pieces, octave = -(-pieces // 2), octave + 1
        return pieces + OCTAVE * octave if pieces <= EVEN else -(-pieces // 2) + EVEN // 2 + OCTAVE * octave


class PrefillScratch:
    """Partial results of a tile's programs for the last of them, for launches of up to `tiles` tiles; one at a time."""

    def __init__(
        self, tiles: int, parts: int, kv_heads: int, head_dim: int, tile: PrefillTile, device: torch.device
    ) -> None:
        places, dim = tiles * kv_heads * parts, triton.next_power_of_2(head_dim)
        self.tiles, self.parts = tiles, parts
        self.partial = torch.empty(places, tile.rows, dim, dtype=torch.float32, device=device)
        self.maxima = torch.empty(places, tile.rows, dtype=torch.float32, device=device)
        self.sums = torch.empty_like(self.maxima)
        self.counters = torch.zeros(tiles, kv_heads, dtype=torch.int32, device=device)


def prefill(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    rows: Tensor,
    starts: Tensor,
    contexts: Tensor,
    table: Tensor,
    *,
    first: int,
    sequences: int,
    most_sequences: int,
    tiles: int,
    page_size: int,
    window: int | None,
    scale: float,
    k_scale: float,
    v_scale: float,
    tile: PrefillTile,
    ordered: PrefillScratch | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> None:
    """out of the tokens of sequences first .. first + sequences: each token sees its sequence up to itself.

    q, out: [T, query_heads, head_dim], out contiguous.  keys, values: [slots, kv_heads, head_dim].
    rows, contexts: int32 [S].  starts: int32 [S + 1].  table: int32 [rows, pages].
    tiles: at least what these sequences need.  most_sequences: bound of `sequences`, fixes the compiled kernel.
    chunk, softcap, sinks: see `LayerAttention` and `AttentionBackend.attend`.
    ordered: bits that depend on a query's own tokens; the scratch has a part for each segment of the longest context.
    """
    kv_heads, head_dim = keys.shape[1], keys.shape[2]
    parts = ordered.parts if ordered and tiles <= ordered.tiles else 1
    outer, inner = scales(scale * k_scale, softcap)
    scratch = (ordered.partial, ordered.maxima, ordered.sums, ordered.counters) if ordered else (None,) * 4
    prefill_kernel[(tiles * parts * kv_heads,)](
        q,
        keys,
        values,
        out,
        rows,
        starts,
        contexts,
        table,
        sinks,
        *scratch,
        first,
        sequences,
        parts,
        outer,
        inner,
        v_scale,
        q.stride(0),
        q.stride(1),
        keys.stride(0),
        keys.stride(1),
        table.stride(0),
        KV_HEADS=kv_heads,
        GROUP=q.shape[1] // kv_heads,
        DIM=head_dim,
        DIM_P2=triton.next_power_of_2(head_dim),
        PAGE=page_size,
        WINDOW=window or 0,
        CHUNK=chunk or 0,
        CAPPED=softcap is not None,
        SEQUENCES_P2=max(2, triton.next_power_of_2(max(most_sequences, sequences))),
        BLOCK_M=tile.rows,
        BLOCK_N=tile.block,
        SEGMENT=tile.segment,
        STAGES=tile.stages,
        ORDERED=ordered is not None,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        enable_fp_fusion=ordered is None,
    )
