"""A causal convolution of each channel by itself, that goes on where a sequence stopped."""

from __future__ import annotations

import torch
from torch import Tensor

from .ragged import Ragged


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, ragged: Ragged) -> tuple[Tensor, Tensor]:
    """x [T, channels] -> what each row gives, float32, and the state behind each sequence, of x's type.

    weight: float32 [width, channels], the latest row last.  bias: float32 [channels].  state: [S, width - 1, channels], the rows before.
    """
    if ragged.single:
        seen = torch.cat([state, x[:, None]], 1)
        left = seen[:, 1:]
    else:
        rows, windows = torch.cat([state.flatten(0, 1), x]), ragged.windows(len(weight))
        seen, left = rows[windows.seen], rows[windows.left]
    y = (seen.float() * weight).sum(1)
    return y if bias is None else y + bias, left
