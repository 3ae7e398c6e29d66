"""A Gluon kernel that multiplies 2 to 64 rows with a 4-bit weight by the tensor cores.

See `gemv_tensor_core_kernels`. The weight is the left operand, as it is stored; the rows are the columns of the right
one. Warps share the outputs of a program and split its inputs, so that a program has whole sums and no other has to add
to them. Words, scales and x come through one ring of shared memory, those of the program's next outputs too. A group's
scale goes into its sums: no weight is rounded.
"""

# mypy: disable-error-code="assignment,var-annotated"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..gemv.gemv_launch import tiles_of
from ..gemv.gemv_tensor_core_kernels import (
    WORDS,
    copy_to_shared,
    flat_layout,
    half,
    index,
    outputs_of,
    pieces,
    sums_layout,
    words_layout,
    x_layout,
)
from ..launch.compile_ahead import entry
from .gemm_epilogue import row_factors, write, written_layout
from .split_k_gemm_kernels import unscaled_numbers

BLOCK = gl.constexpr(128)  # inputs


@gluon.constexpr_function
def _x_copied(warps):
    """Of [4 * split, rows, WORDS], by 16 bytes."""
    return gl.BlockedLayout([1, 1, 8], [1, 8, 4], [warps, 1, 1], [2, 1, 0])


@gluon.constexpr_function
def _meta_copied(split, side):
    """Of [split, outputs]."""
    return gl.BlockedLayout([1, 1], [1, 32], [split, side], [1, 0])


