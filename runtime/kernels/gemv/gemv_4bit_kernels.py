"""Triton kernels that multiply one row with a 4-bit weight, bound by reading the weight once; see `gemv_kernels`.

A 4-bit code is put into the mantissa of a float of 2048 or 128, by one operation and often a shift. That constant and
the group's zero are subtracted from a thread's sums, and the group's scale is multiplied in there, once for eight
numbers or more: weights are not rounded again, and all sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_kernels import activated
from ..launch.compile_ahead import entry
from .gemv_kernels import rotated_and_stored, turn_and_place, values_at

VECTOR = tl.constexpr(8)  # words that one thread reads at once
EVEN, ODD = tl.constexpr(128.0), tl.constexpr(2048.0)  # the constants added to half bytes 0 and 2, and 1 and 3
SPREAD_0 = tl.constexpr(
    "{ .reg .b32 a; shl.b32 a, $2, 16; lop3.b32 $0, a, 0xF0000, 0x43000000, 0xEA; lop3.b32 $1, $2, 0xF0000, "
    "0x43000000, 0xEA; }"
)
SPREAD_1 = tl.constexpr(
    "{ .reg .b32 a, b; shl.b32 a, $2, 8; shr.u32 b, $2, 8; lop3.b32 $0, a, 0xF000, 0x45000000, 0xEA; lop3.b32 $1, "
    "b, 0xF000, 0x45000000, 0xEA; }"
)
SPREAD_2 = tl.constexpr(  # the shifts are those of SPREAD_1, which the compiler sees
    "{ .reg .b32 a, b; shl.b32 a, $2, 8; shr.u32 b, $2, 8; lop3.b32 $0, a, 0xF0000, 0x43000000, 0xEA; lop3.b32 $1, "
    "b, 0xF0000, 0x43000000, 0xEA; }"
)
SPREAD_3 = tl.constexpr(
    "{ .reg .b32 b; shr.u32 b, $2, 16; lop3.b32 $0, $2, 0xF000, 0x45000000, 0xEA; lop3.b32 $1, b, 0xF000, "
    "0x45000000, 0xEA; }"
)


@triton.jit
def _words(words, rows, step, outputs, INPUTS: tl.constexpr, WORDS: tl.constexpr, BLOCKS: tl.constexpr):
    """int16 [BLOCKS * WORDS, R] of rows [R]; a thread has VECTOR words of all of them."""
    TOTAL: tl.constexpr = (INPUTS + 4 * WORDS - 1) // (4 * WORDS)
    word = tl.arange(0, BLOCKS * WORDS)
    block = step * BLOCKS + word // WORDS
    places = (block.to(tl.int64)[:, None] * outputs + rows[None, :]) * WORDS + (word % WORDS)[:, None]
    places = tl.max_contiguous(words + places, [VECTOR, 1])
    if TOTAL == BLOCKS:
        found = tl.load(places, eviction_policy="evict_first")
    else:
        found = tl.load(places, (block < TOTAL)[:, None], other=0, eviction_policy="evict_first")
    return found


@triton.jit
def _meta(
    meta,
    rows,
    step,
    outputs,
    QUARTER: tl.constexpr,
    INPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
):
    """int32 [LANES, R]: for each VECTOR of words, scale and shift of the group of a quarter of its block."""
    TOTAL: tl.constexpr = (INPUTS + 4 * WORDS - 1) // (4 * WORDS)
    LANES: tl.constexpr = BLOCKS * WORDS // VECTOR
    if KIND == "plain":
        found = tl.zeros([LANES, rows.shape[0]], tl.int32)
    else:
        block = tl.minimum(step * BLOCKS + tl.arange(0, LANES) // (WORDS // VECTOR), TOTAL - 1)
        found = tl.load(meta + ((block * 4 + QUARTER) * WORDS // GROUP)[:, None] * outputs + rows[None, :])
    return found


@triton.jit
def _all_meta(
    meta,
    rows,
    step,
    outputs,
    INPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
):
    """Of the four quarters; those of one group are read once."""
    m0 = _meta(meta, rows, step, outputs, 0, INPUTS, WORDS, BLOCKS, GROUP, KIND)
    m1, m2, m3 = m0, m0, m0
    if GROUP <= 2 * WORDS:
        m2 = _meta(meta, rows, step, outputs, 2, INPUTS, WORDS, BLOCKS, GROUP, KIND)
    if GROUP == WORDS:
        m1 = _meta(meta, rows, step, outputs, 1, INPUTS, WORDS, BLOCKS, GROUP, KIND)
        m3 = _meta(meta, rows, step, outputs, 3, INPUTS, WORDS, BLOCKS, GROUP, KIND)
    return m0, m1, m2, m3


@triton.jit
def _lane_sums(values):
    """[LANES * VECTOR, R] -> [LANES, R]: sums within one thread."""
    return tl.sum(tl.reshape(values, [values.shape[0] // VECTOR, VECTOR, values.shape[1]]), 1)


@triton.jit
def _sums_of_x(values):
    """[LANES * VECTOR] -> [LANES, 1]"""
    return tl.sum(tl.reshape(values, [values.shape[0] // VECTOR, VECTOR]), 1)[:, None]


@triton.jit
def _half_bytes(words, QUARTER: tl.constexpr, COMPILED: tl.constexpr):
    """Half bytes number QUARTER of each word as float32, on top of EVEN or ODD."""
    if not COMPILED:
        numbers = (words.to(tl.int32) >> 4 * QUARTER & 15).to(tl.float32) + (EVEN if QUARTER % 2 == 0 else ODD)
    elif QUARTER == 0:
        numbers = tl.inline_asm_elementwise(SPREAD_0, "=r,=r,r", [words], dtype=tl.float32, is_pure=True, pack=2)
    elif QUARTER == 1:
        numbers = tl.inline_asm_elementwise(SPREAD_1, "=r,=r,r", [words], dtype=tl.float32, is_pure=True, pack=2)
    elif QUARTER == 2:
        numbers = tl.inline_asm_elementwise(SPREAD_2, "=r,=r,r", [words], dtype=tl.float32, is_pure=True, pack=2)
    else:
        numbers = tl.inline_asm_elementwise(SPREAD_3, "=r,=r,r", [words], dtype=tl.float32, is_pure=True, pack=2)
    return numbers


@triton.jit
def _values(start, step, QUARTER: tl.constexpr, INPUTS: tl.constexpr, WORDS: tl.constexpr, BLOCKS: tl.constexpr):
    """float32 [BLOCKS * WORDS] of what every program reads: the inputs of a quarter of each block."""
    word = tl.arange(0, BLOCKS * WORDS)
    k = ((step * BLOCKS + word // WORDS) * 4 + QUARTER) * WORDS + word % WORDS
    places = tl.max_contiguous(start + k, VECTOR)
    if INPUTS % (4 * WORDS * BLOCKS) == 0:
        found = tl.load(places)
    else:
        found = tl.load(places, k < INPUTS, other=0.0)
    return found.to(tl.float32)


@triton.jit
def _quarter(
    words,
    squares,
    x,
    norm,
    step,
    QUARTER: tl.constexpr,
    INPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCKS: tl.constexpr,
    NORMED: tl.constexpr,
    COMPILED: tl.constexpr,
):
    """Sums of numbers times x [LANES, R], of x, and of the added constants times x [LANES, 1]; `squares` plus x's."""
    values = _values(x, step, QUARTER, INPUTS, WORDS, BLOCKS)
    if NORMED:
        squares += _sums_of_x(values * values)
        values *= _values(norm, step, QUARTER, INPUTS, WORDS, BLOCKS)
    plain = _sums_of_x(values)
    above = plain * (EVEN if QUARTER % 2 == 0 else ODD)
    return _lane_sums(_half_bytes(words, QUARTER, COMPILED) * values[:, None]), plain, above, squares


