"""An adapter's addition to the products of one row, y += B (scale * A norm(x)), in a small kernel and a fused epilogue.

The small kernel before each product computes scale * A norm(x). The product's own kernel adds B's part to its sums
before they are activated, rotated, added to the residual or rounded.

The row's adapter is looked up once a step (`place`), so that a CUDA graph fits them all. The kernels of `gemv` have
their weights in flight before the preceding kernels have ended, and so have these A and B: slots and places do not
change during a step. A program has one row of A and the whole of x: there are no parts to be added up, and a row's bits
depend on nothing else.

SGL_LONE_ADAPTERS=0 turns it off (`ON`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ...step.adapter_blocks import AdapterRowBlocks
from ..adapters.lora_sgmv import GRAIN, LoraProduct, LoraSlots
from ..launch.compile_ahead import entry
from ..launch.programmatic_launch import launched, overlaps

ON = os.environ.get("SGL_LONE_ADAPTERS") != "0"
MOST_RANK, MOST_PIECES = 128, 3
WORDS = 4  # of a place: where A begins and where B does, the pair's rank, the bits of its scale
BLOCK, AHEAD = 4096, 4  # inputs that a program reads at once, and how many such blocks of A before it may look at x


@dataclass(frozen=True, slots=True)
class GemvLora:
    """The addition to a product of the row. h: float32 [pieces, width].  pairs: the memory of B.

    places: int64 [most pieces, WORDS], of the product.
    second, third: the outputs with which pieces 1 and 2 begin.
    """

    h: Tensor
    pairs: Tensor
    places: Tensor
    second: int
    third: int


class LoraSizes(NamedTuple):
    """What a kernel with a `GemvLora` is compiled for. width: of h."""

    width: int
    second: int
    third: int


def describe(pair: GemvLora | None) -> dict[str, Any]:
    """The arguments of a product's kernel; None: it is as it was without adapters."""
    if pair is None:
        return {}
    return {
        "h": pair.h,
        "pairs": pair.pairs,
        "pair_at": pair.places,
        "PAIR": LoraSizes(pair.h.shape[1], pair.second, pair.third),
    }


@entry
@triton.jit(do_not_specialize_on_alignment=["table"])
def place(places, starts, ranks, scales, table, shapes, sites, most_pieces, WORDS: tl.constexpr):
    """places: int64 [sites, most pieces, WORDS] for the row of the table's first block; its rank is 0 if nothing is
    added.

    shapes: int32 [sites, 3], pieces, inputs and outputs. Grid: sites, most pieces.
    """
    site, piece = tl.program_id(0), tl.program_id(1)
    pieces, inputs = tl.load(shapes + 3 * site), tl.load(shapes + 3 * site + 1)
    slot, count = tl.load(table), tl.load(table + 2)
    start, rank = tl.load(starts + slot * sites + site), tl.load(ranks + slot).to(tl.int64)
    scale = tl.load(scales + (slot * sites + site) * most_pieces + piece)
    middle = (pieces * rank * inputs + 15) // 16 * 16
    there = (count > 0) & (start >= 0) & (scale != 0) & (piece < pieces)
    to = places + (site * most_pieces + piece) * WORDS
    tl.store(to, start + piece * rank * inputs)
    tl.store(to + 1, start + middle)
    tl.store(to + 2, tl.where(there, rank, 0))
    tl.store(to + 3, scale.to(tl.int32, bitcast=True).to(tl.int64))