@gluon.constexpr_function
def _steps(inputs, split):
    return -(-inputs // (BLOCK.value * split))


@gluon.jit
def _copy_weight(
    to_words, to_meta, slot, words, meta, tile, step, HALF: gl.constexpr, FORMAT: gl.constexpr, TILE: gl.constexpr
):
    """Begins to copy a block of each part of the inputs; the last stands in for those beyond it, whose x is 0."""
    OUTPUTS: gl.constexpr = FORMAT.outputs
    SPLIT: gl.constexpr = TILE.split
    SIZE: gl.constexpr = TILE.outputs
    LEFT: gl.constexpr = words_layout(SPLIT, TILE.side)
    META: gl.constexpr = _meta_copied(SPLIT, TILE.side)
    PIECES: gl.constexpr = pieces(FORMAT.group, "scaled")
    BLOCKS: gl.constexpr = (FORMAT.inputs + BLOCK - 1) // BLOCK
    present = tile < tiles_of(OUTPUTS, HALF, SIZE)
    block = gl.minimum(step * SPLIT + index(0, SPLIT, LEFT), BLOCKS - 1)
    place = block * OUTPUTS + outputs_of(index(1, SIZE, LEFT), tile, OUTPUTS, HALF, SIZE)
    copy_to_shared(to_words.index(slot), words + place * WORDS + index(2, WORDS, LEFT), present)
    lane = gl.arange(0, SIZE, layout=gl.SliceLayout(0, META))[None, :]
    block = gl.minimum(step * SPLIT + gl.arange(0, SPLIT, layout=gl.SliceLayout(1, META))[:, None], BLOCKS - 1)
    group = block * BLOCK // (FORMAT.group * PIECES)
    start = meta + group * (PIECES * OUTPUTS) + outputs_of(lane, tile, OUTPUTS, HALF, SIZE)
    for piece in gl.static_range(PIECES):
        copy_to_shared(to_meta.index(slot * PIECES + piece), start + piece * OUTPUTS, present)


@gluon.jit
def _copy_x(to_x, x, step, rows, stride, INPUTS: gl.constexpr, ROWS: gl.constexpr, TILE: gl.constexpr):
    """Begins to copy the inputs of a step, quarters of blocks first; zeros beyond them."""
    LAYOUT: gl.constexpr = _x_copied(TILE.split * TILE.side)
    part = index(0, 4 * TILE.split, LAYOUT)
    k = (step * TILE.split + part % TILE.split) * BLOCK + part // TILE.split * WORDS + index(2, WORDS, LAYOUT)
    row = index(1, ROWS, LAYOUT)
    copy_to_shared(to_x, x + row * stride + k, (row < rows) & (k < INPUTS))


@gluon.jit
def _block_sums(sums, words, meta, slot, x, ROWS: gl.constexpr, FORMAT: gl.constexpr, TILE: gl.constexpr):
    """sums [split, outputs, ROWS] plus a block of each part; the others are places in shared memory."""
    SPLIT: gl.constexpr = TILE.split
    SIZE: gl.constexpr = TILE.outputs
    SUMS: gl.constexpr = sums_layout(SPLIT, TILE.side)
    LEFT: gl.constexpr = words_layout(SPLIT, TILE.side)
    RIGHT: gl.constexpr = x_layout(SPLIT, TILE.side)
    PIECE: gl.constexpr = min(FORMAT.group // WORDS, 4)  # quarters of a block in one group
    codes = words.load(LEFT)
    for start in gl.static_range(0, 4, PIECE):
        group = gl.zeros([SPLIT, SIZE, ROWS], gl.float32, SUMS)
        place = meta.index(slot * pieces(FORMAT.group, "scaled") + start // PIECE)
        minus = (
            place.load(gl.SliceLayout(2, LEFT))[:, :, None].broadcast_to(SPLIT, SIZE, WORDS)
            if FORMAT.kind == "zeros, scaled"
            else codes
        )
        for at in gl.static_range(start, start + PIECE):
            values = x.slice(at * SPLIT, SPLIT).permute((0, 2, 1)).load(RIGHT)
            group = mma_v2(unscaled_numbers(codes, minus, at, FORMAT), values, group)
        sums += group * half(place.load(gl.SliceLayout(2, SUMS)), True)[:, :, None]
    return sums


@entry
@gluon.jit(do_not_specialize=["rows"])
def multiply(
    x,
    words,
    meta,
    outer,
    bias,
    squares,
    y,
    norm,
    after,
    left_squares,
    rows,
    stride,
    y_stride,
    eps,
    FORMAT: gl.constexpr,
    EPILOGUE: gl.constexpr,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    RING: gl.constexpr,
    PROGRAMS: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    """y [rows, outputs] = x [rows, inputs] W^T + bias; grid (PROGRAMS,).

    See `Epilogue` for the fused parts.  TILE: a `SkinnyGemmTile`.
    """
    OUTPUTS: gl.constexpr = FORMAT.outputs
    INPUTS: gl.constexpr = FORMAT.inputs
    SPLIT: gl.constexpr = TILE.split
    SIZE: gl.constexpr = TILE.outputs
    WARPS: gl.constexpr = SPLIT * TILE.side
    GATED: gl.constexpr = EPILOGUE.name != ""
    HALF: gl.constexpr = OUTPUTS // 2 if GATED else 0
    STEPS: gl.constexpr = _steps(INPUTS, SPLIT)
    OUT: gl.constexpr = written_layout(SIZE // 2 if GATED else SIZE, WARPS)
    ends = (bias, squares, y, norm, after, left_squares)
    place_words = gl.allocate_shared_memory(gl.int16, [RING, SPLIT, SIZE, WORDS], flat_layout(3))
    place_meta = gl.allocate_shared_memory(
        gl.int32, [RING * pieces(FORMAT.group, "scaled"), SPLIT, SIZE], flat_layout(2)
    )
    place_x = gl.allocate_shared_memory(gl.bfloat16, [RING, 4 * SPLIT, ROWS, WORDS], flat_layout(3))
    first = gl.program_id(0)
    for item in gl.static_range(RING - 1):
        tile, step = first + item // STEPS * PROGRAMS, item % STEPS
        _copy_weight(place_words, place_meta, item, words, meta, tile, step, HALF, FORMAT, TILE)
    if DEPENDENT:
        gdc_wait()
    for item in gl.static_range(RING - 1):
        _copy_x(place_x.index(item), x, item % STEPS, rows, stride, INPUTS, ROWS, TILE)
        async_copy.commit_group()
    factor = row_factors(squares, rows, eps, INPUTS, ROWS, EPILOGUE.parts, OUT)
    slot = 0
    for tile in range(first, tiles_of(OUTPUTS, HALF, SIZE), PROGRAMS):
        sums = gl.zeros([SPLIT, SIZE, ROWS], gl.float32, sums_layout(SPLIT, TILE.side))
        for step in range(STEPS):
            async_copy.wait_group(RING - 2)
            free = (slot + RING - 1) % RING
            ahead = step + RING - 1
            to_tile, to_step = tile + ahead // STEPS * PROGRAMS, ahead % STEPS
            _copy_weight(place_words, place_meta, free, words, meta, to_tile, to_step, HALF, FORMAT, TILE)
            _copy_x(place_x.index(free), x, to_step, rows, stride, INPUTS, ROWS, TILE)
            async_copy.commit_group()
            sums = _block_sums(sums, place_words.index(slot), place_meta, slot, place_x.index(slot), ROWS, FORMAT, TILE)
            slot = (slot + 1) % RING
        if DEPENDENT and tile + PROGRAMS >= tiles_of(OUTPUTS, HALF, SIZE):
            # not before: what the next kernel reads would take the room that this one's steps need
            gdc_launch_dependents()
        total = gl.sum(sums, 0)
        write(total, tile, outer, ends, factor, rows, y_stride, OUTPUTS, FORMAT.outer, EPILOGUE, SIZE, ROWS, WARPS)
