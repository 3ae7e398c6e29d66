"""Products of 2 to 64 rows by the tensor cores: up to 16 by `split_k_gemm`, more with 4-bit weights by this kernel.

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
from ..packed.packed_weight import ABOVE, NIBBLES, PackedWeight
from . import skinny_gemm_kernels as kernels
from . import split_k_gemm
from .split_k_gemm import SplitKTile

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


def rows_taken(weight: PackedWeight) -> int:
    """Up to how many rows `matmul` is to be used; 0: not at all."""
    return max(
        split_k_gemm.MOST_ROWS if split_k_gemm.supports_weight(weight) else 0,
        most_rows(weight) if supports_weight(weight) else 0,
    )


def supports(x: Tensor, weight: PackedWeight) -> bool:
    """Whether `matmul` is to be used: x's rows are aligned to 32 bytes."""
    return (
        0 < x.shape[0] <= MOST_ROWS
        and x.data_ptr() % 16 == 0
        and x.stride(0) % 16 == 0
        and x.shape[0] <= rows_taken(weight)
    )


def matmul(
    x: Tensor,
    weight: PackedWeight,
    y: Tensor,
    bias: Tensor | None,
    squares: Tensor | None,
    eps: float,
    *,
    added: bool,
    ready: tuple[Tensor, float] | None,
    name: str,
    overlap: bool,
    tile: SkinnyGemmTile | SplitKTile | None = None,
) -> tuple[Tensor, Tensor]:
    """Writes y, see `quantized_gemm.matmul`.

    Returns y times the norm's weight and the squares of each program's outputs, or unused tensors.
    """
    if tile is None and x.shape[0] <= split_k_gemm.MOST_ROWS and split_k_gemm.supports_weight(weight):
        tile = split_k_gemm.tile_for(x.shape[0], weight)
    if isinstance(tile, SplitKTile):
        return split_k_gemm.matmul(
            x, weight, y, bias, squares, eps, added=added, ready=ready, name=name, overlap=overlap, tile=tile
        )
    rows, outputs = x.shape[0], weight.outputs
    tile = tile or tile_for(rows, outputs, weight.inputs)
    count, half = columns(rows), outputs // 2 if name else 0
    tiles = tiles_of(outputs, half, tile.outputs)
    programs = triton.cdiv(tiles, triton.cdiv(tiles, tile.full * processors(x.device)))
    left = torch.empty(tiles if ready else 0, rows, dtype=torch.float32, device=x.device)
    after = torch.empty_like(y) if ready else y
    none = weight.words
    kernels.multiply[(programs,)](
        x,
        weight.words,
        weight.meta,
        none if weight.outer is None else weight.outer,
        x if bias is None else bias,
        none if squares is None else squares,
        y,
        ready[0] if ready else x,
        after,
        left,
        rows,
        x.stride(0),
        y.stride(0),
        eps,
        OUTPUTS=outputs,
        INPUTS=weight.inputs,
        GROUP=weight.group,
        KIND=weight.kind,
        OUTER=weight.outer is not None,
        ZERO=weight.zero - (ABOVE[weight.dtype] if weight.kind.startswith("zeros") else 0),
        BIASED=bias is not None,
        NORMED=squares is not None,
        TILES=1 if squares is None else len(squares),
        ADDED=added,
        READY=ready is not None,
        NAME=name,
        TILE=tile.outputs,
        ROWS=count,
        SPLIT=tile.split,
        SIDE=tile.side,
        RING=tile.ring(count, weight.group),
        PROGRAMS=programs,
        num_warps=tile.split * tile.side,
        **launched(overlap),
    )
    return after, left


__all__ = [
    "MOST_ROWS",
    "SkinnyGemmTile",
    "columns",
    "matmul",
    "most_rows",
    "rows_taken",
    "supports",
    "supports_weight",
    "tile_for",
]
