"""Latent attention over pages: a row is the key of all heads, and its first numbers are their value; it is loaded once.

A decode's keys are split over programs as in `attention_decode`: items are distributed on the device in proportion to
the contexts, each program leaves its partial result in scratch, and the last one of a sequence merges them in order.
For other sequences, heads of new tokens, token by token, are divided into tiles. One program attends each tile from the
first key on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch.compile_ahead import entry
from .attention_decode import LOG2E, dealt, own

INDICES = ["rows_ptr", "starts_ptr", "contexts_ptr", "table_ptr"]  # parts of larger buffers, with any alignment
LEAST = 16  # numbers that a product on tensor cores sums up


@triton.jit
def _load(base, places, numbers, SIZE: tl.constexpr, SIZE_P2: tl.constexpr):
    if SIZE == SIZE_P2:
        found = tl.load(base + places)
    else:
        found = tl.load(base + places, mask=numbers < SIZE, other=0.0)
    return found


@triton.jit
def _turn(
    q,
    q_turned,
    highest,
    weight,
    mixed,
    keys,
    positions,
    context,
    page_row,
    pool_ptr,
    pool_row,
    scale,
    RANK: tl.constexpr,
    RANK_P2: tl.constexpr,
    TURNED: tl.constexpr,
    TURNED_P2: tl.constexpr,
    PAGE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One iteration of the online softmax, over the rows of `keys`. positions: [BLOCK_M], of the queries."""
    there = keys < context
    pages = tl.load(page_row + keys // PAGE, mask=there, other=0)
    slots = tl.where(there, pages * PAGE + keys % PAGE, 0).to(tl.int64)  # slot 0 is always zero
    numbers, behind = tl.arange(0, RANK_P2)[None, :], tl.arange(0, TURNED_P2)[None, :]
    latents = _load(pool_ptr, slots[:, None] * pool_row + numbers, numbers, RANK, RANK_P2).to(q.dtype)
    turned = _load(pool_ptr, slots[:, None] * pool_row + RANK + behind, behind, TURNED, TURNED_P2).to(q.dtype)
    scores = tl.dot(q, tl.trans(latents), input_precision=PRECISION)
    scores = tl.dot(q_turned, tl.trans(turned), scores, input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    scores = tl.where(there[None, :] & (keys[None, :] <= positions[:, None]), scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    fade = tl.exp2(highest - higher)
    weight = weight * fade + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(q.dtype), latents, mixed * fade[:, None], input_precision=PRECISION)
    return higher, weight, mixed


@entry
@triton.jit(do_not_specialize=["sequences", "table_row"], do_not_specialize_on_alignment=INDICES)
def decode_kernel(
    q_ptr,
    pool_ptr,
    out_ptr,
    rows_ptr,
    contexts_ptr,
    table_ptr,
    partial_ptr,
    maxima_ptr,
    sums_ptr,
    counter_ptr,
    sequences,
    extra,
    scale,
    row_scale,
    q_token,
    q_head,
    pool_row,
    table_row,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    RANK: tl.constexpr,
    RANK_P2: tl.constexpr,
    TURNED: tl.constexpr,
    TURNED_P2: tl.constexpr,
    PAGE: tl.constexpr,
    SEQUENCES_P2: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SHORTEST: tl.constexpr,
    MERGED: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: (sequences + extra) * GROUPS, a group of BLOCK_M heads each.

    scale: of the scores, to base 2, with the rows'.
    """
    group = tl.program_id(0) % GROUPS
    item = tl.program_id(0) // GROUPS

    every = tl.arange(0, SEQUENCES_P2)
    lengths = tl.load(contexts_ptr + every, mask=every < sequences, other=0)
    worth = tl.sqrt(lengths.to(tl.float32) * MERGED).to(
        tl.int32
    )  # the length of an item for which reading it takes as long as merging all
    each = tl.maximum(tl.maximum(tl.cdiv(tl.sum(lengths, 0), extra), SHORTEST), worth)
    items, sequence = dealt(lengths, each, item, sequences, SEQUENCES_P2)
    if sequence >= sequences:
        return
    first_item, own_items = own(items, sequence, SEQUENCES_P2)

    context = tl.load(contexts_ptr + sequence)
    run = tl.cdiv(tl.cdiv(context, own_items), BLOCK_N) * BLOCK_N
    live = tl.cdiv(context, run)
    begin = (item - first_item) * run
    if begin >= context:
        return
    end = tl.minimum(begin + run, context)

    page_row = table_ptr + tl.load(rows_ptr + sequence).to(tl.int64) * table_row
    members = tl.arange(0, BLOCK_M)
    heads = group * BLOCK_M + members
    real, numbers, behind = heads[:, None] < HEADS, tl.arange(0, RANK_P2)[None, :], tl.arange(0, TURNED_P2)[None, :]
    q_places = sequence * q_token + heads[:, None] * q_head
    q = tl.load(q_ptr + q_places + numbers, mask=real & (numbers < RANK), other=0.0)
    q_turned = tl.load(q_ptr + q_places + RANK + behind, mask=real & (behind < TURNED), other=0.0)

    positions = tl.zeros([BLOCK_M], tl.int32) + (context - 1)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, RANK_P2], tl.float32)
    for block in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        highest, weight, mixed = _turn(
            q,
            q_turned,
            highest,
            weight,
            mixed,
            block + tl.arange(0, BLOCK_N),
            positions,
            end,
            page_row,
            pool_ptr,
            pool_row,
            scale,
            RANK,
            RANK_P2,
            TURNED,
            TURNED_P2,
            PAGE,
            PRECISION,
        )

    out_places = (sequence * HEADS + heads[:, None]) * RANK + numbers
    wanted = real & (numbers < RANK)
    if live == 1:
        done = mixed * (row_scale / weight)[:, None]
        tl.store(out_ptr + out_places, done.to(out_ptr.dtype.element_ty), mask=wanted)
        return

    place = item * GROUPS + group
    tile = members[:, None] * RANK_P2 + numbers
    tl.store(maxima_ptr + place * BLOCK_M + members, highest)
    tl.store(sums_ptr + place * BLOCK_M + members, weight)
    tl.store(partial_ptr + place.to(tl.int64) * BLOCK_M * RANK_P2 + tile, mixed)
    tl.debug_barrier()
    arrived = tl.atomic_add(counter_ptr + sequence * GROUPS + group, 1, sem="acq_rel")
    if arrived == live - 1:
        tl.debug_barrier()
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        result = tl.zeros([BLOCK_M, RANK_P2], tl.float32)
        for split in tl.range(0, live, num_stages=2):
            left = (first_item + split) * GROUPS + group
            maxima = tl.load(maxima_ptr + left * BLOCK_M + members, cache_modifier=".cg")
            sums = tl.load(sums_ptr + left * BLOCK_M + members, cache_modifier=".cg")
            sums_of_rows = tl.load(partial_ptr + left.to(tl.int64) * BLOCK_M * RANK_P2 + tile, cache_modifier=".cg")
            higher = tl.maximum(top, maxima)
            fade, factor = tl.exp2(top - higher), tl.exp2(maxima - higher)
            total = total * fade + sums * factor
            result = result * fade[:, None] + sums_of_rows * factor[:, None]
            top = higher
        done = result * (row_scale / total)[:, None]
        tl.store(out_ptr + out_places, done.to(out_ptr.dtype.element_ty), mask=wanted)
        tl.store(counter_ptr + sequence * GROUPS + group, 0)


@entry
@triton.jit(do_not_specialize=["first", "sequences", "table_row"], do_not_specialize_on_alignment=INDICES)
def extend_kernel(
    q_ptr,
    pool_ptr,
    out_ptr,
    rows_ptr,
    starts_ptr,
    contexts_ptr,
    table_ptr,
    first,
    sequences,
    scale,
    row_scale,
    q_token,
    q_head,
    pool_row,
    table_row,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    RANK_P2: tl.constexpr,
    TURNED: tl.constexpr,
    TURNED_P2: tl.constexpr,
    PAGE: tl.constexpr,
    SEQUENCES_P2: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: tiles or more, of the sequences first .. first + sequences. scale: see `decode_kernel`."""
    # Which tile of which sequence: the last ones first, they see the most keys.
    all_sequences = tl.arange(0, SEQUENCES_P2)
    inside = all_sequences < sequences
    begins = tl.load(starts_ptr + first + all_sequences, mask=inside, other=0)
    ends = tl.load(starts_ptr + first + all_sequences + 1, mask=inside, other=0)
    tiles = tl.cdiv((ends - begins) * HEADS, BLOCK_M)
    tile = tl.sum(tiles, 0) - 1 - tl.program_id(0)
    if tile < 0:
        return
    found = tl.sum((inside & (tl.cumsum(tiles, 0) <= tile)).to(tl.int32), 0)
    tile -= tl.sum(tl.where(all_sequences < found, tiles, 0), 0)
    sequence = first + found

    start = tl.load(starts_ptr + sequence)
    queries = tl.load(starts_ptr + sequence + 1) - start
    context = tl.load(contexts_ptr + sequence)
    page_row = table_ptr + tl.load(rows_ptr + sequence).to(tl.int64) * table_row
    members = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    query, heads = members // HEADS, members % HEADS
    real, numbers, behind = query[:, None] < queries, tl.arange(0, RANK_P2)[None, :], tl.arange(0, TURNED_P2)[None, :]
    tokens = (start + query).to(tl.int64)
    q_places = tokens[:, None] * q_token + heads[:, None] * q_head
    q = tl.load(q_ptr + q_places + numbers, mask=real & (numbers < RANK), other=0.0)
    q_turned = tl.load(q_ptr + q_places + RANK + behind, mask=real & (behind < TURNED), other=0.0)
    positions = context - queries + query  # beyond the context in padding rows: they see all keys
    last = tl.minimum(queries, (tile * BLOCK_M + BLOCK_M - 1) // HEADS + 1)
    stop = context - queries + last

    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, RANK_P2], tl.float32)
    for block in tl.range(0, stop, BLOCK_N, num_stages=STAGES):
        highest, weight, mixed = _turn(
            q,
            q_turned,
            highest,
            weight,
            mixed,
            block + tl.arange(0, BLOCK_N),
            positions,
            stop,
            page_row,
            pool_ptr,
            pool_row,
            scale,
            RANK,
            RANK_P2,
            TURNED,
            TURNED_P2,
            PAGE,
            PRECISION,
        )
    done = mixed * (row_scale / weight)[:, None]
    out_places = (tokens * HEADS + heads)[:, None] * RANK + numbers
    tl.store(out_ptr + out_places, done.to(out_ptr.dtype.element_ty), mask=real & (numbers < RANK))


@dataclass(frozen=True, slots=True)
class LatentTile:
    """How a launch is divided. rows: heads of a decode, or heads times queries; block: keys an iteration.

    shortest: keys that justify a separate item; programs: how many the extra items of decodes add (about); merged: keys
        that are read in the time that merging one item takes.
    """

    rows: int = 16
    block: int = 32
    shortest: int = 64
    programs: int = 264
    warps: int = 4
    stages: int = 5  # rows are prefetched during the computation from five on: their slots are prefetched as well
    merged: int = 12

    def groups(self, heads: int) -> int:
        return -(-heads // self.rows)

    def extra(self, heads: int) -> int:
        return max(1, self.programs // self.groups(heads))

    def tiles(self, queries: int, heads: int) -> int:
        return -(-queries * heads // self.rows)


class LatentScratch:
    """Partial results and counters of launches of up to `sequences` decodes; one launch at a time uses it."""

    def __init__(self, sequences: int, heads: int, rank: int, tile: LatentTile, device: torch.device) -> None:
        places = (sequences + tile.extra(heads)) * tile.groups(heads)
        self.sequences = sequences
        self.partial = torch.empty(places, tile.rows, _padded(rank), dtype=torch.float32, device=device)
        self.maxima = torch.empty(places, tile.rows, dtype=torch.float32, device=device)
        self.sums = torch.empty_like(self.maxima)
        self.counters = torch.zeros(sequences, tile.groups(heads), dtype=torch.int32, device=device)


def decode(
    q: Tensor,
    pool: Tensor,
    out: Tensor,
    rows: Tensor,
    contexts: Tensor,
    table: Tensor,
    *,
    page_size: int,
    scale: float,
    row_scale: float,
    scratch: LatentScratch,
    tile: LatentTile,
) -> None:
    """out[s] = attention of q[s] over the first contexts[s] positions of sequence s, for s < len(contexts).

    q: [S or more, heads, rank + turned].  pool: [slots, 1, rank + turned].  out: [S or more, heads, rank], contiguous.
    rows, contexts: int32 [S].  table: int32 [rows, pages].  row_scale: factor of stored numbers.
    """
    sequences, heads = len(contexts), q.shape[1]
    if sequences > scratch.sequences:
        raise ValueError(f"{sequences} decodes in one step, scratch holds {scratch.sequences}; raise max_running")
    extra, groups = tile.extra(heads), tile.groups(heads)
    decode_kernel[((sequences + extra) * groups,)](
        q,
        pool,
        out,
        rows,
        contexts,
        table,
        scratch.partial,
        scratch.maxima,
        scratch.sums,
        scratch.counters,
        sequences,
        extra,
        scale * row_scale * LOG2E,
        row_scale,
        q.stride(0),
        q.stride(1),
        pool.stride(0),
        table.stride(0),
        GROUPS=groups,
        SEQUENCES_P2=1 if sequences == 1 else max(2, triton.next_power_of_2(scratch.sequences)),
        SHORTEST=tile.shortest,
        MERGED=tile.merged,
        **_sizes(q, out, page_size, tile),
    )


def extend(
    q: Tensor,
    pool: Tensor,
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
    scale: float,
    row_scale: float,
    tile: LatentTile,
) -> None:
    """out of the tokens of sequences first .. first + sequences: each token sees its sequence up to itself.

    q, pool, out, row_scale: see `decode`; q and out are of all tokens.  rows, contexts: int32 [S].  starts: int32 [S +
        1].
    tiles: at least what these sequences need.  most_sequences: bound of `sequences`, fixes the compiled kernel.
    """
    extend_kernel[(tiles,)](
        q,
        pool,
        out,
        rows,
        starts,
        contexts,
        table,
        first,
        sequences,
        scale * row_scale * LOG2E,
        row_scale,
        q.stride(0),
        q.stride(1),
        pool.stride(0),
        table.stride(0),
        SEQUENCES_P2=max(2, triton.next_power_of_2(max(most_sequences, sequences))),
        **_sizes(q, out, page_size, tile),
    )


def _sizes(q: Tensor, out: Tensor, page_size: int, tile: LatentTile) -> dict[str, object]:
    """The sizes that both kernels are compiled for."""
    rank, turned = out.shape[2], q.shape[2] - out.shape[2]
    return {
        "HEADS": q.shape[1],
        "RANK": rank,
        "RANK_P2": _padded(rank),
        "TURNED": turned,
        "TURNED_P2": _padded(turned),
        "PAGE": page_size,
        "BLOCK_M": tile.rows,
        "BLOCK_N": tile.block,
        "STAGES": tile.stages,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": tile.warps,
    }


def _padded(size: int) -> int:
    return max(LEAST, triton.next_power_of_2(size))
