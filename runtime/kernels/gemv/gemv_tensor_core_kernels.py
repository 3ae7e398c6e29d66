"""Gluon kernels that multiply one row with a 4-bit weight by the tensor cores; see `gemv_kernels` for the fused parts.

A weight is read as it is stored: sixteen bytes that a thread reads are its operand of the tensor cores. Two half bytes
of a word of 32 bits at a time are put after the exponent of 128, by one or two operations. That constant and the
group's zero are in the sums of a group from the start: minus that times the sum of x. The group's scale goes into the
sums, so no weight is rounded. The warps of a program share its outputs and split its inputs, block by block. x is in
shared memory, and the next words are in flight at all times, those of the program's next outputs too.
"""

# mypy: disable-error-code="assignment,var-annotated"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_kernels import activated
from ..launch.compile_ahead import entry
from .gemv_kernels import rotated_and_stored, turn_and_place
from .gemv_launch import steps_of, tiles_of

copy_to_shared = (
    getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
)  # as older Tritons call it
WORDS = gl.constexpr(32)  # of a block of 128 inputs, a quarter of them in each half byte
COLUMNS = gl.constexpr(8)  # of the tensor cores' right operand: all of them x
ABOVE = gl.constexpr(128.0)


@gluon.constexpr_function
def _text(at):
    return f"{{ .reg .b32 w; shr.u32 w, $1, {4 * at}; lop3.b32 $0, w, 0x000F000F, 0x43004300, 0xEA; }}"


@gluon.constexpr_function
def sums_layout(split, side=1):
    """Of [split, outputs, rows], by so many warps along the first two."""
    return gl.NVMMADistributedLayout([2, 0], [split, side, 1], [1, 16, 8])


@gluon.constexpr_function
def words_layout(split, side=1):
    """Of [split, outputs, WORDS]: a thread has eight adjacent words of two bytes."""
    return gl.DotOperandLayout(0, sums_layout(split, side), 8)


@gluon.constexpr_function
def x_layout(split, side=1):
    """Of [split, WORDS, rows]."""
    return gl.DotOperandLayout(1, sums_layout(split, side), 8)


