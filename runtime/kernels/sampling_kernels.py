"""Two kernels that choose a token a row: chunks of the vocabulary in parallel, then a row's chunks together.

A row's noise is that of `sampling/noise.py`, recomputed where it is needed. A token's finish is its exponential
variate (below 0) over its weight exp(x - peak); the largest finish wins. A winner outside top-k, top-p or min-p
shuts out all that are no likelier, and the race is run again among the others: chunks without any are not read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch.compile_ahead import entry

TABLE_WORDS = 8  # int32 of a row's parameters: seed (2), 1 / temperature, top_p, min_p, top_k, flags, unused
STEP_WORDS = 4  # int32 of a row's step: position, row of its mask or -1, place in `last` or -1, unused
RANDOM, TRUNCATED = 1, 2  # flags

_RANDOM, _TRUNCATED = tl.constexpr(RANDOM), tl.constexpr(TRUNCATED)
_TABLE, _STEP, _PART = tl.constexpr(TABLE_WORDS), tl.constexpr(STEP_WORDS), tl.constexpr(4)
_NOBODY = tl.constexpr(2**31 - 1)
CHUNK, WARPS = 4096, 8


@triton.jit
def _splitmix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _row_key(table, position):
    """The two words of `noise.noise_row_keys` for one row."""
    low = tl.load(table).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(table + 1).to(tl.uint32, bitcast=True).to(tl.uint64)
    key = _splitmix((low | (high << 32)) + position.to(tl.uint64) * 0x9E3779B97F4A7C15)
    offset = (key & 0xFFFFFFFF).to(tl.uint32).to(tl.int32, bitcast=True)
    factor = (key >> 32).to(tl.uint32).to(tl.int32, bitcast=True) | 1
    return offset, factor


@triton.jit
def _variates(columns, offset, factor):
    """`noise.race`: log(1 - u), by its series where u is small, since log(1 - u) would lose its digits there."""
    word = (columns + 1).to(tl.uint32)
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    x = (word ^ (word >> 16)).to(tl.int32, bitcast=True) * factor + offset
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    u = (x.to(tl.float32) + 0.5) * 4.6566125955216364e-10
    series = 1.0 + u * (0.5 + u * (0.3333333333 + u * (0.25 + u * (0.2 + u * 0.1666666667))))
    return tl.where(u < 0.0625, -u * series, tl.log(1.0 - tl.where(u < 0.0625, 0.5, u)))


@triton.jit
def _load(logits, mask, bits, columns, width):
    """float32 logits, -inf where the mask has no bit; a NaN stays one."""
    inside = columns < width
    x = tl.load(logits + columns, inside, other=-float("inf")).to(tl.float32)
    word = tl.load(mask + columns // 32, columns < bits, other=-1)
    return x + tl.where((word >> (columns % 32)) & 1 == 1, 0.0, -float("inf"))


@triton.jit
def _mask_of(masks, step, words, width):
    """The address of a row's mask, and how many of its bits count: 0 if the row has none."""
    number = tl.load(step + 1)
    return masks + tl.maximum(number, 0).to(tl.int64) * words, tl.where(number >= 0, width, 0)


@triton.jit
def _first(values, best, columns):
    """The first of the columns whose value is the best one."""
    return tl.min(tl.where(values == best, columns, _NOBODY), 0)


