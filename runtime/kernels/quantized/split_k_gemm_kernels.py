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

from ..activation_kernels import activated
from ..gemv.gemv_launch import tiles_of
from ..gemv.gemv_tensor_core_kernels import WORDS, copy_to_shared, half, index, outputs_of, pieces
from ..launch.compile_ahead import entry
from .split_k_blocks import block_of, has_meta, scaled, steps_of, text_of, turn_of, waits_of, with_zeros

barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # as older Tritons call it


@gluon.constexpr_function
def _sums_layout(split, side):
    """Of [split, outputs, rows], by so many warps along the first two."""
    return gl.NVMMADistributedLayout([2, 0], [split, side, 1], [1, 16, 8])


@gluon.constexpr_function
def _words_layout(split, side):
    """Of [split, outputs, WORDS]."""
    return gl.DotOperandLayout(0, _sums_layout(split, side), 8)


@gluon.constexpr_function
def _x_layout(split, side):
    """Of [split, WORDS, rows]."""
    return gl.DotOperandLayout(1, _sums_layout(split, side), 8)


@gluon.constexpr_function
def _x_copied(parts, warps, bytes):
    """Of [parts, rows, WORDS], by 16 bytes."""
    count = 16 // bytes
    along = min(parts, warps)
    return gl.BlockedLayout([1, 1, count], [1, count, 32 // count], [along, warps // along, 1], [2, 1, 0])


@gluon.constexpr_function
def _flat(rank):
    return gl.SwizzledSharedLayout(1, 1, 1, list(range(rank - 1, -1, -1)))


@gluon.constexpr_function
def _written(outputs, warps):
    """Of [outputs, rows]: outputs are adjacent."""
    lanes = min(32, outputs)
    return gl.BlockedLayout([1, 1], [lanes, 32 // lanes], [1, warps], [0, 1])


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


@gluon.constexpr_function
def _power(count):
    return 1 << max(0, count - 1).bit_length()


@gluon.jit
def _read(
    words,
    meta,
    tile,
    step,
    present,
    OUTPUTS: gl.constexpr,
    HALF: gl.constexpr,
    INPUTS: gl.constexpr,
    TILE: gl.constexpr,
    SPLIT: gl.constexpr,
    SIDE: gl.constexpr,
    GROUP: gl.constexpr,
    KIND: gl.constexpr,
    FORM: gl.constexpr,
):
    """Begins to read a block of each part of the inputs: words [SPLIT, TILE, WORDS] and for each group [SPLIT, TILE].

    The last block stands in for those beyond it, whose x is 0.
    """
    LEFT: gl.constexpr = _words_layout(SPLIT, SIDE)
    ROW: gl.constexpr = gl.SliceLayout(2, LEFT)
    BLOCK: gl.constexpr = block_of(FORM)
    BLOCKS: gl.constexpr = (INPUTS + BLOCK - 1) // BLOCK
    PIECES: gl.constexpr = 0 if not has_meta(KIND) else pieces(GROUP, KIND) if FORM == "nibbles" else 1
    block = gl.minimum(step * SPLIT + index(0, SPLIT, LEFT), BLOCKS - 1)
    output = outputs_of(index(1, TILE, LEFT), tile, OUTPUTS, HALF, TILE)
    if FORM == "nibbles":
        place = (block * OUTPUTS + output) * WORDS
    else:
        place = output * (INPUTS // 2) + block * WORDS
    codes = gl.load(words + place + index(2, WORDS, LEFT), present, eviction_policy="evict_first")
    block = gl.minimum(step * SPLIT + gl.arange(0, SPLIT, layout=gl.SliceLayout(1, ROW))[:, None], BLOCKS - 1)
    output = outputs_of(gl.arange(0, TILE, layout=gl.SliceLayout(0, ROW))[None, :], tile, OUTPUTS, HALF, TILE)
    found = ()
    for piece in gl.static_range(PIECES):
        group = block * BLOCK // (GROUP * PIECES) * PIECES + piece
        found = found + (gl.load(meta + group * OUTPUTS + output, present),)
    return codes, found


@gluon.jit
def _copy_x(
    to_x,
    x,
    step,
    rows,
    stride,
    INPUTS: gl.constexpr,
    ROWS: gl.constexpr,
    SPLIT: gl.constexpr,
    WARPS: gl.constexpr,
    FORM: gl.constexpr,
):
    """Begins to bring the inputs of a step, of nibbles quarters of blocks first, of bytes two at a time; zeros where
    there are none.
    """
    PARTS: gl.constexpr = 4 * SPLIT if FORM == "nibbles" else SPLIT
    LAYOUT: gl.constexpr = _x_copied(PARTS, WARPS, 2 if FORM == "nibbles" else 4)
    part = index(0, PARTS, LAYOUT)
    k = (step * SPLIT + part % SPLIT) * (PARTS // SPLIT * WORDS) + part // SPLIT * WORDS + index(2, WORDS, LAYOUT)
    row = index(1, ROWS, LAYOUT)
    copy_to_shared(to_x, x + row * stride + k, (row < rows) & (k < (INPUTS if FORM == "nibbles" else INPUTS // 2)))


@gluon.jit
def _numbers(codes, meta, TEXT: gl.constexpr, KIND: gl.constexpr):
    """Some of the bits of codes int16 [SPLIT, TILE, WORDS] as numbers in bfloat16, less their zeros.

    meta: [SPLIT, TILE, WORDS] or not used.
    """
    if with_zeros(KIND):
        minus = (meta >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True)
        return gl.inline_asm_elementwise(TEXT, "=r,r,r", [codes, minus], dtype=gl.bfloat16, is_pure=True, pack=2)
    else:
        return gl.inline_asm_elementwise(TEXT, "=r,r", [codes], dtype=gl.bfloat16, is_pure=True, pack=2)


@gluon.jit
def _block_sums(
    sums,
    codes,
    metas,
    x,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    SPLIT: gl.constexpr,
    SIDE: gl.constexpr,
    GROUP: gl.constexpr,
    TEXTS: gl.constexpr,
    KIND: gl.constexpr,
    FORM: gl.constexpr,
):
    """sums [SPLIT, TILE, ROWS] and what a block of each part adds; x: its place
    in shared memory.  TEXTS: see `texts_of`.
    """
    SUMS: gl.constexpr = _sums_layout(SPLIT, SIDE)
    RIGHT: gl.constexpr = _x_layout(SPLIT, SIDE)
    PARTS: gl.constexpr = 4 if FORM == "nibbles" else 2
    PIECE: gl.constexpr = min(GROUP // WORDS, 4) if FORM == "nibbles" else 2  # parts of a block in one group
    pairs = codes if FORM == "nibbles" else x.permute((0, 2, 1)).load(RIGHT)
    for start in gl.static_range(0, PARTS, PIECE):
        group = gl.zeros([SPLIT, TILE, ROWS], gl.float32, SUMS) if scaled(KIND) else sums
        found = metas[start // PIECE] if has_meta(KIND) else 0
        minus = found[:, :, None].broadcast_to(SPLIT, TILE, WORDS) if with_zeros(KIND) else codes
        for at in gl.static_range(start, start + PIECE):
            if FORM == "nibbles":
                values = x.slice(at * SPLIT, SPLIT).permute((0, 2, 1)).load(RIGHT)
            else:
                values = (pairs if at == 0 else pairs >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True)
            group = mma_v2(_numbers(codes, minus, text_of(TEXTS, at), KIND), values, group)
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
def _factor(squares, rows, eps, INPUTS: gl.constexpr, ROWS: gl.constexpr, TILES: gl.constexpr, LAYOUT: gl.constexpr):
    """1 / the root of the mean square of each row, from sums [TILES, rows] of its squares."""
    tile = gl.arange(0, _power(TILES), layout=gl.SliceLayout(1, LAYOUT))[:, None]
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    return gl.rsqrt(
        gl.sum(gl.load(squares + tile * rows + row, (tile < TILES) & (row < rows), other=0.0), 0) / INPUTS + eps
    )


@gluon.jit
def _gated(total, TILE: gl.constexpr, ROWS: gl.constexpr):
    """Both halves of outputs in turns of eight [TILE, ROWS] -> each [TILE / 2, ROWS]."""
    turned = gl.permute(gl.reshape(total, [TILE // 16, 2, 8, ROWS]), [0, 2, 3, 1])
    first, second = gl.split(turned)
    return gl.reshape(first, [TILE // 2, ROWS]), gl.reshape(second, [TILE // 2, ROWS])


@gluon.jit
def _finished(total, outer, bias, factor, output, OUTER: gl.constexpr, BIASED: gl.constexpr):
    """total [L, ROWS] times what belongs to each output and to each row (factor [1, ROWS]), and the bias."""
    if OUTER:
        total *= gl.load(outer + output)
    total *= factor
    if BIASED:
        total += gl.load(bias + output).to(gl.float32)
    return total


@gluon.jit
def _write(
    total,
    tile,
    outer,
    bias,
    factor,
    y,
    norm,
    ready,
    left_squares,
    rows,
    y_stride,
    OUTPUTS: gl.constexpr,
    OUTER: gl.constexpr,
    BIASED: gl.constexpr,
    ADDED: gl.constexpr,
    READY: gl.constexpr,
    NAME: gl.constexpr,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    WARPS: gl.constexpr,
):
    """total [TILE, ROWS]: of all inputs, in any layout."""
    HALF: gl.constexpr = OUTPUTS // 2 if NAME != "" else 0
    WIDE: gl.constexpr = TILE // 2 if NAME != "" else TILE
    OUT: gl.constexpr = _written(WIDE, WARPS)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, OUT))[None, :]
    lane = tile * WIDE + gl.arange(0, WIDE, layout=gl.SliceLayout(1, OUT))[:, None]
    if NAME != "":
        gate, up = _gated(total, TILE, ROWS)
        output, inside = gl.minimum(lane, HALF - 1), (lane < HALF) & (row < rows)
        gate = _finished(gl.convert_layout(gate, OUT), outer, bias, factor, output, OUTER, BIASED)
        up = _finished(gl.convert_layout(up, OUT), outer, bias, factor, output + HALF, OUTER, BIASED)
        gl.store(y + row * y_stride + lane, (activated(gate, NAME) * up).to(y.dtype.element_ty), inside)
    else:
        output, inside = gl.minimum(lane, OUTPUTS - 1), (lane < OUTPUTS) & (row < rows)
        total = _finished(gl.convert_layout(total, OUT), outer, bias, factor, output, OUTER, BIASED)
        if ADDED:
            total += gl.load(y + row * y_stride + lane, inside, other=0.0).to(gl.float32)
        stored = total.to(y.dtype.element_ty)
        gl.store(y + row * y_stride + lane, stored, inside)
        if READY:
            rounded = gl.where(inside, stored.to(gl.float32), 0.0)
            weight = gl.load(norm + output).to(gl.float32)
            gl.store(ready + row * OUTPUTS + lane, (rounded * weight).to(ready.dtype.element_ty), inside)
            row_of = gl.arange(0, ROWS, layout=gl.SliceLayout(0, OUT))
            gl.store(left_squares + tile * rows + row_of, gl.sum(rounded * rounded, 0), row_of < rows)


@gluon.jit
def _write_heads(
    total,
    tile,
    outer,
    bias,
    factor,
    y,
    angles,
    positions,
    slots,
    k_pool,
    v_pool,
    k_scale,
    v_scale,
    rows,
    y_stride,
    QUERIES: gl.constexpr,
    KEYS: gl.constexpr,
    HALF: gl.constexpr,
    OUTER: gl.constexpr,
    BIASED: gl.constexpr,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    WARPS: gl.constexpr,
):
    """total [TILE, ROWS] are dimensions of one head: rotated, queries to y, keys and values to their slots; see
    `heads.norm_rope_store`.
    """
    PAIRS: gl.constexpr = TILE // 2
    PARTS: gl.constexpr = (HALF + PAIRS - 1) // PAIRS
    OUT: gl.constexpr = _written(PAIRS, WARPS)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, OUT))
    head, dim = tile // PARTS, tile % PARTS * PAIRS + gl.arange(0, PAIRS, layout=gl.SliceLayout(1, OUT))[:, None]
    low, high = _gated(total, TILE, ROWS)
    output = head * (2 * HALF) + gl.minimum(dim, HALF - 1)
    low = _finished(gl.convert_layout(low, OUT), outer, bias, factor, output, OUTER, BIASED)
    high = _finished(gl.convert_layout(high, OUT), outer, bias, factor, output + HALF, OUTER, BIASED)
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
    ready,
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
    OUTPUTS: gl.constexpr,
    INPUTS: gl.constexpr,
    GROUP: gl.constexpr,
    TEXTS: gl.constexpr,
    KIND: gl.constexpr,
    FORM: gl.constexpr,
    OUTER: gl.constexpr,
    BIASED: gl.constexpr,
    NORMED: gl.constexpr,
    SQUARES: gl.constexpr,
    ADDED: gl.constexpr,
    READY: gl.constexpr,
    NAME: gl.constexpr,
    QUERIES: gl.constexpr,
    KEYS: gl.constexpr,
    DIM: gl.constexpr,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    SPLIT: gl.constexpr,
    SIDE: gl.constexpr,
    SLICES: gl.constexpr,
    AHEAD: gl.constexpr,
    MOST_WAITS: gl.constexpr,
    PROGRAMS: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    """y [rows, OUTPUTS] = x [rows, INPUTS] W^T + bias; see `quantized_gemm_kernels.multiply` for what may stand around
    it; grid (PROGRAMS,).

    DIM: not 0: the outputs are heads of so many, QUERIES, KEYS and as many of values; see `_write_heads`.
    Program p has slice p % SLICES and every PROGRAMS / SLICES-th tile from p / SLICES on.
    """
    HALF: gl.constexpr = DIM // 2 if DIM > 0 else OUTPUTS // 2 if NAME != "" else 0
    WARPS: gl.constexpr = SPLIT * SIDE
    STEPS: gl.constexpr = steps_of(INPUTS, FORM, SLICES, SPLIT)
    TILES: gl.constexpr = tiles_of(OUTPUTS, HALF, TILE)
    STRIDE: gl.constexpr = PROGRAMS // SLICES
    WAITS: gl.constexpr = waits_of(STEPS, MOST_WAITS)
    TURN: gl.constexpr = turn_of(STEPS // WAITS, TILE // SIDE, FORM)
    OUT: gl.constexpr = _written(TILE // 2 if HALF > 0 else TILE, WARPS)
    TOGETHER: gl.constexpr = _together(SPLIT, TILE, ROWS, WARPS)
    part, first = gl.program_id(0) % SLICES, gl.program_id(0) // SLICES
    held = ()
    for item in gl.static_range(AHEAD):
        tile = first + item // STEPS * STRIDE
        held = held + (
            _read(
                words,
                meta,
                tile,
                part * STEPS + item % STEPS,
                tile < TILES,
                OUTPUTS,
                HALF,
                INPUTS,
                TILE,
                SPLIT,
                SIDE,
                GROUP,
                KIND,
                FORM,
            ),
        )
    PARTS: gl.constexpr = 4 * SPLIT if FORM == "nibbles" else SPLIT
    place = gl.allocate_shared_memory(
        gl.bfloat16 if FORM == "nibbles" else gl.int32, [STEPS, PARTS, ROWS, WORDS], _flat(3)
    )
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    for step in gl.static_range(STEPS):
        _copy_x(place.index(step), x, part * STEPS + step, rows, stride, INPUTS, ROWS, SPLIT, WARPS, FORM)
        if WAITS == 2 and step == STEPS // 2 - 1:
            async_copy.commit_group()
    async_copy.commit_group()
    factor = _factor(squares, rows, eps, INPUTS, ROWS, SQUARES, OUT)[None, :] if NORMED else 1.0
    async_copy.wait_group(WAITS - 1)
    barrier()
    for tile in range(first, TILES, STRIDE):
        sums = gl.zeros([SPLIT, TILE, ROWS], gl.float32, _sums_layout(SPLIT, SIDE))
        for stretch in gl.static_range(WAITS):
            if stretch == 1:
                async_copy.wait_group(0)
                barrier()
            for turn in range(STEPS // TURN // WAITS):
                for at in gl.static_range(TURN):
                    now = (stretch * (STEPS // TURN // WAITS) + turn) * TURN + at
                    to_tile, to_step = tile + (now + AHEAD) // STEPS * STRIDE, part * STEPS + (now + AHEAD) % STEPS
                    coming = _read(
                        words,
                        meta,
                        to_tile,
                        to_step,
                        to_tile < TILES,
                        OUTPUTS,
                        HALF,
                        INPUTS,
                        TILE,
                        SPLIT,
                        SIDE,
                        GROUP,
                        KIND,
                        FORM,
                    )
                    sums = _block_sums(
                        sums,
                        held[0][0],
                        held[0][1],
                        place.index(now),
                        TILE,
                        ROWS,
                        SPLIT,
                        SIDE,
                        GROUP,
                        TEXTS,
                        KIND,
                        FORM,
                    )
                    held = _moved(held, coming, AHEAD)
        total = gl.sum(gl.convert_layout(sums, TOGETHER), 0)
        if SLICES == 1:
            if DIM > 0:
                _write_heads(
                    total,
                    tile,
                    outer,
                    bias,
                    factor,
                    y,
                    angles,
                    positions,
                    slots,
                    k_pool,
                    v_pool,
                    k_scale,
                    v_scale,
                    rows,
                    y_stride,
                    QUERIES,
                    KEYS,
                    HALF,
                    OUTER,
                    BIASED,
                    TILE,
                    ROWS,
                    WARPS,
                )
            else:
                _write(
                    total,
                    tile,
                    outer,
                    bias,
                    factor,
                    y,
                    norm,
                    ready,
                    left_squares,
                    rows,
                    y_stride,
                    OUTPUTS,
                    OUTER,
                    BIASED,
                    ADDED,
                    READY,
                    NAME,
                    TILE,
                    ROWS,
                    WARPS,
                )
        else:
            gl.store(_left(partial, part * TILES + tile, TILE, ROWS, gl.SliceLayout(0, TOGETHER)), total)
    if SLICES > 1:
        ALL: gl.constexpr = gl.SliceLayout(0, TOGETHER)
        barrier()
        arrived = gl.atomic_add(counters + first, 1, sem="acq_rel")
        if arrived == SLICES - 1:
            barrier()
            gl.store(counters + first, 0)
            for tile in range(first, TILES, STRIDE):
                total = gl.load(_left(partial, tile, TILE, ROWS, ALL), cache_modifier=".cg")
                for slice in gl.static_range(1, SLICES):
                    total += gl.load(_left(partial, slice * TILES + tile, TILE, ROWS, ALL), cache_modifier=".cg")
                if DIM > 0:
                    _write_heads(
                        total,
                        tile,
                        outer,
                        bias,
                        factor,
                        y,
                        angles,
                        positions,
                        slots,
                        k_pool,
                        v_pool,
                        k_scale,
                        v_scale,
                        rows,
                        y_stride,
                        QUERIES,
                        KEYS,
                        HALF,
                        OUTER,
                        BIASED,
                        TILE,
                        ROWS,
                        WARPS,
                    )
                else:
                    _write(
                        total,
                        tile,
                        outer,
                        bias,
                        factor,
                        y,
                        norm,
                        ready,
                        left_squares,
                        rows,
                        y_stride,
                        OUTPUTS,
                        OUTER,
                        BIASED,
                        ADDED,
                        READY,
                        NAME,
                        TILE,
                        ROWS,
                        WARPS,
                    )
