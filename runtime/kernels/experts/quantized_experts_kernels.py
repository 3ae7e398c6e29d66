"""Products of experts whose weights have 4 or 8 bits a number: the blocks of `expert_gemm_kernels`, the numbers of
`quantized_weight_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..batch_invariant_matmul import tile_at
from ..launch.compile_ahead import entry
from ..quantized.quantized_gemm_kernels import output_rows
from ..quantized.quantized_weight_kernels import block_sums
from .expert_gemm_kernels import gated


@entry
@triton.jit(do_not_specialize=["count"])
def grouped(
    x,
    words,
    meta,
    outer,
    bias,
    out,
    pairs,
    experts,
    total,
    count,
    outputs,
    inputs,
    stride,
    words_stride,
    meta_stride,
    limit,
    FORMAT: tl.constexpr,
    TOP: tl.constexpr,
    NAME: tl.constexpr,
    LIMITED: tl.constexpr,
    BIASED: tl.constexpr,
    SINGLE: tl.constexpr,
    TILE: tl.constexpr,
    TURN: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out [count, outputs, or of a gated product half of them]: of each pair, row pair / TOP of x times its expert's
    weight.

    words_stride, meta_stride: from one expert to the next.  SINGLE: a block is one pair, whose expert is in `experts`
        [count].  TILE: a `QuantizedGemmTile`.
    Grid (most blocks * tiles of outputs,); see `expert_gemm_kernels.grouped` and `quantized_gemm_kernels.multiply`.
    """
    ROWS: tl.constexpr = TILE.rows
    OUTPUTS: tl.constexpr = TILE.outputs
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    wide = outputs // 2 if NAME != "" else outputs
    HALF: tl.constexpr = OUTPUTS // 2 if NAME != "" else OUTPUTS
    output_tiles = tl.cdiv(wide, HALF)
    tile = tl.program_id(0)
    blocks = count if SINGLE else tl.load(total)
    if tile < blocks * output_tiles:
        block, output_tile = tile_at(tile, blocks, output_tiles, TURN)
        expert = tl.load(experts + block).to(tl.int64)
        r = tl.arange(0, ROWS)
        if SINGLE:
            pair = tl.where(r == 0, block, count)
        else:
            pair = tl.load(pairs + block * ROWS + r)
        output = output_rows(output_tile, outputs, OUTPUTS, NAME)
        rows, last = count // TOP, tl.cdiv(inputs, 4 * FORMAT.words)
        own_words, own_meta = words + expert * words_stride, meta + expert * meta_stride
        sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
        row = pair // TOP
        sums = block_sums(
            sums, x, own_words, own_meta, output, row, 0, last, rows, outputs, inputs, stride, FORMAT, TILE.apart
        )
        if FORMAT.outer:
            sums *= tl.load(outer + expert * outputs + output)[:, None]
        if BIASED:
            sums += tl.load(bias + expert * outputs + output).to(tl.float32)[:, None]
        if NAME != "":
            gate, up = tl.split(tl.permute(tl.reshape(sums, (2, HALF, ROWS)), (1, 2, 0)))
            found = gated(gate, up, limit, LIMITED, NAME)
        else:
            found = sums
        place = output_tile * HALF + tl.arange(0, HALF)
        inside = (place < wide)[:, None] & (pair < count)[None, :]
        tl.store(out + pair.to(tl.int64)[None, :] * wide + place[:, None], found.to(out.dtype.element_ty), inside)
