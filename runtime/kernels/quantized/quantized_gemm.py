"""Products with 4-bit and 8-bit weights, for any number of rows, see `quantized_gemm_kernels`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..batch_invariant_matmul import processors
from ..launch.programmatic_launch import launched
from ..packed.packed_weight import MOST_TILES, PackedWeight
from . import quantized_gemm_kernels as kernels
from . import skinny_gemm, split_k_gemm, wgmma_gemm
from .gemm_dispatch import kernel_for
from .gemm_epilogue import GemmArguments
from .quantized_weight_kernels import restore
from .skinny_gemm import SkinnyGemmTile
from .split_k_gemm import NormedInput, SplitKTile
from .wgmma_gemm import WgmmaTile

DEQUANTIZED_PART = 2**27  # numbers of it at a time: smaller parts make products with less even tiles
FEW, SOME, ONCE = 3.0, 1.75, 1.0  # programs for each multiprocessor, by the number of rows


class QuantizedGemmTile(NamedTuple):
    """outputs x rows of the result a program, its inputs split in so many; stages: loads in flight.

    apart: quarters of a block are summed separately; the result differs in its last bits from a sequential sum.
    """

    rows: int
    outputs: int
    split: int
    stages: int
    warps: int
    apart: bool = False


def tile_for(rows: int, outputs: int, inputs: int, block: int, device: torch.device) -> QuantizedGemmTile:
    """Measured on an H200. Programs for so many multiprocessors, as long as each has some blocks of inputs."""
    full = FEW if rows <= 32 else SOME if rows <= 64 else ONCE
    many = processors(device) * full
    wide = rows > 64 or triton.cdiv(outputs, 64) > many
    lanes, count = 128 if wide else 64, next((count for count in (16, 32, 64) if rows <= count), 128)
    tiles = triton.cdiv(outputs, lanes) * max(1, triton.cdiv(rows, count))
    split = max(1, min(triton.cdiv(inputs, block) // 4, round(many / tiles)))
    return QuantizedGemmTile(
        count, lanes, split, 4 if rows <= 32 else 3, 8 if wide and rows > 32 else 4, apart=rows <= 64
    )


def fitted(tile: QuantizedGemmTile, rows: int) -> QuantizedGemmTile:
    """For so many rows, with sums in the same order."""
    count = next((count for count in (16, 32, 64) if rows <= count), 128)
    return tile._replace(rows=count, warps=8 if count == 128 else 4, apart=False)


def matmul(
    x: Tensor | NormedInput,
    weight: PackedWeight,
    bias: Tensor | None = None,
    *,
    added_to: Tensor | None = None,
    ready: tuple[Tensor, float] | None = None,
    name: str = "",
    tile: QuantizedGemmTile | SkinnyGemmTile | SplitKTile | WgmmaTile | None = None,
    overlap: bool = False,
) -> Tensor | NormedInput:
    """x [T, in] @ W^T + bias [out] -> [T, out] in x's dtype.

    added_to: [T, out], written into and returned.  ready: weight and eps of the norm after the product: returns its
        input.
    name: of an activation; W holds gate above up, and activation(gate) * up is returned, [T, out / 2].
    overlap: the kernel may start under the tail of the one before (see `overlap`).
    """
    x, squares, eps = x if isinstance(x, NormedInput) else (x, None, 0.0)
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    x = x if x.stride(1) == 1 else x.contiguous()
    if x.dtype != weight.dtype:
        raise TypeError(f"the weight was packed for {weight.dtype}, x is {x.dtype}")
    wide = weight.outputs // 2 if name else weight.outputs
    y = added_to if added_to is not None else x.new_empty(len(x), wide)
    of = GemmArguments(x, weight, y, bias, squares, eps, added_to is not None, ready, name, overlap)
    if len(x):
        kernel = KERNELS.get(type(tile)) or KERNELS.get(kernel_for(len(x), weight, bool(name), x), _multiply)
        after, left = kernel(of, tile)
    else:
        after, left = of.readied(0)
    return NormedInput(after, left, ready[1]) if ready else y


def _multiply(of: GemmArguments, tile: QuantizedGemmTile | None) -> tuple[Tensor, Tensor]:
    """Writes y. Returns y times the norm's weight and the squares of each tile's outputs, or unused tensors."""
    x, weight, y, (rows, inputs) = of.x, of.weight, of.y, of.x.shape
    tile = tile or tile_for(rows, weight.outputs, inputs, weight.block, x.device)
    output_tiles = triton.cdiv(y.shape[1], tile.outputs // 2 if of.name else tile.outputs)
    tiles = triton.cdiv(rows, tile.rows) * output_tiles
    through = tile.split > 1 or bool(of.name)
    if through and tiles > MOST_TILES:
        raise ValueError(
            f"a product of {rows} rows and {weight.outputs} outputs cannot be split: {tiles} tiles, {MOST_TILES} at "
            "most"
        )
    after, left = of.readied(output_tiles)
    kernels.multiply[(tiles, tile.split)](
        x,
        *weight.kernel_tensors(),
        *of.tensors(after, left),
        of.partial(tiles * tile.split * tile.outputs * tile.rows if through else 0),
        weight.counters,
        rows,
        weight.outputs,
        inputs,
        x.stride(0),
        y.stride(0),
        of.eps,
        FORMAT=weight.format(sized=False),
        EPILOGUE=of.epilogue(),
        TILE=tile,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launched(of.overlap),
    )
    return after, left


KERNELS: dict[Any, Any] = {  # by the name in the table, and by the class of a tile
    "wgmma_gemm": wgmma_gemm.matmul,
    "split_k_gemm": split_k_gemm.matmul,
    "skinny_gemm": skinny_gemm.matmul,
    WgmmaTile: wgmma_gemm.matmul,
    SplitKTile: split_k_gemm.matmul,
    SkinnyGemmTile: skinny_gemm.matmul,
    QuantizedGemmTile: _multiply,
}


def product(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    tile: QuantizedGemmTile | WgmmaTile | None = None,
    *,
    name: str = "",
) -> Tensor:
    """`matmul` of what is a tensor, into another."""
    y = matmul(x, weight, bias, tile=tile, name=name)
    assert isinstance(y, Tensor)
    return y


def dequantizes_first(rows: int, weight: PackedWeight) -> bool:
    """Whether so many rows are multiplied by parts of the weight that are dequantized first."""
    return kernel_for(rows, weight) == "cuBLAS"


def fuses_gate(x: Tensor, weight: PackedWeight) -> bool:
    """Whether `matmul` applies an activation to so many rows in its product, and no slower than separately."""
    return kernel_for(len(x), weight, True, x) == "wgmma_gemm"


def dequantized(weight: PackedWeight, rows: slice) -> Tensor:
    """These outputs of the weight [some, in] in its dtype, columns as they are stored."""
    first, last, _ = rows.indices(weight.outputs)
    out = torch.empty(last - first, weight.inputs, dtype=weight.dtype, device=weight.words.device)
    grid = (triton.cdiv(last - first, 64), triton.cdiv(weight.inputs, weight.block))
    sizes = first, last, weight.outputs, weight.inputs
    restore[grid](*weight.kernel_tensors(), out, *sizes, FORMAT=weight.format(sized=False), OUTPUTS=64)
    return out


def multiply_dequantized(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """The same product by the library's, of parts of the weight that are dequantized first: for large batches."""
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    y = x.new_empty(x.shape[0], weight.outputs)
    step = max(64, DEQUANTIZED_PART // weight.inputs // 64 * 64)
    for start in range(0, weight.outputs, step):
        part = dequantized(weight, slice(start, start + step))
        torch.mm(x, part.t(), out=y[:, start : start + step])
    return y if bias is None else y.add_(bias)


__all__ = [
    "NormedInput",
    "PackedWeight",
    "QuantizedGemmTile",
    "dequantized",
    "dequantizes_first",
    "fitted",
    "fuses_gate",
    "matmul",
    "multiply_dequantized",
    "product",
    "tile_for",
]
