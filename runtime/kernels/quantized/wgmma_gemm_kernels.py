"""A Gluon kernel that multiplies tens to hundreds of rows with a 4-bit or 8-bit weight by Hopper's wgmma instructions.

The weight is the left operand, which these instructions take from registers. Codes come to shared memory as they are
stored, each thread reads those of its place in the operand and dequantizes them there, scaled; no dequantized number
goes back through memory. While a quarter of a block is multiplied, the next is dequantized. x is the right operand, in
shared memory. The copy engine loads codes and x of the next blocks into a ring, one barrier each. Inputs may be split
over programs, which run at the same time: each adds what all of a tile left of some of its rows, in their order.
"""

# mypy: disable-error-code="assignment,var-annotated"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_kernels import activated
from ..gemv.gemv_tensor_core_kernels import outputs_of
from ..launch.compile_ahead import entry
from ..packed.packed_weight import BYTES as OF_BYTES
from .gemm_epilogue import gated

BLOCK = gl.constexpr(128)  # inputs
QUARTER = gl.constexpr(32)
AHEAD = gl.constexpr(6)  # blocks, of scales
BYTES = gl.constexpr(OF_BYTES)  # a form, see `packed_weight`
bring = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # as older Tritons call it
OLDER = gl.constexpr(not hasattr(gl.shared_memory_descriptor, "reinterpret"))
all_threads = getattr(gl, "barrier", None) or gl.thread_barrier


