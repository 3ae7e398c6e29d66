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
from .quantized_weight_kernels import BYTES, block_sums

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
    """`gemm_epilogue.finished` for outputs [L], which are loaded once before they are spread over threads."""
    if OUTER:
        total *= tl.load(outer + output)[:, None]
    total *= factor
    if BIASED:
        total += tl.load(bias + output).to(tl.float32)[:, None]
    return total


@triton.jit
def _factor(squares, r, rows, inputs, eps, PARTS: tl.constexpr):
    """1 / the root of the mean square of each row [1, ROWS], from sums [PARTS, rows] of its squares; 1 if none."""
    if PARTS == 0:
        return tl.full([1, r.shape[0]], 1.0, tl.float32)
    else:
        part = tl.arange(0, triton.next_power_of_2(PARTS))[:, None]
        found = tl.load(squares + part * rows + r[None, :], (part < PARTS) & (r < rows)[None, :], other=0.0)
        return tl.rsqrt(tl.sum(found, 0) / inputs + eps)[None, :]


@triton.jit
def output_rows(output_tile, outputs, OUTPUTS: tl.constexpr, NAME: tl.constexpr):
    """Rows of the weight [OUTPUTS] of a tile; for a gated one the first half are gates, the others the ups of these."""
    lane = tl.arange(0, OUTPUTS)
    if NAME != "":
        HALF: tl.constexpr = OUTPUTS // 2
        found = output_tile * HALF + lane % HALF
        found = tl.minimum(found, outputs // 2 - 1) + lane // HALF * (outputs // 2)
    else:
        found = tl.minimum(output_tile * OUTPUTS + lane, outputs - 1)
    return found


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
    after,
    left_squares,
    partial,
    counters,
    rows,
    outputs,
    inputs,
    stride,
    y_stride,
    eps,
    FORMAT: tl.constexpr,
    EPILOGUE: tl.constexpr,
    TILE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """y [rows, outputs] = x [rows, inputs] W^T + bias. Grid (row tiles * output tiles, split).

    See `Epilogue` for the fused parts.  TILE: a `QuantizedGemmTile`.
    """
    OUTPUTS: tl.constexpr = TILE.outputs
    ROWS: tl.constexpr = TILE.rows
    SPLIT: tl.constexpr = TILE.split
    HALF: tl.constexpr = OUTPUTS // 2
    WORDS: tl.constexpr = FORMAT.words
    NAME: tl.constexpr = EPILOGUE.name
    BIASED: tl.constexpr = EPILOGUE.biased
    row_tiles = tl.cdiv(rows, ROWS)
    tile, split = tl.program_id(0), tl.program_id(1)
    row_tile, output_tile = tile % row_tiles, tile // row_tiles
    lane, r = tl.arange(0, OUTPUTS), row_tile * ROWS + tl.arange(0, ROWS)
    output = output_rows(output_tile, outputs, OUTPUTS, NAME)
    blocks = tl.cdiv(inputs, 4 * WORDS)
    first, last = blocks * split // SPLIT, blocks * (split + 1) // SPLIT
    if DEPENDENT:
        gdc_launch_dependents()
        for block in range(first, tl.minimum(last, first + (AHEAD // 2 if FORMAT.form == BYTES else AHEAD))):
            if FORMAT.form == BYTES:
                _ahead(words + output.to(tl.int64) * inputs + block * 4 * WORDS)
            else:
                _ahead(words + (block * outputs + output).to(tl.int64) * WORDS)
        gdc_wait()
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    sums = block_sums(sums, x, words, meta, output, r, first, last, rows, outputs, inputs, stride, FORMAT, TILE.apart)
    ends = (y, norm, after, left_squares)
    place = output_tile * OUTPUTS + lane
    if SPLIT == 1 and NAME == "":
        factor = _factor(squares, r, rows, inputs, eps, EPILOGUE.parts)
        total = _finished(sums, outer, bias, factor, output, FORMAT.outer, BIASED)
        _write(total, place, output, r, ends, output_tile, rows, outputs, y_stride, EPILOGUE)
    else:
        own = partial + (tile.to(tl.int64) * SPLIT + split) * (OUTPUTS * ROWS)
        tl.store(own + lane[:, None] * ROWS + tl.arange(0, ROWS)[None, :], sums, (r < rows)[None, :])
        tl.debug_barrier()
        if tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLIT - 1:
            tl.store(counters + tile, 0)
            factor = _factor(squares, r, rows, inputs, eps, EPILOGUE.parts)
            here, left = tl.arange(0, ROWS), rows - row_tile * ROWS
            if NAME != "":
                half = tl.arange(0, HALF)
                lower = output_tile * HALF + half
                pair = tl.minimum(lower, outputs // 2 - 1)
                gate = _left(partial, tile, half, here, left, SPLIT, OUTPUTS, ROWS)
                gate = _finished(gate, outer, bias, factor, pair, FORMAT.outer, BIASED)
                up = _left(partial, tile, HALF + half, here, left, SPLIT, OUTPUTS, ROWS)
                up = _finished(up, outer, bias, factor, pair + outputs // 2, FORMAT.outer, BIASED)
                inside = (lower < outputs // 2)[:, None] & (r < rows)[None, :]
                to = y + r.to(tl.int64)[None, :] * y_stride + lower[:, None]
                tl.store(to, activated(gate, NAME) * up, inside)
            else:
                total = _left(partial, tile, lane, here, left, SPLIT, OUTPUTS, ROWS)
                total = _finished(total, outer, bias, factor, output, FORMAT.outer, BIASED)
                _write(total, place, output, r, ends, output_tile, rows, outputs, y_stride, EPILOGUE)


@triton.jit
def _write(total, place, output, r, ends, output_tile, rows, outputs, y_stride, EPILOGUE: tl.constexpr):
    y, norm, after, left_squares = ends
    inside = (place < outputs)[:, None] & (r < rows)[None, :]
    at = r.to(tl.int64)[None, :] * y_stride + place[:, None]
    if EPILOGUE.added:
        total += tl.load(y + at, inside, other=0.0).to(tl.float32)
    stored = total.to(y.dtype.element_ty)
    tl.store(y + at, stored, inside)
    if EPILOGUE.ready:
        total = tl.where(inside, stored.to(tl.float32), 0.0)
        weight = tl.load(norm + output).to(tl.float32)[:, None]
        tl.store(after + r.to(tl.int64)[None, :] * outputs + place[:, None], total * weight, inside)
        tl.store(left_squares + output_tile * rows + r, tl.sum(total * total, 0), r < rows)
