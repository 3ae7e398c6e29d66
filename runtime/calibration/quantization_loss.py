"""The loss of quantisation: next-token distributions compared with those of the original weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class QuantizationLoss:
    """Of predicted tokens.

    divergence: mean KL in nats, and its 99th percentile.  same_top: share of equal top tokens.  perplexities: of the
    texts, before and after.
    """

    tokens: int
    divergence: float
    divergence_99: float
    same_top: float
    perplexity_before: float
    perplexity: float


class LossComparison:
    """Adds up texts."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._answered: list[np.ndarray] = []

    def add(self, ids: np.ndarray, before: Tensor, after: Tensor, answered: np.ndarray) -> None:
        """ids: [T]; logits: float32 [T, vocabulary]; answered: bool [T], of those that a model has generated."""
        self._answered.append(answered[1:])
        old, new = before[:-1].log_softmax(-1), after[:-1].log_softmax(-1)
        following = torch.from_numpy(ids[1:].astype(np.int64))[:, None].to(old.device)
        divergence = (old.exp() * (old - new)).sum(-1)
        same = (old.argmax(-1) == new.argmax(-1)).float()
        self._parts.append(
            torch.stack((divergence, same, -old.gather(1, following)[:, 0], -new.gather(1, following)[:, 0])).cpu()
        )

    def losses(self, answers: bool = False) -> QuantizationLoss | None:
        """Of all tokens, or of those that were generated; None: none was predicted."""
        parts = torch.cat(self._parts, 1) if self._parts else torch.empty(4, 0)
        if answers and self._parts:
            parts = parts[:, torch.from_numpy(np.concatenate(self._answered))]
        divergence, same, old, new = parts
        if not len(same):
            return None
        high = float(np.quantile(divergence.numpy(), 0.99))
        return QuantizationLoss(
            len(same),
            float(divergence.mean()),
            high,
            float(same.mean()),
            float(old.mean().exp()),
            float(new.mean().exp()),
        )
