"""A product of a small batch with the output of its adapters, y = W x + b + B (scale * A x), in one launch.

The first programs compute A x. Each of the others goes through its part of W, waits until all of A x is complete, and
continues through the B of every adapter of the rows, as if these were more inputs. For an adapter that a row does not
have, its numbers are 0. So each pair is read once for all of its rows, and only y and A x are written.

Programs are dispatched in the order of their numbers. Those that others wait for come first and do not wait themselves:
they run or have ended before the first one waits. So all end, however few fit on the device (as in stream-K, arXiv
2301.03598, and decoupled look-back). They are counted in a counter of the site, which the last program sets back to 0,
ready for the next step or the replay of a graph. Kernels on the same counters must follow each other, as all that an
engine computes for its steps do. An aborted kernel also ends the process's context on the device, and the counters
with it.

Up to MOST_BLOCKS blocks of rows this is faster; with more, B is read too slowly. SGL_FOLD_ADAPTERS=0 turns it off
(`ON`).
"""

from __future__ import annotations

import os

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from ...step.adapter_blocks import FEW, AdapterRowBlocks
from ..batch_invariant_matmul import MatmulTile, aligned, can_multiply, capability, processors, tile_for
from ..launch.compile_ahead import entry
from ..launch.programmatic_launch import launched
from .lora_sgmv import GRAIN, LoraProduct, LoraSlots, of_block, rank_of

ON = os.environ.get("SGL_FOLD_ADAPTERS") != "0"
MOST_ROWS, MOST_RANK, MOST_BLOCKS = 64, 128, 8
OUTPUTS = 64  # of a tile, all of one piece
CUT, MOST_OF_CUT = 4096, 64  # inputs of a part of A x, half as many for ranks above the latter: see `shrinking`
SPLIT = 4  # sums of a part that are computed in parallel, by a warp each
MOST_STAGES = 10  # inputs of a part that are in flight at once, in steps
FEW_INNER, INNER = 64, 128  # numbers of A x at once, of up to FEW_BLOCKS blocks and of more
FEW_BLOCKS = 4


