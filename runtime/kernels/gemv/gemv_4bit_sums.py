"""Triton functions that multiply a row with a 4-bit weight, for `gemv_kernels`.

A 4-bit code is put into the mantissa of a float of 2048 or 128, by one operation and often a shift. That constant and
the group's zero are subtracted from a thread's sums, and the group's scale is multiplied in there, once for eight
numbers or more: weights are not rounded again, and all sums are float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

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
def _words(words, rows, step, outputs, FORMAT: tl.constexpr, CUT: tl.constexpr):
    """int16 [blocks * words, R] of rows [R]; a thread has VECTOR words of all of them."""
    WORDS: tl.constexpr = FORMAT.words
    TOTAL: tl.constexpr = (FORMAT.inputs + 4 * WORDS - 1) // (4 * WORDS)
    word = tl.arange(0, CUT.block * WORDS)
    block = step * CUT.block + word // WORDS
    places = (block.to(tl.int64)[:, None] * outputs + rows[None, :]) * WORDS + (word % WORDS)[:, None]
    places = tl.max_contiguous(words + places, [VECTOR, 1])
    if CUT.block == TOTAL:
        found = tl.load(places, eviction_policy="evict_first")
    else:
        found = tl.load(places, (block < TOTAL)[:, None], other=0, eviction_policy="evict_first")
    return found


@triton.jit
def _meta(meta, rows, step, outputs, QUARTER: tl.constexpr, FORMAT: tl.constexpr, CUT: tl.constexpr):
    """int32 [LANES, R]: for each VECTOR of words, scale and shift of the group of a quarter of its block."""
    WORDS: tl.constexpr = FORMAT.words
    TOTAL: tl.constexpr = (FORMAT.inputs + 4 * WORDS - 1) // (4 * WORDS)
    LANES: tl.constexpr = CUT.block * WORDS // VECTOR
    if FORMAT.kind == "plain":
        found = tl.zeros([LANES, rows.shape[0]], tl.int32)
    else:
        block = tl.minimum(step * CUT.block + tl.arange(0, LANES) // (WORDS // VECTOR), TOTAL - 1)
        found = tl.load(meta + ((block * 4 + QUARTER) * WORDS // FORMAT.group)[:, None] * outputs + rows[None, :])
    return found


@triton.jit
def _all_meta(meta, rows, step, outputs, FORMAT: tl.constexpr, CUT: tl.constexpr):
    """Of the four quarters; those of one group are read once."""
    m0 = _meta(meta, rows, step, outputs, 0, FORMAT, CUT)
    m1, m2, m3 = m0, m0, m0
    if FORMAT.group <= 2 * FORMAT.words:
        m2 = _meta(meta, rows, step, outputs, 2, FORMAT, CUT)
    if FORMAT.group == FORMAT.words:
        m1 = _meta(meta, rows, step, outputs, 1, FORMAT, CUT)
        m3 = _meta(meta, rows, step, outputs, 3, FORMAT, CUT)
    return m0, m1, m2, m3


@triton.jit
def read_blocks(words, meta, rows, step, outputs, FORMAT: tl.constexpr, CUT: tl.constexpr):
    """What `block_sums` begins with."""
    found = _words(words, rows, step, outputs, FORMAT, CUT)
    m0, m1, m2, m3 = _all_meta(meta, rows, step, outputs, FORMAT, CUT)
    return found, m0, m1, m2, m3


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
def _values(start, step, QUARTER: tl.constexpr, FORMAT: tl.constexpr, CUT: tl.constexpr):
    """float32 [blocks * words] of what every program reads: the inputs of a quarter of each block."""
    WORDS: tl.constexpr = FORMAT.words
    word = tl.arange(0, CUT.block * WORDS)
    k = ((step * CUT.block + word // WORDS) * 4 + QUARTER) * WORDS + word % WORDS
    places = tl.max_contiguous(start + k, VECTOR)
    if FORMAT.inputs % (4 * WORDS * CUT.block) == 0:
        found = tl.load(places)
    else:
        found = tl.load(places, k < FORMAT.inputs, other=0.0)
    return found.to(tl.float32)


@triton.jit
def _quarter(
    words, squares, x, norm, step, QUARTER: tl.constexpr, FORMAT: tl.constexpr, CUT: tl.constexpr, NORMED: tl.constexpr
):
    """Sums of numbers times x [LANES, R], of x, and of the added constants times x [LANES, 1]; `squares` plus x's."""
    values = _values(x, step, QUARTER, FORMAT, CUT)
    if NORMED:
        squares += _sums_of_x(values * values)
        values *= _values(norm, step, QUARTER, FORMAT, CUT)
    plain = _sums_of_x(values)
    above = plain * (EVEN if QUARTER % 2 == 0 else ODD)
    numbers = _half_bytes(words, QUARTER, FORMAT.texts[0] != "")
    return _lane_sums(numbers * values[:, None]), plain, above, squares


