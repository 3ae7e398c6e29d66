"""Triton functions that read a weight of 4 or 8 bits a number, restore its numbers in registers and multiply with them.

`nibble_sums` and `byte_sums` are the inner loops of the products in `quantized_gemm_kernels` and
`quantized_experts_kernels`. `restore` writes the numbers to memory instead.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..launch.compile_ahead import entry

BYTES = tl.constexpr(2)  # a form, see few_bits_packed


@triton.jit
def _half(meta, LOW: tl.constexpr, DTYPE: tl.constexpr):
    """[OUTPUTS, 1] of one half of each number's bits."""
    half = meta if LOW else meta >> 16
    return half.to(tl.int16).to(DTYPE, bitcast=True)[:, None]


@triton.jit
def _quarter(
    words, meta, AT: tl.constexpr, TEXT: tl.constexpr, ZERO: tl.constexpr, KIND: tl.constexpr, DTYPE: tl.constexpr
):
    """Half bytes number AT of words int16 [OUTPUTS, W] as what they stand for. meta int32 [OUTPUTS]: see `Packed`."""
    scale, second = _half(meta, True, DTYPE), _half(meta, False, DTYPE)
    if TEXT == "":
        return _plainly(
            (words.to(tl.int32) >> 4 * AT) & 15, scale.to(tl.float32), second.to(tl.float32), ZERO, KIND
        ).to(DTYPE)
    if (
        KIND == "plain" or KIND == "floats" or KIND == "table"
    ):  # beside constants the compiler would send the numbers through shared memory
        if tl.bfloat16 == DTYPE:
            return tl.inline_asm_elementwise(TEXT, "=r,r", [words], dtype=tl.bfloat16, is_pure=True, pack=2)
        else:
            return tl.inline_asm_elementwise(TEXT, "=r,r", [words], dtype=tl.float16, is_pure=True, pack=2)
    elif tl.bfloat16 == DTYPE:
        return tl.inline_asm_elementwise(
            TEXT, "=r,r,r,r", [words, scale, second], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        return tl.inline_asm_elementwise(
            TEXT, "=r,r,r,r", [words, scale, second], dtype=tl.float16, is_pure=True, pack=2
        )


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
def nibble_sums(
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
    WORDS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    KIND: tl.constexpr,
    TEXT0: tl.constexpr,
    TEXT1: tl.constexpr,
    TEXT2: tl.constexpr,
    TEXT3: tl.constexpr,
    APART: tl.constexpr,
):
    """Blocks `first` to `last` - 1: 4 * WORDS inputs each, quarter by quarter in the half bytes of a word.

    APART: each quarter has sums of its own, so that no product waits for the one before.
    """
    BLOCK: tl.constexpr = 4 * WORDS
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
        w0 = _quarter(codes, m0, 0, TEXT0, ZERO, KIND, DTYPE)
        w1 = _quarter(codes, m1, 1, TEXT1, ZERO, KIND, DTYPE)
        w2 = _quarter(codes, m2, 2, TEXT2, ZERO, KIND, DTYPE)
        w3 = _quarter(codes, m3, 3, TEXT3, ZERO, KIND, DTYPE)
        sums = _dot(w0, x0, sums, TEXT0 == "")
        if APART:
            second = _dot(w1, x1, second, TEXT0 == "")
            third = _dot(w2, x2, third, TEXT0 == "")
            fourth = _dot(w3, x3, fourth, TEXT0 == "")
        else:
            sums = _dot(w3, x3, _dot(w2, x2, _dot(w1, x1, sums, TEXT0 == ""), TEXT0 == ""), TEXT0 == "")
    return (sums + second) + (third + fourth) if APART else sums


@triton.jit
def _of_bytes(codes, meta, TEXT: tl.constexpr, KIND: tl.constexpr, DTYPE: tl.constexpr):
    """[OUTPUTS, BLOCK] in DTYPE."""
    if TEXT != "":
        scale, second, bytes_ = _half(meta, True, DTYPE), _half(meta, False, DTYPE), codes.to(tl.int8, bitcast=True)
        if KIND == "plain":
            if tl.bfloat16 == DTYPE:
                return tl.inline_asm_elementwise(TEXT, "=r,h", [bytes_], dtype=tl.bfloat16, is_pure=True, pack=2)
            else:
                return tl.inline_asm_elementwise(TEXT, "=r,h", [bytes_], dtype=tl.float16, is_pure=True, pack=2)
        elif tl.bfloat16 == DTYPE:
            return tl.inline_asm_elementwise(
                TEXT, "=r,h,r,r", [bytes_, scale, second], dtype=tl.bfloat16, is_pure=True, pack=2
            )
        else:
            return tl.inline_asm_elementwise(
                TEXT, "=r,h,r,r", [bytes_, scale, second], dtype=tl.float16, is_pure=True, pack=2
            )
    if KIND == "scaled":
        return (codes.to(tl.float32) * _half(meta, True, DTYPE).to(tl.float32)).to(DTYPE)
    elif KIND == "shifted":
        return (
            codes.to(tl.float32) * _half(meta, True, DTYPE).to(tl.float32) + _half(meta, False, DTYPE).to(tl.float32)
        ).to(DTYPE)
    return codes.to(DTYPE)


@triton.jit
def byte_sums(
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
    WORDS: tl.constexpr,
    GROUP: tl.constexpr,
    KIND: tl.constexpr,
    TEXT: tl.constexpr,
):
    """Blocks of 4 * WORDS inputs, a byte each, GROUP a multiple of that."""
    BLOCK: tl.constexpr = 4 * WORDS
    DTYPE: tl.constexpr = x.dtype.element_ty
    j = tl.arange(0, BLOCK)
    for block in range(first, last):
        k = block * BLOCK + j
        places = words + output.to(tl.int64)[:, None] * inputs + k[None, :]
        codes = tl.load(places, (k < inputs)[None, :], other=0.0, eviction_policy="evict_first")
        found = _meta(meta, (block * BLOCK // GROUP) * outputs + output, KIND)
        weight = _of_bytes(codes, found, TEXT, KIND, tl.float32 if TEXT == "" and KIND == "plain" else DTYPE)
        sums = _dot(weight, _x(x, k, row, rows, inputs, stride), sums, TEXT == "")
    return sums


@entry
@triton.jit
def restore(
    words,
    meta,
    outer,
    out,
    first,
    last,
    outputs,
    inputs,
    FORM: tl.constexpr,
    WORDS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    KIND: tl.constexpr,
    OUTER: tl.constexpr,
    TEXT0: tl.constexpr,
    TEXT1: tl.constexpr,
    TEXT2: tl.constexpr,
    TEXT3: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """out [some outputs from `first` on, inputs] = the weight, in out's type.

    Grid (ceil(outputs / OUTPUTS), blocks of 4 * WORDS).
    """
    BLOCK: tl.constexpr = 4 * WORDS
    DTYPE: tl.constexpr = out.dtype.element_ty
    here, block = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS), tl.program_id(1)
    output = tl.minimum(first + here, outputs - 1)
    places = out + here.to(tl.int64)[:, None] * inputs
    present = (first + here < last)[:, None]
    at = (block * BLOCK // GROUP) * outputs + output
    if FORM == BYTES:
        k = block * BLOCK + tl.arange(0, BLOCK)
        inside = (k < inputs)[None, :] & present
        codes = tl.load(words + output.to(tl.int64)[:, None] * inputs + k[None, :], inside, other=0.0)
        _restored(
            _of_bytes(
                codes, _meta(meta, at, KIND), TEXT0, KIND, tl.float32 if TEXT0 == "" and KIND == "plain" else DTYPE
            ),
            outer,
            output,
            places + k[None, :],
            inside,
            OUTER,
        )
    else:
        j = tl.arange(0, WORDS)
        codes = tl.load(words + (block * outputs + output).to(tl.int64)[:, None] * WORDS + j[None, :])
        _quarter_restored(
            codes,
            meta,
            at,
            outputs,
            outer,
            output,
            places,
            present,
            inputs,
            block,
            0,
            TEXT0,
            WORDS,
            GROUP,
            ZERO,
            KIND,
            OUTER,
        )
        _quarter_restored(
            codes,
            meta,
            at,
            outputs,
            outer,
            output,
            places,
            present,
            inputs,
            block,
            1,
            TEXT1,
            WORDS,
            GROUP,
            ZERO,
            KIND,
            OUTER,
        )
        _quarter_restored(
            codes,
            meta,
            at,
            outputs,
            outer,
            output,
            places,
            present,
            inputs,
            block,
            2,
            TEXT2,
            WORDS,
            GROUP,
            ZERO,
            KIND,
            OUTER,
        )
        _quarter_restored(
            codes,
            meta,
            at,
            outputs,
            outer,
            output,
            places,
            present,
            inputs,
            block,
            3,
            TEXT3,
            WORDS,
            GROUP,
            ZERO,
            KIND,
            OUTER,
        )


@triton.jit
def _quarter_restored(
    codes,
    meta,
    at,
    outputs,
    outer,
    output,
    places,
    present,
    inputs,
    block,
    AT: tl.constexpr,
    TEXT: tl.constexpr,
    WORDS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    KIND: tl.constexpr,
    OUTER: tl.constexpr,
):
    part = at + (AT * WORDS // GROUP) * outputs if GROUP < 4 * WORDS else at
    k = (4 * block + AT) * WORDS + tl.arange(0, WORDS)
    values = _quarter(codes, _meta(meta, part, KIND), AT, TEXT, ZERO, KIND, places.dtype.element_ty)
    _restored(values, outer, output, places + k[None, :], (k < inputs)[None, :] & present, OUTER)


@triton.jit
def _restored(values, outer, output, places, inside, OUTER: tl.constexpr):
    if OUTER:
        values = values.to(tl.float32) * tl.load(outer + output)[:, None]
    tl.store(places, values.to(places.dtype.element_ty), inside)
