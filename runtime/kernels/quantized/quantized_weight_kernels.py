"""Triton functions that read a weight of 4 or 8 bits a number, restore its numbers in registers and multiply with them.

`block_sums` is the inner loop of the products in `quantized_gemm_kernels` and
`quantized_experts_kernels`. `restore` writes the numbers to memory instead.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..launch.compile_ahead import entry
from ..packed.packed_weight import BYTES as OF_BYTES

BYTES = tl.constexpr(OF_BYTES)


@triton.jit
def _half(meta, LOW: tl.constexpr, DTYPE: tl.constexpr):
    """[OUTPUTS, 1] of one half of each number's bits."""
    half = meta if LOW else meta >> 16
    return half.to(tl.int16).to(DTYPE, bitcast=True)[:, None]


@triton.jit
def _unpacked(codes, meta, TEXT: tl.constexpr, OPERAND: tl.constexpr, SCALED: tl.constexpr, DTYPE: tl.constexpr):
    """Codes [OUTPUTS, W] in DTYPE by PTX, scaled. OPERAND: the kind of register that two of them are in."""
    if not SCALED:  # next to constants the compiler would send the numbers through shared memory
        operands: tl.constexpr = "=r," + OPERAND
        return tl.inline_asm_elementwise(TEXT, operands, [codes], dtype=DTYPE.value, is_pure=True, pack=2)
    else:
        scale, second = _half(meta, True, DTYPE), _half(meta, False, DTYPE)
        with_scales: tl.constexpr = "=r," + OPERAND + ",r,r"
        return tl.inline_asm_elementwise(
            TEXT, with_scales, [codes, scale, second], dtype=DTYPE.value, is_pure=True, pack=2
        )


@triton.jit
def _quarter(words, meta, AT: tl.constexpr, FORMAT: tl.constexpr, DTYPE: tl.constexpr):
    """Half bytes number AT of words int16 [OUTPUTS, W] as what they stand for.  meta int32 [OUTPUTS]: see
    `PackedWeight`.
    """
    TEXT: tl.constexpr = FORMAT.texts[AT]
    KIND: tl.constexpr = FORMAT.kind
    if TEXT == "":
        scale, second = _half(meta, True, DTYPE), _half(meta, False, DTYPE)
        code = (words.to(tl.int32) >> 4 * AT) & 15
        return _plainly(code, scale.to(tl.float32), second.to(tl.float32), FORMAT.zero, KIND).to(DTYPE)
    SCALED: tl.constexpr = KIND != "plain" and KIND != "floats" and KIND != "table"
    return _unpacked(words, meta, TEXT, "r", SCALED, DTYPE)


@triton.jit
def _plainly(code, scale, second, ZERO: tl.constexpr, KIND: tl.constexpr):
    """The same by arithmetic. ZERO: of a table, the table."""
    if KIND == "floats" or KIND == "floats, scaled":
        exponent, mantissa = (code >> 1) & 3, (code & 1).to(tl.float32)
        value = tl.where(exponent == 0, mantissa * 0.5, (1 + mantissa * 0.5) * tl.exp2(exponent.to(tl.float32) - 1))
        value = tl.where(code > 7, -value, value)
    elif KIND == "table" or KIND == "table, scaled":
        value = tl.zeros(code.shape, tl.float32)
        for at in tl.static_range(16):
            value = tl.where(code == at, ZERO[at], value)
    elif KIND == "zeros" or KIND == "zeros, scaled":
        value = code.to(tl.float32) + second - ZERO
    else:
        value = code.to(tl.float32) - ZERO
    if KIND == "shifted":
        return value * scale + second
    return (
        value * scale
        if KIND == "scaled" or KIND == "zeros, scaled" or KIND == "floats, scaled" or KIND == "table, scaled"
        else value
    )


@triton.jit
def _x(x, k, row, rows, inputs, stride):
    """[len(k), ROWS]; zeros outside."""
    return tl.load(
        x + row.to(tl.int64)[None, :] * stride + k[:, None], (row < rows)[None, :] & (k < inputs)[:, None], other=0.0
    )


