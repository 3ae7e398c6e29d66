"""Products of 2 to 32 rows with 4-bit and 8-bit weights, whose programs have a slice of the inputs each (split-K).

See `split_k_gemm_kernels`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..batch_invariant_matmul import processors
from ..gemv.gemv_launch import SHARED, has_room, tiles_of
from ..launch.programmatic_launch import launched
from ..packed.packed_weight import BYTES, PackedWeight
from . import split_k_gemm_kernels as kernels
from .gemm_epilogue import GemmArguments
from .split_k_blocks import block_of, steps_of

MOST_ROWS = 16  # with more, `skinny_gemm_kernels` are faster for most weights
WORDS_RATE, OTHER_RATE = (
    25.0,
    45.0,
)  # bytes a nanosecond that a multiprocessor reads: from memory, and from the L2 cache
WARPS = 16  # of a multiprocessor, which have as many words in flight as the memory needs
FINISH, TURN = 1500.0, 150.0  # nanoseconds: sums of slices added up, and those of warps


class NormedInput(NamedTuple):
    """x [T, in] times a norm's weight, still to be divided by the root of its mean square.

    squares: float32 [parts, T], which add up to the sum of the squares of each row; eps: the norm's.
    """

    y: Tensor
    squares: Tensor
    eps: float


class QkvStoreArguments(NamedTuple):
    """The store of outputs that are heads: see `norm_rope_store`, all arguments of which are given."""

    queries: int
    keys: int
    angles: Tensor
    positions: Tensor
    slots: Tensor
    k_pool: Tensor
    v_pool: Tensor
    k_scale: float
    v_scale: float

    @property
    def dim(self) -> int:
        return self.k_pool.shape[-1]


class SplitKTile(NamedTuple):
    """Powers of 2 except `full`. outputs: of a program at a time; split: parts of its inputs.

    side: warps along the outputs, 16 or more each; slices: of the inputs, each of separate programs; full: programs a
    multiprocessor; ahead: blocks of a warp in flight; waits: 2: a program begins when half of its x is loaded.
    """

    outputs: int
    split: int
    side: int
    slices: int
    full: int
    ahead: int = 2
    waits: int = 1

    def room(self, rows: int, inputs: int, form: int) -> int:
        """Bytes of shared memory."""
        steps = steps_of(inputs, form, self.slices, self.split)
        block = block_of(form)
        return 2 * block * steps * self.split * rows + 4 * self.outputs * rows * self.split + 1024

    def expected(self, rows: int, outputs: int, inputs: int, form: int, half: int, many: int) -> float:
        """The estimated nanoseconds of a product, by what a multiprocessor reads."""
        tiles = tiles_of(outputs, half, self.outputs)
        stride = self.stride(tiles, many)
        turns, programs = triton.cdiv(tiles, stride), triton.cdiv(stride * self.slices, many)
        slice = inputs / self.slices
        words = turns * self.outputs * slice * (1 if form == BYTES else 0.5625)
        sums = 8 * turns * self.outputs * rows if self.slices > 1 else 0
        idle = max(1.0, WARPS / (min(self.full, programs) * self.split * self.side))
        return (
            programs * (idle * words / WORDS_RATE + (2 * slice * rows + sums) / OTHER_RATE)
            + (FINISH if self.slices > 1 else 0)
            + TURN * turns
        )

    def stride(self, tiles: int, processors: int) -> int:
        """Programs of a slice, which have about equally many tiles each."""
        most = max(1, self.full * processors // self.slices)
        return triton.cdiv(tiles, triton.cdiv(tiles, most))


CUTS = [
    SplitKTile(outputs, split, side, slices, full, 1 if outputs // side == 32 else 2)
    for outputs, split, side, full in (
        (32, 4, 2, 2),
        (64, 4, 2, 2),
        (64, 2, 4, 2),
        (128, 2, 4, 2),
        (32, 8, 2, 1),
        (64, 4, 4, 1),
        (32, 16, 1, 1),
        (128, 4, 4, 1),
    )
    for slices in (1, 2, 4, 7, 8, 14, 16, 32)
]
SMALLEST = SplitKTile(16, 8, 1, 64, 2)
TUNED: dict[
    tuple[int, int, bool], SplitKTile
] = {  # by outputs, inputs, and whether it is of bytes; measured on an H100 at 16 rows, float8 of the bytes
    (28672, 4096, False): SplitKTile(64, 4, 4, 1, 1),
    (4096, 14336, False): SplitKTile(128, 4, 4, 4, 1, 1),
    (6144, 4096, False): SplitKTile(32, 4, 2, 4, 2, waits=2),
    (4096, 4096, False): SplitKTile(64, 4, 2, 4, 2, 1),
    (28672, 4096, True): SplitKTile(32, 8, 2, 1, 1),
    (4096, 14336, True): SplitKTile(128, 4, 4, 8, 1, 1),
    (6144, 4096, True): SplitKTile(64, 4, 4, 4, 1, waits=2),
    (4096, 4096, True): SplitKTile(128, 4, 4, 4, 1, waits=2),
    (128256, 4096, True): SplitKTile(32, 8, 2, 1, 1),
}


def columns(rows: int) -> int:
    """Of the tensor cores' right operand."""
    return next(count for count in (8, 16, 32) if rows <= count)


