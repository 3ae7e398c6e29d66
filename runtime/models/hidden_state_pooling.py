"""Sums of hidden states over spans of tokens, with the same bits however the tokens are divided into steps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

STEPS = 2.0**30  # in 1: states are rounded to whole steps, whose sums are exact in float64, in any order, up to 2**23
ROWS = 1024  # that are held in float64 at a time


def pooled_sums(hidden: Tensor, spans: Iterable[tuple[int, int]]) -> Tensor:
    """hidden: [T, n].  spans: first token and the end (exclusive). Returns float64 [spans, n]."""
    return torch.stack([_sum(hidden[start:stop]) for start, stop in spans])


def _sum(rows: Tensor) -> Tensor:
    total = rows.new_zeros(rows.shape[1], dtype=torch.float64)
    for part in rows.split(ROWS):
        total += part.double().mul_(STEPS).round_().sum(0)
    return total / STEPS
