"""Top-n-sigma (Tang et al. 2024): tokens whose logit is far below the largest are never sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sgl.runtime.sampling.sampling_row import SamplingRow
from sgl.runtime.sampling.token_masks import unpack
from sgl.runtime.step.device_upload import upload


class TopNSigma:
    """Keeps the tokens whose logit is at least the largest minus n standard deviations.

    Both count only tokens that are allowed: neither banned nor masked. The temperature does not change what is kept.
    """

    def __init__(self, rows: Sequence[SamplingRow], places: list[int], width: int, device: torch.device) -> None:
        self._places, self._width, self._device = places, width, device
        self._index = upload(np.array(places, np.int64), device)
        self._n = upload(np.array([[row.params.top_n_sigma] for row in rows], np.float64), device)

    def apply(self, logits: Tensor, masks: Sequence[np.ndarray | None] | None) -> None:
        """Set the logits below (float32 [n, width]) to -inf in place. A row without a finite logit stays as it is."""
        rows = logits.index_select(0, self._index)
        allowed = self._allowed(rows, masks)
        values = rows.double().where(allowed, 0)  # double: the edge must not depend on the order of the sums
        count = allowed.sum(-1, keepdim=True)
        mean = values.sum(-1, keepdim=True) / count
        variance = (values - mean).square_().where(allowed, 0).sum(-1, keepdim=True) / count
        lowest = rows.where(allowed, -torch.inf).amax(-1, keepdim=True) - self._n * variance.sqrt_()
        logits.index_copy_(0, self._index, rows.masked_fill_(allowed & (values < lowest), -torch.inf))

    def _allowed(self, rows: Tensor, masks: Sequence[np.ndarray | None] | None) -> Tensor:
        """bool [m, width]: the columns with a finite logit that the row's mask has."""
        finite = rows.isfinite()
        found = [None if masks is None else masks[place] for place in self._places]
        if all(mask is None for mask in found):
            return finite
        every = np.ones(self._width, bool)
        masked = np.stack([every if mask is None else unpack(mask, self._width) for mask in found])
        return finite & upload(masked, self._device)
