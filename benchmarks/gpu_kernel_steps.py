"""Made-up steps over a pool of random keys and values, with pages of one token scattered over it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sgl.runtime.cache.kv_pool import KVPool
from sgl.runtime.step.step_batch import DeviceBatch, StepBatch

LAYERS = 3  # that calls go through in turn, so that the L2 cache does not hold many sequences' keys


def noisy_pool(slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> KVPool:
    pool = KVPool(LAYERS, slots, kv_heads, head_dim, dtype, device)
    pool.k[:, 1:].normal_()
    pool.v[:, 1:].normal_()
    return pool


def step_of(work: Sequence[tuple[int, int]], pool: KVPool, prefix: int = 0, seed: int = 0) -> StepBatch:
    """work: (cached, new) tokens of each sequence, decodes first; the first `prefix` slots are the same for all."""
    free = np.random.default_rng(seed).permutation(np.arange(1, pool.slots, dtype=np.int32))
    shared, taken, slots = free[:prefix], prefix, []
    for cached, new in work:
        own = cached + new - prefix
        slots.append(np.concatenate([shared, free[taken : taken + own]]))
        taken += own
    if taken > len(free):
        raise ValueError(f"the step needs {taken} slots, the pool has {len(free)}")
    table = np.zeros((len(work) + 1, max(map(len, slots))), np.int32)
    for row, own_slots in zip(table, slots, strict=False):
        row[: len(own_slots)] = own_slots
    return _batch(work, slots, table, pool.device)


def _batch(
    work: Sequence[tuple[int, int]], slots: list[np.ndarray], table: np.ndarray, device: torch.device
) -> StepBatch:
    def ints(values: object) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, np.int32)).to(device)

    news, contexts = [new for _, new in work], [cached + new for cached, new in work]
    rows = np.arange(len(work))
    around = DeviceBatch(
        ints(rows),
        ints(np.repeat(rows, news)),
        ints(np.cumsum([0, *news])),
        ints(contexts),
        ints(table),
        1,
        ints(np.zeros(len(table))),
    )
    return StepBatch(
        token_ids=ints(np.zeros(sum(news))),
        positions=ints(np.concatenate([np.arange(cached, cached + new) for cached, new in work])),
        slots=ints(np.concatenate([own[cached:] for own, (cached, _) in zip(slots, work, strict=True)])),
        query_lens=news,
        context_lens=contexts,
        context_slots=slots,
        logit_rows=ints([0]),
        device=around,
    )
