"""What a rank keeps: its part of countable things, and of a tensor's rows or columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...loading.sharded_state import ParallelSizes
from ..ep.expert_parallel_split import ExpertParallelSplit


class TensorParallelSplit(NamedTuple):
    """rank: from 0.

    whole: experts are whole on ranks; None: each rank has a part of every expert's width.  rows: of latent attention
    each rank has everything, and attends for some of a step's rows; otherwise it has some of the heads.
    """

    rank: int
    ranks: int
    whole: ExpertParallelSplit | None = None
    rows: bool = False

    def parts(self, stages: int = 1) -> ParallelSizes:
        """That it is one of, in so many stages."""
        return ParallelSizes(
            self.ranks, stages, self.whole is not None, 0 if self.whole is None else self.whole.redundant
        )

    def of(self, count: int) -> range:
        """This rank's part of `count` things that divide."""
        each = count // self.ranks
        return range(self.rank * each, (self.rank + 1) * each)

    def kv_heads(self, count: int) -> range:
        """Heads of keys and values; with fewer heads than ranks several ranks hold the same one."""
        return (
            self.of(count)
            if count >= self.ranks
            else range(self.rank * count // self.ranks, self.rank * count // self.ranks + 1)
        )

    def tokens(self, count: int) -> range:
        """Rows of the head: as many on each rank, but for the last ones."""
        each = -(-count // self.ranks)
        return range(min(self.rank * each, count), min((self.rank + 1) * each, count))


class TensorSlice(NamedTuple):
    """What of a tensor is kept: of this axis, which has so many places, these, int64, in their order.

    inputs: of a product's; otherwise of its outputs.
    """

    axis: int
    places: int
    kept: np.ndarray
    inputs: bool = False


def numbers(heads: range, width: int) -> np.ndarray:
    """Of these heads, each so wide."""
    return np.arange(heads.start * width, heads.stop * width)
