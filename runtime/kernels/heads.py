"""What happens to the heads between their projection and attention, in one pass: norm, rotary, storing."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 16  # heads of a program
MOST_FP8 = 448.0  # the largest number of float8_e4m3fn


@triton.jit
def _to_pool(x, scale, pool, FP8: tl.constexpr, MOST: tl.constexpr):
    """x, rounded to the model's type, as the pool keeps it."""
    if FP8:
        scaled = x.to(tl.float32) / scale
        return tl.minimum(tl.maximum(scaled, -MOST), MOST).to(pool.dtype.element_ty)
    else:
        return x.to(pool.dtype.element_ty)


@triton.jit(do_not_specialize_on_alignment=("positions", "slots"))
def _rotate_and_store(
    qkv, table, positions, slots, keys, values, norms, out, stride, eps, k_scale, v_scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr,
    TILE: tl.constexpr, NORM: tl.constexpr, FP8: tl.constexpr, MOST: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, tiles of heads); a and b are the halves of the heads, [TILE, HALF_BLOCK]."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    rotated = QUERIES + KEYS
    inside = (head < rotated + KEYS) & (column < HALF)
    turns = (head < rotated) & (column < HALF)
    place = qkv + token * stride + head * (2 * HALF) + column
    plain_a = tl.load(place, inside, other=0.0)
    plain_b = tl.load(place + HALF, inside, other=0.0)
    a, b = plain_a.to(tl.float32), plain_b.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(a * a + b * b, 1) / (2 * HALF) + eps)[:, None]
        weight = norms + head * (2 * HALF) + column
        a *= scale * tl.load(weight, turns, other=0.0).to(tl.float32)
        b *= scale * tl.load(weight + HALF, turns, other=0.0).to(tl.float32)
    angle = table + tl.load(positions + token).to(tl.int64) * (4 * HALF) + column
    cos = tl.load(angle, column < HALF, other=0.0).to(tl.float32)
    sin = tl.load(angle + 3 * HALF, column < HALF, other=0.0).to(tl.float32)
    kind = qkv.dtype.element_ty
    new_a = tl.where(head < rotated, (a * cos - b * sin).to(kind), plain_a)
    new_b = tl.where(head < rotated, (b * cos + a * sin).to(kind), plain_b)
    if APART:
        query = out + (token * QUERIES + head) * (2 * HALF) + column
        is_query = (head < QUERIES) & (column < HALF)
        tl.store(query, new_a, is_query)
        tl.store(query + HALF, new_b, is_query)
    else:
        tl.store(place, new_a, turns)
        tl.store(place + HALF, new_b, turns)
    slot = tl.load(slots + token).to(tl.int64)
    if (slot != 0) & (tl.program_id(1) * TILE + TILE > QUERIES):
        is_key = turns & (head >= QUERIES)
        key = keys + (slot * KEYS + head - QUERIES) * (2 * HALF) + column
        tl.store(key, _to_pool(new_a, k_scale, keys, FP8, MOST), is_key)
        tl.store(key + HALF, _to_pool(new_b, k_scale, keys, FP8, MOST), is_key)
        is_value = inside & (head >= rotated)
        value = values + (slot * KEYS + head - rotated) * (2 * HALF) + column
        tl.store(value, _to_pool(new_a, v_scale, values, FP8, MOST), is_value)
        tl.store(value + HALF, _to_pool(new_b, v_scale, values, FP8, MOST), is_value)


def rotate_and_store(
    qkv: Tensor,
    query_heads: int,
    kv_heads: int,
    angles_table: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    head_norm: Tensor | None = None,
    eps: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Rotate queries and keys in place and write keys and values to the pool; returns the view of the queries.

    out: with it the queries go there, [T, query_heads, head_dim] contiguous, and qkv stays as it is.

    qkv: [T, (query_heads + 2 kv_heads) * head_dim], rows contiguous; any even head_dim.
    angles_table: `Rotary.table`, [positions, 2 head_dim].  positions, slots: integers [T]; slot 0 is not written.
    k_pool, v_pool: [slots, kv_heads, head_dim] contiguous, of the model's type, or float8_e4m3fn for value / scale.
    head_norm: [query_heads + kv_heads, head_dim], weights of an RMS norm of each query and key before it turns.
    Returns [T, query_heads, head_dim], contiguous within a token.
    """
    tokens, dim = qkv.shape[0], k_pool.shape[-1]
    half = dim // 2
    block = 1 << (half - 1).bit_length()
    if tokens:
        _rotate_and_store[(tokens, triton.cdiv(query_heads + 2 * kv_heads, TILE))](
            qkv, angles_table, positions, slots, k_pool, v_pool, qkv if head_norm is None else head_norm,
            qkv if out is None else out, qkv.stride(0), eps, k_scale, v_scale,
            QUERIES=query_heads, KEYS=kv_heads, HALF=half, HALF_BLOCK=block, TILE=TILE,
            NORM=head_norm is not None, FP8=k_pool.dtype == torch.float8_e4m3fn, MOST=MOST_FP8, APART=out is not None,
            num_warps=min(max(TILE * block // 256, 1), 8),
        )  # fmt: skip
    if out is not None:
        return out
    return qkv.as_strided((tokens, query_heads, dim), (qkv.stride(0), dim, 1))
