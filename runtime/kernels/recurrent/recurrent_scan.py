"""Mixers with states, read and written once a step: one token of linear attention, any tokens of a selective scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch.compile_ahead import entry

if TYPE_CHECKING:
    from ...layers.recurrent import LinearAttention, RaggedSequences, SelectiveScan

COLUMNS = 32  # of a state for one program
NUMBERS = 512  # of the states of channels for one program


@entry
@triton.jit
def _advance(
    q,
    k,
    v,
    decay,
    beta,
    states,
    read,
    write,
    out,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DELTA: tl.constexpr,
):
    """One program for some columns of a head of a sequence. CHANNELS: each channel of keys decays at its own rate."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    keys, columns = tl.arange(0, KEY_BLOCK), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    in_key, in_value = keys < KEY, columns < VALUE
    place, inside = keys[:, None] * VALUE + columns, in_key[:, None] & in_value
    own = row * HEADS + head
    shared = row * (HEADS // SHARED) + head // SHARED
    source, target = tl.load(read + row).to(tl.int64), tl.load(write + row).to(tl.int64)
    state = tl.load(states + (source * HEADS + head) * KEY * VALUE + place, inside, other=0.0)
    if CHANNELS:
        state *= tl.exp(tl.load(decay + own * KEY + keys, in_key, other=0.0))[:, None]
    else:
        state *= tl.exp(tl.load(decay + own))
    key = tl.load(k + shared * KEY + keys, in_key, other=0.0)[:, None]
    u = tl.load(v + own * VALUE + columns, in_value, other=0.0)
    if DELTA:
        u = (u - tl.sum(state * key, 0)) * tl.load(beta + own)
    state += key * u
    tl.store(states + (target * HEADS + head) * KEY * VALUE + place, state, inside)
    query = tl.load(q + shared * KEY + keys, in_key, other=0.0)[:, None]
    tl.store(out + own * VALUE + columns, tl.sum(state * query, 0), in_value)


def advance(inputs: LinearAttention, memory: Tensor, read: Tensor, write: Tensor) -> Tensor:
    """`LinearAttention.advanced` of the simple case, from the slots `read` into the slots `write`, int [S].

    Returns [S, heads, value] float32.
    memory: [slots, heads, key, value] float32, contiguous. A slot may be read and written by the same sequence; a slot
        that one writes no other may read in the same step. Slots written by several hold anything.
    """
    parts = [None if part is None else part.contiguous() for part in inputs[:5]]
    out = torch.empty_like(parts[2])  # type: ignore[arg-type]
    rows, heads, value = out.shape
    key, key_heads = inputs.k.shape[2], inputs.k.shape[1]
    if rows:
        _advance[(rows, heads, triton.cdiv(value, COLUMNS))](
            *parts,
            memory,
            read,
            write,
            out,
            HEADS=heads,
            SHARED=heads // key_heads,
            KEY=key,
            VALUE=value,
            KEY_BLOCK=triton.next_power_of_2(key),
            COLUMNS=COLUMNS,
            CHANNELS=inputs.decay.shape[2] > 1,
            DELTA=inputs.beta is not None,
            num_warps=4,
        )
    return out


@entry
@triton.jit
def _select(
    x,
    dt,
    a,
    b,
    c,
    states,
    read,
    write,
    starts,
    out,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    SINGLE: tl.constexpr,
):
    """One program for some channels of a sequence, token after token. SINGLE: each sequence has one."""
    row = tl.program_id(0).to(tl.int64)
    channels, sizes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, SIZE_BLOCK)
    in_channels, in_size = channels < CHANNELS, sizes < SIZE
    place, inside = channels[:, None] * SIZE + sizes, in_channels[:, None] & in_size
    rate = tl.load(a + place, inside, other=0.0)
    source, target = tl.load(read + row).to(tl.int64), tl.load(write + row).to(tl.int64)
    state = tl.load(states + source * CHANNELS * SIZE + place, inside, other=0.0)
    first = row if SINGLE else tl.load(starts + row)
    last = row + 1 if SINGLE else tl.load(starts + row + 1)
    for token in range(first, last):
        step = tl.load(dt + token * CHANNELS + channels, in_channels, other=0.0)
        given = step * tl.load(x + token * CHANNELS + channels, in_channels, other=0.0)
        state = state * tl.exp(step[:, None] * rate) + given[:, None] * tl.load(
            b + token * SIZE + sizes, in_size, other=0.0
        )
        seen = tl.sum(state * tl.load(c + token * SIZE + sizes, in_size, other=0.0), 1)
        tl.store(out + token * CHANNELS + channels, seen, in_channels)
    tl.store(states + target * CHANNELS * SIZE + place, state, inside)


def select(inputs: SelectiveScan, memory: Tensor, read: Tensor, write: Tensor, ragged: RaggedSequences) -> Tensor:
    """`SelectiveScan.scan` from the slots `read` into the slots `write`, see `advance`; returns [T, channels] float32.

    memory: [slots, channels, state] float32, contiguous.
    """
    *parts, skip = (part.contiguous() for part in inputs)
    out, size = torch.empty_like(parts[0]), inputs.a.shape[1]
    sizes = triton.next_power_of_2(size)
    block = max(NUMBERS // sizes, 1)
    starts = read if ragged.single else ragged.starts
    if len(read):
        _select[(len(read), triton.cdiv(out.shape[1], block))](
            *parts,
            memory,
            read,
            write,
            starts,
            out,
            CHANNELS=out.shape[1],
            SIZE=size,
            SIZE_BLOCK=sizes,
            BLOCK=block,
            SINGLE=ragged.single,
            num_warps=4,
        )
    return out.addcmul_(parts[0], skip)