@triton.jit
def _dot(weight, values, sums, PLAIN: tl.constexpr):
    """sums + weight [OUTPUTS, K] @ values [K, ROWS]; the interpreter knows no bfloat16."""
    if PLAIN:
        return sums + tl.dot(weight.to(tl.float32), values.to(tl.float32), input_precision="ieee")
    return tl.dot(weight, values, sums)


@triton.jit
def _meta(meta, at, KIND: tl.constexpr):
    if KIND == "plain" or KIND == "floats" or KIND == "table":
        return tl.zeros([at.shape[0]], tl.int32)
    else:
        return tl.load(meta + at)


@triton.jit
def block_sums(
    sums,
    x,
    words,
    meta,
    output,
    row,
    first,
    last,
    rows,
    outputs,
    inputs,
    stride,
    FORMAT: tl.constexpr,
    APART: tl.constexpr,
):
    """sums plus the products of x's rows [ROWS] with blocks `first` to `last` - 1 of outputs [OUTPUTS]."""
    if FORMAT.form == BYTES:
        return _byte_sums(sums, x, words, meta, output, row, first, last, rows, outputs, inputs, stride, FORMAT)
    else:
        return _nibble_sums(
            sums, x, words, meta, output, row, first, last, rows, outputs, inputs, stride, FORMAT, APART
        )


