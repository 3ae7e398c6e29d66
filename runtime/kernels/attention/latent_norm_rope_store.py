"""Latent attention between a token's projections and attention, in one pass: norm, rotation, store."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch.compile_ahead import entry
from ..launch.programmatic_launch import launched
from .qk_norm_rope_store import MOST_FP8, _to_pool

TILE = 16  # heads of a program


@triton.jit
def _turned(start, table, position, column, wanted, TURN: tl.constexpr, HALF: tl.constexpr):
    """Both halves of the rotated numbers, in their own type."""
    a, b = tl.load(start + column, wanted, other=0.0), tl.load(start + HALF + column, wanted, other=0.0)
    if TURN:
        angle = table + position * (4 * HALF) + column
        cos = tl.load(angle, column < HALF, other=0.0).to(tl.float32)
        sin = tl.load(angle + 3 * HALF, column < HALF, other=0.0).to(tl.float32)
        low, high = a.to(tl.float32), b.to(tl.float32)
        a, b = (low * cos - high * sin).to(a.dtype), (high * cos + low * sin).to(b.dtype)
    return a, b


@entry
@triton.jit(do_not_specialize=("first", "queries"), do_not_specialize_on_alignment=("positions", "slots"))
def _latent_rows(
    query,
    latent,
    norm,
    table,
    positions,
    slots,
    pool,
    q,
    first,
    queries,
    query_stride,
    latent_stride,
    eps,
    scale,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    RANK: tl.constexpr,
    RANK_BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    TURN: tl.constexpr,
    FP8: tl.constexpr,
    MOST: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Grid (tokens, 1 + tiles of heads): the first program of a token makes its row.

    The others rotate the queries of the token `first` positions later.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column, WIDTH = tl.arange(0, HALF_BLOCK), RANK + 2 * HALF
    if part == 0:
        position = tl.load(positions + token).to(tl.int64)
        slot = tl.load(slots + token).to(tl.int64)
        if slot != 0:
            start, row, number = latent + token * latent_stride, pool + slot * WIDTH, tl.arange(0, RANK_BLOCK)
            x = tl.load(start + number, number < RANK, other=0.0).to(tl.float32)
            y = (
                x
                * tl.rsqrt(tl.sum(x * x, 0) / RANK + eps)
                * tl.load(norm + number, number < RANK, other=0.0).to(tl.float32)
            )
            tl.store(row + number, _to_pool(y.to(latent.dtype.element_ty), scale, pool, FP8, MOST), number < RANK)
            a, b = _turned(start + RANK, table, position, column, column < HALF, TURN, HALF)
            tl.store(row + RANK + column, _to_pool(a, scale, pool, FP8, MOST), column < HALF)
            tl.store(row + RANK + HALF + column, _to_pool(b, scale, pool, FP8, MOST), column < HALF)
    elif token < queries:
        position = tl.load(positions + first + token).to(tl.int64)
        head = (part - 1) * TILE + tl.arange(0, TILE)[:, None]
        wanted = (head < HEADS) & (column < HALF)[None, :]
        start = query + token * query_stride + HEADS * DIM + head * (2 * HALF)
        a, b = _turned(start, table, position, column[None, :], wanted, TURN, HALF)
        place = q + (token * HEADS + head) * WIDTH + RANK + column[None, :]
        tl.store(place, a, wanted)
        tl.store(place + HALF, b, wanted)


def latent_norm_rope_store(
    query: Tensor,
    latent: Tensor,
    norm: Tensor,
    eps: float,
    table: Tensor | None,
    positions: Tensor,
    slots: Tensor,
    pool: Tensor,
    q: Tensor,
    scale: float = 1.0,
    first: int = 0,
    overlap: bool = False,
) -> None:
    """Write each token's row, with its latent normed and its key rotated, to its slot, and the rotated part of queries
    to q.

    query: [Q, heads * dim + heads * turned], all heads' own numbers first, of the tokens from `first` on; latent: [T,
        rank + turned]; rows contiguous.  norm: [rank].
    table: `RotaryEmbedding.table`, [positions, 2 turned]; None: no rotation.  positions, slots: integers [T]; slot 0 is
        not written.
    pool: [slots, 1, rank + turned], contiguous, of the model's type, or float8_e4m3fn for number / scale.
    q: [Q, heads, rank + turned], contiguous, of which the first `rank` numbers stay as they are.  overlap: see
        `overlap`.
    """
    (queries, heads, width), tokens, rank = q.shape, len(latent), len(norm)
    half, dim = (width - rank) // 2, query.shape[1] // heads - (width - rank)
    if tokens:
        _latent_rows[(tokens, 1 + (triton.cdiv(heads, TILE) if queries else 0))](
            query,
            latent,
            norm,
            query if table is None else table,
            positions,
            slots,
            pool,
            q,
            first,
            queries,
            query.stride(0),
            latent.stride(0),
            eps,
            scale,
            HEADS=heads,
            DIM=dim,
            RANK=rank,
            RANK_BLOCK=triton.next_power_of_2(rank),
            HALF=half,
            HALF_BLOCK=triton.next_power_of_2(half),
            TILE=TILE,
            TURN=table is not None,
            FP8=pool.dtype.itemsize == 1,
            MOST=MOST_FP8,
            num_warps=2,
            **launched(overlap),
        )