@gluon.constexpr_function
def _row_layout(warps):
    """Of [4, warps, WORDS] values of x as they are read, a quarter of each block first."""
    return gl.BlockedLayout([1, 1, 4], [1, 4, 8], [4, warps // 4, 1], [2, 1, 0])


@gluon.constexpr_function
def flat_layout(rank):
    """Of shared memory, in order."""
    return gl.SwizzledSharedLayout(1, 1, 1, list(range(rank - 1, -1, -1)))


@gluon.constexpr_function
def _plain(warps):
    return gl.BlockedLayout([1], [32], [warps], [0])


@gluon.constexpr_function
def pieces(group, kind):
    """Groups in a block."""
    return 0 if kind == "plain" else max(1, 128 // group)


@gluon.constexpr_function
def _meta_layout(warps):
    """Of [warps, outputs], as they are copied."""
    return gl.BlockedLayout([1, 1], [2, 16], [warps, 1], [1, 0])


@gluon.jit
def index(DIM: gl.constexpr, SIZE: gl.constexpr, LAYOUT: gl.constexpr):
    """0, 1, ... along one of three dimensions."""
    if DIM == 0:
        return gl.arange(0, SIZE, layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))[:, None, None]
    elif DIM == 1:
        return gl.arange(0, SIZE, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :, None]
    else:
        return gl.arange(0, SIZE, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]


@gluon.jit
def outputs_of(lane, tile, OUTPUTS: gl.constexpr, HALF: gl.constexpr, ROWS: gl.constexpr):
    """The outputs of a tile: ROWS of them in their order, or with HALF in turns of both halves of a head.

    With HALF the outputs are heads of twice that: eight of the first half of a head and their partners in the second,
    in turns. The last output stands in for those beyond it.
    """
    if HALF == 0:
        return gl.minimum(tile * ROWS + lane, OUTPUTS - 1)
    else:
        PARTS: gl.constexpr = (HALF + ROWS // 2 - 1) // (ROWS // 2)
        pair = tile % PARTS * (ROWS // 2) + lane // 16 * 8 + lane % 8
        return tile // PARTS * (2 * HALF) + gl.minimum(pair, HALF - 1) + lane // 8 % 2 * HALF


@gluon.jit
def _blocks(step, LAYOUT: gl.constexpr, INPUTS: gl.constexpr, WARPS: gl.constexpr):
    """For each warp its block of a step; the last stands in for those beyond it, whose x is 0."""
    BLOCKS: gl.constexpr = (INPUTS + 4 * WORDS - 1) // (4 * WORDS)
    block = step * WARPS + index(0, WARPS, LAYOUT)
    return block if BLOCKS % WARPS == 0 else gl.minimum(block, BLOCKS - 1)


@gluon.jit
def _places(ROWS: gl.constexpr, WARPS: gl.constexpr, PIECES: gl.constexpr, RING: gl.constexpr):
    """Shared memory for words int16 [WARPS, ROWS, WORDS] and scales int32 [WARPS, ROWS] of each group, for RING
    steps."""
    words, metas = (), ()
    for _ in gl.static_range(RING):
        words = words + (gl.allocate_shared_memory(gl.int16, [WARPS, ROWS, WORDS], flat_layout(3)),)
        metas = metas + (
            (gl.allocate_shared_memory(gl.int32, [max(1, PIECES), WARPS, ROWS], flat_layout(2)) if PIECES else 0),
        )
    return words, metas


@gluon.jit
def _copy(to_words, to_meta, weight, tile, step, FORMAT: gl.constexpr, CUT: gl.constexpr):
    """Begins to copy a step: of each warp one block.  weight: words, meta and outer."""
    OUTPUTS: gl.constexpr = FORMAT.outputs
    GROUP: gl.constexpr = FORMAT.group
    ROWS: gl.constexpr = CUT.rows
    WARPS: gl.constexpr = CUT.warps
    LEFT: gl.constexpr = words_layout(WARPS)
    META: gl.constexpr = _meta_layout(WARPS)
    PIECES: gl.constexpr = pieces(GROUP, FORMAT.kind)
    present = tile < tiles_of(OUTPUTS, CUT.half, ROWS)
    place = _blocks(step, LEFT, FORMAT.inputs, WARPS) * OUTPUTS
    place = place + outputs_of(index(1, ROWS, LEFT), tile, OUTPUTS, CUT.half, ROWS)
    copy_to_shared(to_words, weight[0] + place * WORDS + index(2, WORDS, LEFT), present)
    if PIECES > 0:
        BLOCKS: gl.constexpr = (FORMAT.inputs + 4 * WORDS - 1) // (4 * WORDS)
        lane = gl.arange(0, ROWS, layout=gl.SliceLayout(0, META))[None, :]
        block = gl.minimum(step * WARPS + gl.arange(0, WARPS, layout=gl.SliceLayout(1, META))[:, None], BLOCKS - 1)
        first = block * (4 * WORDS) // (GROUP * PIECES) * (PIECES * OUTPUTS)
        start = weight[1] + first + outputs_of(lane, tile, OUTPUTS, CUT.half, ROWS)
        for piece in gl.static_range(PIECES):
            copy_to_shared(to_meta.index(piece), start + piece * OUTPUTS, present)


@gluon.jit
def _begin(weight, FORMAT: gl.constexpr, CUT: gl.constexpr, DEPENDENT: gl.constexpr):
    """The first steps, in flight before the preceding kernels have ended; they have on return."""
    STEPS: gl.constexpr = steps_of(FORMAT.inputs, CUT.warps)
    RING: gl.constexpr = CUT.ring
    tile = gl.program_id(0)
    places = _places(CUT.rows, CUT.warps, pieces(FORMAT.group, FORMAT.kind), RING)
    for item in gl.static_range(RING - 1):
        if item < STEPS:
            _copy(places[0][item], places[1][item], weight, tile, item, FORMAT, CUT)
        async_copy.commit_group()
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    return places


@gluon.jit
def _lay_out(x, norm, eps, INPUTS: gl.constexpr, WARPS: gl.constexpr, NORMED: gl.constexpr):
    """x (times the norm's weight) and the sums of quarters of blocks in shared memory;
    and what the norm multiplies the products by.
    """
    STEPS: gl.constexpr = steps_of(INPUTS, WARPS)
    LAYOUT: gl.constexpr = _row_layout(WARPS)
    shared = gl.allocate_shared_memory(gl.bfloat16, [STEPS, 4 * WARPS, WORDS], flat_layout(2))
    quarters = gl.allocate_shared_memory(gl.float32, [STEPS, 4 * WARPS], flat_layout(1))
    place = index(1, WARPS, LAYOUT) * (4 * WORDS) + index(0, 4, LAYOUT) * WORDS + index(2, WORDS, LAYOUT)
    found = ()
    for step in gl.static_range(STEPS):
        k = place + step * (4 * WORDS * WARPS)
        values = gl.load(x + k, k < INPUTS, other=0.0)
        found = found + ((values, gl.load(norm + k, k < INPUTS, other=0.0) if NORMED else values),)
    squares = gl.zeros([4, WARPS, WORDS], gl.float32, LAYOUT)
    for step in gl.static_range(STEPS):
        values = found[step][0]
        if NORMED:
            wide = values.to(gl.float32)
            squares += wide * wide
            values = (wide * found[step][1].to(gl.float32)).to(gl.bfloat16)
        shared.index(step).store(gl.reshape(values, [4 * WARPS, WORDS]))
        quarters.index(step).store(gl.reshape(gl.sum(values.to(gl.float32), 2), [4 * WARPS]))
    factor = gl.rsqrt(gl.sum(gl.reshape(squares, [4 * WARPS * WORDS]), 0) / INPUTS + eps) if NORMED else 1.0
    return shared, quarters, factor


@gluon.jit
def _half_bytes(words, AT: gl.constexpr):
    """Half bytes number AT of each word on top of ABOVE."""
    return gl.inline_asm_elementwise(_text(AT), "=r,r", [words], dtype=gl.bfloat16, is_pure=True, pack=2)


@gluon.jit
def half(meta, LOW: gl.constexpr):
    """One half of each number's bits."""
    return (meta << 16 if LOW else meta & -65536).to(gl.float32, bitcast=True)


@gluon.jit
def _above(sum_of_x, meta, ZERO: gl.constexpr, KIND: gl.constexpr):
    """What a group's sums begin with."""
    if KIND == "zeros" or KIND == "zeros, scaled":
        return sum_of_x * half(meta, False)
    else:
        return sum_of_x * -(ABOVE + ZERO)


@gluon.jit
def _scaled(group, sum_of_x, meta, KIND: gl.constexpr):
    if KIND == "plain" or KIND == "zeros":
        return group
    elif KIND == "shifted":
        return group * half(meta, True) + sum_of_x * half(meta, False)
    else:
        return group * half(meta, True)


@gluon.jit
def _one_column(sums, ROWS: gl.constexpr, WARPS: gl.constexpr):
    """All columns are the same: of two that a thread has, one."""
    return gl.split(gl.reshape(sums, [WARPS, ROWS, COLUMNS // 2, 2]))[0]


@gluon.jit
def _block_sums(sums, words, meta, shared, quarters, FORMAT: gl.constexpr, CUT: gl.constexpr):
    """sums [warps, rows, COLUMNS / 2] plus a block of each warp; the others are places in shared memory, of one
    step.
    """
    ROWS: gl.constexpr = CUT.rows
    WARPS: gl.constexpr = CUT.warps
    KIND: gl.constexpr = FORMAT.kind
    SUMS: gl.constexpr = sums_layout(WARPS)
    OF_X: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, SUMS))
    PIECE: gl.constexpr = min(FORMAT.group // WORDS, 4)  # quarters of a block in one group
    codes = words.load(words_layout(WARPS))
    for start in gl.static_range(0, 4, PIECE):
        sum_of_x = quarters.slice(start * WARPS, WARPS).load(OF_X)
        for at in gl.static_range(start + 1, start + PIECE):
            sum_of_x += quarters.slice(at * WARPS, WARPS).load(OF_X)
        sum_of_x = sum_of_x[:, None, None]
        found = sum_of_x if KIND == "plain" else meta.index(start // PIECE).load(gl.SliceLayout(2, SUMS))[:, :, None]
        group = _above(sum_of_x, found, FORMAT.zero, KIND).broadcast_to(WARPS, ROWS, COLUMNS)
        for at in gl.static_range(start, start + PIECE):
            values = shared.slice(at * WARPS, WARPS).load(gl.SliceLayout(2, x_layout(WARPS)))
            group = mma_v2(_half_bytes(codes, at), values[:, :, None].broadcast_to(WARPS, WORDS, COLUMNS), group)
        sums += _one_column(_scaled(group, sum_of_x, found, KIND), ROWS, WARPS)
    return sums


@gluon.jit
def _products(places, laid_out, weight, tile, FORMAT: gl.constexpr, CUT: gl.constexpr):
    """The products of x with the outputs of a tile [rows], float32.  laid_out: see `_lay_out`.

    A step's place is filled again in the next step.
    """
    shared, quarters, factor = laid_out
    ROWS: gl.constexpr = CUT.rows
    WARPS: gl.constexpr = CUT.warps
    STEPS: gl.constexpr = steps_of(FORMAT.inputs, WARPS)
    RING: gl.constexpr = CUT.ring
    sums = _one_column(gl.zeros([WARPS, ROWS, COLUMNS], gl.float32, sums_layout(WARPS)), ROWS, WARPS)
    for step in gl.static_range(STEPS):
        async_copy.wait_group(RING - 2)
        if not CUT.only_tile or step + RING - 1 < STEPS:
            to_words, to_meta = places[0][(step + RING - 1) % RING], places[1][(step + RING - 1) % RING]
            to_tile = tile + (step + RING - 1) // STEPS * CUT.programs
            _copy(to_words, to_meta, weight, to_tile, (step + RING - 1) % STEPS, FORMAT, CUT)
        async_copy.commit_group()
        words, meta = places[0][step % RING], places[1][step % RING]
        sums = _block_sums(sums, words, meta, shared.index(step), quarters.index(step), FORMAT, CUT)
    total = gl.sum(gl.max(sums, 2), 0)
    if FORMAT.outer:
        lane = gl.arange(0, ROWS, layout=total.type.layout)
        total *= gl.load(weight[2] + outputs_of(lane, tile, FORMAT.outputs, CUT.half, ROWS))
    return total * factor


@entry
@gluon.jit
def linear(
    x,
    norm,
    words,
    meta,
    outer,
    bias,
    residual,
    out,
    eps,
    FORMAT: gl.constexpr,
    CUT: gl.constexpr,
    NORMED: gl.constexpr,
    BIASED: gl.constexpr,
    ADDED: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    """out = norm(x) @ W.T + bias + residual, [outputs]; grid (CUT.programs,).  CUT: a `TensorCoreCut`."""
    weight = (words, meta, outer)
    PLAIN: gl.constexpr = _plain(CUT.warps)
    places = _begin(weight, FORMAT, CUT, DEPENDENT)
    laid_out = _lay_out(x, norm, eps, FORMAT.inputs, CUT.warps, NORMED)
    for tile in range(gl.program_id(0), tiles_of(FORMAT.outputs, 0, CUT.rows), CUT.programs):
        place = tile * CUT.rows + gl.arange(0, CUT.rows, layout=PLAIN)
        inside = place < FORMAT.outputs
        added = gl.load(residual + place, inside, other=0.0).to(gl.float32) if ADDED else 0.0
        if BIASED:
            added += gl.load(bias + place, inside, other=0.0).to(gl.float32)
        y = _products(places, laid_out, weight, tile, FORMAT, CUT)
        gl.store(out + place, (gl.convert_layout(y, PLAIN) + added).to(out.dtype.element_ty), inside)


@gluon.jit
def _halves(y, bias, low, HALF: gl.constexpr, ROWS: gl.constexpr, WARPS: gl.constexpr, BIASED: gl.constexpr):
    """Outputs of both halves in turns of eight [ROWS] -> each half [ROWS / 2] with its bias.

    low: the outputs of the first.
    """
    turned = gl.permute(gl.reshape(y, [ROWS // 16, 2, 8]), [0, 2, 1])
    first, second = gl.split(gl.reshape(turned, [ROWS // 2, 2]))
    first, second = gl.convert_layout(first, _plain(WARPS)), gl.convert_layout(second, _plain(WARPS))
    if BIASED:
        first += gl.load(bias + low).to(gl.float32)
        second += gl.load(bias + HALF + low).to(gl.float32)
    return first, second


@entry
@gluon.jit
def gate_up(
    x,
    norm,
    words,
    meta,
    outer,
    bias,
    out,
    eps,
    FORMAT: gl.constexpr,
    CUT: gl.constexpr,
    NORMED: gl.constexpr,
    BIASED: gl.constexpr,
    NAME: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    """out = activation(gate) * up, [outputs / 2]; a tile has CUT.rows / 2 pairs; grid (CUT.programs,)."""
    weight = (words, meta, outer)
    ROWS: gl.constexpr = CUT.rows
    PAIRS: gl.constexpr = CUT.half
    places = _begin(weight, FORMAT, CUT, DEPENDENT)
    laid_out = _lay_out(x, norm, eps, FORMAT.inputs, CUT.warps, NORMED)
    for tile in range(gl.program_id(0), tiles_of(FORMAT.outputs, PAIRS, ROWS), CUT.programs):
        y = _products(places, laid_out, weight, tile, FORMAT, CUT)
        pair = tile * (ROWS // 2) + gl.arange(0, ROWS // 2, layout=_plain(CUT.warps))
        gate, up = _halves(y, bias, gl.minimum(pair, PAIRS - 1), PAIRS, ROWS, CUT.warps, BIASED)
        gl.store(out + pair, (activated(gate, NAME) * up).to(out.dtype.element_ty), pair < PAIRS)


@entry
@gluon.jit
def heads(
    x,
    norm,
    words,
    meta,
    outer,
    bias,
    angles,
    positions,
    slots,
    q,
    k_pool,
    v_pool,
    eps,
    k_scale,
    v_scale,
    QUERIES: gl.constexpr,
    KEYS: gl.constexpr,
    FORMAT: gl.constexpr,
    CUT: gl.constexpr,
    NORMED: gl.constexpr,
    BIASED: gl.constexpr,
    DEPENDENT: gl.constexpr,
):
    """Queries, keys and values, rotated and stored, see `gemv_kernels.heads`; grid (CUT.programs,)."""
    weight = (words, meta, outer)
    ROWS: gl.constexpr = CUT.rows
    HALF: gl.constexpr = CUT.half
    PAIRS: gl.constexpr = ROWS // 2
    PARTS: gl.constexpr = (HALF + PAIRS - 1) // PAIRS
    places = _begin(weight, FORMAT, CUT, DEPENDENT)
    laid_out = _lay_out(x, norm, eps, FORMAT.inputs, CUT.warps, NORMED)
    for tile in range(gl.program_id(0), tiles_of(FORMAT.outputs, HALF, ROWS), CUT.programs):
        head, dim = tile // PARTS, tile % PARTS * PAIRS + gl.arange(0, PAIRS, layout=_plain(CUT.warps))
        cos, sin, slot = turn_and_place(dim, angles, positions, slots, HALF)
        y = _products(places, laid_out, weight, tile, FORMAT, CUT)
        low, high = _halves(y, bias, head * 2 * HALF + gl.minimum(dim, HALF - 1), HALF, ROWS, CUT.warps, BIASED)
        rotated_and_stored(
            low, high, head, dim, cos, sin, slot, q, k_pool, v_pool, k_scale, v_scale, QUERIES, KEYS, HALF
        )
