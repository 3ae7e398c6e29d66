"""Products of up to 64 rows with 4-bit weights by the tensor cores.

See `skinny_gemm_kernels`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..batch_invariant_matmul import processors
from ..gemv.gemv_launch import SHARED, has_room, tiles_of
from ..launch.programmatic_launch import launched
from ..packed.packed_weight import NIBBLES, PackedWeight
from . import skinny_gemm_kernels as kernels
from .gemm_epilogue import GemmArguments

MOST_ROWS = 64
BLOCK = 128  # inputs
KINDS = ("scaled", "zeros, scaled")
DEEPEST = 8  # steps in flight
WIDE, DEEP = 8192, 8192  # outputs, inputs


class SkinnyGemmTile(NamedTuple):
    """Powers of 2.

    outputs: of a program, 16 at least for each of `side` warps; split: parts of the inputs; full: programs a
    multiprocessor.
    """

    outputs: int
    split: int
    side: int
    full: int

    def ring(self, rows: int, group: int) -> int:
        """Steps that fit in shared memory."""
        step = self.split * (self.outputs * (BLOCK // 2 + 4 * max(1, BLOCK // group)) + 2 * BLOCK * rows)
        left = (
            SHARED // self.full - 1024 - 4 * self.outputs * rows * self.split
        )  # the sums of all parts are combined there
        return min(DEEPEST, left // step)


TUNED: dict[tuple[int, int, int], SkinnyGemmTile] = {
    (64, 6144, 4096): SkinnyGemmTile(64, 2, 4, 1)
}  # by rows (32, 64), outputs, inputs; measured on an H200


def columns(rows: int) -> int:
    """Of the tensor cores' right operand."""
    return next(count for count in (8, 16, 32, 64) if rows <= count)


def tile_for(rows: int, outputs: int, inputs: int) -> SkinnyGemmTile:
    """As measured, or what was best at most sizes."""
    count = columns(rows)
    if tuned := TUNED.get((count, outputs, inputs)):
        return tuned
    if count > 32 or outputs <= 4096:
        return SkinnyGemmTile(32, 2, 2, 2 if count > 32 else 3)
    return SkinnyGemmTile(128, 1, 4, 2) if outputs > WIDE else SkinnyGemmTile(64, 2, 2, 2)


def supports_weight(weight: PackedWeight) -> bool:
    """Whether `matmul` supports the weight with more rows: grouped 4-bit integers, for bfloat16, on a GPU with the
    memory.
    """
    known = weight.form == NIBBLES and weight.kind in KINDS and weight.block == BLOCK and weight.dtype == torch.bfloat16
    return known and weight.words.data_ptr() % 16 == 0 and has_room(weight.words.device)


def most_rows(weight: PackedWeight) -> int:
    """With more, `quantized_gemm_kernels` are faster; 0: always."""
    if weight.inputs > DEEP:
        return 0
    return 32 if weight.outputs > WIDE else MOST_ROWS


def matmul(of: GemmArguments, tile: SkinnyGemmTile | None = None) -> tuple[Tensor, Tensor]:
    """Writes y. Returns y times the norm's weight and the squares of each tile's outputs, or unused tensors."""
    x, weight, rows, outputs = of.x, of.weight, len(of.x), of.weight.outputs
    tile, count = tile or tile_for(rows, outputs, weight.inputs), columns(rows)
    tiles = tiles_of(outputs, outputs // 2 if of.name else 0, tile.outputs)
    programs = triton.cdiv(tiles, triton.cdiv(tiles, tile.full * processors(x.device)))
    after, left = of.readied(tiles)
    kernels.multiply[(programs,)](
        x,
        *weight.kernel_tensors(),
        *of.tensors(after, left),
        rows,
        x.stride(0),
        of.y.stride(0),
        of.eps,
        FORMAT=weight.format(sized=True),
        EPILOGUE=of.epilogue(),
        TILE=tile,
        ROWS=count,
        RING=tile.ring(count, weight.group),
        PROGRAMS=programs,
        num_warps=tile.split * tile.side,
        **launched(of.overlap),
    )
    return after, left


__all__ = ["MOST_ROWS", "SkinnyGemmTile", "columns", "matmul", "most_rows", "supports_weight", "tile_for"]