@entry
@triton.jit(do_not_specialize_on_alignment=["groups"])
def find(
    places, starts, ranks, scales, groups, shapes, sites, most_pieces, room, RANK: tl.constexpr, BLOCK: tl.constexpr
):
    """places: int32 [sites, most pieces, room], where the rows of B of the step's adapters begin, by GRAIN, RANK for
    each.

    -1: there is none.
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
        tl.store(
            places + (site * most_pieces + piece) * room + k,
            tl.where((start >= 0) & (scale != 0) & (k % RANK < rank), at, -1).to(tl.int32),
            inside,
        )


@triton.jit
def _rows_of_b(memory, at, output):
    """B of adapters, [outputs, INNER]; at: [INNER], see `find`."""
    begin = tl.multiple_of(at.to(tl.int64) * 16, 16)
    return tl.load(memory + begin[None, :] + output[:, None], mask=(at >= 0)[None, :], other=0.0)


@triton.jit
def _shrink(
    program,
    x,
    h,
    memory,
    starts,
    ranks,
    scales,
    table,
    order,
    x_stride,
    rows,
    inputs,
    site,
    sites,
    most_pieces,
    pieces,
    blocks,
    RANK: tl.constexpr,
    FEW: tl.constexpr,
    GRAIN: tl.constexpr,
    CUT: tl.constexpr,
    SPLIT: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """h [parts, pieces, rows, RANK]: scale * A x for the rows of a block, one piece and a part of the inputs.

    SPLIT sums share that part.
    """
    block, piece, part = program % blocks, program // blocks % pieces, program // blocks // pieces
    begin, count, start, scale, rank = of_block(
        block, piece, table, starts, ranks, scales, site, sites, most_pieces, GRAIN
    )
    if (count > 0) & (start >= 0) & (scale != 0):
        row, r = tl.arange(0, FEW), tl.arange(0, RANK)
        tokens = tl.load(order + begin + row, mask=row < count, other=0).to(tl.int64)
        first = memory + start + (piece * rank + r).to(tl.int64) * inputs
        sums = tl.zeros((SPLIT, FEW, RANK), tl.float32)
        for step in tl.range(tl.cdiv(tl.minimum(CUT, inputs - part * CUT), SPLIT * DEPTH), num_stages=STAGES):
            at = part * CUT + (step * SPLIT + tl.arange(0, SPLIT)[:, None]) * DEPTH + tl.arange(0, DEPTH)[None, :]
            left = tl.load(
                x + tokens[None, :, None] * x_stride + at[:, None, :],
                mask=(row < count)[None, :, None] & (at < inputs)[:, None, :],
                other=0.0,
            )
            right = tl.load(
                first[None, None, :] + at[:, :, None],
                mask=(r < rank)[None, None, :] & (at < inputs)[:, :, None],
                other=0.0,
            )
            sums = tl.dot(left, right, sums)
        to = ((part * pieces + piece) * rows + tokens[:, None]) * RANK + r[None, :]
        tl.store(h + to, tl.sum(sums, 0) * scale, mask=(row < count)[:, None])


@triton.jit
def _wait_for(counter, count):
    """Returns when so many programs have added one to it, and all that they had stored is visible."""
    while tl.atomic_add(counter, 0, sem="acquire") < count:
        pass
    tl.debug_barrier()


@triton.jit
def _go_through(
    tile,
    x,
    weight,
    y,
    bias,
    h,
    counter,
    shrinking,
    memory,
    places,
    groups,
    group_of,
    piece_of,
    rows,
    outputs,
    inputs,
    site,
    most_pieces,
    pieces,
    room,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    INNER: tl.constexpr,
    BIAS: tl.constexpr,
):
    """A tile of y, its inputs first and then the B of all adapters. shrinking: how many programs run `_shrink`."""
    row, output = tl.arange(0, ROWS), tile * OUTPUTS + tl.arange(0, OUTPUTS)
    piece, count = tl.load(piece_of + tile), tl.load(groups)
    group = tl.load(group_of + row, row < rows, other=-1)
    k = tl.arange(0, INNER)
    begins = places + (site * most_pieces + piece) * room
    at = tl.load(begins + k, k < count * RANK, other=-1)
    of_rank = _rows_of_b(memory, at, output)  # in flight while W is multiplied
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    if BIAS:
        sums += tl.load(bias + output).to(tl.float32)[:, None]
    for step in range(tl.cdiv(inputs, DEPTH)):
        sums = tl.dot(weight.load([tile * OUTPUTS, step * DEPTH]), x.load([0, step * DEPTH]).T, sums)
    _wait_for(counter, shrinking)
    r = tl.arange(0, RANK)
    once = tl.zeros((RANK, ROWS), tl.float32)
    for part in tl.static_range(PARTS):
        once += tl.load(
            h + ((part * pieces + piece) * rows + row[None, :]) * RANK + r[:, None],
            mask=(group >= 0)[None, :],
            other=0.0,
            cache_modifier=".cg",
        )
    UNIT: tl.constexpr = INNER // RANK
    inner = tl.reshape(tl.broadcast_to(once[None, :, :], (UNIT, RANK, ROWS)), (INNER, ROWS)).to(memory.dtype.element_ty)
    nothing = tl.zeros((INNER, ROWS), memory.dtype.element_ty)
    ours = (group[None, :] == (k // RANK)[:, None]) & (at >= 0)[:, None]
    of_rank = tl.where(
        count > 0, of_rank, tl.zeros((OUTPUTS, INNER), memory.dtype.element_ty)
    )  # always true: so the compiler leaves it in registers until here, and does not wait for it in front of W
    sums = tl.dot(of_rank, tl.where(ours, inner, nothing), sums)
    for first in tl.range(INNER, count * RANK, INNER, num_stages=4):
        further = tl.load(begins + first + k, first + k < count * RANK, other=-1)
        theirs = (group[None, :] == ((first + k) // RANK)[:, None]) & (further >= 0)[:, None]
        sums = tl.dot(_rows_of_b(memory, further, output), tl.where(theirs, inner, nothing), sums)
    place = row.to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(y + place, sums.to(y.dtype.element_ty), (row < rows)[None, :])


@entry
@triton.jit(
    do_not_specialize=["site", "rows", "blocks"],
    do_not_specialize_on_alignment=["table", "order", "groups", "group_of"],
)
def multiply(
    x,
    x_tiles,
    weight,
    y,
    bias,
    h,
    counters,
    memory,
    starts,
    ranks,
    scales,
    table,
    order,
    places,
    groups,
    group_of,
    piece_of,
    x_stride,
    rows,
    outputs,
    inputs,
    site,
    sites,
    most_pieces,
    pieces,
    blocks,
    room,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    INNER: tl.constexpr,
    FEW: tl.constexpr,
    GRAIN: tl.constexpr,
    CUT: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLIT_DEPTH: tl.constexpr,
    SHRINK_STAGES: tl.constexpr,
    BIAS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """y [rows, outputs], rows up to ROWS; x_tiles, weight: descriptors. h: see `_shrink`.

    counters: int32 [sites], zeros before and after.
    Grid: blocks * pieces * PARTS programs that shrink, then outputs / OUTPUTS that multiply.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    first = blocks * pieces * PARTS
    if tl.program_id(0) < first:
        _shrink(
            tl.program_id(0),
            x,
            h,
            memory,
            starts,
            ranks,
            scales,
            table,
            order,
            x_stride,
            rows,
            inputs,
            site,
            sites,
            most_pieces,
            pieces,
            blocks,
            RANK,
            FEW,
            GRAIN,
            CUT,
            SPLIT,
            SPLIT_DEPTH,
            SHRINK_STAGES,
        )
        tl.debug_barrier()
        tl.atomic_add(counters + site, 1, sem="release")
    else:
        _go_through(
            tl.program_id(0) - first,
            x_tiles,
            weight,
            y,
            bias,
            h,
            counters + site,
            first,
            memory,
            places,
            groups,
            group_of,
            piece_of,
            rows,
            outputs,
            inputs,
            site,
            most_pieces,
            pieces,
            room,
            ROWS,
            OUTPUTS,
            DEPTH,
            RANK,
            PARTS,
            INNER,
            BIAS,
        )
        if tl.atomic_add(counters + site, 1, sem="acq_rel") == tl.num_programs(0) - 1:
            tl.store(counters + site, 0)


