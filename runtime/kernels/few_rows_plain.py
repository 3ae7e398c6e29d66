"""Products of 2 to 64 rows with weights of bfloat16 as they lie, and what stands around them: one launch a product.

The weight is the left operand of the tensor cores, a program has 64 outputs with all of their inputs, so that no sums are added up
anywhere else. A program asks for the first inputs of its weight before it waits for the kernel in front of it, whose tail leaves the memory
idle otherwise.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from .activation import activated
from .ahead import entry
from .few_rows_parts import Readied
from .matmul import aligned, can_multiply, capability, processors

MOST_ROWS = 64
DTYPE = torch.bfloat16
ON = os.environ.get("SGL_FEW_ROWS_PLAIN") != "0"
LINE = 64  # numbers of a line of the L2 cache


class PlainTile(NamedTuple):
    """outputs: of a program, of each half where there are two; depth: inputs at a time; stages: loads in flight; lines: of each output, asked for ahead."""

    outputs: int
    depth: int
    stages: int
    warps: int = 4
    lines: int = 8


@triton.jit
def _ask(weight, first, outputs, inputs, OUTPUTS: tl.constexpr, LINES: tl.constexpr, LINE: tl.constexpr):
    """Has the first numbers of so many outputs come to the L2 cache."""
    output = tl.minimum(first + tl.arange(0, OUTPUTS), outputs - 1).to(tl.int64)
    place = tl.minimum(tl.arange(0, LINES) * LINE, inputs - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [weight + output[:, None] * inputs + place[None, :]], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _finished(sums, bias, factor, output, outputs, BIASED: tl.constexpr):
    """sums [OUTPUTS, ROWS] times what belongs to each row (factor [1, ROWS]), and the bias."""
    sums *= factor
    if BIASED:
        sums += tl.load(bias + output, output < outputs, other=0.0).to(tl.float32)[:, None]
    return sums


@entry
@triton.jit(do_not_specialize=["rows"])
def multiply(
    x, weight, address, bias, squares, y, norm, ready, left, rows, outputs, inputs, y_stride, eps,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, BIASED: tl.constexpr, NORMED: tl.constexpr, TILES: tl.constexpr,
    ADDED: tl.constexpr, READY: tl.constexpr, NAME: tl.constexpr, DEPENDENT: tl.constexpr, LINES: tl.constexpr, LINE: tl.constexpr,
):  # fmt: skip
    """y [rows, outputs] = x [rows, inputs] W^T + bias; x and weight as descriptors, address: the weight's; see `matmul`. Grid: tiles of outputs."""
    tile = tl.program_id(0)
    first, wide = tile * OUTPUTS, outputs
    if NAME != "":
        wide = outputs // 2
    if LINES:
        _ask(address, first, outputs, inputs, OUTPUTS, LINES, LINE)
        if NAME != "":
            _ask(address, wide + first, outputs, inputs, OUTPUTS, LINES, LINE)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row, output = tl.arange(0, ROWS), first + tl.arange(0, OUTPUTS)
    inside = (output < wide)[:, None] & (row < rows)[None, :]
    place = row.to(tl.int64)[None, :] * y_stride + output[:, None]
    factor = tl.full((1, ROWS), 1.0, tl.float32)
    if NORMED:
        part = tl.arange(0, TILES)
        found = tl.load(squares + part[:, None] * rows + row[None, :], (part < NORMED)[:, None] & (row < rows)[None, :], other=0.0)
        factor = tl.rsqrt(tl.sum(found, 0) / inputs + eps)[None, :]
    sums, above = tl.zeros((OUTPUTS, ROWS), tl.float32), tl.zeros((OUTPUTS, ROWS), tl.float32)
    for step in range(tl.cdiv(inputs, DEPTH)):
        right = x.load([0, step * DEPTH]).T
        sums = tl.dot(weight.load([first, step * DEPTH]), right, sums)
        if NAME != "":
            above = tl.dot(weight.load([wide + first, step * DEPTH]), right, above)
    sums = _finished(sums, bias, factor, output, wide, BIASED)
    if NAME != "":
        sums = activated(sums, NAME) * _finished(above, bias + wide, factor, output, wide, BIASED)
    if ADDED:
        sums += tl.load(y + place, inside, other=0.0).to(tl.float32)
    stored = sums.to(y.dtype.element_ty)
    tl.store(y + place, stored, inside)
    if READY:
        rounded = tl.where(inside, stored.to(tl.float32), 0.0)
        times = tl.load(norm + output, output < wide, other=0.0).to(tl.float32)[:, None]
        tl.store(ready + row.to(tl.int64)[None, :] * outputs + output[:, None], (rounded * times).to(ready.dtype.element_ty), inside)
        tl.store(left + tile * rows + row, tl.sum(rounded * rounded, 0), row < rows)


