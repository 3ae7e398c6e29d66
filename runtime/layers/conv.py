"""Causal convolutions over the tokens of several sequences laid end to end, each channel by itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RaggedRows(NamedTuple):
    """Sequences laid end to end. owners: int64 [T], the sequence of each token.  places: int64 [T], which of its tokens it is.

    starts, counts: int64 [S], the first token of each sequence, and how many it has, one or more.
    """

    owners: Tensor
    places: Tensor
    starts: Tensor
    counts: Tensor


def causal_conv(x: Tensor, kernel: Tensor, bias: Tensor | None, before: Tensor, rows: RaggedRows) -> tuple[Tensor, Tensor]:
    """What each token's channel makes of its last inputs, [T, channels], and the inputs that the next tokens need.

    x: [T, channels].  kernel: [channels, width], the newest input's weight last.
    before: [S, width - 1, channels], the inputs before each sequence's first token here, oldest first; the same comes back
    for those before its next one. Products and sums are float32.
    """
    width = kernel.shape[1]
    weights = kernel.float()
    y = x.float() * weights[:, -1]
    for back in range(1, width):
        y.addcmul_(_inputs(x, before, rows.owners, rows.places, rows.starts[rows.owners], back), weights[:, width - 1 - back])
    if bias is not None:
        y += bias.float()
    ends, every = rows.counts, torch.arange(len(before), device=x.device)
    left = [_inputs(x, before, every, ends, rows.starts, back) for back in range(width - 1, 0, -1)]
    return y.to(x.dtype), torch.stack(left, 1).to(before.dtype) if left else before


def _inputs(x: Tensor, before: Tensor, owners: Tensor, places: Tensor, starts: Tensor, back: int) -> Tensor:
    """The input `back` tokens before each place, float32 [places, channels]; owners, starts: of each place its sequence, and where that begins."""
    at, kept = places - back, before.shape[1]
    here = x[(starts + at).clamp_(min=0)]
    return torch.where((at >= 0)[:, None], here, before[owners, (kept + at).clamp_(max=kept - 1)].to(x.dtype)).float()
