"""A product of few rows with what adapters add to it, y = W x + b + B (scale * A x), in two launches.

The first one finds A x; the second one begins beside it, and when it has gone through its part of W it goes on through the B of
every adapter that the rows have, as if these were more inputs: of an adapter that a row does not have its numbers are 0.
So each pair is read once for all of its rows, and nothing is written but y.

Of up to MOST_BLOCKS blocks of rows this is the faster way (93 and 91 % of the base's tokens a second instead of 89 and 85 over one adapter and over
eight, on an H100); of more, B is read too slowly so. SGL_FOLD_ADAPTERS=0 goes without (`ON`).
"""

from __future__ import annotations

import os

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from ..step.adapter_blocks import FEW, Blocks
from .adapters import GRAIN, Pairs, Product, rank_of, shrink
from .ahead import entry
from .matmul import aligned, can_multiply, capability, processors, tile_for

ON = os.environ.get("SGL_FOLD_ADAPTERS") != "0"
MOST_ROWS, MOST_RANK, MOST_BLOCKS = 64, 128, 8
OUTPUTS = 64  # of a tile, all of one piece
CUT, DEPTH = 2048, 128  # inputs of a part of A x, and those read at once: programs of both kernels fit beside each other
FEW_INNER, INNER = 64, 128  # numbers of A x at once, of up to FEW_BLOCKS blocks and of more
FEW_BLOCKS = 4


