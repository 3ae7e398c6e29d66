"""flashinfer's own wrappers over the same pool: what attention is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpu_kernel_lab import Lab
from torch import Tensor

from sgl.runtime.cache.kv_pool import KVPool
from sgl.runtime.step.step_batch import StepBatch

WORKSPACE = 256 << 20  # bytes
Attend = Callable[[int], object]


def planned(lab: Lab, pool: KVPool, batch: StepBatch, q: Tensor) -> dict[str, Callable[[], Attend]]:
    """By name, what plans a kernel for this step and gives the call that attends a layer."""
    if max(batch.query_lens) == 1:
        return {"flashinfer": lambda: _decode(lab, pool, batch, q)}
    return {f"flashinfer {kind}": lambda kind=kind: _prefill(kind, lab, pool, batch, q) for kind in ("fa2", "fa3")}


def _decode(lab: Lab, pool: KVPool, batch: StepBatch, q: Tensor) -> Attend:
    """With tensor cores: the other variant is far slower for grouped queries."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper as Wrapper

    wrapper = Wrapper(_workspace(lab), "NHD", use_tensor_cores=True)
    pages, indices, last = _pages(batch, lab)
    wrapper.plan(pages, indices, last, *_heads(lab), 1, q_data_type=q.dtype, kv_data_type=pool.k.dtype)
    return _runner(wrapper, pool, q)


def _prefill(kind: str, lab: Lab, pool: KVPool, batch: StepBatch, q: Tensor) -> Attend:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper as Wrapper

    wrapper = Wrapper(_workspace(lab), "NHD", backend=kind)
    queries = torch.from_numpy(np.cumsum([0, *batch.query_lens]).astype(np.int32))
    wrapper.plan(
        queries, *_pages(batch, lab), *_heads(lab), 1, causal=True, q_data_type=q.dtype, kv_data_type=pool.k.dtype
    )
    return _runner(wrapper, pool, q)


def _runner(wrapper: Any, pool: KVPool, q: Tensor) -> Attend:
    out = torch.empty_like(q)
    return lambda layer: wrapper.run(q, (pool.k[layer].unsqueeze(1), pool.v[layer].unsqueeze(1)), out=out)


def _workspace(lab: Lab) -> Tensor:
    return torch.zeros(WORKSPACE, dtype=torch.uint8, device=lab.device)


def _heads(lab: Lab) -> tuple[int, int, int]:
    return lab.shape.heads, lab.shape.kv_heads, lab.shape.head_dim


def _pages(batch: StepBatch, lab: Lab) -> tuple[Tensor, Tensor, Tensor]:
    """Where each sequence's pages begin (on the host), the pages, tokens in each last page (on the host)."""
    begins = torch.from_numpy(np.cumsum([0, *batch.context_lens]).astype(np.int32))
    indices = torch.from_numpy(np.concatenate(batch.context_slots)).to(lab.device)
    return begins, indices, torch.ones(len(batch.context_lens), dtype=torch.int32)