def tile_for(rows: int, weight: PackedWeight, dim: int = 0) -> SplitKTile:
    """The tile with the least expected time. dim: of heads, if the outputs are these."""
    many = processors(weight.words.device)
    return _best(columns(rows), weight.outputs, weight.inputs, weight.form, dim, many)


@cache
def _best(count: int, outputs: int, inputs: int, form: int, dim: int, many: int) -> SplitKTile:
    """The best tile of those that fit; half a tile of heads is within half a head."""
    if (tuned := TUNED.get((outputs, inputs, form == BYTES))) is not None and count <= 16:
        return tuned
    fitting = [
        tile
        for tile in CUTS
        if tile.room(count, inputs, form) <= SHARED // tile.full - 1024 and (not dim or tile.outputs <= dim)
    ]
    return min(fitting or [SMALLEST], key=lambda tile: tile.expected(count, outputs, inputs, form, dim // 2, many))


def supports_weight(weight: PackedWeight) -> bool:
    """Whether `matmul` supports the weight, for bfloat16, on a GPU with the shared memory.

    That is four bits in blocks of 128 inputs without shifts, or bytes in steps of 64.
    """
    block = block_of(weight.form)
    if weight.form == BYTES:
        whole = weight.inputs % block == 0 and weight.outputs * weight.inputs < 2**32
        known = whole and weight.kind in ("plain", "scaled") and (weight.kind == "plain" or weight.group % block == 0)
    else:
        known = weight.block == block and weight.kind != "shifted"
    return (
        known and weight.dtype == torch.bfloat16 and weight.words.data_ptr() % 16 == 0 and has_room(weight.words.device)
    )


def supports(x: Tensor, weight: PackedWeight) -> bool:
    """Whether `qkv_rope_store` supports them: x's rows are aligned to 32 bytes, its columns in the weight's order."""
    placed = x.data_ptr() % 16 == 0 and x.stride(0) % 16 == 0 and x.stride(1) == 1
    return placed and 0 < x.shape[0] <= MOST_ROWS and weight.order is None and supports_weight(weight)


class HeadSizes(NamedTuple):
    """What `_write_heads` is compiled for."""

    queries: int
    keys: int
    dim: int


def matmul(
    of: GemmArguments, tile: SplitKTile | None = None, heads: QkvStoreArguments | None = None
) -> tuple[Tensor, Tensor]:
    """Writes y. Returns y times the norm's weight and the squares of each program's outputs, or unused tensors."""
    x, weight, rows, outputs = of.x, of.weight, len(of.x), of.weight.outputs
    tile = tile or tile_for(rows, weight, heads.dim if heads else 0)
    count = columns(rows)
    tiles = tiles_of(outputs, heads.dim // 2 if heads else outputs // 2 if of.name else 0, tile.outputs)
    stride = tile.stride(tiles, processors(x.device))
    words, meta, outer = weight.kernel_tensors()
    after, left = of.readied(tiles)
    y, counters = of.y, weight.counters
    kernels.multiply[(stride * tile.slices,)](
        x.view(torch.int32) if weight.form == BYTES else x,
        words.view(torch.int16),
        meta,
        outer,
        *of.tensors(after, left),
        of.partial(tile.slices * tiles * count * tile.outputs if tile.slices > 1 else 0),
        counters,
        *((y, counters, counters, y, y) if heads is None else heads[2:7]),
        rows,
        x.stride(0) // (2 if weight.form == BYTES else 1),
        y.stride(0),
        of.eps,
        *((1.0, 1.0) if heads is None else heads[7:]),
        FORMAT=weight.format(sized=True),
        EPILOGUE=of.epilogue(),
        HEADS=None if heads is None else HeadSizes(heads.queries, heads.keys, heads.dim),
        TILE=tile,
        ROWS=count,
        PROGRAMS=stride * tile.slices,
        num_warps=tile.split * tile.side,
        maxnreg=128,
        **launched(of.overlap),
    )
    return after, left


def qkv_rope_store(
    x: Tensor | NormedInput,
    weight: PackedWeight,
    bias: Tensor | None,
    heads: QkvStoreArguments,
    *,
    overlap: bool,
    tile: SplitKTile | None = None,
) -> Tensor:
    """Queries of x [T, in], rotated: [T, queries, dim]; keys and values go to their slots."""
    (x, squares, eps) = x if isinstance(x, NormedInput) else (x, None, 0.0)
    q = x.new_empty(x.shape[0], heads.queries * heads.dim)
    matmul(GemmArguments(x, weight, q, bias, squares, eps, overlap=overlap), tile, heads)
    return q.view(len(q), heads.queries, heads.dim)


__all__ = [
    "MOST_ROWS",
    "NormedInput",
    "QkvStoreArguments",
    "SplitKTile",
    "matmul",
    "qkv_rope_store",
    "supports",
    "supports_weight",
    "tile_for",
]
