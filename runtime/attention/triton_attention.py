"""Attention by Triton kernels over the page table: decodes split over the keys, prefills in tiles, graph safe.

Nothing is built on the host: the kernels read their work from `batch.device`. With `deterministic` one kernel with a
fixed tile attends all queries, so that a query's bits depend on its own sequence only.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

import torch
from torch import Tensor

from ..cache.kv_pool import KVPool
from ..kernels.attention.attention_decode import DecodeScratch, DecodeTile, decode
from ..kernels.attention.attention_prefill import PrefillScratch, PrefillTile, prefill
from ..kernels.attention.kv_cache_write import store
from ..kernels.gemv.gemv_launch import has_room
from ..kernels.launch.compile_ahead import compiled_in_parallel
from ..kernels.launch.programmatic_launch import overlaps
from ..step.step_batch import DeviceBatch, StepBatch
from .backend_protocols import AttentionShape, BackendUnavailable, SinglePoolAttention
from .topk_attention import TopKSelection

MERGED_NUMBERS = 128  # of partial results at once, of a thread
MANY_NUMBERS = 4096  # of one partial result, from which on two warps are faster for heads above 128
SPLIT_BYTES = 64 << 20  # device memory for partial results of deterministic attention
WIDEST = 512
LN2 = math.log(2)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


@dataclass(frozen=True, slots=True)
class TritonAttentionPlan:
    """How many sequences, the first ones, are decodes; how many others, and in how many tiles they are attended."""

    decodes: int
    prefills: int
    tiles: int


class TritonAttention(SinglePoolAttention):
    """See `AttentionBackend`.

    page_size: token slots of a page.  max_running: most sequences of a step.  context: most tokens of one, None: what
        the pool holds.
    deterministic: bits of a query do not depend on the batch, on chunks, on cache hits or on page numbers.
    """

    name, reason = "triton", "Triton's kernels for everything"
    capturable = True
    by_torch: str | None = "torch chooses tokens"

    def __init__(
        self,
        pool: KVPool,
        shape: AttentionShape,
        page_size: int = 1,
        max_running: int = 256,
        context: int | None = None,
        deterministic: bool = False,
        **options: object,
    ) -> None:
        _require(pool, shape)
        self.pool, self.shape, self.page_size, self.deterministic = pool, shape, page_size, deterministic
        self.decode_tile, self.prefill_tile = tiles_for(pool, shape, deterministic)
        self.gemv_tile = gemv_tile_for(self.decode_tile, pool, shape)
        self.most = 1 << (max_running - 1).bit_length()
        self._viewed: Tensor | None = None
        alike = {"scale": shape.scale, "softcap": shape.softcap}
        self._asked: list[dict[str, Any]] = [
            {"window": window, "chunk": chunk, **alike} for window, chunk in shape.reaches
        ]
        self._scratch = DecodeScratch(
            self.most, shape.kv_heads, shape.group, shape.head_dim, self.decode_tile, pool.k.device
        )
        self._splits = self._split_scratch(context) if deterministic else None
        if pool.k.is_cuda:
            proved(self)

    def _split_scratch(self, context: int | None) -> PrefillScratch:
        """For as many tiles as memory allows: more of them fill the device without splitting their keys."""
        shape, tile, slots = self.shape, self.prefill_tile, self.pool.slots
        parts = tile.segments(min(context or slots, slots))
        tiles = SPLIT_BYTES // (parts * shape.kv_heads * tile.rows * shape.head_dim * 4)
        return PrefillScratch(max(1, tiles), parts, shape.kv_heads, shape.head_dim, tile, self.pool.k.device)

    def plan(self, batch: StepBatch) -> None:
        batch.plan = self.plan_of(batch)

    def plan_of(self, batch: StepBatch) -> TritonAttentionPlan:
        device = batch.device
        lengths = [1] * len(device.contexts) if device is not None and device.static else batch.query_lens
        decodes = 0 if self.deterministic else sum(1 for _ in takewhile(lambda count: count == 1, lengths))
        tiles = sum(self.prefill_tile.tiles(count, self.shape.group) for count in lengths[decodes:])
        return TritonAttentionPlan(decodes, len(lengths) - decodes, tiles)

    def store(self, k: Tensor, v: Tensor, layer: int, batch: StepBatch) -> None:
        store(k, v, batch.slots, *self._kv(layer), *self.scales(layer))

    def attend(
        self, q: Tensor, k: Tensor | None, v: Tensor | None, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.attend_into(out, q, layer, batch, sinks)
        return out

    def attend_into(self, out: Tensor, q: Tensor, layer: int, batch: StepBatch, sinks: Tensor | None = None) -> None:
        """`attend` with the result in `out`, contiguous."""
        plan: TritonAttentionPlan = batch.plan
        self.attend_decodes(q, out, layer, batch, plan.decodes, sinks=sinks)
        self.attend_prefills(q, out, layer, batch, plan, sinks)

    def attend_decodes(
        self,
        q: Tensor,
        out: Tensor,
        layer: int,
        batch: StepBatch,
        sequences: int,
        skip: Tensor | None = None,
        lse: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        """The first `sequences` of the step, one query each. skip, lse: see `decode`."""
        if not sequences:
            return
        device, (k_scale, v_scale) = batch.device, self.scales(layer)
        assert device is not None
        decode(
            q,
            *self._kv(layer),
            out,
            device.rows,
            device.contexts[:sequences],
            device.table,
            page_size=device.page_size,
            scratch=self._scratch,
            tile=self.gemv_tile if sequences == 1 else self.decode_tile,
            skip=skip,
            lse=lse,
            sinks=sinks,
            k_scale=k_scale,
            v_scale=v_scale,
            overlap=skip is None and not batch.waits and overlaps(q.device),
            **self._asked[layer],
        )

    def attend_prefills(
        self,
        q: Tensor,
        out: Tensor,
        layer: int,
        batch: StepBatch,
        plan: TritonAttentionPlan,
        sinks: Tensor | None = None,
    ) -> None:
        """The sequences of the step after its decodes."""
        if not plan.prefills:
            return
        device, (k_scale, v_scale) = batch.device, self.scales(layer)
        assert device is not None
        prefill(
            q,
            *self._kv(layer),
            out,
            device.rows,
            device.starts,
            device.contexts,
            device.table,
            first=plan.decodes,
            sequences=plan.prefills,
            most_sequences=self.most,
            tiles=plan.tiles,
            page_size=device.page_size,
            tile=self.prefill_tile,
            ordered=self._splits,
            sinks=sinks,
            k_scale=k_scale,
            v_scale=v_scale,
            **self._asked[layer],
        )

    def attend_topk(
        self, q: Tensor, chosen: TopKSelection, layer: int, batch: StepBatch, sinks: Tensor | None = None
    ) -> Tensor:
        """A query token and KV head is a decode over a pool of one KV head; its tokens are a table's pages of one token
        each.
        """
        slots, counts = chosen.of_rows(self.shape.kv_heads)
        rows = q.reshape(len(slots), -1, q.shape[2])
        keys, values = (stored.view(-1, 1, stored.shape[2]) for stored in self._kv(layer))
        out, lse = (
            torch.empty(rows.shape, dtype=q.dtype, device=q.device),
            torch.empty(rows.shape[:2], dtype=torch.float32, device=q.device),
        )
        every, (k_scale, v_scale) = torch.arange(self.most, dtype=torch.int32, device=q.device), self.scales(layer)
        for parts in zip(*(whole.split(self.most) for whole in (rows, out, lse, slots, counts)), strict=True):
            some, mixed, sums, own, lengths = parts
            decode(
                some,
                keys,
                values,
                mixed,
                every,
                lengths,
                own,
                page_size=1,
                window=None,
                scale=self.shape.scale,
                softcap=self.shape.softcap,
                scratch=self._scratch,
                tile=self.decode_tile,
                lse=sums,
                k_scale=k_scale,
                v_scale=v_scale,
            )
        out, lse = out.view(q.shape), lse.view(q.shape[:2])
        return out if sinks is None else (out * torch.sigmoid(lse * LN2 - sinks)[..., None]).to(q.dtype)

    def _kv(self, layer: int) -> tuple[Tensor, Tensor]:
        """The pool of a layer; a pool that slept has new tensors."""
        if self._viewed is not self.pool.k:
            self._viewed = self.pool.k
            self._layers = [self.stored(index) for index in range(self.shape.layers)]
        return self._layers[layer]


def tiles_for(pool: KVPool, shape: AttentionShape, deterministic: bool) -> tuple[DecodeTile, PrefillTile]:
    """Sizes by what fits an SM's shared memory and registers; rows must hold a whole group.

    Larger float32 tiles would spill, and compile for a quarter of a minute.
    """
    wide = shape.head_dim > 128
    least = max(16, 1 << (shape.group - 1).bit_length())
    exact, roomy = pool.k.dtype == torch.float32, has_room(pool.k.device)
    if shape.head_dim > 256:
        cut = {"block": 32} if roomy and not exact else {"block": 16, "stages": 2}
        return _tile(shape, **cut), PrefillTile(max(least, 32), 16, warps=8, stages=2)
    if exact:
        return _tile(shape, block=16, stages=2), PrefillTile(least, 16, warps=4, stages=2)
    if deterministic:
        return _tile(shape), PrefillTile(max(least, 64), 32 if wide else 64, warps=4, stages=3)
    if wide:
        return _tile(shape, 64 if roomy else 32, warps=2 if _numbers(shape) >= MANY_NUMBERS else 4), PrefillTile(
            max(least, 64), 32, warps=4, stages=3
        )
    if pool.k.dtype.itemsize == 1:  # whose keys pass through registers
        return _tile(shape), PrefillTile(max(least, 128), 64, warps=8, stages=3)
    return _tile(shape, warps=2), PrefillTile(max(least, 128), 64, warps=4, stages=3)


def gemv_tile_for(tile: DecodeTile, pool: KVPool, shape: AttentionShape) -> DecodeTile:
    """For one sequence, whose programs wait for each other: those of two warps finish sooner."""
    return (
        tile
        if pool.k.dtype == torch.float32 or shape.head_dim > 256
        else _tile(shape, tile.block, warps=2, stages=tile.stages)
    )


def _tile(shape: AttentionShape, block: int = 64, warps: int = 4, stages: int = 3) -> DecodeTile:
    """A tile that merges as many partial results at once as its threads have registers for.

    With more of them it is several times slower.
    """
    return DecodeTile(
        block,
        warps=warps,
        stages=stages,
        merged=max(2, min(32 // warps, MERGED_NUMBERS * 32 * warps // _numbers(shape))),
    )


def _numbers(shape: AttentionShape) -> int:
    """Of a partial result: those of all heads of a group."""
    return (1 << (shape.group - 1).bit_length()) * (1 << (shape.head_dim - 1).bit_length())


@torch.inference_mode()
def proved(backend: Any) -> None:
    """Compile and run every kernel of a backend once, on the padding slot: what cannot run here fails now."""
    device = backend.pool.k.device
    try:
        with compiled_in_parallel(device):
            _attend_all(backend)
        _attend_all(backend)
        torch.cuda.synchronize(device)
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise BackendUnavailable(f"Triton's kernels fail here: {type(error).__name__}: {first_line}") from error


def _attend_all(backend: Any) -> None:
    pool, shape = backend.pool, backend.shape
    q_dtype = pool.k.dtype if pool.k.dtype.itemsize > 1 else torch.bfloat16
    for lengths in ([1], [1, 1, 2]):
        batch = _empty_batch(lengths, backend.page_size, pool.k.device)
        q = torch.zeros(sum(lengths), shape.query_heads, shape.head_dim, dtype=q_dtype, device=pool.k.device)
        backend.plan(batch)
        for reach in set(shape.reaches):
            backend.attend(q, None, None, shape.reaches.index(reach), batch)
        if shape.chosen is not None:
            _choose(backend, batch, q)


def _choose(backend: Any, batch: StepBatch, q: Tensor) -> None:
    """By as many heads as any; layers that reuse others' choice have none."""
    keys = backend.indexed(0)
    if keys.shape[1]:
        backend.choose(q.new_zeros(len(q), 32, keys.shape[1]), q.new_zeros(len(q), 32, dtype=torch.float32), 0, batch)
    slots = torch.zeros(len(q), backend.shape.kv_heads, backend.shape.chosen, dtype=torch.int32, device=q.device)
    backend.attend_topk(q, TopKSelection(slots, torch.ones_like(slots[..., 0])), 0, batch)


