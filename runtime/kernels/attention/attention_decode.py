"""Decode attention over KV pages: one query token per sequence, the keys split over programs, merged by the last one.

A launch has a fixed number of items for its batch size: one per sequence and `extra` more, distributed on the device in
proportion to the contexts. So nothing depends on the host's knowledge of the contexts, and a captured graph stays
valid as they grow. An item is a run of keys of one sequence; its program for a KV head attends the group's query
heads as rows of one tile. A sequence of one item is written at once. With several, each program leaves its partial
result in scratch and increments a counter; the last one merges them in order and sets the counter back to zero.

The compiled kernel depends only on the model, the page size, and whether there is one sequence or more.
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

INDICES = [
    "rows_ptr",
    "contexts_ptr",
    "table_ptr",
    "skip_ptr",
    "sinks_ptr",
]  # parts of larger buffers, with any alignment
LOG2E = 1.4426950408889634


def scales(scale: float, softcap: float | None) -> tuple[float, float]:
    """How a kernel computes logarithms to base 2 of weights from products: outer * product; returns outer, inner.

    With a cap: outer * tanh(inner * product).
    """
    if softcap is None:
        return scale * LOG2E, 1.0
    return softcap * LOG2E, scale / softcap


@triton.jit
def tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def share(highest, weight, sinks_ptr, heads, real):
    """The factor of the mixed values: 1 / the sum of all weights, including each head's sink if it has one.

    weight: the sum of the keys' weights, 2 ** (score - highest).
    """
    if sinks_ptr is None:
        found = 1.0 / weight
    else:
        sinks = tl.load(sinks_ptr + heads, mask=real, other=0.0) * 1.4426950408889634
        top = tl.maximum(highest, sinks)
        fade = tl.exp2(highest - top)
        found = fade / (weight * fade + tl.exp2(sinks - top))
    return found


@triton.jit
def dealt(lengths, each, item, sequences, SEQUENCES_P2: tl.constexpr):
    """How many items each sequence has, of about `each` keys, and whose the item is: `sequences` or more if unused.

    All of them together are at most the number of sequences plus the sum of lengths divided by `each`. A single
    sequence has no longer ones.
    """
    if SEQUENCES_P2 == 1:
        items = tl.maximum((lengths + each - 1) // each, 1)
    else:
        items = tl.maximum((lengths + each // 2) // each, 1)
    items = tl.where(tl.arange(0, SEQUENCES_P2) < sequences, items, 0)
    ends = tl.cumsum(items, 0)
    return items, tl.sum((ends <= item).to(tl.int32), 0)


@triton.jit
def own(items, sequence, SEQUENCES_P2: tl.constexpr):
    """A sequence's first item, and how many it has."""
    every = tl.arange(0, SEQUENCES_P2)
    return tl.sum(tl.where(every < sequence, items, 0), 0), tl.sum(tl.where(every == sequence, items, 0), 0)


