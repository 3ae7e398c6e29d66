"""A family's operations on its logits: a factor, and a soft cap."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch.compile_ahead import entry

BLOCK, WARPS = 2048, 4


@entry
@triton.jit
def _adjust(logits, size, scale, cap, CAPPED: tl.constexpr, BLOCK: tl.constexpr):
    """cap * tanh(x / cap) is written with a sigmoid: tanh(u) = 2 sigmoid(2 u) - 1."""
    columns = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    x = tl.load(logits + columns, inside, other=0.0).to(tl.float32) * scale
    if CAPPED:
        x = cap * (2.0 / (1.0 + tl.exp(-2.0 * x / cap)) - 1.0)
    tl.store(logits + columns, x, inside)


def adjust(logits: Tensor, scale: float, cap: float | None) -> Tensor:
    """logits, contiguous, times `scale`, then cap * tanh(logits / cap), in place: rounded once. Returns them."""
    size = logits.numel()
    if size:
        _adjust[(triton.cdiv(size, BLOCK),)](
            logits, size, scale, 1.0 if cap is None else cap, CAPPED=cap is not None, BLOCK=BLOCK, num_warps=WARPS
        )
    return logits