@triton.jit
def _half(meta, LOW: tl.constexpr, DTYPE: tl.constexpr):
    half = meta if LOW else meta >> 16
    return half.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)


@triton.jit
def _scaled(meta, sums, plain, above, FORMAT: tl.constexpr):
    """What a group adds: scale * (sums of codes - zero * sums of x) + shift * sums of x."""
    KIND: tl.constexpr = FORMAT.kind
    DTYPE: tl.constexpr = tl.bfloat16 if FORMAT.dtype == "bfloat16" else tl.float16
    sums -= above + FORMAT.zero * plain  # a row of lanes: once for all rows of the weight
    if KIND == "zeros" or KIND == "zeros, scaled":
        sums += _half(meta, False, DTYPE) * plain
    if KIND == "shifted" or KIND == "scaled" or KIND == "zeros, scaled":
        sums *= _half(meta, True, DTYPE)
    if KIND == "shifted":
        sums += _half(meta, False, DTYPE) * plain
    return sums


@triton.jit
def block_sums(
    first, x, norm, words, meta, rows, outputs, FORMAT: tl.constexpr, CUT: tl.constexpr, NORMED: tl.constexpr
):
    """The products of x with some rows of the weight, begun with their first blocks: [R], float32; and x's squares."""
    WORDS: tl.constexpr = FORMAT.words
    LANES: tl.constexpr = CUT.block * WORDS // VECTOR
    STEPS: tl.constexpr = (FORMAT.inputs + 4 * WORDS * CUT.block - 1) // (4 * WORDS * CUT.block)
    found, m0, m1, m2, m3 = first
    total = tl.zeros([LANES, rows.shape[0]], tl.float32)
    squares = tl.zeros([LANES, 1], tl.float32)
    for step in tl.range(STEPS, loop_unroll_factor=STEPS if STEPS < 8 else 8):  # a third fewer instructions
        current, c0, c1, c2, c3 = found, m0, m1, m2, m3
        if STEPS > 1:  # after the last step nothing is read
            found, m0, m1, m2, m3 = read_blocks(words, meta, rows, step + 1, outputs, FORMAT, CUT)
        s0, p0, a0, squares = _quarter(current, squares, x, norm, step, 0, FORMAT, CUT, NORMED)
        s1, p1, a1, squares = _quarter(current, squares, x, norm, step, 1, FORMAT, CUT, NORMED)
        s2, p2, a2, squares = _quarter(current, squares, x, norm, step, 2, FORMAT, CUT, NORMED)
        s3, p3, a3, squares = _quarter(current, squares, x, norm, step, 3, FORMAT, CUT, NORMED)
        if FORMAT.group == WORDS:
            total += _scaled(c0, s0, p0, a0, FORMAT) + _scaled(c1, s1, p1, a1, FORMAT)
            total += _scaled(c2, s2, p2, a2, FORMAT) + _scaled(c3, s3, p3, a3, FORMAT)
        elif FORMAT.group == 2 * WORDS:
            total += _scaled(c0, s0 + s1, p0 + p1, a0 + a1, FORMAT)
            total += _scaled(c2, s2 + s3, p2 + p3, a2 + a3, FORMAT)
        else:
            tl.static_assert(FORMAT.group % (4 * WORDS) == 0)
            total += _scaled(c0, (s0 + s1) + (s2 + s3), (p0 + p1) + (p2 + p3), (a0 + a1) + (a2 + a3), FORMAT)
    return tl.sum(total, 0), squares
