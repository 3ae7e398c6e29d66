"""Embeddings of a generative model: the mean of its last hidden states over the tokens of a text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, RuntimeFailure
from ..generation import TokenLogprobs
from ..sequence_state import SequenceEngine, SequenceOp, SequenceState

Floats = NDArray[np.float32]


class Embed(SequenceOp):
    """The mean, float32 [hidden], of the final norm's output for each token of the sequence.

    The cache has keys and values but no hidden states: every token is computed, its pages serve others afterwards. Each
    step leaves one sum. Steps run ahead of the host, so there are two counts of tokens. The sums of one kind are on
    their way, and need not be computed again after a preemption; those of the other are here.
    """

    __slots__ = ("_requested", "_summed", "_total")

    def __init__(self) -> None:
        super().__init__()
        self._requested = self._summed = 0
        self._total: Any = 0.0

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        if not len(seq):
            raise ConfigError("embed() on an empty sequence: extend it with at least one token first")
        life.check_length(seq)
        life.rewind(seq, 0)
        return False

    def reuse(self, seq: SequenceState) -> int:
        return self._requested

    def target(self, seq: SequenceState) -> int:
        return len(seq)

    def pool(self, seq: SequenceState, lo: int, hi: int) -> range:
        return range(max(lo, self._requested), hi)

    def mark_requested(self, positions: range) -> None:
        """The sum over these positions, those of `pool`, is on its way."""
        self._requested = positions.stop

    def add(self, total: Floats, positions: range) -> None:
        """The sum over `positions` is here."""
        self._total = self._total + total.astype(np.float64)
        self._summed += len(positions)

    def collect(
        self, seq: SequenceState, life: SequenceEngine, pairs: list[TokenLogprobs], tops: list[TokenLogprobs]
    ) -> bool:
        if self._summed < len(seq):
            return False
        mean: Floats = (self._total / len(seq)).astype(np.float32)
        if not np.isfinite(mean).all():
            raise RuntimeFailure(
                "the model's hidden states are not finite; its weights may be damaged, or the dtype too narrow"
            )
        if seq.computed:
            life.cache.publish(seq)
        self.resolve(mean)
        return True


def normalized(vectors: Floats) -> Floats:
    """Each row at length 1; rows of zeros stay."""
    lengths: Floats = np.linalg.norm(vectors, axis=-1, keepdims=True)
    lengths[lengths == 0] = 1
    return vectors / lengths