def columns(rows: int) -> int:
    """Of the tensor cores' right operand."""
    return next(count for count in (16, 32, 64) if rows <= count)


def tile_for(rows: int, outputs: int, gated: bool, many: int) -> PlainTile:
    """On so many multiprocessors. Measured on an H200: see `matmul.tile_for`, whose sums are in the same order."""
    count = columns(rows)
    if gated:
        return PlainTile(64, 128, 3) if count < 64 else PlainTile(64, 64, 6)
    if triton.cdiv(outputs, 64) > many:
        return PlainTile(64, 128, 4) if count < 64 else PlainTile(64, 64, 6)
    return PlainTile(64, 256, 5) if count == 16 else PlainTile(64, 128, 6)


def takes(weight: Tensor) -> bool:
    """Whether `matmul` is to be used: of weights of DTYPE whose rows can be read by descriptors, on a Hopper GPU."""
    known = weight.dtype == DTYPE and weight.is_contiguous() and weight.data_ptr() % 16 == 0 and can_multiply(weight.shape[1], DTYPE)
    return ON and known and capability(weight.device) == (9, 0)


def matmul(
    x: Tensor | Readied, weight: Tensor, bias: Tensor | None = None, *, added_to: Tensor | None = None, ready: tuple[Tensor, float] | None = None,
    name: str = "", tile: PlainTile | None = None, overlap: bool = False,
) -> Tensor | Readied:  # fmt: skip
    """As `few_bits.matmul`, with a weight [out, in] that `takes` takes, up to MOST_ROWS rows.

    Raises ValueError for more rows.
    """
    readied, x = (x, x.y) if isinstance(x, Readied) else (None, x)
    (rows, inputs), outputs = x.shape, weight.shape[0]
    if rows > MOST_ROWS:
        raise ValueError(f"few_rows_plain multiplies up to {MOST_ROWS} rows, not {rows}")
    y = added_to if added_to is not None else x.new_empty(rows, outputs // 2 if name else outputs)
    count, wide = columns(rows), y.shape[1]
    tile = tile or tile_for(rows, outputs, bool(name), processors(x.device))
    tiles = triton.cdiv(wide, tile.outputs)
    left = torch.empty(tiles if ready else 0, rows, dtype=torch.float32, device=x.device)
    after = torch.empty_like(y, memory_format=torch.contiguous_format) if ready else y
    normed = len(readied.squares) if readied else 0
    if rows:
        multiply[(tiles,)](
            TensorDescriptor.from_tensor(aligned(x), [count, tile.depth]), TensorDescriptor.from_tensor(weight, [tile.outputs, tile.depth]),
            weight, x if bias is None else bias, readied.squares if readied else left, y, ready[0] if ready else x, after, left,
            rows, outputs, inputs, y.stride(0), readied.eps if readied else 0.0,
            ROWS=count, OUTPUTS=tile.outputs, DEPTH=tile.depth, BIASED=bias is not None, NORMED=normed, TILES=triton.next_power_of_2(max(normed, 1)),
            ADDED=added_to is not None, READY=ready is not None, NAME=name, DEPENDENT=overlap, LINES=tile.lines if x.is_cuda else 0, LINE=LINE,
            num_warps=tile.warps, num_stages=tile.stages, **({"launch_pdl": True} if overlap else {}),
        )  # fmt: skip
    return Readied(after, left, ready[1]) if ready else y


__all__ = ["MOST_ROWS", "PlainTile", "matmul", "takes", "tile_for"]
