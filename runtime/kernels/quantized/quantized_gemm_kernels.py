"""Triton kernels that multiply with a 4-bit or 8-bit weight: read as stored, dequantized in registers.

The tensor cores multiply it (Frantar et al. 2024, arXiv:2408.11743, is the idea; the layout is ours).

A group's scale is multiplied in there, in the type of the products: the weight is what it would be in that type, and
its sums stay in the tensor cores until the end. The weight is the left operand, which tensor cores take from registers:
no dequantized number goes back through memory. Inputs may be split over programs; the last one of a tile adds what all
of them left, in their order, so that the bits of a product do not depend on which one that is.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..activation_kernels import activated
from ..launch.compile_ahead import entry
from .quantized_weight_kernels import BYTES, byte_sums, nibble_sums

AHEAD = tl.constexpr(32)  # blocks


@triton.jit
def _ahead(places):
    """Begins to prefetch what is stored there into the L2 cache: weights do not wait for the preceding kernel."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [places.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _left(partial, tile, lane, r, rows, SPLIT: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr):
    """What all programs of a tile left of these lanes [L], [L, ROWS]."""
    start = partial + tile.to(tl.int64) * (SPLIT * OUTPUTS * ROWS) + lane[:, None] * ROWS + r[None, :]
    inside = (r < rows)[None, :]
    total = tl.load(start, inside, other=0.0, cache_modifier=".cg")
    for split in tl.static_range(1, SPLIT):
        total += tl.load(start + split * (OUTPUTS * ROWS), inside, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def _finished(total, outer, bias, factor, output, OUTER: tl.constexpr, BIASED: tl.constexpr):
    """total [L, ROWS] times what belongs to each output, and to each row (factor [ROWS]), and the bias."""
    if OUTER:
        total *= tl.load(outer + output)[:, None]
    total *= factor[None, :]
    if BIASED:
        total += tl.load(bias + output).to(tl.float32)[:, None]
    return total


@triton.jit
def _factor(squares, r, rows, inputs, eps, TILES: tl.constexpr, NORMED: tl.constexpr):
    """1 / the root of the mean square of each row, from sums [TILES, rows] of its squares; or 1."""
    if not NORMED:
        return tl.full([r.shape[0]], 1.0, tl.float32)
    tile = tl.arange(0, triton.next_power_of_2(TILES))
    found = tl.load(
        squares + tile[:, None] * rows + r[None, :], (tile < TILES)[:, None] & (r < rows)[None, :], other=0.0
    )
    return tl.rsqrt(tl.sum(found, 0) / inputs + eps)


@entry
@triton.jit(do_not_specialize=["rows"])
def multiply(
    x,
    words,
    meta,
    outer,
    bias,
    squares,
    y,
    norm,
    ready,
    left_squares,
    partial,
    counters,
    rows,
    outputs,
    inputs,
    stride,
    y_stride,
    eps,
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
    BIASED: tl.constexpr,
    NORMED: tl.constexpr,
    TILES: tl.constexpr,
    ADDED: tl.constexpr,
    READY: tl.constexpr,
    NAME: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    APART: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """y [rows, outputs] = x [rows, inputs] W^T + bias. Grid (row tiles * output tiles, SPLIT).

    NORMED: x was not divided by its root mean square yet, TILES `squares` a row say it.  ADDED: y += it.
    READY: y * norm goes to `ready` too, and each tile's sums of y's squares to left_squares [output tiles, rows].
    NAME: of an activation: W holds gate above up, y [rows, outputs / 2] = activation(gate) * up.
    """
    row_tiles = tl.cdiv(rows, ROWS)
    tile, split = tl.program_id(0), tl.program_id(1)
    row_tile, output_tile = tile % row_tiles, tile // row_tiles
    lane, r = tl.arange(0, OUTPUTS), row_tile * ROWS + tl.arange(0, ROWS)
    HALF: tl.constexpr = OUTPUTS // 2
    if NAME != "":
        output = output_tile * HALF + lane % HALF
        output = tl.minimum(output, outputs // 2 - 1) + lane // HALF * (outputs // 2)
    else:
        output = tl.minimum(output_tile * OUTPUTS + lane, outputs - 1)
    blocks = tl.cdiv(inputs, 4 * WORDS)
    first, last = blocks * split // SPLIT, blocks * (split + 1) // SPLIT
    if DEPENDENT:
        gdc_launch_dependents()
        for block in range(first, tl.minimum(last, first + (AHEAD // 2 if FORM == BYTES else AHEAD))):
            if FORM == BYTES:
                _ahead(words + output.to(tl.int64) * inputs + block * 4 * WORDS)
            else:
                _ahead(words + (block * outputs + output).to(tl.int64) * WORDS)
        gdc_wait()
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    if FORM == BYTES:
        sums = byte_sums(
            sums, x, words, meta, output, r, first, last, rows, outputs, inputs, stride, WORDS, GROUP, KIND, TEXT0
        )
    else:
        sums = nibble_sums(
            sums,
            x,
            words,
            meta,
            output,
            r,
            first,
            last,
            rows,
            outputs,
            inputs,
            stride,
            WORDS,
            GROUP,
            ZERO,
            KIND,
            TEXT0,
            TEXT1,
            TEXT2,
            TEXT3,
            APART,
        )
    if SPLIT == 1 and NAME == "":
        factor = _factor(squares, r, rows, inputs, eps, TILES, NORMED)
        _write(
            sums,
            outer,
            bias,
            factor,
            output_tile * OUTPUTS + lane,
            output,
            r,
            y,
            norm,
            ready,
            left_squares,
            output_tile,
            rows,
            outputs,
            y_stride,
            OUTER,
            BIASED,
            ADDED,
            READY,
        )
    else:
        tl.store(
            partial
            + (tile.to(tl.int64) * SPLIT + split) * (OUTPUTS * ROWS)
            + lane[:, None] * ROWS
            + tl.arange(0, ROWS)[None, :],
            sums,
            (r < rows)[None, :],
        )
        tl.debug_barrier()
        if tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLIT - 1:
            tl.store(counters + tile, 0)
            factor = _factor(squares, r, rows, inputs, eps, TILES, NORMED)
            here, left = tl.arange(0, ROWS), rows - row_tile * ROWS
            if NAME != "":
                half = tl.arange(0, HALF)
                place = output_tile * HALF + half
                pair = tl.minimum(place, outputs // 2 - 1)
                gate = _finished(
                    _left(partial, tile, half, here, left, SPLIT, OUTPUTS, ROWS),
                    outer,
                    bias,
                    factor,
                    pair,
                    OUTER,
                    BIASED,
                )
                up = _finished(
                    _left(partial, tile, HALF + half, here, left, SPLIT, OUTPUTS, ROWS),
                    outer,
                    bias,
                    factor,
                    pair + outputs // 2,
                    OUTER,
                    BIASED,
                )
                inside = (place < outputs // 2)[:, None] & (r < rows)[None, :]
                tl.store(y + r.to(tl.int64)[None, :] * y_stride + place[:, None], activated(gate, NAME) * up, inside)
            else:
                total = _left(partial, tile, lane, here, left, SPLIT, OUTPUTS, ROWS)
                _write(
                    total,
                    outer,
                    bias,
                    factor,
                    output_tile * OUTPUTS + lane,
                    output,
                    r,
                    y,
                    norm,
                    ready,
                    left_squares,
                    output_tile,
                    rows,
                    outputs,
                    y_stride,
                    OUTER,
                    BIASED,
                    ADDED,
                    READY,
                )


@triton.jit
def _write(
    total,
    outer,
    bias,
    factor,
    place,
    output,
    r,
    y,
    norm,
    ready,
    left_squares,
    output_tile,
    rows,
    outputs,
    y_stride,
    OUTER: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    READY: tl.constexpr,
):
    total = _finished(total, outer, bias, factor, output, OUTER, BIASED)
    inside = (place < outputs)[:, None] & (r < rows)[None, :]
    at = r.to(tl.int64)[None, :] * y_stride + place[:, None]
    if ADDED:
        total += tl.load(y + at, inside, other=0.0).to(tl.float32)
    stored = total.to(y.dtype.element_ty)
    tl.store(y + at, stored, inside)
    if READY:
        total = tl.where(inside, stored.to(tl.float32), 0.0)
        weight = tl.load(norm + output).to(tl.float32)[:, None]
        tl.store(ready + r.to(tl.int64)[None, :] * outputs + place[:, None], total * weight, inside)
        tl.store(left_squares + output_tile * rows + r, tl.sum(total * total, 0), r < rows)
