"""Random steps over scattered pages, as a GPU's backends get them, and attention computed one sequence at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from sgl.runtime.attention import AttentionBackend, AttentionShape
from sgl.runtime.cache.kv_pool import KVPool
from sgl.runtime.step.step_batch import DeviceBatch, StepBatch

Work = list[tuple[int, int]]  # (cached, new) tokens of each sequence
KV = tuple[torch.Tensor, torch.Tensor]  # [layers, tokens, kv_heads, head_dim] of a sequence


def make_pool(
    shape: AttentionShape, slots: int, dtype: torch.dtype, device: str = "cpu", poison: bool = True
) -> KVPool:
    """Every slot but the padding one is NaN."""
    pool = KVPool(shape.layers, slots, shape.kv_heads, shape.head_dim, dtype, device)
    if poison:
        pool.k[:, 1:] = float("nan")
        pool.v[:, 1:] = float("nan")
    return pool


def random_kv(work: Work, shape: AttentionShape, dtype: torch.dtype, device: str, seed: int) -> list[KV]:
    random = torch.Generator(device).manual_seed(seed)
    sizes = [(shape.layers, cached + new, shape.kv_heads, shape.head_dim) for cached, new in work]
    return [tuple(torch.randn(size, generator=random, device=device).to(dtype) for _ in "kv") for size in sizes]  # type: ignore[misc]


def make_batch(work: Work, pool: KVPool, kv: list[KV], page_size: int = 1, seed: int = 0, rows: int = 0) -> StepBatch:
    """A step on shuffled pages and table rows; the cached tokens' KV is in the
    pool, the table's other entries are wild.
    """
    rng, device = np.random.default_rng(seed), pool.k.device
    free = rng.permutation(np.arange(1, pool.slots // page_size))
    counts = [-(-(cached + new) // page_size) for cached, new in work]
    assert sum(counts) <= len(free), "give the pool more slots"
    table = np.full((max(rows, len(work)) + 2, max(counts) + 3), 2**30, np.int32)
    places = rng.permutation(len(table) - 1)[: len(work)]
    context_slots, taken = [], 0
    for (cached, new), count, row, stored in zip(work, counts, places, kv, strict=True):
        table[row, :count] = pages = free[taken : taken + count]
        taken += count
        slots = (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)[: cached + new]
        context_slots.append(slots.astype(np.int32))
        index = torch.from_numpy(slots[:cached]).to(device)
        for target, source in zip((pool.k, pool.v), stored, strict=True):
            target[:, index] = source[:, :cached].to(target.dtype)
    return _batch(work, context_slots, places, table, page_size, device)


def _batch(work: Work, context_slots: list, places, table, page_size: int, device) -> StepBatch:
    def ints(values) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, np.int32)).to(device)

    news = np.array([new for _, new in work])
    contexts = np.array([sum(lengths) for lengths in work])
    on_device = DeviceBatch(
        rows=ints(places),
        token_rows=ints(np.repeat(places, news)),
        starts=ints(np.concatenate([[0], np.cumsum(news)])),
        contexts=ints(contexts),
        table=ints(table),
        page_size=page_size,
        last=ints(np.zeros(len(table))),
    )
    return StepBatch(
        token_ids=ints(np.zeros(news.sum())),
        positions=ints(np.concatenate([np.arange(cached, cached + new) for cached, new in work])),
        slots=ints(np.concatenate([slots[cached:] for slots, (cached, _) in zip(context_slots, work, strict=True)])),
        query_lens=news.tolist(),
        context_lens=contexts.tolist(),
        context_slots=context_slots,
        logit_rows=ints([]),
        device=on_device,
    )


def with_padding(batch: StepBatch, size: int) -> StepBatch:
    """The step as a captured graph sees it: padded to `size` sequences, all of one token in the last row's slot 0."""
    device, more = batch.device, size - len(batch.query_lens)
    assert device is not None
    last_row = len(device.table) - 1
    device.table[last_row] = 0

    def padded(values: torch.Tensor, value: int) -> torch.Tensor:
        return torch.cat([values, values.new_full((more,), value)])

    return replace(
        batch,
        token_ids=padded(batch.token_ids, 0),
        positions=padded(batch.positions, 0),
        slots=padded(batch.slots, 0),
        query_lens=batch.query_lens + [1] * more,
        context_lens=batch.context_lens + [1] * more,
        context_slots=batch.context_slots + [np.zeros(1, np.int32)] * more,
        device=replace(
            device,
            rows=padded(device.rows, last_row),
            token_rows=padded(device.token_rows, last_row),
            starts=torch.arange(size + 1, dtype=torch.int32, device=device.starts.device),
            contexts=padded(device.contexts, 1),
            static=True,
        ),
    )


def new_tokens(work: Work, kv: list[KV], layer: int) -> KV:
    """What the step stores: [T, kv_heads, head_dim]."""
    return tuple(
        torch.cat([stored[kind][layer, cached:] for stored, (cached, _) in zip(kv, work, strict=True)])
        for kind in range(2)
    )  # type: ignore[return-value]


def run(
    backend: AttentionBackend, batch: StepBatch, work: Work, kv: list[KV], q: torch.Tensor, layer: int = 0
) -> torch.Tensor:
    """Plan, store and attend one layer."""
    backend.plan(batch)
    k, v = new_tokens(work, kv, layer)
    backend.store(k, v, layer, batch)
    out = backend.attend(q, k, v, layer, batch)
    assert out.is_contiguous() and out.shape == q.shape
    return out


def oracle(q: torch.Tensor, work: Work, kv: list[KV], shape: AttentionShape, layer: int = 0) -> torch.Tensor:
    """float32 [T, query_heads, head_dim] from the unpaged keys and values, in float64."""
    outs, start = [], 0
    for (cached, new), (keys, values) in zip(work, kv, strict=True):
        query = q[start : start + new].double().unflatten(1, (shape.kv_heads, shape.group))
        scores = torch.einsum("qhgd,khd->hgqk", query, keys[layer].double()) * shape.head_dim**-0.5
        distance = torch.arange(cached, cached + new)[:, None] - torch.arange(cached + new)
        window = shape.windows[layer] or cached + new
        unseen = ((distance < 0) | (distance >= window)).to(q.device)
        weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        outs.append(torch.einsum("hgqk,khd->qhgd", weights, values[layer].double()).flatten(1, 2).float())
        start += new
    return torch.cat(outs)


def queries(work: Work, shape: AttentionShape, dtype: torch.dtype, device: str = "cpu", seed: int = 1) -> torch.Tensor:
    random = torch.Generator(device).manual_seed(seed)
    total = sum(new for _, new in work)
    return torch.randn(total, shape.query_heads, shape.head_dim, generator=random, device=device).to(dtype)
