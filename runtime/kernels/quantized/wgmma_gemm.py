"""Products of tens to hundreds of rows with 4-bit and 8-bit weights on Hopper; see `wgmma_gemm_kernels`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..batch_invariant_matmul import capability, processors
from ..gemv.gemv_launch import SHARED
from ..launch.programmatic_launch import launched
from ..packed.packed_weight import BYTES, NIBBLES, PackedWeight
from . import wgmma_gemm_kernels as kernels
from .gemm_epilogue import GemmArguments

LEAST_ROWS, MOST_ROWS = 33, 1024  # others are faster below, and were not compared above
KINDS = ("plain", "scaled", "zeros, scaled")  # of 4-bit integers
BLOCK, QUARTER = 128, 32  # inputs
DEEPEST = 8  # blocks that fit in shared memory
REGISTERS = 65536  # of a multiprocessor
SPARE = 2048  # bytes of shared memory for barriers and others outside the ring


class WgmmaTile(NamedTuple):
    """Powers of 2.

    outputs x rows of the result a program, 64 outputs at least for each four warps; its inputs split in so many.
    full: programs that fit on a multiprocessor at a time. All programs run at the same time if inputs are split.
    """

    outputs: int
    rows: int
    split: int = 1
    warps: int = 8
    full: int = 1

    def ring(self, form: int) -> int:
        """Blocks that fit in shared memory."""
        step = 2 * BLOCK * self.rows + self.outputs * (BLOCK if form == BYTES else BLOCK // 2)
        return min(DEEPEST, (SHARED // self.full - SPARE) // step)

    def programs(self, rows: int, outputs: int) -> int:
        return triton.cdiv(outputs, self.outputs) * triton.cdiv(rows, self.rows) * self.split

    @property
    def registers(self) -> int | None:
        """Of a thread at most; None: the compiler's choice."""
        return None if self.full == 1 else min(255, REGISTERS // (32 * self.warps * self.full) // 8 * 8)


TUNED: dict[
    tuple[int, int, int], WgmmaTile
] = {  # by rows (64, 128, 256, 512, 1024), outputs, inputs; measured on an H100
    (64, 4096, 4096): WgmmaTile(64, 64, 4, 4, 2),
    (128, 6144, 4096): WgmmaTile(128, 128, 4, 8, 2),
    (256, 6144, 4096): WgmmaTile(128, 128),
    (256, 4096, 4096): WgmmaTile(128, 128, 2),
}
LEAST_BLOCKS = 8  # of a program


def tile_for(rows: int, outputs: int, inputs: int, device: torch.device) -> WgmmaTile:
    """As measured, or what was best at most sizes: as many programs as run at a time.

    Each has at least some blocks of inputs.
    """
    tuned = TUNED.get((width_of(rows), outputs, inputs))
    if tuned and (tuned.split == 1 or tuned.programs(rows, outputs) <= tuned.full * processors(device)):
        return tuned
    count = next((count for count in (64, 128) if rows <= count), 256)
    tiles = triton.cdiv(outputs, 128) * triton.cdiv(rows, count)
    full = 2 if count == 64 or (count == 128 and tiles > processors(device)) else 1
    split = max(1, min(triton.cdiv(inputs, BLOCK) // LEAST_BLOCKS, full * processors(device) // tiles))
    return WgmmaTile(128, count, split, 8, full)


def width_of(rows: int) -> int:
    return next((count for count in (64, 128, 256, 512) if rows <= count), 1024)


def supports_shape(weight: PackedWeight, gated: bool = False) -> bool:
    """Whether `matmul` supports the weight: blocks of 128 inputs, rows that the copy engine can load, on Hopper."""
    known = weight.block == BLOCK and weight.inputs % QUARTER == 0 and weight.words.data_ptr() % 16 == 0
    return known and capability(weight.words.device)[0] == 9 and not (gated and weight.outputs % 16)


def supports_weight(weight: PackedWeight, gated: bool = False) -> bool:
    """Whether `matmul` is used for the weight: of the forms whose products were compared on a GPU."""
    whole = weight.form == NIBBLES and weight.kind in KINDS
    known = whole or (weight.kind == "plain" and weight.words.dtype == torch.float8_e4m3fn)
    return known and weight.dtype == torch.bfloat16 and supports_shape(weight, gated)


def matmul(of: GemmArguments, tile: WgmmaTile | None = None) -> tuple[Tensor, Tensor]:
    """Writes y. Returns y times the norm's weight and the squares of each tile's outputs, or unused tensors."""
    x, weight, rows, outputs = of.x, of.weight, len(of.x), of.weight.outputs
    tile = tile or tile_for(rows, outputs, weight.inputs, x.device)
    output_tiles = triton.cdiv(outputs, tile.outputs)
    tiles = output_tiles * triton.cdiv(rows, tile.rows)
    if tile.split > 1 and tile.programs(rows, outputs) > tile.full * processors(x.device):
        raise ValueError(
            f"{tiles} tiles cannot be split in {tile.split}: {tile.full * processors(x.device)} programs run at the "
            "same time"
        )
    after, left = of.readied(output_tiles)
    kernels.multiply[(tiles, tile.split)](
        _rows(x, tile.rows),
        _codes(weight, tile.outputs, bool(of.name)),
        *weight.kernel_tensors()[1:],
        *of.tensors(after, left),
        of.partial(tiles * tile.split * tile.outputs * tile.rows if tile.split > 1 else 0),
        weight.counters,
        rows,
        of.y.stride(0),
        of.eps,
        FORMAT=weight.format(sized=True),
        EPILOGUE=of.epilogue(),
        TILE=tile,
        RING=tile.ring(weight.form),
        num_warps=tile.warps,
        **({"maxnreg": tile.registers} if tile.registers else {}),
        **launched(of.overlap),
    )
    return after, left


def _rows(x: Tensor, rows: int) -> TensorDescriptor:
    """Four quarters of a block of inputs at a time, each [rows, QUARTER]; zeros beyond the last row and input."""
    shape, strides = [x.shape[1] // QUARTER, x.shape[0], QUARTER], [QUARTER, x.stride(0), 1]
    return TensorDescriptor(x, shape, strides, [4, rows, QUARTER], kernels.shared(16, 3))


def _codes(weight: PackedWeight, tile: int, gated: bool) -> TensorDescriptor:
    """A block of codes of a tile's outputs at a time; gated: eight gates and eight ups in turns."""
    box: list[int] = kernels.codes_shape(weight.form, tile, gated)
    (shape, strides), bits = _places(weight, gated), 8 if weight.form == BYTES else 16
    return TensorDescriptor(weight.words, shape, strides, box, kernels.shared(bits, len(box)))


def _places(weight: PackedWeight, gated: bool) -> tuple[list[int], list[int]]:
    """Sizes and strides of the words, or bytes, as `_codes` takes them."""
    outputs, inputs = weight.outputs, weight.inputs
    if weight.form == BYTES:
        between: Any = (
            ([outputs // 16, 2, 8], [8 * inputs, outputs // 2 * inputs, inputs]) if gated else ([outputs], [inputs])
        )
        return [inputs // QUARTER, *between[0], QUARTER], [QUARTER, *between[1], 1]
    blocks = triton.cdiv(inputs, BLOCK)
    if gated:
        return [outputs // 16, 2 * blocks, 8, QUARTER], [8 * QUARTER, outputs // 2 * QUARTER, QUARTER, 1]
    return [blocks * outputs, QUARTER], [QUARTER, 1]


__all__ = ["LEAST_ROWS", "MOST_ROWS", "WgmmaTile", "matmul", "supports_shape", "supports_weight", "tile_for"]
