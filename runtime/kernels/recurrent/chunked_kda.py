"""As `chunked_linear_attention`, if each channel of keys decays at a separate rate (KDA).

Products of pairs of tokens do not factor then: a token's weight for an earlier one is a sum over channels, each with
its own decay since then, computed pair by pair. Chunks are short for that reason. One kernel solves all chunks at once,
and one goes through them from state to state and computes the outputs on the way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch.compile_ahead import entry
from .chunked_linear_attention import _heads, _inverse
from .linear_attention_scan import LinearAttentionInputs, softplus

SIZE = 16  # tokens of a chunk, which the tensor cores need at least
COLUMNS = 32  # of a head's state for one program


@triton.jit
def _decayed(a, bias, rate, token, there, head, a_stride, least, most, KEY: tl.constexpr, KEY_BLOCK: tl.constexpr):
    """Sums of decays since the chunk's start, float64 [SIZE, KEY_BLOCK]: the difference of two is exact, however much
    has decayed before.
    """
    keys = tl.arange(0, KEY_BLOCK)[None, :]
    inside = there[:, None] & (keys < KEY)
    step = tl.load(a + token[:, None] * a_stride + head * KEY + keys, inside, other=0.0).to(tl.float32)
    step = softplus(step + tl.load(bias + head * KEY + keys, keys < KEY, other=0.0))
    step = tl.where(inside, tl.minimum(tl.maximum(step, least), most), 0.0)
    return tl.cumsum((step * tl.load(rate + head)).to(tl.float64), 0)


@triton.jit
def _row(x, at, SIZE: tl.constexpr):
    """One row of x [SIZE, ...]."""
    return tl.sum(tl.where(tl.arange(0, SIZE)[:, None] == at, x, 0.0), 0)


@entry
@triton.jit
def _solve(
    q,
    k,
    v,
    a,
    b,
    bias,
    rate,
    starts,
    own,
    past,
    seen,
    stride,
    a_stride,
    b_stride,
    scale,
    unit,
    reach,
    least,
    most,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    TILED: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """u = own - past S of a chunk of a head, see `chunked_linear_attention`.

    seen: [T, HEADS, SIZE], what each token's query finds of the chunk's keys.
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    first, last = (
        tl.load(starts + sequence).to(tl.int64) + tl.program_id(2) * SIZE,
        tl.load(starts + sequence + 1).to(tl.int64),
    )
    if first < last:
        row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
        token = first + tl.arange(0, SIZE)
        there, shared = token < last, head % (HEADS // SHARED) if TILED else head // SHARED
        total = _decayed(a, bias, rate, token, there, head, a_stride, least, most, KEY, KEY_BLOCK)
        query = _heads(q, token, there, shared, stride, unit, KEY, KEY_BLOCK, UNIT) * scale
        key = _heads(k, token, there, shared, stride, unit, KEY, KEY_BLOCK, UNIT)
        turned, found = tl.zeros((SIZE, SIZE), tl.float32), tl.zeros((SIZE, SIZE), tl.float32)
        for at in range(SIZE):  # as a key, to all later tokens
            passed = (total - _row(total, at, SIZE)[None, :]).to(tl.float32)
            other = _row(key, at, SIZE)[None, :] * tl.exp(tl.where(row >= at, passed, 0.0))
            found += tl.where((column == at) & (row >= at), tl.sum(query * other, 1)[:, None], 0.0)
            turned += tl.where((row == at) & (column > at), tl.sum(key * other, 1)[None, :], 0.0)
        beta = reach / (1.0 + tl.exp(-tl.load(b + token * b_stride + head, there, other=0.0).to(tl.float32)))
        inverse = _inverse(turned * beta[None, :], SIZE)
        columns, keys = tl.arange(0, VALUE_BLOCK)[None, :], tl.arange(0, KEY_BLOCK)[None, :]
        present, place = there[:, None] & (columns < VALUE), (token * HEADS + head)[:, None]
        value = tl.load(v + token[:, None] * stride + head * VALUE + columns, present, other=0.0)
        tl.store(
            own + place * VALUE + columns, tl.dot(inverse, value * beta[:, None], input_precision=PRECISION), present
        )
        key *= beta[:, None] * tl.exp(total.to(tl.float32))
        tl.store(
            past + place * KEY + keys, tl.dot(inverse, key, input_precision=PRECISION), there[:, None] & (keys < KEY)
        )
        tl.store(seen + place * SIZE + column, found, there[:, None])


@entry
@triton.jit
def _pass(
    q,
    k,
    a,
    bias,
    rate,
    own,
    past,
    seen,
    states,
    read,
    write,
    starts,
    out,
    stride,
    a_stride,
    scale,
    unit,
    least,
    most,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    TILED: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Through the chunks of a sequence, for some columns of a head's state: the outputs, and the state after the
    last.
    """
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    keys, columns = tl.arange(0, KEY_BLOCK), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    place, inside = keys[:, None] * VALUE + columns[None, :], (keys < KEY)[:, None] & (columns < VALUE)[None, :]
    source, target = tl.load(read + sequence).to(tl.int64), tl.load(write + sequence).to(tl.int64)
    first, last = tl.load(starts + sequence).to(tl.int64), tl.load(starts + sequence + 1).to(tl.int64)
    state = tl.load(states + (source * HEADS + head) * KEY * VALUE + place, inside, other=0.0)
    shared = head % (HEADS // SHARED) if TILED else head // SHARED
    row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    for begin in range(first, last, SIZE):
        token = begin + tl.arange(0, SIZE)
        there, at = token < last, (token * HEADS + head)[:, None]
        total = _decayed(a, bias, rate, token, there, head, a_stride, least, most, KEY, KEY_BLOCK)
        whole = _row(total, SIZE - 1, SIZE)
        query = _heads(q, token, there, shared, stride, unit, KEY, KEY_BLOCK, UNIT) * (
            tl.exp(total.to(tl.float32)) * scale
        )
        key = _heads(k, token, there, shared, stride, unit, KEY, KEY_BLOCK, UNIT) * tl.exp(
            (whole[None, :] - total).to(tl.float32)
        )
        present = there[:, None] & (columns < VALUE)[None, :]
        before = tl.load(past + at * KEY + keys[None, :], there[:, None] & (keys < KEY)[None, :], other=0.0)
        u = tl.load(own + at * VALUE + columns[None, :], present, other=0.0) - tl.dot(
            before, state, input_precision=PRECISION
        )
        pairs = tl.load(seen + at * SIZE + column, there[:, None] & (row >= column), other=0.0)
        y = tl.dot(pairs, u, tl.dot(query, state, input_precision=PRECISION), input_precision=PRECISION)
        tl.store(out + at * VALUE + columns[None, :], y, present)
        state = tl.dot(tl.trans(key), u, state * tl.exp(whole.to(tl.float32))[:, None], input_precision=PRECISION)
    tl.store(states + (target * HEADS + head) * KEY * VALUE + place, state, inside)


def advance_kda_by_chunks(
    inputs: LinearAttentionInputs,
    memory: Tensor,
    read: Tensor,
    write: Tensor,
    starts: Tensor,
    longest: int,
    out: Tensor,
) -> None:
    """As `chunked_linear_attention.advance_by_chunks`, by the delta rule, with a decay for each channel."""
    (rows, heads, value), (key_heads, key) = inputs.v.shape, inputs.k.shape[1:]
    block, blocks = max(triton.next_power_of_2(key), 16), max(triton.next_power_of_2(value), 16)
    usual = {
        "HEADS": heads,
        "SHARED": heads // key_heads,
        "TILED": inputs.tiled,
        "KEY": key,
        "VALUE": value,
        "KEY_BLOCK": block,
        "SIZE": SIZE,
        "UNIT": inputs.unit is not None,
        "PRECISION": "tf32x3" if inputs.a.dtype == torch.float32 else "tf32",
        "num_warps": 4,
    }
    assert inputs.b is not None
    own, past, seen = torch.empty_like(out), out.new_empty(rows, heads, key), out.new_empty(rows, heads, SIZE)
    decays, strides, limits = (
        (inputs.a, inputs.bias, inputs.rate),
        (inputs.v.stride(0), inputs.a.stride(0)),
        (inputs.least, inputs.most),
    )
    _solve[(len(read), heads, triton.cdiv(longest, SIZE))](
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.a,
        inputs.b,
        inputs.bias,
        inputs.rate,
        starts,
        own,
        past,
        seen,
        *strides,
        inputs.b.stride(0),
        inputs.scale,
        inputs.unit or 0.0,
        inputs.reach,
        *limits,
        VALUE_BLOCK=blocks,
        **usual,
    )
    columns = min(COLUMNS, blocks)
    _pass[(len(read), heads, triton.cdiv(value, columns))](
        inputs.q,
        inputs.k,
        *decays,
        own,
        past,
        seen,
        memory,
        read,
        write,
        starts,
        out,
        *strides,
        inputs.scale,
        inputs.unit or 0.0,
        *limits,
        COLUMNS=columns,
        **usual,
    )
