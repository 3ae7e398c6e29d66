"""Products with 4-bit and 8-bit weights, for any number of rows, see `quantized_gemm_kernels`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from ..batch_invariant_matmul import processors
from ..launch.programmatic_launch import launched
from ..packed.packed_weight import ABOVE, MOST_TILES, PackedWeight
from ..packed.unpack_ptx import texts
from . import quantized_gemm_kernels as kernels
from . import skinny_gemm, wgmma_gemm
from .quantized_weight_kernels import restore
from .skinny_gemm import SkinnyGemmTile
from .split_k_gemm import NormedInput, SplitKTile
from .wgmma_gemm import WgmmaTile

DEQUANTIZED_ROWS = 512  # from here on dequantizing a part of the weight and a library's product are faster
DEQUANTIZED_PART = 2**27  # numbers of it at a time: smaller parts make products with less even tiles
FEW, SOME, ONCE = 3.0, 1.75, 1.0  # programs for each multiprocessor, by the number of rows


@dataclass(frozen=True, slots=True)
class QuantizedGemmTile:
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
    return replace(tile, rows=count, warps=8 if count == 128 else 4, apart=False)


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
    readied, x = (x, x.y) if isinstance(x, NormedInput) else (None, x)
    if weight.order is not None:
        x = x.index_select(1, weight.order)
    x = x if x.stride(1) == 1 else x.contiguous()
    (rows, inputs), outputs = x.shape, weight.outputs
    if x.dtype != weight.dtype:
        raise TypeError(f"the weight was packed for {weight.dtype}, x is {x.dtype}")
    y = added_to if added_to is not None else x.new_empty(rows, outputs // 2 if name else outputs)
    if isinstance(tile, WgmmaTile) or (tile is None and wgmma_gemm.supports(x, weight, bool(name))):
        squares, eps = (readied.squares, readied.eps) if readied else (None, 0.0)
        after, left = wgmma_gemm.matmul(
            x,
            weight,
            y,
            bias,
            squares,
            eps,
            added=added_to is not None,
            ready=ready,
            name=name,
            overlap=overlap,
            tile=tile,
        )
        return NormedInput(after, left, ready[1]) if ready else y
    if isinstance(tile, SkinnyGemmTile | SplitKTile) or (tile is None and skinny_gemm.supports(x, weight)):
        squares, eps = (readied.squares, readied.eps) if readied else (None, 0.0)
        after, left = skinny_gemm.matmul(
            x,
            weight,
            y,
            bias,
            squares,
            eps,
            added=added_to is not None,
            ready=ready,
            name=name,
            overlap=overlap,
            tile=tile,
        )
        return NormedInput(after, left, ready[1]) if ready else y
    tile = tile or tile_for(rows, outputs, inputs, weight.block, x.device)
    wide = tile.outputs // 2 if name else tile.outputs
    row_tiles, output_tiles = triton.cdiv(rows, tile.rows), triton.cdiv(y.shape[1], wide)
    tiles = row_tiles * output_tiles
    through = tile.split > 1 or bool(name)
    if through and tiles > MOST_TILES:
        raise ValueError(
            f"a product of {rows} rows and {outputs} outputs cannot be split: {tiles} tiles, {MOST_TILES} at most"
        )
    partial = torch.empty(
        tiles * tile.split * tile.outputs * tile.rows if through else 0, dtype=torch.float32, device=x.device
    )
    squares = torch.empty(output_tiles if ready else 0, rows, dtype=torch.float32, device=x.device)
    after = torch.empty_like(y) if ready else y
    if rows:
        kernels.multiply[(tiles, tile.split)](
            x,
            *kernel_tensors(weight),
            x if bias is None else bias,
            x if readied is None else readied.squares,
            y,
            ready[0] if ready else x,
            after,
            squares,
            partial,
            weight.counters,
            rows,
            outputs,
            inputs,
            x.stride(0),
            y.stride(0),
            readied.eps if readied else 0.0,
            **constants(weight, x.is_cuda),
            BIASED=bias is not None,
            NORMED=readied is not None,
            TILES=len(readied.squares) if readied else 1,
            ADDED=added_to is not None,
            READY=ready is not None,
            NAME=name,
            OUTPUTS=tile.outputs,
            ROWS=tile.rows,
            SPLIT=tile.split,
            APART=tile.apart,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **launched(overlap),
        )
    return NormedInput(after, squares, ready[1]) if ready else y


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
    return rows > wgmma_gemm.MOST_ROWS if wgmma_gemm.supports_weight(weight) else rows >= DEQUANTIZED_ROWS


def fuses_gate(x: Tensor, weight: PackedWeight) -> bool:
    """Whether `matmul` applies an activation to so many rows in its product, and no slower than separately."""
    return wgmma_gemm.supports(x, weight, gated=True)


def dequantized(weight: PackedWeight, rows: slice) -> Tensor:
    """These outputs of the weight [some, in] in its dtype, columns as they are stored."""
    first, last, _ = rows.indices(weight.outputs)
    out = torch.empty(last - first, weight.inputs, dtype=weight.dtype, device=weight.words.device)
    grid = (triton.cdiv(last - first, 64), triton.cdiv(weight.inputs, weight.block))
    restore[grid](
        *kernel_tensors(weight),
        out,
        first,
        last,
        weight.outputs,
        weight.inputs,
        **constants(weight, out.is_cuda),
        OUTPUTS=64,
    )
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


def kernel_tensors(weight: PackedWeight) -> tuple[Tensor, Tensor, Tensor]:
    none = weight.words
    return none, none if weight.meta is None else weight.meta, none if weight.outer is None else weight.outer


def constants(weight: PackedWeight, compiled: bool) -> dict[str, Any]:
    return {
        "FORM": weight.form,
        "WORDS": weight.block // 4,
        "GROUP": weight.group,
        "KIND": weight.kind,
        "OUTER": weight.outer is not None,
        "ZERO": weight.table
        if weight.table
        else weight.zero - (0 if not weight.kind.startswith("zeros") else ABOVE[weight.dtype]),
        **(texts(weight) if compiled else dict.fromkeys(("TEXT0", "TEXT1", "TEXT2", "TEXT3"), "")),
    }


__all__ = [
    "DEQUANTIZED_ROWS",
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