@triton.jit
def _lengths(
    contexts_ptr,
    skip_ptr,
    sequences,
    SEQUENCES_P2: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Keys that each sequence sees."""
    every = tl.arange(0, SEQUENCES_P2)
    lengths = tl.load(contexts_ptr + every, mask=every < sequences, other=0)
    if skip_ptr is not None:
        lengths -= tl.load(skip_ptr + every, mask=every < sequences, other=0) * PAGE
    if CHUNK > 0:
        lengths = tl.minimum(lengths, (lengths + CHUNK - 1) % CHUNK + 1)
    if WINDOW > 0:
        lengths = tl.minimum(lengths, WINDOW)
    return lengths


@triton.jit
def _first_seen(context, sequence, skip_ptr, PAGE: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """The first key that a sequence's newest token sees."""
    start = 0
    if skip_ptr is not None:
        start = tl.load(skip_ptr + sequence) * PAGE
    if WINDOW > 0:
        start = tl.maximum(context - WINDOW, 0)
    if CHUNK > 0:
        start = tl.maximum(start, (context - 1) // CHUNK * CHUNK)
    return start


@triton.jit
def _heads_of(base, places, dims, DIM: tl.constexpr, DIM_P2: tl.constexpr):
    if DIM == DIM_P2:
        found = tl.load(base + places)
    else:
        found = tl.load(base + places, mask=dims[None, :] < DIM, other=0.0)
    return found


@triton.jit
def _turn(
    q,
    highest,
    weight,
    mixed,
    keys,
    end,
    page_row,
    k_base,
    v_base,
    kv_slot,
    scale,
    inner,
    DIM: tl.constexpr,
    DIM_P2: tl.constexpr,
    PAGE: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One iteration of the online softmax, over `keys`."""
    dims, seen = tl.arange(0, DIM_P2), keys < end
    pages = tl.load(page_row + keys // PAGE, mask=seen, other=0)
    slots = tl.where(seen, pages * PAGE + keys % PAGE, 0).to(tl.int64)  # slot 0 is always zero
    places = slots[:, None] * kv_slot + dims[None, :]
    k = _heads_of(k_base, places, dims, DIM, DIM_P2)
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    if CAPPED:
        scores = tanh(scores * inner)
    scores = tl.where(seen[None, :], scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    fade = tl.exp2(highest - higher)
    weight = weight * fade + tl.sum(weights, 1)
    v = _heads_of(v_base, places, dims, DIM, DIM_P2)
    mixed = mixed * fade[:, None]
    mixed = tl.dot(weights.to(q.dtype), v.to(q.dtype), mixed, input_precision=PRECISION)
    return higher, weight, mixed


@triton.jit
def _merged(
    partial_ptr,
    maxima_ptr,
    sums_ptr,
    first_item,
    live,
    head,
    KV_HEADS: tl.constexpr,
    GROUP_P2: tl.constexpr,
    DIM_P2: tl.constexpr,
    MERGED: tl.constexpr,
):
    """The merged partial results of a sequence's items, MERGED at a time.

    Returns the mixed values, not divided yet, the highest score and the sum of weights.
    """
    few, splits, dims = tl.arange(0, GROUP_P2), tl.arange(0, MERGED), tl.arange(0, DIM_P2)
    top = tl.full([GROUP_P2], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_P2], tl.float32)
    result = tl.zeros([GROUP_P2, DIM_P2], tl.float32)
    for chunk in range(0, live, MERGED):
        there = chunk + splits < live
        whose = ((first_item + chunk + splits) * KV_HEADS + head)[:, None] * GROUP_P2 + few[None, :]
        maxima = tl.load(maxima_ptr + whose, mask=there[:, None], other=float("-inf"), cache_modifier=".cg")
        sums = tl.load(sums_ptr + whose, mask=there[:, None], other=0.0, cache_modifier=".cg")
        tiles = tl.load(
            partial_ptr + whose[:, :, None] * DIM_P2 + dims[None, None, :],
            mask=there[:, None, None],
            other=0.0,
            cache_modifier=".cg",
        )
        new_top = tl.maximum(top, tl.max(maxima, 0))
        factors = tl.exp2(maxima - new_top[None, :])
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.sum(sums * factors, 0)
        result = result * fade[:, None] + tl.sum(tiles * factors[:, :, None], 0)
        top = new_top
    return result, top, total


@triton.jit
def _write(
    result,
    highest,
    weight,
    out_ptr,
    lse_ptr,
    sinks_ptr,
    v_scale,
    sequence,
    head,
    members,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P2: tl.constexpr,
):
    """The attention output of the heads of a group, and if requested the logarithms of their weights' sums.

    members: rows of `result`.
    """
    dims, real = tl.arange(0, DIM_P2), members < GROUP
    shares = share(highest, weight, sinks_ptr, head * GROUP + members, real)
    done = result * (v_scale * shares)[:, None]
    heads = (sequence * KV_HEADS + head) * GROUP
    tl.store(
        out_ptr + heads * DIM + members[:, None] * DIM + dims[None, :],
        done.to(out_ptr.dtype.element_ty),
        mask=real[:, None] & (dims[None, :] < DIM),
    )
    if lse_ptr is not None:
        tl.store(lse_ptr + heads + members, highest + tl.log2(weight), mask=real)


@entry
@triton.jit(do_not_specialize=["sequences", "table_row"], do_not_specialize_on_alignment=INDICES)
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    rows_ptr,
    contexts_ptr,
    table_ptr,
    skip_ptr,
    lse_ptr,
    sinks_ptr,
    partial_ptr,
    maxima_ptr,
    sums_ptr,
    counter_ptr,
    sequences,
    extra,
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
    GROUP_P2: tl.constexpr,
    DIM: tl.constexpr,
    DIM_P2: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    CAPPED: tl.constexpr,
    SEQUENCES_P2: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SHORTEST: tl.constexpr,
    MERGED: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Grid: (sequences + extra) * KV_HEADS. scale, inner: see `scales`; the keys' scale is in them."""
    if DEPENDENT:
        gdc_launch_dependents()
    head = tl.program_id(0) % KV_HEADS
    item = tl.program_id(0) // KV_HEADS
    lengths = _lengths(contexts_ptr, skip_ptr, sequences, SEQUENCES_P2, PAGE, WINDOW, CHUNK)
    each = tl.maximum(tl.cdiv(tl.sum(lengths, 0), extra), SHORTEST)
    items, sequence = dealt(lengths, each, item, sequences, SEQUENCES_P2)
    if sequence >= sequences:
        return
    first_item, own_items = own(items, sequence, SEQUENCES_P2)

    context = tl.load(contexts_ptr + sequence)
    start = _first_seen(context, sequence, skip_ptr, PAGE, WINDOW, CHUNK)
    run = tl.cdiv(tl.cdiv(context - start, own_items), BLOCK_N) * BLOCK_N
    live = tl.cdiv(context - start, run)
    begin = start + (item - first_item) * run
    if begin >= context:
        return
    end = tl.minimum(begin + run, context)

    if DEPENDENT:
        gdc_wait()  # contexts are older than the step; all that is read from here on may be new
    page_row = table_ptr + tl.load(rows_ptr + sequence).to(tl.int64) * table_row
    members = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM_P2)
    real = (members[:, None] < GROUP) & (dims[None, :] < DIM)
    q_places = sequence * q_token + (head * GROUP + members[:, None]) * q_head + dims[None, :]
    q = tl.load(q_ptr + q_places, mask=real, other=0.0)  # [BLOCK_M, DIM_P2]
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, DIM_P2], tl.float32)
    for block in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        highest, weight, mixed = _turn(
            q,
            highest,
            weight,
            mixed,
            block + tl.arange(0, BLOCK_N),
            end,
            page_row,
            k_ptr + head * kv_head,
            v_ptr + head * kv_head,
            kv_slot,
            scale,
            inner,
            DIM,
            DIM_P2,
            PAGE,
            CAPPED,
            PRECISION,
        )
    if live == 1:
        _write(
            mixed,
            highest,
            weight,
            out_ptr,
            lse_ptr,
            sinks_ptr,
            v_scale,
            sequence,
            head,
            members,
            KV_HEADS,
            GROUP,
            DIM,
            DIM_P2,
        )
        return

    place = item * KV_HEADS + head
    grouped = members < GROUP_P2
    tl.store(maxima_ptr + place * GROUP_P2 + members, highest, mask=grouped)
    tl.store(sums_ptr + place * GROUP_P2 + members, weight, mask=grouped)
    tile = members[:, None] * DIM_P2 + dims[None, :]
    tl.store(partial_ptr + place * GROUP_P2 * DIM_P2 + tile, mixed, mask=grouped[:, None])
    tl.debug_barrier()
    arrived = tl.atomic_add(counter_ptr + sequence * KV_HEADS + head, 1, sem="acq_rel")
    if arrived == live - 1:
        tl.debug_barrier()
        result, top, total = _merged(
            partial_ptr, maxima_ptr, sums_ptr, first_item, live, head, KV_HEADS, GROUP_P2, DIM_P2, MERGED
        )
        _write(
            result,
            top,
            total,
            out_ptr,
            lse_ptr,
            sinks_ptr,
            v_scale,
            sequence,
            head,
            tl.arange(0, GROUP_P2),
            KV_HEADS,
            GROUP,
            DIM,
            DIM_P2,
        )
        tl.store(counter_ptr + sequence * KV_HEADS + head, 0)


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """How a decode launch is divided. block: keys an iteration; shortest: keys that justify a separate item.

    programs: how many the extra items add (about), over all KV heads.
    """

    block: int = 64
    shortest: int = 64
    programs: int = 264
    warps: int = 4
    stages: int = 3
    merged: int = 8

    def extra(self, kv_heads: int) -> int:
        return max(1, self.programs // kv_heads)


class DecodeScratch:
    """Partial results and counters of launches of up to `sequences` sequences; one launch at a time uses it."""

    def __init__(
        self, sequences: int, kv_heads: int, group: int, head_dim: int, tile: DecodeTile, device: torch.device
    ) -> None:
        items = (sequences + tile.extra(kv_heads)) * kv_heads
        rows, dim = triton.next_power_of_2(group), triton.next_power_of_2(head_dim)
        self.sequences = sequences
        self.partial = torch.empty(items, rows, dim, dtype=torch.float32, device=device)
        self.maxima = torch.empty(items, rows, dtype=torch.float32, device=device)
        self.sums = torch.empty_like(self.maxima)
        self.counters = torch.zeros(sequences, kv_heads, dtype=torch.int32, device=device)


def decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    rows: Tensor,
    contexts: Tensor,
    table: Tensor,
    *,
    page_size: int,
    window: int | None,
    scale: float,
    k_scale: float,
    v_scale: float,
    scratch: DecodeScratch,
    tile: DecodeTile,
    skip: Tensor | None = None,
    lse: Tensor | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    overlap: bool = False,
) -> None:
    """out[s] = attention of q[s] over the first contexts[s] positions of sequence s, for s < len(contexts).

    q, out: [S or more, query_heads, head_dim], out contiguous.  keys, values: [slots, kv_heads, head_dim].
    rows, contexts: int32 [S].  table: int32 [rows, pages].  window: latest keys seen, None for all.
    chunk: keys of the last chunk of so many positions are seen, None for all.
    skip: int32 [S], pages at the start that are not seen, if there is neither window nor chunk.
    lse: float32 [S or more, query_heads], filled with the log to base 2 of the sum of the keys' weights.
    softcap, sinks: see `LayerAttention` and `AttentionBackend.attend`.  overlap: may start under the tail of the kernel
        before.
    """
    sequences, kv_heads, head_dim = len(contexts), keys.shape[1], keys.shape[2]
    if sequences > scratch.sequences:
        raise ValueError(f"{sequences} decodes in one step, scratch holds {scratch.sequences}; raise max_running")
    group, extra = q.shape[1] // kv_heads, tile.extra(kv_heads)
    rows_of_tile = max(16, triton.next_power_of_2(group))
    outer, inner = scales(scale * k_scale, softcap)
    decode_kernel[((sequences + extra) * kv_heads,)](
        q,
        keys,
        values,
        out,
        rows,
        contexts,
        table,
        skip,
        lse,
        sinks,
        scratch.partial,
        scratch.maxima,
        scratch.sums,
        scratch.counters,
        sequences,
        extra,
        outer,
        inner,
        v_scale,
        q.stride(0),
        q.stride(1),
        keys.stride(0),
        keys.stride(1),
        table.stride(0),
        KV_HEADS=kv_heads,
        GROUP=group,
        GROUP_P2=triton.next_power_of_2(group),
        DIM=head_dim,
        DIM_P2=triton.next_power_of_2(head_dim),
        PAGE=page_size,
        WINDOW=window or 0,
        CHUNK=chunk or 0,
        CAPPED=softcap is not None,
        SEQUENCES_P2=1 if sequences == 1 else max(2, triton.next_power_of_2(scratch.sequences)),
        BLOCK_M=rows_of_tile,
        BLOCK_N=tile.block,
        SHORTEST=tile.shortest,
        MERGED=tile.merged,
        STAGES=tile.stages,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        **launched(overlap),
    )