@gluon.constexpr_function
def pieces(group, kind):
    """Groups in a block; 0: there are no scales of groups."""
    return 0 if kind in ("plain", "floats", "table") else max(1, 128 // group)


@gluon.constexpr_function
def sums_layout(warps, rows):
    """Of [outputs, rows]."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, rows, 16])


@gluon.constexpr_function
def _weight_layout(warps, rows):
    """Of [outputs, QUARTER]."""
    return gl.DotOperandLayout(0, sums_layout(warps, rows), 2)


@gluon.constexpr_function
def shared(bits, rank):
    """Of tiles with rows of QUARTER numbers of so many bits."""
    return gl.NVMMASharedLayout(4 * bits, bits, rank)


@gluon.constexpr_function
def _written(outputs, warps):
    """Of [outputs, rows]: eight outputs are adjacent."""
    lanes = min(32, outputs // 8)
    return gl.BlockedLayout([8, 1], [lanes, 32 // lanes], [1, warps], [0, 1])


@gluon.constexpr_function
def codes_shape(form, tile, gated):
    """Shape of a block of codes that the copy engine loads."""
    outputs = (tile // 16, 2, 8) if gated else (tile,)
    return [4, *outputs, 32] if form == OF_BYTES else [*outputs, 32]


@gluon.constexpr_function
def _some(rows, split):
    """Rows that a program finishes at a time."""
    return max(16, min(64, 1 << (rows // split).bit_length() - 1))


@gluon.jit
def _load_codes(
    codes,
    to_codes,
    full,
    slot,
    tile,
    block,
    more,
    FORMAT: gl.constexpr,
    TILE: gl.constexpr,
    GATED: gl.constexpr,
    STEP: gl.constexpr,
):
    """Begins to load a block of codes; its barrier waits for STEP bytes, those of x too."""
    bar = full.index(slot)
    mbarrier.expect(bar, STEP, more)
    if FORMAT.form == BYTES and GATED:
        bring(codes, [block * 4, tile * (TILE.outputs // 16), 0, 0, 0], bar, to_codes.index(slot), more)
    elif FORMAT.form == BYTES:
        bring(codes, [block * 4, tile * TILE.outputs, 0], bar, to_codes.index(slot), more)
    elif GATED:
        bring(codes, [tile * (TILE.outputs // 16), 2 * block, 0, 0], bar, to_codes.index(slot), more)
    else:
        bring(codes, [block * FORMAT.outputs + tile * TILE.outputs, 0], bar, to_codes.index(slot), more)


@gluon.jit
def _metas(meta, output, block, OUTPUTS: gl.constexpr, GROUP: gl.constexpr, PIECES: gl.constexpr):
    """Of the groups of each quarter of a block, at these outputs."""
    if PIECES == 0:
        return output, output, output, output
    else:
        start = meta + block * BLOCK // (GROUP * PIECES) * (PIECES * OUTPUTS) + output
        m0 = gl.load(start)
        m1 = gl.load(start + OUTPUTS) if PIECES == 4 else m0
        m2 = gl.load(start + PIECES // 2 * OUTPUTS) if PIECES > 1 else m0
        m3 = gl.load(start + 3 * OUTPUTS) if PIECES == 4 else m2
        return m0, m1, m2, m3


@gluon.jit
def _prefetch(
    meta, output, block, BLOCKS: gl.constexpr, OUTPUTS: gl.constexpr, GROUP: gl.constexpr, PIECES: gl.constexpr
):
    """Begins to prefetch scales into the L2 cache."""
    block = gl.minimum(block, BLOCKS - 1)
    for piece in gl.static_range(PIECES):
        places = meta + (block * BLOCK // (GROUP * PIECES) * PIECES + piece) * OUTPUTS + output
        gl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [places.to(gl.int64)],
            dtype=gl.int32,
            is_pure=False,
            pack=1,
        )


@gluon.jit
def _tiles(place, COUNT: gl.constexpr, SIZE: gl.constexpr, DTYPE: gl.constexpr, BITS: gl.constexpr):
    """What the copy engine loaded, as [COUNT, SIZE, QUARTER]."""
    if OLDER:
        return place._reinterpret(DTYPE, [COUNT, SIZE, QUARTER], shared(BITS, 2))
    else:
        return place.reinterpret(DTYPE, [COUNT, SIZE, QUARTER], shared(BITS, 2))


@gluon.jit
def _half(meta, LOW: gl.constexpr, DTYPE: gl.constexpr):
    """One half of each number's bits."""
    return (meta if LOW else meta >> 16).to(gl.int16).to(DTYPE, bitcast=True)


@gluon.jit
def _restored(codes, meta, TEXT: gl.constexpr, GROUPED: gl.constexpr, FORM: gl.constexpr, DTYPE: gl.constexpr):
    """Codes [outputs, QUARTER] as numbers, in DTYPE; meta: of the same shape, or not used."""
    if GROUPED:
        scale, second = _half(meta, True, DTYPE), _half(meta, False, DTYPE)
        operands: gl.constexpr = "=r,h,r,r" if FORM == BYTES else "=r,r,r,r"
        found = gl.inline_asm_elementwise(TEXT, operands, [codes, scale, second], dtype=gl.int16, is_pure=True, pack=2)
    else:
        alone: gl.constexpr = "=r,h" if FORM == BYTES else "=r,r"
        found = gl.inline_asm_elementwise(TEXT, alone, [codes], dtype=gl.int16, is_pure=True, pack=2)
    return found.to(DTYPE, bitcast=True)


@gluon.jit
def _quarter(
    words,
    bytes_,
    meta,
    AT: gl.constexpr,
    FORMAT: gl.constexpr,
    TILE: gl.constexpr,
    LEFT: gl.constexpr,
    DTYPE: gl.constexpr,
):
    """A quarter of a block's inputs [outputs, QUARTER] in DTYPE.

    words: each holds a code of every quarter; bytes_: place of codes in shared memory; meta [outputs].
    """
    TEXT: gl.constexpr = FORMAT.texts[AT]
    SIZE: gl.constexpr = TILE.outputs
    GROUPED: gl.constexpr = pieces(FORMAT.group, FORMAT.kind) > 0
    found = bytes_.index(AT).load(LEFT) if FORMAT.form == BYTES else words
    meta = meta[:, None].broadcast_to(SIZE, QUARTER)
    return _restored(found, meta, TEXT, GROUPED, FORMAT.form, DTYPE)


@gluon.jit
def _factor(squares, row, rows, eps, INPUTS: gl.constexpr, PARTS: gl.constexpr):
    """1 / the root of the mean square of each row, from sums [PARTS, rows] of its squares."""
    total = gl.load(squares + row, row < rows, other=0.0)
    for part in range(1, PARTS):
        total += gl.load(squares + part * rows + row, row < rows, other=0.0)
    return gl.rsqrt(total / INPUTS + eps)


@gluon.jit
def _finished(total, outer, ends, output, row, rows, eps, FORMAT: gl.constexpr, EPILOGUE: gl.constexpr):
    """total [outputs, rows] times the factors of each output and of each row, plus the bias."""
    bias, squares = ends[0], ends[1]
    if FORMAT.outer:
        total *= gl.load(outer + output)[:, None]
    if EPILOGUE.parts > 0:
        total *= _factor(squares, row, rows, eps, FORMAT.inputs, EPILOGUE.parts)[None, :]
    if EPILOGUE.biased:
        total += gl.load(bias + output).to(gl.float32)[:, None]
    return total


@gluon.jit
def _write(total, ends, tile, output, row, rows, y_stride, OUTPUTS: gl.constexpr, EPILOGUE: gl.constexpr):
    """Stores total [outputs, rows] in y, and the additional results."""
    _, _, y, norm, after, left_squares = ends
    inside = (output < OUTPUTS)[:, None] & (row < rows)[None, :]
    place = y + row.to(gl.int64)[None, :] * y_stride + output[:, None]
    if EPILOGUE.added:
        total = total.to(gl.float32) + gl.load(place, inside, other=0.0).to(gl.float32)
    stored = total.to(y.dtype.element_ty)
    gl.store(place, stored, inside)
    if EPILOGUE.ready:
        total = gl.where(inside, stored.to(gl.float32), 0.0)
        weighed = gl.load(norm + output, output < OUTPUTS, other=0.0).to(gl.float32)[:, None]
        to = after + row.to(gl.int64)[None, :] * OUTPUTS + output[:, None]
        gl.store(to, (total * weighed).to(y.dtype.element_ty), inside)
        gl.store(left_squares + tile * rows + row, gl.sum(total * total, 0), row < rows)


@gluon.jit
def _leave(total, partial, split, rows, TILE: gl.constexpr, ROWS: gl.constexpr, SUMS: gl.constexpr):
    """Stores sums of a part of the inputs [TILE, ROWS] in memory, outputs adjacent."""
    lane = gl.arange(0, TILE, layout=gl.SliceLayout(1, SUMS))[:, None]
    column = gl.arange(0, ROWS, layout=gl.SliceLayout(0, SUMS))[None, :]
    gl.store(partial + split * (TILE * ROWS) + column * TILE + lane, total, (column < rows) & (lane >= 0))


@gluon.jit
def _meet(counter, SPLIT: gl.constexpr):
    """Returns when all programs of a tile have arrived: the grid is no larger than what runs at the same time."""
    all_threads()
    here = gl.atomic_add(counter, 1, sem="acq_rel") + 1
    while here < SPLIT:
        here = gl.atomic_add(counter, 0, sem="acquire")


@gluon.jit
def _depart(counter, SPLIT: gl.constexpr):
    """The last one resets the counter."""
    all_threads()
    if gl.atomic_add(counter, 1, sem="acq_rel") == 2 * SPLIT - 1:
        gl.store(counter, 0)


@gluon.jit
def _sum_of_parts(places, inside, PART: gl.constexpr, SPLIT: gl.constexpr):
    """In the order of the inputs, whichever program adds them."""
    total = gl.load(places, inside, other=0.0, cache_modifier=".cg")
    for part in gl.static_range(1, SPLIT):
        total += gl.load(places + part * PART, inside, other=0.0, cache_modifier=".cg")
    return total


@gluon.jit
def _finish_parts(
    partial,
    split,
    outer,
    ends,
    tile,
    row_tile,
    rows,
    y_stride,
    eps,
    FORMAT: gl.constexpr,
    EPILOGUE: gl.constexpr,
    TILE: gl.constexpr,
):
    """Each program of a tile finishes some of its rows."""
    ROWS: gl.constexpr = TILE.rows
    SPLIT: gl.constexpr = TILE.split
    PART: gl.constexpr = TILE.outputs * ROWS
    SOME: gl.constexpr = _some(ROWS, SPLIT)
    NAME: gl.constexpr = EPILOGUE.name
    GATED: gl.constexpr = NAME != ""
    WIDE: gl.constexpr = TILE.outputs // 2 if GATED else TILE.outputs
    WRITTEN: gl.constexpr = FORMAT.outputs // 2 if GATED else FORMAT.outputs
    OUT: gl.constexpr = _written(WIDE, TILE.warps)
    lane = gl.arange(0, WIDE, layout=gl.SliceLayout(1, OUT))
    output = tile * WIDE + lane
    known = gl.minimum(output, WRITTEN - 1)
    for start in range(split * SOME, ROWS, SPLIT * SOME):
        column = start + gl.arange(0, SOME, layout=gl.SliceLayout(0, OUT))
        row = row_tile * ROWS + column
        inside = (row < rows)[None, :] & (lane >= 0)[:, None]
        if GATED:
            places = partial + column[None, :] * TILE.outputs + (lane // 8 * 16 + lane % 8)[:, None]
            gate, up = _sum_of_parts(places, inside, PART, SPLIT), _sum_of_parts(places + 8, inside, PART, SPLIT)
            gate = _finished(gate, outer, ends, known, row, rows, eps, FORMAT, EPILOGUE)
            up = _finished(up, outer, ends, known + WRITTEN, row, rows, eps, FORMAT, EPILOGUE)
            total = activated(gate, NAME) * up
        else:
            total = _sum_of_parts(partial + column[None, :] * TILE.outputs + lane[:, None], inside, PART, SPLIT)
            total = _finished(total, outer, ends, known, row, rows, eps, FORMAT, EPILOGUE)
        _write(total, ends, tile, output, row, rows, y_stride, WRITTEN, EPILOGUE)


@gluon.jit
def _finish(
    total,
    outer,
    ends,
    tile,
    row_tile,
    rows,
    y_stride,
    eps,
    FORMAT: gl.constexpr,
    EPILOGUE: gl.constexpr,
    TILE: gl.constexpr,
):
    """Sums of all inputs [outputs, rows]; they are exchanged so that a thread writes adjacent outputs."""
    ROWS: gl.constexpr = TILE.rows
    SIZE: gl.constexpr = TILE.outputs
    OUTPUTS: gl.constexpr = FORMAT.outputs
    SUMS: gl.constexpr = sums_layout(TILE.warps, ROWS)
    NAME: gl.constexpr = EPILOGUE.name
    GATED: gl.constexpr = NAME != ""
    WIDE: gl.constexpr = SIZE // 2 if GATED else SIZE
    OUT: gl.constexpr = _written(WIDE, TILE.warps)
    lane = gl.arange(0, SIZE, layout=gl.SliceLayout(1, SUMS))
    output = outputs_of(lane, tile, OUTPUTS, OUTPUTS // 2 if GATED else 0, SIZE)
    row = row_tile * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(0, SUMS))
    total = _finished(total, outer, ends, output, row, rows, eps, FORMAT, EPILOGUE)
    if GATED:
        gate, up = gated(total, SIZE, ROWS)
        total = activated(gate, NAME) * up
    if not EPILOGUE.added:
        total = total.to(ends[2].dtype.element_ty)
    total = gl.convert_layout(total, OUT)
    output = tile * WIDE + gl.arange(0, WIDE, layout=gl.SliceLayout(1, OUT))
    row = row_tile * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(0, OUT))
    _write(total, ends, tile, output, row, rows, y_stride, OUTPUTS * WIDE // SIZE, EPILOGUE)


@entry
@gluon.jit(do_not_specialize=["rows"])
def multiply(
    x,
    codes,
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
    rows,
    y_stride,
    eps,
    FORMAT: gl.constexpr,
    EPILOGUE: gl.constexpr,
    TILE: gl.constexpr,
    RING: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    """y [rows, outputs] = x [rows, inputs] W^T + bias. Grid (row tiles * output tiles, split).

    See `Epilogue` for the fused parts.
    x, codes: what the copy engine loads a block of at a time, see `wgmma_gemm`.  TILE: a `WgmmaTile`.
    """
    OUTPUTS: gl.constexpr = FORMAT.outputs
    FORM: gl.constexpr = FORMAT.form
    GROUP: gl.constexpr = FORMAT.group
    SIZE: gl.constexpr = TILE.outputs
    ROWS: gl.constexpr = TILE.rows
    SPLIT: gl.constexpr = TILE.split
    WARPS: gl.constexpr = TILE.warps
    SUMS: gl.constexpr = sums_layout(WARPS, ROWS)
    LEFT: gl.constexpr = _weight_layout(WARPS, ROWS)
    DTYPE: gl.constexpr = x.dtype
    NAME: gl.constexpr = EPILOGUE.name
    GATED: gl.constexpr = NAME != ""
    HALF: gl.constexpr = OUTPUTS // 2 if GATED else 0
    PIECES: gl.constexpr = pieces(GROUP, FORMAT.kind)
    GROUPED: gl.constexpr = PIECES > 0
    BLOCKS: gl.constexpr = (FORMAT.inputs + BLOCK - 1) // BLOCK
    BITS: gl.constexpr = 8 if FORM == BYTES else 16
    CODES: gl.constexpr = codes_shape(FORM, SIZE, GATED)
    STEP: gl.constexpr = ROWS * BLOCK * 2 + SIZE * (128 if FORM == BYTES else 64)
    ends = (bias, squares, y, norm, after, left_squares)
    row_tiles = (rows + ROWS - 1) // ROWS
    row_tile, tile = gl.program_id(0) % row_tiles, gl.program_id(0) // row_tiles
    split = gl.program_id(1)
    COUNT: gl.constexpr = (BLOCKS + SPLIT - 1) // SPLIT  # of a program; those after the last have no x, and add nothing
    first = split * COUNT

    to_x = gl.allocate_shared_memory(DTYPE, [RING, 4, ROWS, QUARTER], shared(16, 3))
    to_codes = gl.allocate_shared_memory(codes.dtype, [RING] + CODES, shared(BITS, len(CODES)))
    full = gl.allocate_shared_memory(gl.int64, [RING, 1], mbarrier.MBarrierLayout())
    for at in gl.static_range(RING):
        mbarrier.init(full.index(at), count=1)
    for at in gl.static_range(RING - 1):
        _load_codes(codes, to_codes, full, at, tile, first + at, at < COUNT, FORMAT, TILE, GATED, STEP)
    own = outputs_of(gl.arange(0, SIZE, layout=gl.SliceLayout(1, LEFT)), tile, OUTPUTS, HALF, SIZE)
    for at in gl.static_range(1, AHEAD if GROUPED else 1):
        _prefetch(meta, own, first + at, BLOCKS, OUTPUTS, GROUP, PIECES)
    m0, m1, m2, m3 = _metas(meta, own, gl.minimum(first, BLOCKS - 1), OUTPUTS, GROUP, PIECES)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    for at in gl.static_range(RING - 1):
        bring(x, [(first + at) * 4, row_tile * ROWS, 0], full.index(at), to_x.index(at), at < COUNT)

    sums = warpgroup_mma_init(gl.zeros([SIZE, ROWS], gl.float32, SUMS))
    for item in range(COUNT):
        slot = item % RING
        mbarrier.wait(full.index(slot), (item // RING) & 1)
        values = _tiles(to_x.index(slot), 4, ROWS, DTYPE, 16)
        if FORM == BYTES:
            here = _tiles(to_codes.index(slot), 4, SIZE, codes.dtype, BITS)
            words = 0
        else:
            here = _tiles(to_codes.index(slot), 1, SIZE, codes.dtype, BITS)
            words = here.index(0).load(LEFT)
        part = _quarter(words, here, m0, 0, FORMAT, TILE, LEFT, DTYPE)
        sums = warpgroup_mma(part, values.index(0).permute((1, 0)), sums, is_async=True)
        sums = warpgroup_mma_wait(1, deps=[sums])  # the block before is done
        ahead = item + RING - 1
        free = ahead % RING
        _load_codes(codes, to_codes, full, free, tile, first + ahead, ahead < COUNT, FORMAT, TILE, GATED, STEP)
        bring(x, [(first + ahead) * 4, row_tile * ROWS, 0], full.index(free), to_x.index(free), ahead < COUNT)
        n0, n1, n2, n3 = _metas(meta, own, gl.minimum(first + item + 1, BLOCKS - 1), OUTPUTS, GROUP, PIECES)
        if GROUPED:
            _prefetch(meta, own, first + item + AHEAD, BLOCKS, OUTPUTS, GROUP, PIECES)
        part = _quarter(words, here, m1, 1, FORMAT, TILE, LEFT, DTYPE)
        sums = warpgroup_mma(part, values.index(1).permute((1, 0)), sums, is_async=True)
        part = _quarter(words, here, m2, 2, FORMAT, TILE, LEFT, DTYPE)
        sums = warpgroup_mma(part, values.index(2).permute((1, 0)), sums, is_async=True)
        part = _quarter(words, here, m3, 3, FORMAT, TILE, LEFT, DTYPE)
        sums = warpgroup_mma(part, values.index(3).permute((1, 0)), sums, is_async=True)
        m0, m1, m2, m3 = n0, n1, n2, n3
    total = warpgroup_mma_wait(0, deps=[sums])
    for at in gl.static_range(RING):
        mbarrier.invalidate(full.index(at))

    if SPLIT > 1:
        place = partial + gl.program_id(0).to(gl.int64) * (SPLIT * SIZE * ROWS)
        _leave(total, place, split, rows - row_tile * ROWS, SIZE, ROWS, SUMS)
        _meet(counters + gl.program_id(0), SPLIT)
        _finish_parts(place, split, outer, ends, tile, row_tile, rows, y_stride, eps, FORMAT, EPILOGUE, TILE)
        _depart(counters + gl.program_id(0), SPLIT)
    else:
        _finish(total, outer, ends, tile, row_tile, rows, y_stride, eps, FORMAT, EPILOGUE, TILE)
