"""Heads between their projection and attention, in one pass: norm, rotary, store."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch.compile_ahead import entry
from ..launch.programmatic_launch import launched
from ..rms_norm import block_of

TILE = 16  # heads of a program
MOST_FP8 = 448.0  # the largest number of float8_e4m3fn


@triton.jit
def _to_pool(x, scale, pool, FP8: tl.constexpr, MOST: tl.constexpr):
    """x, rounded to the model's type, in the pool's format."""
    if FP8:
        scaled = x.to(tl.float32) / scale
        return tl.minimum(tl.maximum(scaled, -MOST), MOST).to(pool.dtype.element_ty)
    else:
        return x.to(pool.dtype.element_ty)


@entry
@triton.jit
def _whole_scales(
    qkv, scales, stride, eps, QUERIES: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid (tokens, 2): 1 / rms of all queries of a token, and of all its keys, float32 [tokens, 2]."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    size = tl.where(part == 0, QUERIES, KEYS) * DIM
    x = tl.load(qkv + token * stride + part * QUERIES * DIM + column, column < size, other=0.0).to(tl.float32)
    tl.store(scales + token * 2 + part, tl.rsqrt(tl.sum(x * x, 0) / tl.maximum(size, 1) + eps))


@triton.jit
def _normed(
    a,
    b,
    head,
    column,
    turns,
    norms,
    biases,
    whole,
    eps,
    QUERIES: tl.constexpr,
    HALF: tl.constexpr,
    LAYER: tl.constexpr,
    WHOLE: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Both halves of heads by their norm; undefined for columns without query or key."""
    if LAYER:
        mean = (tl.sum(a + b, 1) / (2 * HALF))[:, None]
        a, b = tl.where(column < HALF, a - mean, 0.0), tl.where(column < HALF, b - mean, 0.0)
    if WHOLE:
        scale = tl.load(whole + (head >= QUERIES).to(tl.int32))
    else:
        scale = tl.rsqrt(tl.sum(a * a + b * b, 1) / (2 * HALF) + eps)[:, None]
    weight = norms + head * (2 * HALF) + column
    a *= scale * tl.load(weight, turns, other=0.0).to(tl.float32)
    b *= scale * tl.load(weight + HALF, turns, other=0.0).to(tl.float32)
    if BIAS:
        bias = biases + head * (2 * HALF) + column
        a += tl.load(bias, turns, other=0.0).to(tl.float32)
        b += tl.load(bias + HALF, turns, other=0.0).to(tl.float32)
    return a, b