@triton.jit
def _of_a(row, step, r, rank, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    k = step * BLOCK + tl.arange(0, BLOCK)
    return tl.load(row + k, (k < SIZE) & (tl.full([BLOCK], r, tl.int32) < rank), other=0.0)


@entry
@triton.jit
def shrink(
    x,
    norm,
    h,
    pairs,
    pair_at,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    GRAIN: tl.constexpr,
    NORMED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """h [pieces, WIDTH] = scale * A norm(x), up to the pair's rank; the rest is not written. Grid: pieces, WIDTH."""
    STEPS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    if DEPENDENT:
        gdc_launch_dependents()
    piece, r = tl.program_id(0), tl.program_id(1)
    at = pair_at + 4 * piece
    rank, scale = tl.load(at + 2).to(tl.int32), tl.load(at + 3).to(tl.int32).to(tl.float32, bitcast=True)
    row = pairs + tl.multiple_of(tl.load(at) + r.to(tl.int64) * SIZE, GRAIN)
    blocks = ()  # type: tuple
    for step in tl.static_range(min(STEPS, AHEAD)):
        blocks = blocks + (_of_a(row, step, r, rank, SIZE, BLOCK),)
    if DEPENDENT:
        gdc_wait()
    if r < rank:
        sums, squares = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        for step in tl.static_range(STEPS):
            k = step * BLOCK + tl.arange(0, BLOCK)
            values = tl.load(x + k, k < SIZE, other=0.0).to(tl.float32)
            if NORMED:
                squares += values * values
                values *= tl.load(norm + k, k < SIZE, other=0.0).to(tl.float32)
            if step < AHEAD:
                sums += blocks[step].to(tl.float32) * values
            else:
                sums += _of_a(row, step, r, rank, SIZE, BLOCK).to(tl.float32) * values
        once = tl.sum(sums, 0) * scale
        if NORMED:
            once *= tl.rsqrt(tl.sum(squares, 0) / SIZE + eps)
        tl.store(h + piece * WIDTH + r, once)


def can_add(most_rank: int) -> bool:
    """Whether it is enabled, and the pairs are narrow enough for the programs of small batches."""
    return ON and 0 < most_rank <= MOST_RANK


def placed(pairs: LoraSlots, rows: AdapterRowBlocks, shapes: Tensor) -> Tensor:
    """`places` of `place`, for a step of one row.

    shapes: as there. The kernel launched next reads nothing of it before a kernel in between has ended.
    """
    sites, most_pieces = pairs.scales.shape[1:]
    places = torch.zeros(sites, most_pieces, WORDS, dtype=torch.int64, device=shapes.device)
    if sites and len(rows.table):
        place[(sites, most_pieces)](
            places,
            pairs.starts,
            pairs.ranks,
            pairs.scales,
            rows.table,
            shapes,
            sites,
            most_pieces,
            WORDS=WORDS,
            num_warps=1,
        )
    return places


def lora_shrink(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    product: LoraProduct,
    piece_starts: tuple[int, int],
    pairs: LoraSlots,
    places: Tensor,
) -> GemvLora:
    """Of x [1, inputs]; norm_weight: None for no norm.  piece_starts: see `piece_starts_of`.  places: of `placed`."""
    width, size = triton.next_power_of_2(pairs.most_rank), product.inputs
    h, own = torch.empty(product.pieces, width, dtype=torch.float32, device=x.device), places[product.site]
    block = min(BLOCK, triton.next_power_of_2(size))
    shrink[(product.pieces, width)](
        x,
        x if norm_weight is None else norm_weight,
        h,
        pairs.memory,
        own,
        eps,
        SIZE=size,
        BLOCK=block,
        AHEAD=AHEAD,
        WIDTH=width,
        GRAIN=GRAIN if size % GRAIN == 0 else 1,
        NORMED=norm_weight is not None,
        num_warps=4 if size <= BLOCK else 8,
        **launched(overlaps(x.device)),
    )
    return GemvLora(h, pairs.memory, own, *piece_starts)


def piece_starts_of(runs: list[tuple[int, int, int]], outputs: int) -> tuple[int, int] | None:
    """The outputs with which pieces 1 and 2 begin, `outputs` if there are none.

    None: there are more, or they are in another order.
    """
    if [piece for piece, *_ in runs] != list(range(len(runs))) or len(runs) > MOST_PIECES:
        return None
    begins = [start for _, start, _ in runs[1:]]
    return (*begins, *[outputs] * (MOST_PIECES - 1 - len(begins)))  # type: ignore[return-value]
