"""A causal depthwise convolution that continues where a sequence stopped."""

from __future__ import annotations

import torch
from torch import Tensor

from .ragged_sequences import RaggedSequences


def causal_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, ragged: RaggedSequences
) -> tuple[Tensor, Tensor]:
    """x [T, channels] -> the output of each row, float32, and the state after each sequence, of x's type.

    weight: float32 [width, channels], the latest row last.  bias: float32 [channels].  state: [S, width - 1, channels],
        the rows before.
    """
    if ragged.single:
        seen = torch.cat([state, x[:, None]], 1)
        return _summed(list(seen.unbind(1)), weight, bias), seen[:, 1:]
    rows, windows = torch.cat([state.flatten(0, 1), x]), ragged.windows(len(weight))
    return _summed([rows[each] for each in windows.seen.unbind(1)], weight, bias), rows[windows.left]


def _summed(seen: list[Tensor], weight: Tensor, bias: Tensor | None) -> Tensor:
    """Always from the earliest row to the latest, one after the other: its bits do not depend on the batch."""
    y = seen[0].float() * weight[0]
    for each, own in zip(seen[1:], weight[1:], strict=True):
        y += each.float() * own
    return y if bias is None else y.add_(bias)