def _empty_batch(lengths: list[int], page_size: int, device: torch.device) -> StepBatch:
    """Sequences without a past, all in the padding slot."""

    def ints(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    tokens, none = ints([0] * sum(lengths)), ints([0] * len(lengths))
    table = ints([0] * max(lengths))[None]
    starts = ints([0, *accumulate(lengths)])
    around = DeviceBatch(none, tokens, starts, ints(lengths), table, page_size, none[:1])
    return StepBatch(tokens, tokens, tokens, lengths, lengths, [], none[:0], device=around)


def _require(pool: KVPool, shape: AttentionShape) -> None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not (pool.k.is_cuda or interpreted):
        raise BackendUnavailable(f"attention='triton' needs a CUDA device, the pool is on {pool.k.device}")
    if pool.k.dtype not in DTYPES:
        raise BackendUnavailable(f"attention='triton' has no kernels for a KV pool of {pool.k.dtype}")
    if not 16 <= shape.head_dim <= WIDEST:
        raise BackendUnavailable(f"attention='triton' needs 16 <= head_dim <= {WIDEST}, not {shape.head_dim}")
    if shape.value_dim != shape.head_dim:
        raise BackendUnavailable(
            f"attention='triton' needs values as wide as keys, not {shape.value_dim} and {shape.head_dim}"
        )
    if shape.alibi:
        raise BackendUnavailable("attention='triton' has no ALiBi")
    if shape.group > 64:
        raise BackendUnavailable(f"attention='triton' needs at most 64 query heads per KV head, not {shape.group}")
