"""The layers' kernels that are bound by memory, as a share of a copy in the same run; peers are torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from gpu_kernel_lab import Lab, Row
from torch import Tensor

from sgl.runtime.kernels.activation_kernels import activate_gated
from sgl.runtime.kernels.attention.qk_norm_rope_store import norm_rope_store
from sgl.runtime.kernels.embed_tokens import embed
from sgl.runtime.kernels.rms_norm import add_rms_norm, rms_norm
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.layers.rotary_embedding import RotaryEmbedding
from sgl.runtime.step.step_batch import DeviceBatch, StepBatch

EPS, MOST_COPIES = 1e-5, 16


def measure(lab: Lab) -> None:
    makers = (_norm, _added_norm, _activation, _heads, _embedding)
    lab.show(
        "layers: rows in turn, so that few are cached",
        [maker(lab, rows) for rows in lab.sizes.layer_rows for maker in makers],
    )


def _copies(lab: Lab, rows: int, *widths: int) -> list[tuple[Tensor, ...]]:
    """Tensors [rows, width]; together more than the L2 cache holds unless the rows are few."""
    count = max(2, min(MOST_COPIES, lab.sizes.cold // (rows * sum(widths) * lab.dtype.itemsize)))
    return [tuple(lab.random(rows, width) for width in widths) for _ in range(count)]


def _row(
    lab: Lab,
    name: str,
    rows: int,
    numbers: int,
    ours: Callable[[Any], object],
    peer: Callable[[Any], object],
    items: list[Any],
) -> Row:
    times = {"ours": lab.attempt(f"{name} {rows} rows", ours, items)}
    peers = {"torch": lab.attempt(f"{name} {rows} rows torch", peer, items)}
    return Row(name, f"{rows} rows", times, peers, moved=rows * numbers * lab.dtype.itemsize)


def _norm(lab: Lab, rows: int) -> Row:
    hidden, weight = lab.shape.hidden, lab.random(lab.shape.hidden)
    return _row(
        lab,
        "rms_norm",
        rows,
        2 * hidden,
        lambda item: rms_norm(item[0], weight, EPS),
        lambda item: F.rms_norm(item[0], (hidden,), weight, EPS),
        _copies(lab, rows, hidden),
    )


def _added_norm(lab: Lab, rows: int) -> Row:
    hidden, weight = lab.shape.hidden, lab.random(lab.shape.hidden)
    return _row(
        lab,
        "add_rms_norm",
        rows,
        4 * hidden,
        lambda item: add_rms_norm(*item, weight, EPS),
        lambda item: F.rms_norm(item[0].add_(item[1]), (hidden,), weight, EPS),
        _copies(lab, rows, hidden, hidden),
    )


def _activation(lab: Lab, rows: int) -> Row:
    inner = lab.shape.inner
    return _row(
        lab,
        "silu_and_mul",
        rows,
        3 * inner,
        lambda item: activate_gated(item[0]),
        lambda item: F.silu(item[0][:, :inner]) * item[0][:, inner:],
        _copies(lab, rows, 2 * inner),
    )


def _heads(lab: Lab, rows: int) -> Row:
    """Rotary of queries and keys, keys and values to the pool."""
    shape, device = lab.shape, lab.device
    queries, keys, dim = shape.heads, shape.kv_heads, shape.head_dim
    rotary = RotaryEmbedding(RopeParameters(5e5, dim, dim), lab.dtype, device, shape.context)
    positions = (torch.arange(rows, device=device) % (shape.context // 2)).int()
    slots = torch.randperm(rows, device=device).int() + 1
    k_pool, v_pool = (torch.zeros(rows + 1, keys, dim, device=device, dtype=lab.dtype) for _ in range(2))
    cos, sin = rotary.table[:, :dim], rotary.table[:, dim:]  # of sin, the first half is negated

    def ours(item: tuple[Tensor]) -> object:
        return norm_rope_store(item[0], queries, keys, rotary.table, positions, slots, k_pool, v_pool)

    def peer(item: tuple[Tensor]) -> None:
        x = item[0].view(rows, -1, dim)
        turned = x[:, : queries + keys]
        low, high = turned.chunk(2, -1)
        found = turned * cos[positions][:, None] + torch.cat([high, low], -1) * sin[positions][:, None]
        k_pool[slots], v_pool[slots] = found[:, queries:], x[:, queries + keys :]

    width = (queries + 2 * keys) * dim
    return _row(lab, "norm_rope_store", rows, 2 * width, ours, peer, _copies(lab, rows, width))


def _embedding(lab: Lab, rows: int) -> Row:
    """The rows of the embedding, and the pages of new tokens entered into the table."""
    shape, device = lab.shape, lab.device
    embedding = lab.random(shape.vocab, shape.hidden)
    zero = torch.zeros(rows + 1, dtype=torch.int32, device=device)
    positions = (torch.arange(rows, device=device) % shape.context).int()
    slots = torch.arange(1, rows + 1, dtype=torch.int32, device=device)
    around = DeviceBatch(
        zero, zero, zero, zero, torch.zeros(2, shape.context, dtype=torch.int32, device=device), 1, zero
    )
    batches = [
        StepBatch(
            torch.randint(0, shape.vocab, (rows,), device=device).int(),
            positions,
            slots,
            [],
            [],
            [],
            zero,
            device=around,
        )
        for _ in range(4)
    ]

    def peer(batch: StepBatch) -> Tensor:
        around.table[around.token_rows[:rows], batch.positions] = batch.slots
        return F.embedding(batch.token_ids, embedding)

    return _row(lab, "embed", rows, 2 * shape.hidden, lambda batch: embed(batch, embedding), peer, batches)
