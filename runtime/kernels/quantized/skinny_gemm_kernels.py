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

from ..activation_kernels import activated
from ..gemv.gemv_launch import tiles_of
from ..gemv.gemv_tensor_core_kernels import WORDS, copy_to_shared, half, index, outputs_of, pieces
from ..launch.compile_ahead import entry

BLOCK = gl.constexpr(128)  # inputs


@gluon.constexpr_function
def _text(at, zero):
    """Half bytes number `at` of two words as numbers: after the exponent of 128, with that and the zero subtracted.

    None: nothing is subtracted.
    """
    put = f"shr.u32 w, $1, {4 * at}; lop3.b32 w, w, 0x000F000F, 0x43004300, 0xEA;"
    if zero is None:
        return f"{{ .reg .b32 w; {put} add.rn.bf16x2 $0, w, $2; }}"
    bits = 0xC300 + zero  # of -(128 + zero) in bfloat16
    return f"{{ .reg .b32 w, z; mov.b32 z, {bits << 16 | bits}; {put} add.rn.bf16x2 $0, w, z; }}"


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
def _x_copied(warps):
    """Of [4 * split, rows, WORDS], by 16 bytes."""
    return gl.BlockedLayout([1, 1, 8], [1, 8, 4], [warps, 1, 1], [2, 1, 0])


@gluon.constexpr_function
def _meta_copied(split, side):
    """Of [split, outputs]."""
    return gl.BlockedLayout([1, 1], [1, 32], [split, side], [1, 0])


@gluon.constexpr_function
def _flat(rank):
    return gl.SwizzledSharedLayout(1, 1, 1, list(range(rank - 1, -1, -1)))