@triton.jit
def _half(meta, LOW: tl.constexpr, DTYPE: tl.constexpr):
    half = meta if LOW else meta >> 16
    return half.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)


@triton.jit
def _scaled(meta, sums, plain, above, ZERO: tl.constexpr, KIND: tl.constexpr, DTYPE: tl.constexpr):
    """What a group adds: scale * (sums of codes - zero * sums of x) + shift * sums of x."""
    sums -= above + ZERO * plain  # a row of lanes: once for all rows of the weight
    if KIND == "zeros" or KIND == "zeros, scaled":
        sums += _half(meta, False, DTYPE) * plain
    if KIND == "shifted" or KIND == "scaled" or KIND == "zeros, scaled":
        sums *= _half(meta, True, DTYPE)
    if KIND == "shifted":
        sums += _half(meta, False, DTYPE) * plain
    return sums


@triton.jit
def _begin(
    words,
    meta,
    rows,
    outputs,
    INPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """The first blocks of some rows [R], in flight before the preceding kernels have ended; they have on return."""
    found = _words(words, rows, 0, outputs, INPUTS, WORDS, BLOCKS)
    m0, m1, m2, m3 = _all_meta(meta, rows, 0, outputs, INPUTS, WORDS, BLOCKS, GROUP, KIND)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    return found, m0, m1, m2, m3


@triton.jit
def _products(
    found,
    m0,
    m1,
    m2,
    m3,
    x,
    norm,
    words,
    meta,
    outer,
    rows,
    outputs,
    eps,
    DTYPE: tl.constexpr,
    INPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    KIND: tl.constexpr,
    OUTER: tl.constexpr,
    NORMED: tl.constexpr,
    COMPILED: tl.constexpr,
):
    """The products of (normalised) x with some rows of the weight, begun with their first blocks: [R], float32."""
    STEPS: tl.constexpr = (INPUTS + 4 * WORDS * BLOCKS - 1) // (4 * WORDS * BLOCKS)
    factor = values_at(outer, rows, OUTER)
    total = tl.zeros([BLOCKS * WORDS // VECTOR, rows.shape[0]], tl.float32)
    squares = tl.zeros([BLOCKS * WORDS // VECTOR, 1], tl.float32)
    for step in tl.range(STEPS, loop_unroll_factor=STEPS if STEPS < 8 else 8):  # a third fewer instructions
        current, c0, c1, c2, c3 = found, m0, m1, m2, m3
        if STEPS > 1:  # after the last step nothing is read
            found = _words(words, rows, step + 1, outputs, INPUTS, WORDS, BLOCKS)
            m0, m1, m2, m3 = _all_meta(meta, rows, step + 1, outputs, INPUTS, WORDS, BLOCKS, GROUP, KIND)
        s0, p0, a0, squares = _quarter(current, squares, x, norm, step, 0, INPUTS, WORDS, BLOCKS, NORMED, COMPILED)
        s1, p1, a1, squares = _quarter(current, squares, x, norm, step, 1, INPUTS, WORDS, BLOCKS, NORMED, COMPILED)
        s2, p2, a2, squares = _quarter(current, squares, x, norm, step, 2, INPUTS, WORDS, BLOCKS, NORMED, COMPILED)
        s3, p3, a3, squares = _quarter(current, squares, x, norm, step, 3, INPUTS, WORDS, BLOCKS, NORMED, COMPILED)
        if GROUP == WORDS:
            total += _scaled(c0, s0, p0, a0, ZERO, KIND, DTYPE) + _scaled(c1, s1, p1, a1, ZERO, KIND, DTYPE)
            total += _scaled(c2, s2, p2, a2, ZERO, KIND, DTYPE) + _scaled(c3, s3, p3, a3, ZERO, KIND, DTYPE)
        elif GROUP == 2 * WORDS:
            total += _scaled(c0, s0 + s1, p0 + p1, a0 + a1, ZERO, KIND, DTYPE)
            total += _scaled(c2, s2 + s3, p2 + p3, a2 + a3, ZERO, KIND, DTYPE)
        else:
            tl.static_assert(GROUP % (4 * WORDS) == 0)
            total += _scaled(c0, (s0 + s1) + (s2 + s3), (p0 + p1) + (p2 + p3), (a0 + a1) + (a2 + a3), ZERO, KIND, DTYPE)
    products = tl.sum(total, 0)
    if OUTER:
        products *= factor
    if NORMED:
        products *= tl.rsqrt(tl.sum(tl.sum(squares, 1), 0) / INPUTS + eps)
    return products


@entry
@triton.jit
def linear(
    x,
    norm,
    words,
    meta,
    outer,
    bias,
    residual,
    out,
    outputs,
    eps,
    DTYPE: tl.constexpr,
    INPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    KIND: tl.constexpr,
    OUTER: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    COMPILED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out = norm(x) @ weight.T + bias + residual, [outputs]; grid (ceil(outputs / ROWS),)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < outputs
    rows = tl.minimum(rows, outputs - 1)
    found, m0, m1, m2, m3 = _begin(words, meta, rows, outputs, INPUTS, WORDS, BLOCKS, GROUP, KIND, DEPENDENT)
    y = values_at(bias, rows, BIASED) + values_at(residual, rows, ADDED)
    y += _products(
        found,
        m0,
        m1,
        m2,
        m3,
        x,
        norm,
        words,
        meta,
        outer,
        rows,
        outputs,
        eps,
        DTYPE,
        INPUTS,
        WORDS,
        BLOCKS,
        GROUP,
        ZERO,
        KIND,
        OUTER,
        NORMED,
        COMPILED,
    )
    tl.store(out + rows, y, inside)


@entry
@triton.jit
def gate_up(
    x,
    norm,
    words,
    meta,
    outer,
    bias,
    out,
    outputs,
    eps,
    DTYPE: tl.constexpr,
    INPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    KIND: tl.constexpr,
    OUTER: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    NAME: tl.constexpr,
    COMPILED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out = activation(gate) * up, [outputs]; a program owns ROWS / 2 pairs; grid (ceil(2 * outputs / ROWS),)."""
    PAIRS: tl.constexpr = ROWS // 2
    first = tl.program_id(0) * PAIRS
    lane = tl.arange(0, ROWS)
    rows = tl.minimum(first + lane // 2, outputs - 1) + lane % 2 * outputs
    found, m0, m1, m2, m3 = _begin(words, meta, rows, 2 * outputs, INPUTS, WORDS, BLOCKS, GROUP, KIND, DEPENDENT)
    y = values_at(bias, rows, BIASED)
    y += _products(
        found,
        m0,
        m1,
        m2,
        m3,
        x,
        norm,
        words,
        meta,
        outer,
        rows,
        2 * outputs,
        eps,
        DTYPE,
        INPUTS,
        WORDS,
        BLOCKS,
        GROUP,
        ZERO,
        KIND,
        OUTER,
        NORMED,
        COMPILED,
    )
    gate, up = tl.split(tl.reshape(y, [PAIRS, 2]))
    pair = first + tl.arange(0, PAIRS)
    tl.store(out + pair, activated(gate, NAME) * up, pair < outputs)


@entry
@triton.jit
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
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    HALF: tl.constexpr,
    DTYPE: tl.constexpr,
    INPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    KIND: tl.constexpr,
    OUTER: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    COMPILED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Queries, keys and values, rotated and stored, see `gemv_kernels.heads`."""
    PAIRS: tl.constexpr = ROWS // 2
    PROGRAMS: tl.constexpr = (HALF + PAIRS - 1) // PAIRS
    OUTPUTS: tl.constexpr = (QUERIES + 2 * KEYS) * 2 * HALF
    head = tl.program_id(0) // PROGRAMS
    first = tl.program_id(0) % PROGRAMS * PAIRS
    lane = tl.arange(0, ROWS)
    rows = head * 2 * HALF + tl.minimum(first + lane // 2, HALF - 1) + lane % 2 * HALF
    found, m0, m1, m2, m3 = _begin(words, meta, rows, OUTPUTS, INPUTS, WORDS, BLOCKS, GROUP, KIND, DEPENDENT)
    dim = first + tl.arange(0, PAIRS)
    cos, sin, slot = turn_and_place(dim, angles, positions, slots, HALF)
    y = values_at(bias, rows, BIASED)
    y += _products(
        found,
        m0,
        m1,
        m2,
        m3,
        x,
        norm,
        words,
        meta,
        outer,
        rows,
        OUTPUTS,
        eps,
        DTYPE,
        INPUTS,
        WORDS,
        BLOCKS,
        GROUP,
        ZERO,
        KIND,
        OUTER,
        NORMED,
        COMPILED,
    )
    low, high = tl.split(tl.reshape(y, [PAIRS, 2]))
    rotated_and_stored(low, high, head, dim, cos, sin, slot, q, k_pool, v_pool, k_scale, v_scale, QUERIES, KEYS, HALF)