def can_fuse(memory: Tensor) -> bool:
    """Whether it is enabled, and device and dtype of the pairs are supported: half precision on Hopper or later."""
    return ON and memory.dtype in (torch.bfloat16, torch.float16) and capability(memory.device)[0] >= 9


def supports(count: int, pairs: LoraSlots, rows: AdapterRowBlocks) -> bool:
    """Whether `fused_lora_linear` supports so many rows, and is the fastest for them."""
    few = 0 < count <= MOST_ROWS and rows.rows == FEW and rows.groups is not None and 0 < len(rows.table) <= MOST_BLOCKS
    return few and rank_of(pairs) <= MOST_RANK


def fits_product(product: LoraProduct) -> bool:
    """Whether `fused_lora_linear` supports the product: whole tiles of one piece each, and rows readable by
    descriptors.
    """
    return product.piece_of is not None and product.grain == GRAIN and can_multiply(product.inputs, torch.bfloat16)


def segments_of(pairs: LoraSlots, rows: AdapterRowBlocks, shapes: Tensor) -> Tensor:
    """`places` of `find`, once a step. shapes: as there."""
    assert rows.groups is not None
    sites, most_pieces = pairs.scales.shape[1:]
    rank, room = rank_of(pairs), (len(rows.groups) - 1) * rank_of(pairs)
    places = torch.empty(sites, most_pieces, room, dtype=torch.int32, device=shapes.device)
    if room:
        find[(sites, most_pieces)](
            places,
            pairs.starts,
            pairs.ranks,
            pairs.scales,
            rows.groups,
            shapes,
            sites,
            most_pieces,
            room,
            RANK=rank,
            BLOCK=1024,
            num_warps=4,
        )
    return places


