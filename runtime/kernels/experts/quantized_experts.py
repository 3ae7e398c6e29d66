"""Products of quantized experts, of pairs in blocks; in small batches each pair is a separate block, without
sorting.
"""

from __future__ import annotations

import triton
from torch import Tensor

from ..launch.programmatic_launch import launched
from ..quantized.quantized_gemm import QuantizedGemmTile
from . import quantized_experts_kernels as kernels
from .expert_align_blocks import ExpertBlocks
from .expert_inputs import ExpertSelection, PackedExpertWeights

TURN = 8  # blocks that go through an expert's outputs together
SINGLE = QuantizedGemmTile(16, 64, 1, 4, 4, apart=True)
FIXED = QuantizedGemmTile(64, 64, 1, 3, 4)
TILES = {
    10: QuantizedGemmTile(16, 128, 1, 3, 4),
    24: QuantizedGemmTile(32, 128, 1, 3, 4),
    48: QuantizedGemmTile(64, 128, 1, 3, 4),
}  # by the rows that an expert has, measured on an H200
MANY = QuantizedGemmTile(128, 128, 1, 3, 8)


def tile_for(pairs: int, experts: int, single: bool, fixed: bool) -> QuantizedGemmTile:
    """single: each pair is a block.  fixed: the bits of a row do not depend on the number of pairs."""
    if fixed:
        return FIXED
    return SINGLE if single else next((tile for most, tile in TILES.items() if pairs <= most * experts), MANY)


def product(
    x: Tensor,
    weights: PackedExpertWeights,
    choice: ExpertSelection,
    blocks: ExpertBlocks | None,
    tile: QuantizedGemmTile,
    top: int = 1,
    name: str = "",
    limit: float | None = None,
    overlap: bool = False,
) -> Tensor:
    """As `experts.grouped`, for packed weights. blocks: None: each pair is one.  overlap: see `overlap`."""
    (weight, bias), count = weights, choice.experts.numel()
    wide, share = (weight.outputs // 2, tile.outputs // 2) if name else (weight.outputs, tile.outputs)
    x = x if x.stride(1) == 1 else x.contiguous()
    out = x.new_empty(count, wide)
    none = choice.experts
    pairs, owners, total = (none, none, none) if blocks is None else blocks[:3]
    most = count if blocks is None else blocks.most
    kernels.grouped[(most * triton.cdiv(wide, share),)](
        x,
        *weight.kernel_tensors(),
        x if bias is None else bias,
        out,
        pairs,
        owners,
        total,
        count,
        weight.outputs,
        weight.inputs,
        x.stride(0),
        weight.words.stride(0),
        0 if weight.meta is None else weight.meta.stride(0),
        limit or 0.0,
        FORMAT=weight.format(sized=False),
        TOP=top,
        NAME=name,
        LIMITED=limit is not None,
        BIASED=bias is not None,
        SINGLE=blocks is None,
        TILE=tile,
        TURN=TURN,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launched(overlap),
    )
    return out
