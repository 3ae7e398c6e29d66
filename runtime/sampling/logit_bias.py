"""Logit bias, and the ban of end tokens before min_tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sgl.runtime.sampling.sampling_row import SamplingRow
from sgl.runtime.sampling.token_masks import unpack
from sgl.runtime.step.device_upload import upload


class LogitBias:
    """One gather, sum and scatter for all biased tokens of a batch."""

    def __init__(self, rows: Sequence[SamplingRow], width: int, device: torch.device) -> None:
        entries = [
            (index, token, bias)
            for index, row in enumerate(rows)
            for token, bias in row.params.logit_bias.items()
            if token < width
        ]
        places = np.array([e[:2] for e in entries], np.int64).reshape(-1, 2)
        self._rows, self._tokens = upload(np.ascontiguousarray(places.T), device)
        self._values = upload(np.array([e[2] for e in entries], np.float32), device)

    def apply(self, logits: Tensor) -> None:
        """Add the biases to `logits` (float32 [n, width]) in place."""
        logits[self._rows, self._tokens] = logits[self._rows, self._tokens] + self._values


class MinTokens:
    """Bans the end tokens of rows whose output is still shorter than min_tokens.

    A grammar that allows nothing but the end wins over min_tokens: the row would have no token left.
    """

    def __init__(self, rows: Sequence[SamplingRow], width: int, device: torch.device) -> None:
        self._device = device
        self._width = width
        self._waiting = [
            (index, row, sorted(i for i in row.end_ids if i < width))
            for index, row in enumerate(rows)
            if row.params.min_tokens > 0 and row.end_ids
        ]
        self._banned: tuple[list[int], Tensor, Tensor] | None = None

    def active(self, masks: Sequence[np.ndarray | None]) -> list[int]:
        """Indices into the waiting rows of those that ban now."""
        return [
            i
            for i, (index, row, ends) in enumerate(self._waiting)
            if len(row.output_ids) < row.params.min_tokens and not self._only_ends(masks[index], ends)
        ]

    def _only_ends(self, mask: np.ndarray | None, ends: list[int]) -> bool:
        if mask is None:
            return False
        allowed = unpack(mask, self._width)
        return int(allowed.sum()) == int(allowed[ends].sum())

    def apply(self, logits: Tensor, active: list[int]) -> None:
        """Set the end tokens of the active rows of `logits` (float32 [n, width]) to -inf in place."""
        if self._banned is None or self._banned[0] != active:
            pairs = [(self._waiting[i][0], token) for i in active for token in self._waiting[i][2]]
            places = upload(np.array(pairs, np.int64).reshape(-1, 2), self._device)
            self._banned = (active, places[:, 0], places[:, 1])
        logits.index_put_(self._banned[1:], logits.new_full((), -torch.inf))