@entry
@triton.jit(do_not_specialize_on_alignment=["groups"])
def find(
    places, starts, ranks, scales, groups, shapes, sites, most_pieces, room,
    RANK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """places: int32 [sites, most pieces, room], where the rows of B of the step's adapters begin, by GRAIN, RANK for each; -1: there is none.

    shapes: int32 [sites, 3], pieces, inputs and outputs. Grid: sites, most pieces.
    """
    site, piece = tl.program_id(0), tl.program_id(1)
    pieces, inputs, outputs = tl.load(shapes + 3 * site), tl.load(shapes + 3 * site + 1), tl.load(shapes + 3 * site + 2)
    count = tl.load(groups)
    for first in range(0, count * RANK, BLOCK):
        k = first + tl.arange(0, BLOCK)
        inside = k < count * RANK
        slot = tl.load(groups + 1 + k // RANK, inside, other=0)
        start = tl.load(starts + slot * sites + site, inside, other=-1)
        rank = tl.load(ranks + slot, inside, other=0)
        scale = tl.load(scales + (slot * sites + site) * most_pieces + piece, inside, other=0.0)
        middle = (pieces * rank.to(tl.int64) * inputs + 15) // 16 * 16
        at = (start + middle + (k % RANK).to(tl.int64) * outputs) // 16
        tl.store(places + (site * most_pieces + piece) * room + k, tl.where((start >= 0) & (scale != 0) & (k % RANK < rank), at, -1).to(tl.int32), inside)


@triton.jit
def _rows_of_b(memory, at, output):
    """B of adapters, [outputs, INNER]; at: [INNER], see `find`."""
    begin = tl.multiple_of(at.to(tl.int64) * 16, 16)
    return tl.load(memory + begin[None, :] + output[:, None], mask=(at >= 0)[None, :], other=0.0)


@entry
@triton.jit(do_not_specialize=["site", "rows"], do_not_specialize_on_alignment=["groups", "group_of"])
def multiply(
    x, weight, y, bias, h, memory, places, groups, group_of, piece_of,
    rows, outputs, inputs, site, most_pieces, pieces, room,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, RANK: tl.constexpr, PARTS: tl.constexpr, INNER: tl.constexpr,
    BIAS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """y [rows, outputs], rows up to ROWS; x and weight as descriptors. h: of `shrink`, by token. Grid: outputs / OUTPUTS."""
    tile = tl.program_id(0)
    row, output = tl.arange(0, ROWS), tile * OUTPUTS + tl.arange(0, OUTPUTS)
    piece, count = tl.load(piece_of + tile), tl.load(groups)
    group = tl.load(group_of + row, row < rows, other=-1)
    k = tl.arange(0, INNER)
    begins = places + (site * most_pieces + piece) * room
    at = tl.load(begins + k, k < count * RANK, other=-1)
    of_rank = _rows_of_b(memory, at, output)  # on its way while W is multiplied
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    if BIAS:
        sums += tl.load(bias + output).to(tl.float32)[:, None]
    for step in range(tl.cdiv(inputs, DEPTH)):
        sums = tl.dot(weight.load([tile * OUTPUTS, step * DEPTH]), x.load([0, step * DEPTH]).T, sums)
    if DEPENDENT:
        gdc_wait()
    r = tl.arange(0, RANK)
    once = tl.zeros((RANK, ROWS), tl.float32)
    for part in tl.static_range(PARTS):
        once += tl.load(h + ((part * pieces + piece) * rows + row[None, :]) * RANK + r[:, None], mask=(group >= 0)[None, :], other=0.0)
    UNIT: tl.constexpr = INNER // RANK
    inner = tl.reshape(tl.broadcast_to(once[None, :, :], (UNIT, RANK, ROWS)), (INNER, ROWS)).to(memory.dtype.element_ty)
    nothing = tl.zeros((INNER, ROWS), memory.dtype.element_ty)
    ours = (group[None, :] == (k // RANK)[:, None]) & (at >= 0)[:, None]
    sums = tl.dot(of_rank, tl.where(ours, inner, nothing), sums)
    for first in tl.range(INNER, count * RANK, INNER, num_stages=4):
        further = tl.load(begins + first + k, first + k < count * RANK, other=-1)
        theirs = (group[None, :] == ((first + k) // RANK)[:, None]) & (further >= 0)[:, None]
        sums = tl.dot(_rows_of_b(memory, further, output), tl.where(theirs, inner, nothing), sums)
    place = row.to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(y + place, sums.to(y.dtype.element_ty), (row < rows)[None, :])


def can_fold(memory: Tensor) -> bool:
    """Whether it is not switched off, and the device and the type of the pairs suit: half precision on Hopper or later."""
    return ON and memory.dtype in (torch.bfloat16, torch.float16) and capability(memory.device)[0] >= 9


def suits(count: int, pairs: Pairs, rows: Blocks) -> bool:
    """Whether `multiplied` takes so many rows, and is the fastest for them."""
    few = 0 < count <= MOST_ROWS and rows.rows == FEW and rows.groups is not None and 0 < len(rows.table) <= MOST_BLOCKS
    return few and rank_of(pairs) <= MOST_RANK


def fits(product: Product) -> bool:
    """Whether `multiplied` takes the product: whole tiles of one piece each, and rows that descriptors can read."""
    return product.piece_of is not None and product.grain == GRAIN and can_multiply(product.inputs, torch.bfloat16)


def found(pairs: Pairs, rows: Blocks, shapes: Tensor) -> Tensor:
    """`places` of `find`, once a step. shapes: as there."""
    assert rows.groups is not None
    sites, most_pieces = pairs.scales.shape[1:]
    rank, room = rank_of(pairs), (len(rows.groups) - 1) * rank_of(pairs)
    places = torch.empty(sites, most_pieces, room, dtype=torch.int32, device=shapes.device)
    if room:
        find[(sites, most_pieces)](places, pairs.starts, pairs.ranks, pairs.scales, rows.groups, shapes, sites, most_pieces, room, RANK=rank, BLOCK=1024, num_warps=4)
    return places


def multiplied(x: Tensor, weight: Tensor, bias: Tensor | None, product: Product, pairs: Pairs, rows: Blocks, places: Tensor) -> Tensor:
    """x [T, inputs] -> [T, outputs], see `fits`. places: of `found`."""
    overlap = x.is_cuda
    count, rank, parts = len(x), rank_of(pairs), triton.cdiv(product.inputs, CUT)
    h = torch.empty(parts * product.pieces * count * rank, dtype=torch.float32, device=x.device)
    sites, most_pieces = pairs.scales.shape[1:]
    shrink[(len(rows.table), product.pieces, parts)](
        x, h, pairs.memory, pairs.starts, pairs.ranks, pairs.scales, rows.table, rows.order,
        x.stride(0), product.inputs, product.site, sites, most_pieces, product.pieces, count,
        ROWS=rows.rows, RANK=rank, DEPTH=DEPTH, CUT=CUT, GRAIN=product.grain, BY_TOKEN=True, LEADS=overlap, num_warps=4,
    )  # fmt: skip
    y = torch.empty(count, product.outputs, dtype=x.dtype, device=x.device)
    tile = tile_for(count, product.outputs, x.dtype, capability(x.device), processors(x.device))
    multiply[(product.outputs // OUTPUTS,)](
        TensorDescriptor.from_tensor(aligned(x), [tile.rows, tile.depth]), TensorDescriptor.from_tensor(weight, [OUTPUTS, tile.depth]),
        y, bias, h, pairs.memory, places, rows.groups, rows.group_of, product.piece_of,
        count, product.outputs, product.inputs, product.site, most_pieces, product.pieces, places.shape[2],
        ROWS=tile.rows, OUTPUTS=OUTPUTS, DEPTH=tile.depth, RANK=rank, PARTS=parts, INNER=max(FEW_INNER if len(rows.table) <= FEW_BLOCKS else INNER, rank), BIAS=bias is not None, DEPENDENT=overlap,
        num_warps=tile.warps, num_stages=tile.stages, **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip
    return y


def pieces_of(runs: list[tuple[int, int, int]]) -> np.ndarray | None:
    """The piece of each tile of outputs, int32; None: some tiles have several. runs: piece, first output, the one behind the last."""
    if any(start % OUTPUTS or stop % OUTPUTS for _, start, stop in runs):
        return None
    return np.array([piece for piece, start, stop in runs for _ in range(start, stop, OUTPUTS)], np.int32)
