"""A Gluon kernel that multiplies 2 to 16 rows with a 4-bit or 8-bit weight by the tensor cores.

The weight is the left operand, as it is stored; the rows are the columns of the right one. A program has a slice of the
inputs: it loads the rows' values of it into shared memory once, and goes over the outputs of one tile after the other.
The warps of a program share the outputs of a tile and split its slice. Each has the words of its next blocks in flight
in registers, those of the next tile too, so no warp waits for another before a tile is done. Programs with other slices
of the same outputs leave their sums, and the last of them adds them up in order. A group's scale goes into its sums: no
weight is rounded.
"""

# mypy: disable-error-code="assignment,var-annotated,index,misc"

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
from ..packed.packed_weight import BYTES as OF_BYTES
from .gemm_epilogue import finished, gated, row_factors, write, written_layout
from .split_k_blocks import block_of, has_meta, scaled, steps_of, turn_of, waits_of, with_zeros

BYTES = gl.constexpr(OF_BYTES)
barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # as older Tritons call it


@gluon.constexpr_function
def _x_copied(parts, warps, bytes):
    """Of [parts, rows, WORDS], by 16 bytes."""
    count = 16 // bytes
    along = min(parts, warps)
    return gl.BlockedLayout([1, 1, count], [1, count, 32 // count], [along, warps // along, 1], [2, 1, 0])


@gluon.constexpr_function
def _together(split, outputs, rows, warps):
    """Of [split, outputs, rows]: a thread has all parts, and of outputs those eight apart; else outputs are
    adjacent.
    """
    pairs = [[0, 8, 0]] if outputs > 8 else []
    along = [[0, 1 << bit, 0] for bit in range(outputs.bit_length() - 1) if bit != 3]
    spread = along + [[0, 0, 1 << bit] for bit in range(rows.bit_length() - 1)]
    many = warps.bit_length() - 1
    lanes, rest = spread[:5], spread[5:]
    of_warps = rest[len(rest) - many :] if len(rest) >= many else rest + [[0, 0, 0]] * (many - len(rest))
    registers = [[1 << bit, 0, 0] for bit in range(split.bit_length() - 1)] + pairs + rest[: max(0, len(rest) - many)]
    return gl.DistributedLinearLayout(registers, lanes, of_warps, [], [split, outputs, rows])


@gluon.jit
def _read(words, meta, tile, step, present, HALF: gl.constexpr, FORMAT: gl.constexpr, TILE: gl.constexpr):
    """Begins to read a block of each part of the inputs: words [split, outputs, WORDS] and for each group [split,
    outputs].

    The last block stands in for those beyond it, whose x is 0.
    """
    LEFT: gl.constexpr = words_layout(TILE.split, TILE.side)
    ROW: gl.constexpr = gl.SliceLayout(2, LEFT)
    BLOCK: gl.constexpr = block_of(FORMAT.form)
    BLOCKS: gl.constexpr = (FORMAT.inputs + BLOCK - 1) // BLOCK
    PIECES: gl.constexpr = (
        0 if not has_meta(FORMAT.kind) else pieces(FORMAT.group, FORMAT.kind) if FORMAT.form != BYTES else 1
    )
    block = gl.minimum(step * TILE.split + index(0, TILE.split, LEFT), BLOCKS - 1)
    output = outputs_of(index(1, TILE.outputs, LEFT), tile, FORMAT.outputs, HALF, TILE.outputs)
    if FORMAT.form != BYTES:
        place = (block * FORMAT.outputs + output) * WORDS
    else:
        place = output * (FORMAT.inputs // 2) + block * WORDS
    codes = gl.load(words + place + index(2, WORDS, LEFT), present, eviction_policy="evict_first")
    part = gl.arange(0, TILE.split, layout=gl.SliceLayout(1, ROW))[:, None]
    block = gl.minimum(step * TILE.split + part, BLOCKS - 1)
    lane = gl.arange(0, TILE.outputs, layout=gl.SliceLayout(0, ROW))[None, :]
    output = outputs_of(lane, tile, FORMAT.outputs, HALF, TILE.outputs)
    found = ()
    for piece in gl.static_range(PIECES):
        group = block * BLOCK // (FORMAT.group * PIECES) * PIECES + piece
        found = found + (gl.load(meta + group * FORMAT.outputs + output, present),)
    return codes, found


@gluon.jit
def _copy_x(to_x, x, step, rows, stride, ROWS: gl.constexpr, FORMAT: gl.constexpr, TILE: gl.constexpr):
    """Begins to bring the inputs of a step, of nibbles quarters of blocks first, of bytes two at a time; zeros where
    there are none.
    """
    PARTS: gl.constexpr = 4 * TILE.split if FORMAT.form != BYTES else TILE.split
    LAYOUT: gl.constexpr = _x_copied(PARTS, TILE.split * TILE.side, 2 if FORMAT.form != BYTES else 4)
    INPUTS: gl.constexpr = FORMAT.inputs if FORMAT.form != BYTES else FORMAT.inputs // 2
    part = index(0, PARTS, LAYOUT)
    k = (step * TILE.split + part % TILE.split) * (PARTS // TILE.split * WORDS)
    k = k + part // TILE.split * WORDS + index(2, WORDS, LAYOUT)
    row = index(1, ROWS, LAYOUT)
    copy_to_shared(to_x, x + row * stride + k, (row < rows) & (k < INPUTS))


@gluon.jit
def unscaled_numbers(codes, meta, AT: gl.constexpr, FORMAT: gl.constexpr):
    """Half bytes or bytes number AT of codes int16 [split, outputs, WORDS] as numbers in bfloat16, less their zeros.

    meta: of the same shape or not used.
    """
    TEXT: gl.constexpr = FORMAT.unscaled[AT]
    if with_zeros(FORMAT.kind):
        minus = (meta >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True)
        return gl.inline_asm_elementwise(TEXT, "=r,r,r", [codes, minus], dtype=gl.bfloat16, is_pure=True, pack=2)
    else:
        return gl.inline_asm_elementwise(TEXT, "=r,r", [codes], dtype=gl.bfloat16, is_pure=True, pack=2)


@gluon.jit
def _block_sums(sums, codes, metas, x, ROWS: gl.constexpr, FORMAT: gl.constexpr, TILE: gl.constexpr):
    """sums [split, outputs, ROWS] and what a block of each part adds; x: its place in shared memory."""
    SPLIT: gl.constexpr = TILE.split
    SIZE: gl.constexpr = TILE.outputs
    SUMS: gl.constexpr = sums_layout(TILE.split, TILE.side)
    RIGHT: gl.constexpr = x_layout(TILE.split, TILE.side)
    PARTS: gl.constexpr = 4 if FORMAT.form != BYTES else 2
    PIECE: gl.constexpr = min(FORMAT.group // WORDS, 4) if FORMAT.form != BYTES else 2  # parts of a block in one group
    KIND: gl.constexpr = FORMAT.kind
    pairs = codes if FORMAT.form != BYTES else x.permute((0, 2, 1)).load(RIGHT)
    for start in gl.static_range(0, PARTS, PIECE):
        group = gl.zeros([SPLIT, SIZE, ROWS], gl.float32, SUMS) if scaled(KIND) else sums
        found = metas[start // PIECE] if has_meta(KIND) else 0
        minus = found[:, :, None].broadcast_to(SPLIT, SIZE, WORDS) if with_zeros(KIND) else codes
        for at in gl.static_range(start, start + PIECE):
            if FORMAT.form != BYTES:
                values = x.slice(at * SPLIT, SPLIT).permute((0, 2, 1)).load(RIGHT)
            else:
                values = (pairs if at == 0 else pairs >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True)
            group = mma_v2(unscaled_numbers(codes, minus, at, FORMAT), values, group)
        if scaled(KIND):
            sums += group * gl.convert_layout(half(found, True), gl.SliceLayout(2, SUMS))[:, :, None]
        else:
            sums = group
    return sums


@gluon.jit
def _moved(held, coming, AHEAD: gl.constexpr):
    """Without the first, and with the one that is coming."""
    later = ()
    for item in gl.static_range(1, AHEAD):
        later = later + (held[item],)
    return later + (coming,)


@gluon.jit
def _write_heads(
    total,
    tile,
    outer,
    bias,
    factor,
    y,
    heads,
    rows,
    y_stride,
    HEADS: gl.constexpr,
    OUTER: gl.constexpr,
    BIASED: gl.constexpr,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    WARPS: gl.constexpr,
):
    """total [TILE, ROWS] are dimensions of one head: rotated, queries to y, keys and values to their slots; see
    `heads.norm_rope_store`.
    """
    angles, positions, slots, k_pool, v_pool, k_scale, v_scale = heads
    QUERIES: gl.constexpr = HEADS.queries
    KEYS: gl.constexpr = HEADS.keys
    HALF: gl.constexpr = HEADS.dim // 2
    PAIRS: gl.constexpr = TILE // 2
    PARTS: gl.constexpr = (HALF + PAIRS - 1) // PAIRS
    OUT: gl.constexpr = written_layout(PAIRS, WARPS)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, OUT))
    head, dim = tile // PARTS, tile % PARTS * PAIRS + gl.arange(0, PAIRS, layout=gl.SliceLayout(1, OUT))[:, None]
    low, high = gated(total, TILE, ROWS)
    output = head * (2 * HALF) + gl.minimum(dim, HALF - 1)
    low = finished(gl.convert_layout(low, OUT), outer, bias, factor, output, OUTER, BIASED)
    high = finished(gl.convert_layout(high, OUT), outer, bias, factor, output + HALF, OUTER, BIASED)
    inside = (dim < HALF) & (row < rows)[None, :]
    if head < QUERIES + KEYS:
        turn = angles + gl.load(positions + row, row < rows, other=0).to(gl.int64)[None, :] * (4 * HALF) + dim
        cos = gl.load(turn, inside, other=0.0).to(gl.float32)
        sin = gl.load(turn + 3 * HALF, inside, other=0.0).to(gl.float32)
        low, high = low * cos - high * sin, high * cos + low * sin
    if head < QUERIES:
        _store_halves(y + row[None, :] * y_stride + head * (2 * HALF) + dim, low, high, HALF, inside)
    else:
        slot = gl.load(slots + row, row < rows, other=0).to(gl.int64)[None, :]
        kept = slot * (KEYS * 2 * HALF) + (head - QUERIES) % KEYS * (2 * HALF) + dim
        if head < QUERIES + KEYS:
            _store_halves(k_pool + kept, low / k_scale, high / k_scale, HALF, inside & (slot != 0))
        else:
            _store_halves(v_pool + kept, low / v_scale, high / v_scale, HALF, inside & (slot != 0))


@gluon.jit
def _store_halves(place, low, high, HALF: gl.constexpr, inside):
    gl.store(place, low.to(place.dtype.element_ty), inside)
    gl.store(place + HALF, high.to(place.dtype.element_ty), inside)


@gluon.jit
def _left(partial, tile, TILE: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Address of the sums of a slice's tile [TILE, ROWS]."""
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    return partial + (tile * ROWS + row) * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(1, LAYOUT))[:, None]


@gluon.jit
def _write(
    total,
    tile,
    outer,
    ends,
    factor,
    heads,
    rows,
    y_stride,
    FORMAT: gl.constexpr,
    EPILOGUE: gl.constexpr,
    HEADS: gl.constexpr,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    WARPS: gl.constexpr,
):
    """What belongs to a tile of whole sums [TILE, ROWS]."""
    OUTPUTS: gl.constexpr = FORMAT.outputs
    OUTER: gl.constexpr = FORMAT.outer
    BIASED: gl.constexpr = EPILOGUE.biased
    if HEADS is None:
        write(total, tile, outer, ends, factor, rows, y_stride, OUTPUTS, OUTER, EPILOGUE, TILE, ROWS, WARPS)
    else:
        y, b = ends[2], ends[0]
        _write_heads(total, tile, outer, b, factor, y, heads, rows, y_stride, HEADS, OUTER, BIASED, TILE, ROWS, WARPS)


@entry
@gluon.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["positions", "slots"])
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
    partial,
    counters,
    angles,
    positions,
    slots,
    k_pool,
    v_pool,
    rows,
    stride,
    y_stride,
    eps,
    k_scale,
    v_scale,
    FORMAT: gl.constexpr,
    EPILOGUE: gl.constexpr,
    HEADS: gl.constexpr,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    PROGRAMS: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    """y [rows, outputs] = x [rows, inputs] W^T + bias; see `Epilogue` for what may follow; grid (PROGRAMS,).

    HEADS: not None: the outputs are heads, see `_write_heads`.  TILE: a `SplitKTile`.
    Program p has slice p % slices and every PROGRAMS / slices-th tile from p / slices on.
    """
    SLICES: gl.constexpr = TILE.slices
    SPLIT: gl.constexpr = TILE.split
    SIZE: gl.constexpr = TILE.outputs
    WARPS: gl.constexpr = SPLIT * TILE.side
    AHEAD: gl.constexpr = TILE.ahead
    FORM: gl.constexpr = FORMAT.form
    GATED: gl.constexpr = EPILOGUE.name != ""
    HALF: gl.constexpr = HEADS.dim // 2 if HEADS is not None else FORMAT.outputs // 2 if GATED else 0
    STEPS: gl.constexpr = steps_of(FORMAT.inputs, FORM, SLICES, SPLIT)
    TILES: gl.constexpr = tiles_of(FORMAT.outputs, HALF, SIZE)
    STRIDE: gl.constexpr = PROGRAMS // SLICES
    WAITS: gl.constexpr = waits_of(STEPS, TILE.waits)
    TURN: gl.constexpr = turn_of(STEPS // WAITS, SIZE // TILE.side, FORM)
    OUT: gl.constexpr = written_layout(SIZE // 2 if HALF > 0 else SIZE, WARPS)
    TOGETHER: gl.constexpr = _together(SPLIT, SIZE, ROWS, WARPS)
    ends = (bias, squares, y, norm, after, left_squares)
    heads = (angles, positions, slots, k_pool, v_pool, k_scale, v_scale)
    part, first = gl.program_id(0) % SLICES, gl.program_id(0) // SLICES
    held = ()
    for item in gl.static_range(AHEAD):
        tile = first + item // STEPS * STRIDE
        held = held + (_read(words, meta, tile, part * STEPS + item % STEPS, tile < TILES, HALF, FORMAT, TILE),)
    PARTS: gl.constexpr = 4 * SPLIT if FORM != BYTES else SPLIT
    NUMBER: gl.constexpr = gl.bfloat16 if FORM != BYTES else gl.int32
    place = gl.allocate_shared_memory(NUMBER, [STEPS, PARTS, ROWS, WORDS], flat_layout(3))
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    for step in gl.static_range(STEPS):
        _copy_x(place.index(step), x, part * STEPS + step, rows, stride, ROWS, FORMAT, TILE)
        if WAITS == 2 and step == STEPS // 2 - 1:
            async_copy.commit_group()
    async_copy.commit_group()
    factor = row_factors(squares, rows, eps, FORMAT.inputs, ROWS, EPILOGUE.parts, OUT)
    async_copy.wait_group(WAITS - 1)
    barrier()
    for tile in range(first, TILES, STRIDE):
        sums = gl.zeros([SPLIT, SIZE, ROWS], gl.float32, sums_layout(SPLIT, TILE.side))
        for stretch in gl.static_range(WAITS):
            if stretch == 1:
                async_copy.wait_group(0)
                barrier()
            for turn in range(STEPS // TURN // WAITS):
                for at in gl.static_range(TURN):
                    now = (stretch * (STEPS // TURN // WAITS) + turn) * TURN + at
                    ahead = now + AHEAD
                    to_tile, to_step = tile + ahead // STEPS * STRIDE, part * STEPS + ahead % STEPS
                    coming = _read(words, meta, to_tile, to_step, to_tile < TILES, HALF, FORMAT, TILE)
                    sums = _block_sums(sums, held[0][0], held[0][1], place.index(now), ROWS, FORMAT, TILE)
                    held = _moved(held, coming, AHEAD)
        total = gl.sum(gl.convert_layout(sums, TOGETHER), 0)
        if SLICES == 1:
            _write(total, tile, outer, ends, factor, heads, rows, y_stride, FORMAT, EPILOGUE, HEADS, SIZE, ROWS, WARPS)
        else:
            gl.store(_left(partial, part * TILES + tile, SIZE, ROWS, gl.SliceLayout(0, TOGETHER)), total)
    if SLICES > 1:
        ALL: gl.constexpr = gl.SliceLayout(0, TOGETHER)
        barrier()
        arrived = gl.atomic_add(counters + first, 1, sem="acq_rel")
        if arrived == SLICES - 1:
            barrier()
            gl.store(counters + first, 0)
            for tile in range(first, TILES, STRIDE):
                total = gl.load(_left(partial, tile, SIZE, ROWS, ALL), cache_modifier=".cg")
                for slice in gl.static_range(1, SLICES):
                    total += gl.load(_left(partial, slice * TILES + tile, SIZE, ROWS, ALL), cache_modifier=".cg")
                _write(
                    total, tile, outer, ends, factor, heads, rows, y_stride, FORMAT, EPILOGUE, HEADS, SIZE, ROWS, WARPS
                )