@triton.jit
def _nibble_sums(
    sums,
    x,
    words,
    meta,
    output,
    row,
    first,
    last,
    rows,
    outputs,
    inputs,
    stride,
    FORMAT: tl.constexpr,
    APART: tl.constexpr,
):
    """Of 4 * WORDS inputs each, quarter by quarter in the half bytes of a word.

    APART: each quarter has separate sums, so that no product waits for the one before.
    """
    WORDS: tl.constexpr = FORMAT.words
    GROUP: tl.constexpr = FORMAT.group
    KIND: tl.constexpr = FORMAT.kind
    BLOCK: tl.constexpr = 4 * WORDS
    PLAIN: tl.constexpr = FORMAT.texts[0] == ""
    DTYPE: tl.constexpr = x.dtype.element_ty
    j = tl.arange(0, WORDS)
    second, third, fourth = sums, sums, sums
    for block in range(first, last):
        places = (block * outputs + output).to(tl.int64)[:, None] * WORDS + j[None, :]
        codes = tl.load(words + places, eviction_policy="evict_first")
        k = block * BLOCK + j
        at = (block * BLOCK // GROUP) * outputs + output
        m0 = _meta(meta, at, KIND)
        m1, m2, m3 = m0, m0, m0
        if GROUP == 2 * WORDS:
            m2 = _meta(meta, at + outputs, KIND)
            m3 = m2
        elif GROUP == WORDS:
            m1, m2, m3 = (
                _meta(meta, at + outputs, KIND),
                _meta(meta, at + 2 * outputs, KIND),
                _meta(meta, at + 3 * outputs, KIND),
            )
        else:
            tl.static_assert(GROUP % BLOCK == 0)
        x0 = _x(x, k, row, rows, inputs, stride)
        x1 = _x(x, k + WORDS, row, rows, inputs, stride)
        x2 = _x(x, k + 2 * WORDS, row, rows, inputs, stride)
        x3 = _x(x, k + 3 * WORDS, row, rows, inputs, stride)
        w0 = _quarter(codes, m0, 0, FORMAT, DTYPE)
        w1 = _quarter(codes, m1, 1, FORMAT, DTYPE)
        w2 = _quarter(codes, m2, 2, FORMAT, DTYPE)
        w3 = _quarter(codes, m3, 3, FORMAT, DTYPE)
        sums = _dot(w0, x0, sums, PLAIN)
        if APART:
            second = _dot(w1, x1, second, PLAIN)
            third = _dot(w2, x2, third, PLAIN)
            fourth = _dot(w3, x3, fourth, PLAIN)
        else:
            sums = _dot(w3, x3, _dot(w2, x2, _dot(w1, x1, sums, PLAIN), PLAIN), PLAIN)
    return (sums + second) + (third + fourth) if APART else sums


@triton.jit
def _of_bytes(codes, meta, FORMAT: tl.constexpr, DTYPE: tl.constexpr):
    """[OUTPUTS, BLOCK] in DTYPE, or in float32 where no PTX is used and there are no scales."""
    TEXT: tl.constexpr = FORMAT.texts[0]
    KIND: tl.constexpr = FORMAT.kind
    if TEXT != "":
        found = _unpacked(codes.to(tl.int8, bitcast=True), meta, TEXT, "h", KIND != "plain", DTYPE)
    elif KIND == "plain":
        found = codes.to(tl.float32)
    else:
        found = codes.to(tl.float32) * _half(meta, True, DTYPE).to(tl.float32)
        if KIND == "shifted":
            found += _half(meta, False, DTYPE).to(tl.float32)
        found = found.to(DTYPE)
    return found


@triton.jit
def _byte_sums(sums, x, words, meta, output, row, first, last, rows, outputs, inputs, stride, FORMAT: tl.constexpr):
    """Of 4 * FORMAT.words inputs each, a byte each; the group is a multiple of that."""
    BLOCK: tl.constexpr = 4 * FORMAT.words
    KIND: tl.constexpr = FORMAT.kind
    DTYPE: tl.constexpr = x.dtype.element_ty
    j = tl.arange(0, BLOCK)
    for block in range(first, last):
        k = block * BLOCK + j
        places = words + output.to(tl.int64)[:, None] * inputs + k[None, :]
        codes = tl.load(places, (k < inputs)[None, :], other=0.0, eviction_policy="evict_first")
        found = _meta(meta, (block * BLOCK // FORMAT.group) * outputs + output, KIND)
        weight = _of_bytes(codes, found, FORMAT, DTYPE)
        sums = _dot(weight, _x(x, k, row, rows, inputs, stride), sums, FORMAT.texts[0] == "")
    return sums


@entry
@triton.jit
def restore(words, meta, outer, out, first, last, outputs, inputs, FORMAT: tl.constexpr, OUTPUTS: tl.constexpr):
    """out [some outputs from `first` on, inputs] = the weight, in out's type.

    Grid (ceil(outputs / OUTPUTS), blocks).
    """
    WORDS: tl.constexpr = FORMAT.words
    GROUP: tl.constexpr = FORMAT.group
    KIND: tl.constexpr = FORMAT.kind
    BLOCK: tl.constexpr = 4 * WORDS
    DTYPE: tl.constexpr = out.dtype.element_ty
    here, block = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.program_id(1)
    output = tl.minimum(first + here, outputs - 1)
    places = out + here.to(tl.int64)[:, None] * inputs
    present = (first + here < last)[:, None]
    at = (block * BLOCK // GROUP) * outputs + output
    if FORMAT.form == BYTES:
        k = block * BLOCK + tl.arange(0, BLOCK)
        inside = (k < inputs)[None, :] & present
        codes = tl.load(words + output.to(tl.int64)[:, None] * inputs + k[None, :], inside, other=0.0)
        values = _of_bytes(codes, _meta(meta, at, KIND), FORMAT, DTYPE)
        _restored(values, outer, output, places + k[None, :], inside, FORMAT.outer)
    else:
        j = tl.arange(0, WORDS)
        codes = tl.load(words + (block * outputs + output).to(tl.int64)[:, None] * WORDS + j[None, :])
        for quarter in tl.static_range(4):
            part = at + (quarter * WORDS // GROUP) * outputs if GROUP < BLOCK else at
            k = (4 * block + quarter) * WORDS + tl.arange(0, WORDS)
            values = _quarter(codes, _meta(meta, part, KIND), quarter, FORMAT, DTYPE)
            _restored(values, outer, output, places + k[None, :], (k < inputs)[None, :] & present, FORMAT.outer)


@triton.jit
def _restored(values, outer, output, places, inside, OUTER: tl.constexpr):
    if OUTER:
        values = values.to(tl.float32) * tl.load(outer + output)[:, None]
    tl.store(places, values.to(places.dtype.element_ty), inside)