@entry
@triton.jit
def race_chunks(logits, stride, table, steps, masks, words, parts, width, chunks, CHUNK: tl.constexpr):
    """Of every chunk of every row: peak, weights' sum, best finish (or the peak again), winner; grid (n, chunks)."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    table += row * _TABLE
    steps += row * _STEP
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    mask, bits = _mask_of(masks, steps, words, width)
    x = _load(logits + row.to(tl.int64) * stride, mask, bits, columns, width)
    broken = tl.max((x != x).to(tl.int32), 0) > 0
    peak = tl.max(x, 0)
    part = parts + (row.to(tl.int64) * chunks + chunk) * _PART
    tl.store(part, tl.where(broken, float("nan"), peak))
    if tl.load(table + 6) & _RANDOM != 0:
        inverse = tl.load(table + 2).to(tl.float32, bitcast=True)
        top = tl.where(peak == -float("inf"), 0.0, peak * inverse)
        weights = tl.exp(x * inverse - top)
        offset, factor = _row_key(table, tl.load(steps))
        finish = tl.where(weights > 0, _variates(columns, offset, factor) / weights, -float("inf"))
        best = tl.max(finish, 0)
        tl.store(part + 1, tl.sum(weights, 0))
        tl.store(part + 2, best)
        tl.store(part + 3, _first(finish, best, columns).to(tl.float32, bitcast=True))
    else:
        tl.store(part + 1, 0.0)
        tl.store(part + 2, peak)
        tl.store(part + 3, _first(x, peak, columns).to(tl.float32, bitcast=True))


@triton.jit
def _race_again(logits, mask, bits, parts, width, chunks, inverse, top, level, offset, factor, CHUNK: tl.constexpr):
    """Of the tokens likelier than `level`: how many, their weight, and the winner among them."""
    count = tl.zeros((CHUNK,), tl.int32)
    mass = tl.zeros((CHUNK,), tl.float32)
    best = tl.full((CHUNK,), -float("inf"), tl.float32)
    found = tl.full((CHUNK,), _NOBODY, tl.int32)
    for chunk in range(chunks):
        if tl.load(parts + chunk * _PART) * inverse > level:
            columns = chunk * CHUNK + tl.arange(0, CHUNK)
            x = _load(logits, mask, bits, columns, width) * inverse
            likelier = x > level
            weights = tl.where(likelier, tl.exp(x - top), 0.0)
            finish = tl.where(weights > 0, _variates(columns, offset, factor) / weights, -float("inf"))
            count += likelier.to(tl.int32)
            mass += weights
            found = tl.where(finish > best, columns, found)
            best = tl.maximum(best, finish)
    return tl.sum(count, 0), tl.sum(mass, 0), _first(best, tl.max(best, 0), found)


@triton.jit
def _accepted(
    winner, logits, mask, bits, table, parts, width, chunks, inverse, top, total, position, CHUNK: tl.constexpr
):
    """The winner inside top-k, top-p and min-p; at most one round a distinct logit, since the level only rises."""
    top_p = tl.load(table + 3).to(tl.float32, bitcast=True)
    min_p = tl.load(table + 4).to(tl.float32, bitcast=True)
    top_k = tl.load(table + 5)
    offset, factor = _row_key(table, position)
    going = True
    while going:
        level = tl.load(logits + winner).to(tl.float32) * inverse
        count, mass, following = _race_again(
            logits, mask, bits, parts, width, chunks, inverse, top, level, offset, factor, CHUNK
        )
        outside = (count >= top_k) | (mass >= top_p * total) | (tl.exp(level - top) < min_p)
        going = outside & (following < width)
        winner = tl.where(going, following, winner)
    return winner


@entry
@triton.jit
def choose(
    logits,
    stride,
    table,
    steps,
    masks,
    words,
    parts,
    width,
    chunks,
    chosen,
    last,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """A token and its row's peak in `chosen` int32 [n, 2], the token also in `last`; grid (n,)."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    parts += row.to(tl.int64) * chunks * _PART
    table += row * _TABLE
    steps += row * _STEP
    every = tl.arange(0, CHUNKS)
    inside = every < chunks
    peaks = tl.load(parts + every * _PART, inside, other=-float("inf"))
    finish = tl.load(parts + every * _PART + 2, inside, other=-float("inf"))
    winners = tl.load(parts + every * _PART + 3, inside, other=0.0).to(tl.int32, bitcast=True)
    broken = tl.max((peaks != peaks).to(tl.int32), 0) > 0
    peak = tl.max(tl.where(peaks != peaks, -float("inf"), peaks), 0)
    sound = (peak > -float("inf")) & (peak < float("inf")) & (broken == 0)
    flags = tl.load(table + 6)
    inverse = tl.load(table + 2).to(tl.float32, bitcast=True)
    top = peak * inverse
    shares = tl.where(inside & (peaks > -float("inf")), tl.exp(peaks * inverse - top), 0.0)
    if flags & _RANDOM != 0:
        finish = tl.where(shares > 0, finish / shares, -float("inf"))
    winner = _first(finish, tl.max(finish, 0), winners)
    if sound & (flags & _TRUNCATED != 0):
        sums = tl.load(parts + every * _PART + 1, inside, other=0.0)
        mask, bits = _mask_of(masks, steps, words, width)
        winner = _accepted(
            winner,
            logits,
            mask,
            bits,
            table,
            parts,
            width,
            chunks,
            inverse,
            top,
            tl.sum(sums * shares, 0),
            tl.load(steps),
            CHUNK,
        )
    tl.store(chosen + row * 2, tl.where(sound, winner, -1))
    tl.store(chosen + row * 2 + 1, tl.where(broken, float("nan"), peak).to(tl.int32, bitcast=True))
    place = tl.load(steps + 2)
    if place >= 0:
        tl.store(last + place, tl.where(sound, winner, 0))


def draw(
    logits: Tensor,
    width: int,
    table: Tensor,
    steps: Tensor,
    masks: Tensor,
    last: Tensor,
    chunk: int = CHUNK,
    warps: int = WARPS,
) -> Tensor:
    """Choose a token for every row; queues two kernels and waits for nothing.

    Args:
        logits: any float dtype [n, at least width], last dimension contiguous; columns from `width` on are not read.
        table: int32 [n, TABLE_WORDS]. Its layout is that of `SamplingRow.packed`.
        steps: int32 [n, STEP_WORDS]: position, row of `masks` or -1, place in `last` or -1.
        masks: int32 [rows, at least ceil(width / 32)], bit c % 32 of word c // 32 allows column c.
        last: int32; gets the token of each row with a place, 0 for a row in error.
        chunk: columns that one program takes; a power of two.

    Returns:
        int32 [n, 2]: the token, and as float32 bits the row's largest logit. It is not finite where the row is in
        error (NaN among the logits, or nothing allowed), and the token is -1 there.
    """
    n, chunks = len(logits), triton.cdiv(width, chunk)
    parts = torch.empty((n, chunks, _PART.value), dtype=torch.float32, device=logits.device)
    chosen = torch.empty((n, 2), dtype=torch.int32, device=logits.device)
    shared = (logits, logits.stride(0), table, steps, masks, masks.stride(0), parts, width, chunks)
    # a product and a sum fused would differ between the kernels, and ties with them
    options = {"num_warps": warps, "enable_fp_fusion": False}
    race_chunks[(n, chunks)](*shared, CHUNK=chunk, **options)
    choose[(n,)](*shared, chosen, last, CHUNK=chunk, CHUNKS=triton.next_power_of_2(chunks), **options)
    return chosen
