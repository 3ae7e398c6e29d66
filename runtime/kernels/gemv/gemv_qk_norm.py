"""Queries, keys and values of one row with per-head norms: product, norms, rotation and store in one kernel.

A head's norm needs all its numbers, which several programs compute: each leaves its own in scratch and increments a
counter. The last one norms the head, rotates it and stores it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.qk_norm_rope_store import QkNormWeights
from ..launch.compile_ahead import entry
from .gemv import best_for, plan_gemv
from .gemv_kernels import begin, plus_pair, products, rotated_and_stored, turn_and_place, values_at
from .gemv_launch import GemvLaunch
from .gemv_lora import GemvLora, describe


@entry
@triton.jit
def normed_heads(
    x,
    norm,
    words,
    meta,
    outer,
    bias,
    head_norm,
    raw,
    counters,
    angles,
    positions,
    slots,
    q,
    k_pool,
    v_pool,
    eps,
    head_eps,
    k_scale,
    v_scale,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    FORMAT: tl.constexpr,
    CUT: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    DEPENDENT: tl.constexpr,
    h=None,
    pairs=None,
    pair_at=None,
    PAIR: tl.constexpr = None,
):
    """See `gemv_kernels.heads`.

    head_norm: [QUERIES + KEYS, 2 HALF].  raw: float32, of that shape.  counters: int32, one a head, zeros, also
        afterwards.
    """
    PAIRS: tl.constexpr = CUT.rows // 2
    PROGRAMS: tl.constexpr = (HALF + PAIRS - 1) // PAIRS
    OUTPUTS: tl.constexpr = (QUERIES + 2 * KEYS) * 2 * HALF
    head, first, lane = tl.program_id(0) // PROGRAMS, tl.program_id(0) % PROGRAMS * PAIRS, tl.arange(0, CUT.rows)
    rows = head * 2 * HALF + tl.minimum(first + lane // 2, HALF - 1) + lane % 2 * HALF
    weight = (words, meta, outer)
    begun, more = begin(weight, rows, (h, pairs, pair_at), OUTPUTS, FORMAT, CUT, PAIR, DEPENDENT)
    dim, whole = first + tl.arange(0, PAIRS), tl.arange(0, HALF_BLOCK)
    cos, sin, slot = turn_and_place(whole, angles, positions, slots, HALF)
    y = values_at(bias, rows, BIASED)
    y += products(begun, x, norm, weight, rows, OUTPUTS, eps, FORMAT, CUT, NORMED)
    low, high = tl.split(tl.reshape(plus_pair(y, more, PAIR), [PAIRS, 2]))
    if head >= QUERIES + KEYS:
        start = v_pool + slot * KEYS * 2 * HALF + (head - QUERIES - KEYS) * 2 * HALF
        wanted = dim < tl.where(slot == 0, 0, HALF)
        tl.store(start + dim, (low / v_scale).to(v_pool.dtype.element_ty), wanted)
        tl.store(start + HALF + dim, (high / v_scale).to(v_pool.dtype.element_ty), wanted)
    else:
        own = raw + head * 2 * HALF
        tl.store(own + dim, low, dim < HALF)
        tl.store(own + HALF + dim, high, dim < HALF)
        tl.debug_barrier()
        if tl.atomic_add(counters + head, 1, sem="acq_rel") == PROGRAMS - 1:
            tl.debug_barrier()
            tl.store(counters + head, 0)
            inside = whole < HALF
            a = tl.load(own + whole, inside, other=0.0, cache_modifier=".cg")
            b = tl.load(own + HALF + whole, inside, other=0.0, cache_modifier=".cg")
            unit = tl.rsqrt(tl.sum(a * a + b * b, 0) / (2 * HALF) + head_eps)
            of_head = head_norm + head * 2 * HALF + whole
            a *= unit * tl.load(of_head, inside, other=0.0).to(tl.float32)
            b *= unit * tl.load(of_head + HALF, inside, other=0.0).to(tl.float32)
            rotated_and_stored(
                a, b, head, whole, cos, sin, slot, q, k_pool, v_pool, k_scale, v_scale, QUERIES, KEYS, HALF
            )


def supports(norm: QkNormWeights) -> bool:
    """Whether the kernel supports the norm: RMS norms of each head by itself, before the rotation."""
    return norm.counters is not None and not (norm.layer or norm.whole or norm.after) and norm.bias is None


def qkv_norm_rope_store(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    query_heads: int,
    kv_heads: int,
    norm: QkNormWeights,
    angles_table: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    launch: GemvLaunch | None = None,
    weight_scale: Tensor | None = None,
    pair: GemvLora | None = None,
) -> Tensor:
    """`gemv.qkv_rope_store` with a norm of queries and keys that `supports` accepts; intermediate results are not
    rounded.
    """
    dim = k_pool.shape[-1]
    q, raw = x.new_empty(1, query_heads, dim), x.new_empty(query_heads + kv_heads, dim, dtype=torch.float32)
    cut = launch or best_for(weight)
    plan = plan_gemv(weight, weight_scale, cut, dim // 2)
    normed_heads[plan.grid](
        x,
        x if norm_weight is None else norm_weight,
        *plan.parts,
        x if bias is None else bias,
        norm.weight,
        raw,
        norm.counters,
        angles_table,
        positions,
        slots,
        q,
        k_pool,
        v_pool,
        eps,
        norm.eps,
        k_scale,
        v_scale,
        QUERIES=query_heads,
        KEYS=kv_heads,
        HALF=dim // 2,
        HALF_BLOCK=triton.next_power_of_2(dim // 2),
        NORMED=norm_weight is not None,
        BIASED=bias is not None,
        **plan.cut,
        **describe(pair),
    )
    return q