@entry
@triton.jit(do_not_specialize_on_alignment=("positions", "slots"))
def _rotate_and_store(
    qkv,
    table,
    positions,
    slots,
    keys,
    values,
    norms,
    biases,
    scales,
    out,
    stride,
    eps,
    value_eps,
    k_scale,
    v_scale,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    TURN: tl.constexpr,
    NORM: tl.constexpr,
    LAYER: tl.constexpr,
    WHOLE: tl.constexpr,
    BIAS: tl.constexpr,
    AFTER: tl.constexpr,
    VALUE_NORM: tl.constexpr,
    FP8: tl.constexpr,
    MOST: tl.constexpr,
    APART: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Grid (tokens, tiles of heads); a and b are the halves of the heads, [TILE, HALF_BLOCK]."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
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
    kind = qkv.dtype.element_ty
    if VALUE_NORM:
        scale = tl.rsqrt(tl.sum(a * a + b * b, 1) / (2 * HALF) + value_eps)[:, None]
        plain_a, plain_b = (a * scale).to(kind), (b * scale).to(kind)
    if NORM and not AFTER:
        a, b = _normed(
            a, b, head, column, turns, norms, biases, scales + token * 2, eps, QUERIES, HALF, LAYER, WHOLE, BIAS
        )
    if TURN:
        angle = table + tl.load(positions + token).to(tl.int64) * (4 * HALF) + column
        cos = tl.load(angle, column < HALF, other=0.0).to(tl.float32)
        sin = tl.load(angle + 3 * HALF, column < HALF, other=0.0).to(tl.float32)
        a, b = a * cos - b * sin, b * cos + a * sin
    if NORM and AFTER:
        a, b = _normed(a, b, head, column, turns, norms, biases, scales, eps, QUERIES, HALF, LAYER, WHOLE, BIAS)
    new_a = tl.where(head < rotated, a.to(kind), plain_a)
    new_b = tl.where(head < rotated, b.to(kind), plain_b)
    if APART:
        query = out + (token * QUERIES + head) * (2 * HALF) + column
        is_query = (head < QUERIES) & (column < HALF)
        tl.store(query, new_a, is_query)
        tl.store(query + HALF, new_b, is_query)
    else:
        changed = inside if VALUE_NORM else turns
        tl.store(place, new_a, changed)
        tl.store(place + HALF, new_b, changed)
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


class QkNormWeights(NamedTuple):
    """A norm of queries and keys. weight, bias: [query_heads + kv_heads, head_dim], any float type.

    layer: the mean is subtracted first.  whole: over all queries at once, and over all keys.  after: it follows the
        rotation; not with `whole`.
    counters: int32 [query_heads + kv_heads], zeros, for the kernels only; None: see `gemv_qk_norm.supports`.
    """

    weight: Tensor
    eps: float
    bias: Tensor | None = None
    layer: bool = False
    whole: bool = False
    after: bool = False
    counters: Tensor | None = None


def norm_rope_store(
    qkv: Tensor,
    query_heads: int,
    kv_heads: int,
    angles_table: Tensor | None,
    positions: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    norm: QkNormWeights | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: Tensor | None = None,
    value_eps: float | None = None,
    overlap: bool = False,
) -> Tensor:
    """Rotate queries and keys in place and write keys and values to the pool; returns the view of the queries.

    out: if given, the queries go there, [T, query_heads, head_dim] contiguous, and qkv is not changed.

    qkv: [T, (query_heads + 2 kv_heads) * head_dim], rows contiguous; any even head_dim. kv_heads: 0 stores nothing.
    angles_table: `RotaryEmbedding.table`, [positions, 2 head_dim]; None: no rotation.  positions, slots: integers
        [T]; slot 0 is not written.
    k_pool, v_pool: [slots, kv_heads, head_dim] contiguous, of the model's type, or float8_e4m3fn for value / scale.
    value_eps: each head of values is divided by its root mean square.
    overlap: the kernel may start under the tail of the one before (see `overlap`).
    Returns [T, query_heads, head_dim], contiguous within a token.
    """
    tokens, dim = qkv.shape[0], k_pool.shape[-1]
    half = dim // 2
    block = 1 << (half - 1).bit_length()
    if tokens:
        scales = _scales(qkv, query_heads, kv_heads, dim, norm.eps) if norm is not None and norm.whole else qkv
        weight, eps, bias, layer, whole, after, _ = norm or (qkv, 0.0, None, False, False, False, None)
        _rotate_and_store[(tokens, triton.cdiv(query_heads + 2 * kv_heads, TILE))](
            qkv,
            qkv if angles_table is None else angles_table,
            positions,
            slots,
            k_pool,
            v_pool,
            weight,
            qkv if bias is None else bias,
            scales,
            qkv if out is None else out,
            qkv.stride(0),
            eps,
            value_eps or 0.0,
            k_scale,
            v_scale,
            QUERIES=query_heads,
            KEYS=kv_heads,
            HALF=half,
            HALF_BLOCK=block,
            TILE=TILE,
            TURN=angles_table is not None,
            NORM=norm is not None,
            LAYER=layer,
            WHOLE=whole,
            BIAS=bias is not None,
            AFTER=after,
            VALUE_NORM=value_eps is not None,
            FP8=k_pool.dtype == torch.float8_e4m3fn,
            MOST=MOST_FP8,
            APART=out is not None,
            num_warps=min(max(TILE * block // 256, 1), 8),
            **launched(overlap),
        )
    if out is not None:
        return out
    return qkv.as_strided((tokens, query_heads, dim), (qkv.stride(0), dim, 1))


def _scales(qkv: Tensor, query_heads: int, kv_heads: int, dim: int, eps: float) -> Tensor:
    scales = torch.empty(len(qkv), 2, dtype=torch.float32, device=qkv.device)
    block, warps = block_of(max(query_heads, kv_heads) * dim)
    _whole_scales[(len(qkv), 2)](
        qkv, scales, qkv.stride(0), eps, QUERIES=query_heads, KEYS=kv_heads, DIM=dim, BLOCK=block, num_warps=warps
    )
    return scales
