"""Linear attention with a decaying state, over prompts: by chunks of tokens, whose products are matrix products.

Within a chunk the u of the delta rule solve a triangular system, of which all but the state before the chunk is known
beforehand: u = own - past S (the WY form). One kernel solves it for all chunks at once, one goes through them from
state to state, and one computes the outputs of the tokens of all chunks. Bits of a token depend on where a prompt is
cut. See `linear_attention_scan` for the recurrence of each token, and for its inputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..gemv.gemv_launch import has_room
from ..launch.compile_ahead import entry
from .linear_attention_scan import LinearAttentionInputs, softplus

SIZE = 64  # tokens of a chunk
COLUMNS = 32  # of a head's state for one program
LEAST = 32  # tokens of the longest sequence from which chunks are faster than a token at a time
# sequences like the longest up to which they are: on an H200 8,192 tokens of one take 2.9 ms by chunks and 8.1 token
# by token, of four 3.0 and 2.4
AT_ONCE = 3


@triton.jit
def _steps(a, bias, rate, token, there, head, a_stride, least, most):
    """Factors of tokens' values, and the sums of decays since the chunk's start, float64."""
    step = softplus(tl.load(a + token * a_stride + head, there, other=0.0).to(tl.float32) + tl.load(bias + head))
    step = tl.where(there, tl.minimum(tl.maximum(step, least), most), 0.0)
    decay = tl.where(there, step * tl.load(rate + head), 0.0)
    return step, tl.cumsum(decay.to(tl.float64), 0)


@triton.jit
def _heads(start, token, there, shared, stride, eps, KEY: tl.constexpr, KEY_BLOCK: tl.constexpr, UNIT: tl.constexpr):
    """Queries or keys of a head, [SIZE, KEY_BLOCK]."""
    column = tl.arange(0, KEY_BLOCK)[None, :]
    x = tl.load(start + token[:, None] * stride + shared * KEY + column, there[:, None] & (column < KEY), other=0.0)
    return x * tl.rsqrt(tl.sum(x * x, 1) + eps)[:, None] if UNIT else x


@triton.jit
def _since(total, later, SIZE: tl.constexpr):
    """e^decay from the token of a column to that of a row, [SIZE, SIZE]; 0 if it is not `later`.

    Only differences are raised.
    """
    passed = (total[:, None] - total[None, :]).to(tl.float32)
    return tl.where(later, tl.exp(tl.where(later, passed, 0.0)), 0.0)


@triton.jit
def _inverse(turned, SIZE: tl.constexpr):
    """(1 + A)^-1 of what is strictly below the diagonal, row by row; turned: A transposed."""
    row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    found = tl.where(row == column, 1.0, 0.0)
    for at in range(1, SIZE):
        weights = tl.sum(tl.where(column == at, turned, 0.0), 1)
        found -= tl.where(row == at, tl.sum(weights[:, None] * found, 0)[None, :], 0.0)
    return found


@entry
@triton.jit
def _solve(
    k,
    v,
    a,
    b,
    bias,
    rate,
    starts,
    own,
    past,
    stride,
    a_stride,
    b_stride,
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
    """u = own - past S of a chunk of a head of a sequence. own: [T, HEADS, VALUE].  past: [T, HEADS, KEY]."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    first, last = (
        tl.load(starts + sequence).to(tl.int64) + tl.program_id(2) * SIZE,
        tl.load(starts + sequence + 1).to(tl.int64),
    )
    if first < last:
        row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
        token = first + tl.arange(0, SIZE)
        there, shared = token < last, head % (HEADS // SHARED) if TILED else head // SHARED
        _, total = _steps(a, bias, rate, token, there, head, a_stride, least, most)
        key = _heads(k, token, there, shared, stride, unit, KEY, KEY_BLOCK, UNIT)
        beta = reach / (1.0 + tl.exp(-tl.load(b + token * b_stride + head, there, other=0.0).to(tl.float32)))
        turned = (
            tl.dot(key, tl.trans(key), input_precision=PRECISION) * _since(-total, row < column, SIZE) * beta[None, :]
        )
        inverse = _inverse(turned, SIZE)
        columns, keys = tl.arange(0, VALUE_BLOCK)[None, :], tl.arange(0, KEY_BLOCK)[None, :]
        present, inside = there[:, None] & (columns < VALUE), there[:, None] & (keys < KEY)
        value = tl.load(v + token[:, None] * stride + head * VALUE + columns, present, other=0.0)
        place = (token * HEADS + head)[:, None]
        tl.store(
            own + place * VALUE + columns, tl.dot(inverse, value * beta[:, None], input_precision=PRECISION), present
        )
        key *= (beta * tl.exp(total.to(tl.float32)))[:, None]
        tl.store(past + place * KEY + keys, tl.dot(inverse, key, input_precision=PRECISION), inside)


@triton.jit
def _place(starts, sequence, SIZE: tl.constexpr):
    """Where the states before the chunks of a sequence begin: no two of these share a place."""
    return tl.load(starts + sequence).to(tl.int64) // SIZE + sequence


@entry
@triton.jit
def _pass(
    k,
    v,
    a,
    bias,
    rate,
    own,
    past,
    states,
    befores,
    read,
    write,
    starts,
    stride,
    a_stride,
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
    DELTA: tl.constexpr,
    TIMES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Through the chunks of a sequence, for some columns of a head's state.

    Stores the state before each, and u of all tokens in place of `own`.
    """
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    keys, columns = tl.arange(0, KEY_BLOCK), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    place, inside = keys[:, None] * VALUE + columns[None, :], (keys < KEY)[:, None] & (columns < VALUE)[None, :]
    source, target = tl.load(read + sequence).to(tl.int64), tl.load(write + sequence).to(tl.int64)
    first, last = tl.load(starts + sequence).to(tl.int64), tl.load(starts + sequence + 1).to(tl.int64)
    state = tl.load(states + (source * HEADS + head) * KEY * VALUE + place, inside, other=0.0)
    shared = head % (HEADS // SHARED) if TILED else head // SHARED
    chunk = _place(starts, sequence, SIZE)
    for begin in range(first, last, SIZE):
        tl.store(befores + (chunk * HEADS + head) * KEY * VALUE + place, state, inside)
        chunk += 1
        token = begin + tl.arange(0, SIZE)
        there = token < last
        step, total = _steps(a, bias, rate, token, there, head, a_stride, least, most)
        whole = tl.sum(tl.where(tl.arange(0, SIZE) == SIZE - 1, total, 0.0), 0)
        present = there[:, None] & (columns < VALUE)[None, :]
        at = (token * HEADS + head)[:, None]
        if DELTA:
            before = tl.load(past + at * KEY + keys[None, :], there[:, None] & (keys < KEY)[None, :], other=0.0)
            u = tl.load(own + at * VALUE + columns[None, :], present, other=0.0)
            u -= tl.dot(before, state, input_precision=PRECISION)
        else:
            u = tl.load(v + token[:, None] * stride + head * VALUE + columns[None, :], present, other=0.0)
            u = u * step[:, None] if TIMES else u
        tl.store(own + at * VALUE + columns[None, :], u, present)
        key = (
            _heads(k, token, there, shared, stride, unit, KEY, KEY_BLOCK, UNIT)
            * tl.exp((whole - total).to(tl.float32))[:, None]
        )
        state = tl.dot(tl.trans(key), u, state * tl.exp(whole.to(tl.float32)), input_precision=PRECISION)
    tl.store(states + (target * HEADS + head) * KEY * VALUE + place, state, inside)


@entry
@triton.jit
def _give(
    q,
    k,
    v,
    a,
    bias,
    rate,
    skip,
    own,
    befores,
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
    VALUE_BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    UNIT: tl.constexpr,
    SKIP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The outputs of a chunk's tokens for a head, once u and the state before the chunk are known."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    first, last = (
        tl.load(starts + sequence).to(tl.int64) + tl.program_id(2) * SIZE,
        tl.load(starts + sequence + 1).to(tl.int64),
    )
    if first < last:
        row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
        keys, columns = tl.arange(0, KEY_BLOCK)[:, None], tl.arange(0, VALUE_BLOCK)[None, :]
        token = first + tl.arange(0, SIZE)
        there, shared = token < last, head % (HEADS // SHARED) if TILED else head // SHARED
        _, total = _steps(a, bias, rate, token, there, head, a_stride, least, most)
        query = _heads(q, token, there, shared, stride, unit, KEY, KEY_BLOCK, UNIT) * scale
        key = _heads(k, token, there, shared, stride, unit, KEY, KEY_BLOCK, UNIT)
        seen = tl.dot(query, tl.trans(key), input_precision=PRECISION) * _since(total, row >= column, SIZE)
        chunk = _place(starts, sequence, SIZE) + tl.program_id(2)
        state = tl.load(
            befores + (chunk * HEADS + head) * KEY * VALUE + keys * VALUE + columns,
            (keys < KEY) & (columns < VALUE),
            other=0.0,
        )
        y = tl.dot(query * tl.exp(total.to(tl.float32))[:, None], state, input_precision=PRECISION)
        present, at = there[:, None] & (columns < VALUE), (token * HEADS + head)[:, None]
        y = tl.dot(seen, tl.load(own + at * VALUE + columns, present, other=0.0), y, input_precision=PRECISION)
        if SKIP:
            value = tl.load(v + token[:, None] * stride + head * VALUE + columns, present, other=0.0)
            y += value * tl.load(skip + head)
        tl.store(out + at * VALUE + columns, y, present)


def supports(inputs: LinearAttentionInputs, longest: int) -> bool:
    """Whether chunks are faster. See `chunked_kda` for decays of each channel."""
    return (
        longest >= LEAST
        and AT_ONCE * longest >= len(inputs.v)
        and (inputs.b is not None or not decays_per_channel(inputs))
    )


def decays_per_channel(inputs: LinearAttentionInputs) -> bool:
    """Whether each channel of keys decays at its own rate."""
    return inputs.a.shape[1] > inputs.v.shape[1]


def stages_for(key_block: int, device: torch.device) -> int:
    """Chunks that `_pass` has in flight: three take 216 KB of shared memory for keys of 128 numbers, one 40."""
    return 3 if key_block <= 128 and has_room(device) else 1


def advance_by_chunks(
    inputs: LinearAttentionInputs,
    memory: Tensor,
    read: Tensor,
    write: Tensor,
    starts: Tensor,
    longest: int,
    out: Tensor,
) -> None:
    """The outputs of the tokens of sequences that begin at starts int [S + 1], into `out` float32 [T, heads, value].

    See `linear_attention_scan.advance`.
    longest: the most tokens of any.
    """
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
        "num_warps": 8,
    }
    own, delta = torch.empty_like(out), inputs.b is not None
    past = out.new_empty(rows, heads, key) if delta else own
    befores = out.new_empty(rows // SIZE + len(read), heads, key, value)
    chunks, decays = (len(read), heads, triton.cdiv(longest, SIZE)), (inputs.a, inputs.bias, inputs.rate)
    strides, limits = (inputs.v.stride(0), inputs.a.stride(0)), (inputs.least, inputs.most)
    if inputs.b is not None:
        _solve[chunks](
            inputs.k,
            inputs.v,
            inputs.a,
            inputs.b,
            inputs.bias,
            inputs.rate,
            starts,
            own,
            past,
            *strides,
            inputs.b.stride(0),
            inputs.unit or 0.0,
            inputs.reach,
            *limits,
            VALUE_BLOCK=blocks,
            **usual,
        )
    columns = min(COLUMNS, blocks)
    _pass[(len(read), heads, triton.cdiv(value, columns))](
        inputs.k,
        inputs.v,
        *decays,
        own,
        past,
        memory,
        befores,
        read,
        write,
        starts,
        *strides,
        inputs.unit or 0.0,
        *limits,
        COLUMNS=columns,
        DELTA=delta,
        TIMES=inputs.times,
        num_stages=stages_for(block, out.device),
        **usual,
    )
    _give[chunks](
        inputs.q,
        inputs.k,
        inputs.v,
        *decays,
        inputs.rate if inputs.skip is None else inputs.skip,
        own,
        befores,
        starts,
        out,
        *strides,
        inputs.scale,
        inputs.unit or 0.0,
        *limits,
        VALUE_BLOCK=blocks,
        SKIP=inputs.skip is not None,
        **usual,
    )
