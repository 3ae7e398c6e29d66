"""Adapters of ragged groups of rows: y += B (scale * A x), in two launches for each product (SGMV, arXiv 2310.18547).

Rows are taken in the order of their slots, in blocks of one slot each. A grid has at least as many blocks as any mix of
the rows may need, and those without rows end at once, so a CUDA graph fits every mix. The inputs of the first product
are split, and the second one adds the parts in their order: a row's bits do not depend on the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ...step.adapter_blocks import AdapterRowBlocks
from ..launch.compile_ahead import entry

CUT, OUTPUTS = 1024, 128  # inputs of a part, and outputs that are written at once
GRAIN = 16  # numbers by which pairs begin, and by which pieces of most models end: whole words are read at once
FEW_BLOCKS = 16  # up to so many, outputs are divided among as many programs as there are tiles of OUTPUTS
LONG = 512  # outputs of a tile with more blocks


@dataclass(frozen=True, slots=True)
class LoraSlots:
    """The contents of the slots.

    memory: of the pairs; for a slot and a site, from `starts` on: A [pieces, rank, inputs].
    At the next multiple of 16 numbers: B [rank, outputs].
    starts: int64 [slots, sites], -1 if the adapter does not change the product.  ranks: int32 [slots].
    scales: float32 [slots, sites, most pieces]; 0 if it does not change the piece.  most_rank: of any slot.
    """

    memory: Tensor
    starts: Tensor
    ranks: Tensor
    scales: Tensor
    most_rank: int


@dataclass(frozen=True, slots=True)
class LoraProduct:
    """A product that adapters add to. site: its number.  short, long: see `tiles_of`, for few blocks and for many.

    grain: GRAIN where pieces and rows begin at multiples of it, else 1.
    piece_of: int32, of each tile of `adapted.OUTPUTS` outputs; None: some of these have several pieces.
    """

    site: int
    pieces: int
    inputs: int
    outputs: int
    short: Tensor
    long: Tensor
    grain: int
    piece_of: Tensor | None = None


@triton.jit
def of_block(block, piece, table, starts, ranks, scales, site, sites, most_pieces, GRAIN: tl.constexpr):
    """For a block of rows: its first position in the order, its number of rows, and where its slot's pair is stored.

    Also the piece's scale and the rank.
    """
    slot, begin, count = tl.load(table + 3 * block), tl.load(table + 3 * block + 1), tl.load(table + 3 * block + 2)
    start = tl.multiple_of(tl.load(starts + slot * sites + site), GRAIN)
    scale = tl.load(scales + (slot * sites + site) * most_pieces + piece)
    return begin, count, start, scale, tl.load(ranks + slot)


@entry
@triton.jit(do_not_specialize=["site", "blocks"], do_not_specialize_on_alignment=["table", "order"])
def shrink(
    x,
    h,
    memory,
    starts,
    ranks,
    scales,
    table,
    order,
    x_stride,
    inputs,
    site,
    sites,
    most_pieces,
    pieces,
    blocks,
    ROWS: tl.constexpr,
    RANK: tl.constexpr,
    DEPTH: tl.constexpr,
    CUT: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """h [parts, blocks, pieces, ROWS, RANK] float32, of each part of the inputs. Grid: blocks, pieces, parts."""
    block, piece, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, count, start, scale, rank = of_block(
        block, piece, table, starts, ranks, scales, site, sites, most_pieces, GRAIN
    )
    if (count > 0) & (start >= 0) & (scale != 0):
        row, r = tl.arange(0, ROWS), tl.arange(0, RANK)
        tokens = tl.load(order + begin + row, mask=row < count, other=0).to(tl.int64)
        first = memory + start + (piece * rank + r).to(tl.int64) * inputs
        sums = tl.zeros((ROWS, RANK), tl.float32)
        for step in range(CUT // DEPTH):
            at = part * CUT + step * DEPTH + tl.arange(0, DEPTH)
            left = tl.load(
                x + tokens[:, None] * x_stride + at[None, :],
                mask=(row < count)[:, None] & (at < inputs)[None, :],
                other=0.0,
            )
            right = tl.load(first[None, :] + at[:, None], mask=(r < rank)[None, :] & (at < inputs)[:, None], other=0.0)
            sums = tl.dot(left, right, sums, input_precision="ieee")
        to = (((part * blocks + block) * pieces + piece) * ROWS + row[:, None]) * RANK + r[None, :]
        tl.store(h + to, sums * scale, mask=(row < count)[:, None])


@entry
@triton.jit(do_not_specialize=["site", "blocks"], do_not_specialize_on_alignment=["table", "order"])
def expand(
    y,
    h,
    memory,
    starts,
    ranks,
    scales,
    table,
    order,
    tiles,
    y_stride,
    inputs,
    outputs,
    site,
    sites,
    most_pieces,
    pieces,
    blocks,
    ROWS: tl.constexpr,
    RANK: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STEPS: tl.constexpr,
    PARTS: tl.constexpr,
    GRAIN: tl.constexpr,
):
    """y += h B for the rows of a block, by tiles of outputs that belong to one piece. Grid: tiles, blocks."""
    tile, block = tl.program_id(0), tl.program_id(1)
    piece = tl.load(tiles + 3 * tile)
    left, stop = (
        tl.multiple_of(tl.load(tiles + 3 * tile + 1), GRAIN),
        tl.multiple_of(tl.load(tiles + 3 * tile + 2), GRAIN),
    )
    begin, count, start, scale, rank = of_block(
        block, piece, table, starts, ranks, scales, site, sites, most_pieces, GRAIN
    )
    if (count > 0) & (start >= 0) & (scale != 0):
        row, r = tl.arange(0, ROWS), tl.arange(0, RANK)
        tokens = tl.load(order + begin + row, mask=row < count, other=0).to(tl.int64)
        sums = tl.zeros((ROWS, RANK), tl.float32)
        for part in tl.static_range(PARTS):
            of = (((part * blocks + block) * pieces + piece) * ROWS + row[:, None]) * RANK + r[None, :]
            sums += tl.load(h + of, mask=(row < count)[:, None], other=0.0)
        inner = sums.to(memory.dtype.element_ty)
        middle = (pieces * rank.to(tl.int64) * inputs + 15) // 16 * 16
        second = memory + start + middle + r[:, None].to(tl.int64) * outputs
        for step in range(STEPS):
            output = left + step * OUTPUTS + tl.arange(0, OUTPUTS)
            wanted = output < stop
            to = y + tokens[:, None] * y_stride + output[None, :]
            mask = (row < count)[:, None] & wanted[None, :]
            before = tl.load(to, mask=mask, other=0.0).to(tl.float32)
            of_rank = tl.load(second + output[None, :], mask=(r < rank)[:, None] & wanted[None, :], other=0.0)
            tl.store(to, (before + tl.dot(inner, of_rank, input_precision="ieee")).to(y.dtype.element_ty), mask=mask)


def lora_shrink(x: Tensor, product: LoraProduct, pairs: LoraSlots, rows: AdapterRowBlocks) -> Tensor:
    """The input of `lora_expand`, from x [T, inputs]: scale * A x by parts, float32."""
    blocks, parts, rank = len(rows.table), triton.cdiv(product.inputs, CUT), rank_of(pairs)
    h = torch.empty(parts * blocks * product.pieces * rows.rows * rank, dtype=torch.float32, device=x.device)
    sites, most_pieces = pairs.scales.shape[1:]
    if blocks:
        shrink[(blocks, product.pieces, parts)](
            x,
            h,
            pairs.memory,
            pairs.starts,
            pairs.ranks,
            pairs.scales,
            rows.table,
            rows.order,
            x.stride(0),
            product.inputs,
            product.site,
            sites,
            most_pieces,
            product.pieces,
            blocks,
            ROWS=rows.rows,
            RANK=rank,
            DEPTH=depth_for(rank),
            CUT=CUT,
            GRAIN=product.grain,
            num_warps=2 if rows.rows * rank <= 256 else 4,
        )
    return h


def lora_expand(y: Tensor, h: Tensor, product: LoraProduct, pairs: LoraSlots, rows: AdapterRowBlocks) -> Tensor:
    """y [T, outputs] += B times the result of `lora_shrink`; returns y, which may be a view of a larger tensor."""
    blocks, parts = len(rows.table), triton.cdiv(product.inputs, CUT)
    tiles, steps = (product.short, 1) if blocks <= FEW_BLOCKS else (product.long, LONG // OUTPUTS)
    sites, most_pieces = pairs.scales.shape[1:]
    if blocks:
        expand[(len(tiles), blocks)](
            y,
            h,
            pairs.memory,
            pairs.starts,
            pairs.ranks,
            pairs.scales,
            rows.table,
            rows.order,
            tiles,
            y.stride(0),
            product.inputs,
            product.outputs,
            product.site,
            sites,
            most_pieces,
            product.pieces,
            blocks,
            ROWS=rows.rows,
            RANK=rank_of(pairs),
            OUTPUTS=OUTPUTS,
            STEPS=steps,
            PARTS=parts,
            GRAIN=product.grain,
            num_warps=4,
        )
    return y


def rank_of(pairs: LoraSlots) -> int:
    return max(16, triton.next_power_of_2(pairs.most_rank))


def depth_for(rank: int) -> int:
    """Inputs that are read at once."""
    return max(16, min(128, 8192 // rank))


def product_of(
    site: int, pieces: int, inputs: int, outputs: int, short: Tensor, long: Tensor, piece_of: Tensor | None = None
) -> LoraProduct:
    """short, long: see `tiles_of`."""
    ends = short[:, 1:].tolist()
    aligned = all(number % GRAIN == 0 for number in (inputs, outputs, *(number for each in ends for number in each)))
    return LoraProduct(site, pieces, inputs, outputs, short, long, GRAIN if aligned else 1, piece_of)


def tiles_of(runs: list[tuple[int, int, int]], size: int) -> np.ndarray:
    """int32 [tiles, 3]: piece, first output and end (exclusive) of tiles of at most `size`."""
    return np.array(
        [(piece, at, min(stop, at + size)) for piece, start, stop in runs for at in range(start, stop, size)], np.int32
    )