def fused_lora_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    product: LoraProduct,
    pairs: LoraSlots,
    rows: AdapterRowBlocks,
    places: Tensor,
    counters: Tensor,
    overlap: bool = False,
) -> Tensor:
    """x [T, inputs] -> [T, outputs], see `fits_product`.

    places: of `segments_of`.  counters: int32 [sites], zeros.  overlap: may start under the tail of the kernel before.
    """
    x, count, blocks = aligned(x), len(x), len(rows.table)
    sites, most_pieces = pairs.scales.shape[1:]
    tile = tile_for(count, product.outputs, x.dtype, capability(x.device), processors(x.device))
    rank, shrink = rank_of(pairs), shrinking(rank_of(pairs), tile)
    parts = triton.cdiv(product.inputs, shrink["CUT"])
    h = torch.empty(parts * product.pieces * count * rank, dtype=torch.float32, device=x.device)
    y = torch.empty(count, product.outputs, dtype=x.dtype, device=x.device)
    multiply[(blocks * product.pieces * parts + product.outputs // OUTPUTS,)](
        x,
        TensorDescriptor.from_tensor(x, [tile.rows, tile.depth]),
        TensorDescriptor.from_tensor(weight, [OUTPUTS, tile.depth]),
        y,
        bias,
        h,
        counters,
        pairs.memory,
        pairs.starts,
        pairs.ranks,
        pairs.scales,
        rows.table,
        rows.order,
        places,
        rows.groups,
        rows.group_of,
        product.piece_of,
        x.stride(0),
        count,
        product.outputs,
        product.inputs,
        product.site,
        sites,
        most_pieces,
        product.pieces,
        blocks,
        places.shape[2],
        ROWS=tile.rows,
        OUTPUTS=OUTPUTS,
        DEPTH=tile.depth,
        RANK=rank,
        PARTS=parts,
        INNER=max(FEW_INNER if blocks <= FEW_BLOCKS else INNER, rank),
        FEW=rows.rows,
        GRAIN=product.grain,
        **shrink,
        BIAS=bias is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launched(overlap),
    )
    return y


def shrinking(rank: int, tile: MatmulTile) -> dict[str, int]:
    """How a program computes its part of A x, within the shared memory of the product's tiles.

    Parts are few and long. With few outputs, a program of either kind takes the shared memory of a whole
    multiprocessor, so a program that shrinks takes the place of one that multiplies. With eight blocks, Llama-3.1-8B's
    products have 120, 72 and 96 programs of that size: all fit on 132 multiprocessors at once. A program must then end
    before the others have gone through W; large ranks use a shorter part for this.
    """
    depth = max(32, min(64, 2048 // rank))
    room, step = tile.stages * (tile.rows + OUTPUTS) * tile.depth, SPLIT * depth * (FEW + rank)
    return {
        "CUT": CUT if rank <= MOST_OF_CUT else CUT // 2,
        "SPLIT": SPLIT,
        "SPLIT_DEPTH": depth,
        "SHRINK_STAGES": max(2, min(MOST_STAGES, 1 + room // step)),
    }


def pieces_of(runs: list[tuple[int, int, int]]) -> np.ndarray | None:
    """The piece of each tile of outputs, int32; None: some tiles have several.

    runs: piece, first output, end (exclusive).
    """
    if any(start % OUTPUTS or stop % OUTPUTS for _, start, stop in runs):
        return None
    return np.array([piece for piece, start, stop in runs for _ in range(start, stop, OUTPUTS)], np.int32)
