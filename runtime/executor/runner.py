"""Turns a step's plan into one batch and runs the model on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..attention.base import AttentionBackend
from ..batch import Batch

if TYPE_CHECKING:
    from ..models.decoder import Decoder
    from ..scheduler import Work


class Runner:
    def __init__(self, model: Decoder, attention: AttentionBackend, device: torch.device) -> None:
        self.model, self.attention, self.device = model, attention, device
        self.vocab_size = model.config.vocab_size

    @torch.inference_mode()
    def forward(self, work: list[Work]) -> Tensor | None:
        """Compute the tokens of `work`; float32 logits [rows, vocabulary] of the rows its operations want."""
        if not work:
            return None
        batch = self.build(work)
        self.attention.plan(batch)
        return self.model.forward(batch, self.attention)

    def build(self, work: list[Work]) -> Batch:
        """The flat batch of a step; sequences with one new token come first, in the plan's order."""
        lengths = [hi - lo for _, lo, hi in work]
        slots = [seq.slots.array[:hi] for seq, _, hi in work]
        return Batch(
            token_ids=self._tensor(np.concatenate([seq.tokens.array[lo:hi] for seq, lo, hi in work])),
            positions=self._tensor(np.concatenate([np.arange(lo, hi) for _, lo, hi in work])),
            slots=self._tensor(np.concatenate([s[lo:] for s, (_, lo, _) in zip(slots, work, strict=True)])),
            query_lens=lengths,
            context_lens=[hi for _, _, hi in work],
            context_slots=slots,
            logit_rows=self._tensor(np.asarray(_logit_rows(work, lengths))),
        )

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.device)


def _logit_rows(work: list[Work], lengths: list[int]) -> list[int]:
    rows: list[int] = []
    start = 0
    for (seq, lo, hi), length in zip(work, lengths, strict=True):
        rows += [start + position - lo for position in seq.ops[0].rows(seq, lo, hi)]
        start += length
    return rows
