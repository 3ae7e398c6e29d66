"""Linear attention with a decaying state, token by token: from the convolution's output to the last product's input.

Queries and keys are normalized, beta and decay computed, the state advanced and read, the outputs normed and gated in
one kernel: the state is read and written once for all tokens of a step. The bits of a token depend neither on where its
sequence is cut nor on the others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..launch.compile_ahead import entry
from ..launch.programmatic_launch import launched

REGISTERS = 128  # of a thread that holds 64 numbers: two programs fit, or the next kernel's
PART, NARROW = 4096, 1024  # numbers of a head's state for one program, of many sequences; if these have many tokens
FEW = 128  # programs up to which each holds the state of a head


@triton.jit
def softplus(x):
    """log(1 + e^x), as exact for small results as for others."""
    e = tl.exp(tl.minimum(x, 20.0))
    small = e * (1.0 + e * (-0.5 + e * (0.33333333 + e * (-0.25 + e * 0.2))))
    return tl.where(x > 20.0, x, tl.where(e < 0.05, small, tl.log(1.0 + e)))


@triton.jit
def by_gate(y, z, NAME: tl.constexpr):
    """y times the activation of z, float32."""
    y = y / (1.0 + tl.exp(-z))
    return y * z if NAME == "silu" else y


@triton.jit
def _unit(x, eps):
    return x * tl.rsqrt(tl.sum(x * x, 0) + eps)


@entry
@triton.jit
def _advance(
    q,
    k,
    v,
    a,
    b,
    bias,
    rate,
    skip,
    z,
    norm,
    states,
    read,
    write,
    starts,
    out,
    stride,
    a_stride,
    b_stride,
    z_stride,
    scale,
    unit,
    reach,
    least,
    most,
    eps,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    TILED: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    UNIT: tl.constexpr,
    DELTA: tl.constexpr,
    TIMES: tl.constexpr,
    SKIP: tl.constexpr,
    GATE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program for some columns of a head's state of a sequence. CHANNELS: each channel of keys decays separately.

    The state of the step before and weights are in flight before the preceding kernels have ended.
    """
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    keys, columns = tl.arange(0, KEY_BLOCK), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    in_key, in_value = keys < KEY, columns < VALUE
    place, inside = keys[:, None] * VALUE + columns[None, :], in_key[:, None] & in_value[None, :]
    source, target = tl.load(read + sequence).to(tl.int64), tl.load(write + sequence).to(tl.int64)
    first, last = tl.load(starts + sequence).to(tl.int64), tl.load(starts + sequence + 1).to(tl.int64)
    state = tl.load(states + (source * HEADS + head) * KEY * VALUE + place, inside, other=0.0)
    own_bias = tl.load(bias + head * KEY + keys, in_key, other=0.0) if CHANNELS else tl.load(bias + head)
    own_rate = tl.load(rate + head)
    passed = tl.load(skip + head) if SKIP else 0.0
    weight = tl.load(norm + columns, in_value, other=0.0) if GATE != "" else 0.0
    shared = head % (HEADS // SHARED) if TILED else head // SHARED
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    for token in range(first, last):
        query = tl.load(q + token * stride + shared * KEY + keys, in_key, other=0.0)
        key = tl.load(k + token * stride + shared * KEY + keys, in_key, other=0.0)
        value = tl.load(v + token * stride + head * VALUE + columns, in_value, other=0.0)
        if CHANNELS:
            step = tl.load(a + token * a_stride + head * KEY + keys, in_key, other=0.0).to(tl.float32)
        else:
            step = tl.load(a + token * a_stride + head).to(tl.float32)
        step = tl.minimum(tl.maximum(softplus(step + own_bias), least), most)
        decay = tl.exp(step * own_rate)
        if UNIT:
            query, key = _unit(query, unit), _unit(key, unit)
        query *= scale
        u = value * step if TIMES else value
        y = tl.sum(state * (query * decay)[:, None], 0)
        if DELTA:
            beta = reach / (1.0 + tl.exp(-tl.load(b + token * b_stride + head).to(tl.float32)))
            u = (u - tl.sum(state * (key * decay)[:, None], 0)) * beta
        y += u * tl.sum(query * key, 0)
        state = state * (decay[:, None] if CHANNELS else decay) + key[:, None] * u[None, :]
        if SKIP:
            y += value * passed
        if GATE != "":
            y = y * tl.rsqrt(tl.sum(y * y, 0) / VALUE + eps) * weight
            gate = tl.load(z + token * z_stride + head * VALUE + columns, in_value, other=0.0).to(tl.float32)
            y = by_gate(y, gate, GATE)
        tl.store(out + (token * HEADS + head) * VALUE + columns, y, in_value)
    tl.store(states + (target * HEADS + head) * KEY * VALUE + place, state, inside)


class LinearAttentionInputs(NamedTuple):
    """A batch's inputs of linear attention. See `layers.recurrent.LinearAttention`.

    q, k: float32 [T, key heads, key].  v: float32 [T, heads, value].  Views of one tensor: their rows have equal
        strides.
    a: [T, heads], the inputs of decays, or of each channel [T, heads * key].  b: [T, heads], the inputs of beta, up to
        `reach`; None: without the delta rule.
    bias: float32, of `a`.  rate: float32 [heads].  least, most: of softplus(a + bias).  times: values are multiplied
        with that.
    tiled: see `DeltaNetSpec`.  skip: float32 [heads].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    b: Tensor | None
    bias: Tensor
    rate: Tensor
    unit: float | None = None
    scale: float = 1.0
    reach: float = 1.0
    least: float = 0.0
    most: float = float("inf")
    times: bool = False
    tiled: bool = False
    skip: Tensor | None = None


class HeadNormGate(NamedTuple):
    """The operations after each head: an RMS norm, weight float32 [value], times the activation `name` of z.

    z: [T, heads * value], rows contiguous.
    """

    z: Tensor
    weight: Tensor
    eps: float
    name: str


def advance(
    inputs: LinearAttentionInputs,
    gate: HeadNormGate | None,
    memory: Tensor,
    read: Tensor,
    write: Tensor,
    starts: Tensor,
    part: int | None = None,
    overlap: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """The outputs of the tokens of sequences that begin at starts int [S + 1]: [T, heads, value] float32.

    If gated, of z's type.
    memory: float32 [slots, heads, key, value], contiguous; slots: see `convolve`.  gate: without `part` only.  out: the
        destination.
    part: numbers of a head's state for one program, PART with many sequences, NARROW if these have many tokens; None:
        all.
    """
    (rows, heads, value), (key_heads, key) = inputs.v.shape, inputs.k.shape[1:]
    if out is None:
        out = torch.empty(
            rows, heads, value, dtype=torch.float32 if gate is None else gate.z.dtype, device=inputs.v.device
        )
    if not rows or not len(read):
        return out
    assert part is None or gate is None
    key_block = triton.next_power_of_2(key)
    columns = (
        triton.next_power_of_2(value) if part is None else min(max(part // key_block, 4), triton.next_power_of_2(value))
    )
    unused, channels = inputs.rate, inputs.a.shape[1] > heads
    registers = {"maxnreg": REGISTERS} if part is None else {}
    _advance[(len(read), heads, triton.cdiv(value, columns))](
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.a,
        unused if inputs.b is None else inputs.b,
        inputs.bias,
        inputs.rate,
        unused if inputs.skip is None else inputs.skip,
        *((unused, unused) if gate is None else (gate.z, gate.weight)),
        memory,
        read,
        write,
        starts,
        out,
        inputs.v.stride(0),
        inputs.a.stride(0),
        0 if inputs.b is None else inputs.b.stride(0),
        0 if gate is None else gate.z.stride(0),
        inputs.scale,
        inputs.unit or 0.0,
        inputs.reach,
        inputs.least,
        inputs.most,
        0.0 if gate is None else gate.eps,
        HEADS=heads,
        SHARED=heads // key_heads,
        TILED=inputs.tiled,
        KEY=key,
        VALUE=value,
        KEY_BLOCK=key_block,
        COLUMNS=columns,
        CHANNELS=channels,
        UNIT=inputs.unit is not None,
        DELTA=inputs.b is not None,
        TIMES=inputs.times,
        SKIP=inputs.skip is not None,
        GATE="" if gate is None else gate.name,
        num_warps=min(max(key_block * columns // (2048 if part is None else 1024), 1), 8),
        **registers,
        **launched(overlap),
    )
    return out