@gluon.constexpr_function
def _written(outputs, warps):
    """Of [outputs, rows]: outputs are adjacent."""
    lanes = min(32, outputs)
    return gl.BlockedLayout([1, 1], [lanes, 32 // lanes], [1, warps], [0, 1])


@gluon.constexpr_function
def _steps(inputs, split):
    return -(-inputs // (BLOCK.value * split))


@gluon.constexpr_function
def _power(count):
    return 1 << max(0, count - 1).bit_length()


@gluon.jit
def _copy_weight(
    to_words,
    to_meta,
    slot,
    words,
    meta,
    tile,
    step,
    OUTPUTS: gl.constexpr,
    HALF: gl.constexpr,
    INPUTS: gl.constexpr,
    TILE: gl.constexpr,
    SPLIT: gl.constexpr,
    SIDE: gl.constexpr,
    GROUP: gl.constexpr,
):
    """Begins to copy a block of each part of the inputs; the last stands in for those beyond it, whose x is 0."""
    LEFT: gl.constexpr = _words_layout(SPLIT, SIDE)
    META: gl.constexpr = _meta_copied(SPLIT, SIDE)
    PIECES: gl.constexpr = pieces(GROUP, "scaled")
    BLOCKS: gl.constexpr = (INPUTS + BLOCK - 1) // BLOCK
    present = tile < tiles_of(OUTPUTS, HALF, TILE)
    block = gl.minimum(step * SPLIT + index(0, SPLIT, LEFT), BLOCKS - 1)
    place = block * OUTPUTS + outputs_of(index(1, TILE, LEFT), tile, OUTPUTS, HALF, TILE)
    copy_to_shared(to_words.index(slot), words + place * WORDS + index(2, WORDS, LEFT), present)
    lane = gl.arange(0, TILE, layout=gl.SliceLayout(0, META))[None, :]
    block = gl.minimum(step * SPLIT + gl.arange(0, SPLIT, layout=gl.SliceLayout(1, META))[:, None], BLOCKS - 1)
    start = meta + block * BLOCK // (GROUP * PIECES) * (PIECES * OUTPUTS) + outputs_of(lane, tile, OUTPUTS, HALF, TILE)
    for piece in gl.static_range(PIECES):
        copy_to_shared(to_meta.index(slot * PIECES + piece), start + piece * OUTPUTS, present)


@gluon.jit
def _copy_x(
    to_x, x, step, rows, stride, INPUTS: gl.constexpr, ROWS: gl.constexpr, SPLIT: gl.constexpr, SIDE: gl.constexpr
):
    """Begins to copy the inputs of a step, quarters of blocks first; zeros beyond them."""
    LAYOUT: gl.constexpr = _x_copied(SPLIT * SIDE)
    part = index(0, 4 * SPLIT, LAYOUT)
    k = (step * SPLIT + part % SPLIT) * BLOCK + part // SPLIT * WORDS + index(2, WORDS, LAYOUT)
    row = index(1, ROWS, LAYOUT)
    copy_to_shared(to_x, x + row * stride + k, (row < rows) & (k < INPUTS))


@gluon.jit
def _numbers(codes, meta, AT: gl.constexpr, ZERO: gl.constexpr, KIND: gl.constexpr):
    """Half bytes number AT of codes int16 [SPLIT, TILE, WORDS], less their zeros, in bfloat16.

    meta: [SPLIT, TILE, WORDS] or not used.
    """
    if KIND == "zeros, scaled":
        minus = (meta >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True)
        return gl.inline_asm_elementwise(
            _text(AT, None), "=r,r,r", [codes, minus], dtype=gl.bfloat16, is_pure=True, pack=2
        )
    else:
        return gl.inline_asm_elementwise(_text(AT, ZERO), "=r,r", [codes], dtype=gl.bfloat16, is_pure=True, pack=2)


@gluon.jit
def _block_sums(
    sums,
    words,
    meta,
    slot,
    x,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    SPLIT: gl.constexpr,
    SIDE: gl.constexpr,
    GROUP: gl.constexpr,
    ZERO: gl.constexpr,
    KIND: gl.constexpr,
):
    """sums [SPLIT, TILE, ROWS] plus a block of each part; the others are places in shared memory."""
    SUMS: gl.constexpr = _sums_layout(SPLIT, SIDE)
    LEFT: gl.constexpr = _words_layout(SPLIT, SIDE)
    PIECE: gl.constexpr = min(GROUP // WORDS, 4)  # quarters of a block in one group
    codes = words.load(LEFT)
    for start in gl.static_range(0, 4, PIECE):
        group = gl.zeros([SPLIT, TILE, ROWS], gl.float32, SUMS)
        place = meta.index(slot * pieces(GROUP, "scaled") + start // PIECE)
        minus = (
            place.load(gl.SliceLayout(2, LEFT))[:, :, None].broadcast_to(SPLIT, TILE, WORDS)
            if KIND == "zeros, scaled"
            else codes
        )
        for at in gl.static_range(start, start + PIECE):
            values = x.slice(at * SPLIT, SPLIT).permute((0, 2, 1)).load(_x_layout(SPLIT, SIDE))
            group = mma_v2(_numbers(codes, minus, at, ZERO, KIND), values, group)
        sums += group * half(place.load(gl.SliceLayout(2, SUMS)), True)[:, :, None]
    return sums


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
    """total [L, ROWS] times the factors of each output and of each row (factor [1, ROWS]), plus the bias."""
    if OUTER:
        total *= gl.load(outer + output)
    total *= factor
    if BIASED:
        total += gl.load(bias + output).to(gl.float32)
    return total


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
    ready,
    left_squares,
    rows,
    stride,
    y_stride,
    eps,
    OUTPUTS: gl.constexpr,
    INPUTS: gl.constexpr,
    GROUP: gl.constexpr,
    ZERO: gl.constexpr,
    KIND: gl.constexpr,
    OUTER: gl.constexpr,
    BIASED: gl.constexpr,
    NORMED: gl.constexpr,
    TILES: gl.constexpr,
    ADDED: gl.constexpr,
    READY: gl.constexpr,
    NAME: gl.constexpr,
    TILE: gl.constexpr,
    ROWS: gl.constexpr,
    SPLIT: gl.constexpr,
    SIDE: gl.constexpr,
    RING: gl.constexpr,
    PROGRAMS: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    """y [rows, OUTPUTS] = x [rows, INPUTS] W^T + bias; grid (PROGRAMS,).

    See `quantized_gemm_kernels.multiply` for the fused parts.
    """
    HALF: gl.constexpr = OUTPUTS // 2 if NAME != "" else 0
    STEPS: gl.constexpr = _steps(INPUTS, SPLIT)
    WIDE: gl.constexpr = TILE // 2 if NAME != "" else TILE
    OUT: gl.constexpr = _written(WIDE, SPLIT * SIDE)
    place_words = gl.allocate_shared_memory(gl.int16, [RING, SPLIT, TILE, WORDS], _flat(3))
    place_meta = gl.allocate_shared_memory(gl.int32, [RING * pieces(GROUP, "scaled"), SPLIT, TILE], _flat(2))
    place_x = gl.allocate_shared_memory(gl.bfloat16, [RING, 4 * SPLIT, ROWS, WORDS], _flat(3))
    first = gl.program_id(0)
    for item in gl.static_range(RING - 1):
        tile, step = first + item // STEPS * PROGRAMS, item % STEPS
        _copy_weight(
            place_words, place_meta, item, words, meta, tile, step, OUTPUTS, HALF, INPUTS, TILE, SPLIT, SIDE, GROUP
        )
    if DEPENDENT:
        gdc_wait()
    for item in gl.static_range(RING - 1):
        _copy_x(place_x.index(item), x, item % STEPS, rows, stride, INPUTS, ROWS, SPLIT, SIDE)
        async_copy.commit_group()
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, OUT))[None, :]
    factor = _factor(squares, rows, eps, INPUTS, ROWS, TILES, OUT)[None, :] if NORMED else 1.0
    slot = 0
    for tile in range(first, tiles_of(OUTPUTS, HALF, TILE), PROGRAMS):
        sums = gl.zeros([SPLIT, TILE, ROWS], gl.float32, _sums_layout(SPLIT, SIDE))
        for step in range(STEPS):
            async_copy.wait_group(RING - 2)
            free = (slot + RING - 1) % RING
            ahead = step + RING - 1
            to_tile, to_step = tile + ahead // STEPS * PROGRAMS, ahead % STEPS
            _copy_weight(
                place_words,
                place_meta,
                free,
                words,
                meta,
                to_tile,
                to_step,
                OUTPUTS,
                HALF,
                INPUTS,
                TILE,
                SPLIT,
                SIDE,
                GROUP,
            )
            _copy_x(place_x.index(free), x, to_step, rows, stride, INPUTS, ROWS, SPLIT, SIDE)
            async_copy.commit_group()
            sums = _block_sums(
                sums,
                place_words.index(slot),
                place_meta,
                slot,
                place_x.index(slot),
                TILE,
                ROWS,
                SPLIT,
                SIDE,
                GROUP,
                ZERO,
                KIND,
            )
            slot = (slot + 1) % RING
        if DEPENDENT and tile + PROGRAMS >= tiles_of(OUTPUTS, HALF, TILE):
            # not before: what the next kernel reads would take the room that this one's steps need
            gdc_launch_dependents()
        total = gl.sum(sums, 0)
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
