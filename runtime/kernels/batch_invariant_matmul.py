"""A batch-invariant matrix product: the bits of a row depend on that row and the weight only.

In Triton, for bfloat16, float16, float32 and for weights of float8 with a scale per output; and of int8 by int8, whose
sums are exact.

Every element is one chain over the inputs, first to last, kept in the tensor core's accumulator: no split of the
inputs, no second order. The weight is always the left operand, so that 64 outputs are the narrow side of an
instruction whatever the number of rows; the tiles of `tile_for` differ only in what they hold at a time.
tests/gpu/test_deterministic_cuda.py compares them with each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .launch.compile_ahead import entry

ALIGNMENT = 16  # bytes that rows of x and weight must be a multiple of
GROUP = 8  # row tiles that go through the weight together, so that its tiles stay in the L2 cache


@dataclass(frozen=True, slots=True)
class MatmulTile:
    """What one program works on: rows x outputs of the result, `depth` inputs at a time.

    stages: loads in flight.  resident: no more programs than multiprocessors, each takes several tiles.
    flatten: the next tile's loads begin before the last one is written (resident only).
    """

    rows: int
    outputs: int
    depth: int
    stages: int
    warps: int
    resident: bool = False
    flatten: bool = False


PLAIN = MatmulTile(64, 64, 32, 3, 4)  # of any device; the only one if tiles were not compared

# Measured on an H200. A narrow weight has no more tiles of 64 outputs than there are multiprocessors: each works on
# one tile and hides the memory latency with deep loads. A wide one has several tiles on a multiprocessor at a time.
NARROW = {
    16: MatmulTile(16, 64, 256, 5, 4),
    32: MatmulTile(32, 64, 128, 6, 4),
    64: MatmulTile(64, 64, 128, 6, 4),
    128: MatmulTile(128, 64, 128, 4, 4),
}
WIDE = {
    16: MatmulTile(16, 64, 128, 4, 4),
    32: MatmulTile(32, 64, 128, 4, 4),
    64: MatmulTile(64, 64, 64, 6, 4),
    128: MatmulTile(128, 128, 64, 4, 8),
    256: MatmulTile(256, 128, 64, 4, 8),
}
MANY = MatmulTile(128, 128, 64, 4, 8, resident=True)
MOST = MatmulTile(
    128, 256, 64, 4, 8, resident=True
)  # of narrow weights, where every multiprocessor gets MOST_TURNS of them
MOST_TURNS = 3


@triton.jit
def tile_at(tile, row_tiles, output_tiles, GROUP: tl.constexpr):
    """(row tile, output tile) number `tile`: rows of a group fastest, then outputs, then groups."""
    group = tile // (GROUP * output_tiles)
    first = group * GROUP
    size = tl.minimum(row_tiles - first, GROUP)
    inside = tile % (GROUP * output_tiles)
    return first + inside % size, inside // size


@entry
@triton.jit(do_not_specialize=["rows"])
def multiply(
    x,
    weight,
    y,
    bias,
    x_scale,
    weight_scale,
    rows,
    outputs,
    inputs,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    BIAS: tl.constexpr,
    X_SCALED: tl.constexpr,
    WEIGHT_SCALED: tl.constexpr,
    FLATTEN: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """y [rows, outputs] = x [rows, inputs] @ weight [outputs, inputs]^T (+ bias), x and weight as descriptors.

    Any grid.
    """
    row_tiles, output_tiles = tl.cdiv(rows, ROWS), tl.cdiv(outputs, OUTPUTS)
    for tile in tl.range(tl.program_id(0), row_tiles * output_tiles, tl.num_programs(0), flatten=FLATTEN):
        row_tile, output_tile = tile_at(tile, row_tiles, output_tiles, GROUP)
        sums = tl.zeros((OUTPUTS, ROWS), tl.int32 if WHOLE else tl.float32)
        for step in range(tl.cdiv(inputs, DEPTH)):
            left = weight.load([output_tile * OUTPUTS, step * DEPTH])
            right = x.load([row_tile * ROWS, step * DEPTH])
            if WHOLE:
                sums = tl.dot(left, right.T, sums, out_dtype=tl.int32)
            else:
                sums = tl.dot(left.to(right.dtype), right.T, sums, input_precision="ieee")
        row = row_tile * ROWS + tl.arange(0, ROWS)
        output = output_tile * OUTPUTS + tl.arange(0, OUTPUTS)
        sums = sums.to(tl.float32)
        if WEIGHT_SCALED:
            sums *= tl.load(weight_scale + output, output < outputs, other=0.0)[:, None]
        if X_SCALED:
            sums *= tl.load(x_scale + row, row < rows, other=0.0)[None, :]
        if BIAS:
            sums += tl.load(bias + output, output < outputs, other=0.0).to(tl.float32)[:, None]
        inside = (output < outputs)[:, None] & (row < rows)[None, :]
        place = row.to(tl.int64)[None, :] * outputs + output[:, None]
        tl.store(y + place, sums.to(y.dtype.element_ty), inside)


def matmul(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    x_scale: Tensor | None = None,
    weight_scale: Tensor | None = None,
    tile: MatmulTile | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """x [T, in] @ weight [out, in]^T + bias [out] -> [T, out] in `dtype`; None: in x's, or bfloat16 where x is float8.

    weight: x's dtype or float8_e4m3fn. weight_scale: float32 [out]; x_scale: float32 [T]; the product is times
    both. tile: None takes `tile_for`. Rows of both must be a multiple of 16 bytes, see `can_multiply`.
    """
    (rows, inputs), outputs = x.shape, weight.shape[0]
    dtype = dtype or (torch.bfloat16 if x.dtype == torch.float8_e4m3fn else x.dtype)
    y = torch.empty(rows, outputs, dtype=dtype, device=x.device)
    if not rows:
        return y
    device = capability(x.device), processors(x.device)
    tile = tile or tile_for(rows, outputs, x.dtype, *device, restored=weight.dtype != x.dtype)
    tiles = _tiles(tile, rows, outputs)
    multiply[(min(tiles, processors(x.device)) if tile.resident else tiles,)](
        TensorDescriptor.from_tensor(aligned(x), [tile.rows, tile.depth]),
        TensorDescriptor.from_tensor(weight, [tile.outputs, tile.depth]),
        y,
        bias,
        x_scale,
        weight_scale,
        rows,
        outputs,
        inputs,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        DEPTH=tile.depth,
        GROUP=GROUP,
        BIAS=bias is not None,
        X_SCALED=x_scale is not None,
        WEIGHT_SCALED=weight_scale is not None,
        FLATTEN=tile.flatten,
        WHOLE=x.dtype == torch.int8,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


def can_multiply(inputs: int, *dtypes: torch.dtype) -> bool:
    """Whether rows of so many inputs have the alignment that `matmul` needs, in each dtype."""
    return all(inputs * dtype.itemsize % ALIGNMENT == 0 for dtype in dtypes)


def tile_for(
    rows: int, outputs: int, dtype: torch.dtype, capability: tuple[int, int], processors: int, restored: bool = False
) -> MatmulTile:
    """The tile for a product of this size, x in `dtype`, on a device with so many multiprocessors.

    restored: the weight is float8 and x is not. For one dtype, weight and device all answers give equal bits; with
    restored weights the widest tile does not, so that it is left out.
    """
    if dtype == torch.int8:
        tile = tile_for(rows, outputs, torch.bfloat16, capability, processors)  # their sums are exact
        return replace(tile, depth=2 * tile.depth)
    if capability[0] != 9 or dtype == torch.float32:
        return PLAIN
    if outputs > NARROW[16].outputs * processors:
        return next((tile for most, tile in WIDE.items() if rows <= most and not (restored and most > 128)), MANY)
    for most, tile in NARROW.items():
        if rows <= most or (most >= 64 and _tiles(tile, rows, outputs) <= processors):
            return tile
    return MOST if not restored and _tiles(MOST, rows, outputs) >= MOST_TURNS * processors else MANY


def _tiles(tile: MatmulTile, rows: int, outputs: int) -> int:
    return triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs)


def aligned(x: Tensor) -> Tensor:
    step = x.stride(0) * x.element_size()
    return x if x.stride(1) == 1 and step % ALIGNMENT == 0 and x.data_ptr() % ALIGNMENT == 0 else x.contiguous()


@cache
def capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
