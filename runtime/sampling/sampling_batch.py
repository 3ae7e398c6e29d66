"""What stays the same for a batch of rows from step to step, gathered into tensors once."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cached_property, reduce
from operator import or_

import numpy as np
import torch
from torch import Tensor

from sgl.runtime.sampling.logit_bias import LogitBias, MinTokens
from sgl.runtime.sampling.penalties import Penalties
from sgl.runtime.sampling.sampling_noise import column_hash, seed_hash_words
from sgl.runtime.sampling.sampling_row import (
    BIASED,
    PENALIZED,
    RANDOM,
    SCORED,
    SCORED_MASKED,
    SIGMA_CUT,
    WAITING,
    SamplingRow,
)
from sgl.runtime.sampling.top_n_sigma import TopNSigma
from sgl.runtime.step.device_upload import upload


class SamplingBatch:
    """Rows in the order of the logits. Make a new one when the composition changes, not each step."""

    def __init__(self, rows: list[SamplingRow]) -> None:
        self.rows = rows
        self.words = b"".join([row.packed for row in rows])
        self.flags = reduce(or_, [row.flags for row in rows], 0)
        self._tensors: BatchTensors | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def packed(self) -> np.ndarray:
        """int32 [n, 8]"""
        return np.frombuffer(bytearray(self.words), np.int32).reshape(-1, 8)

    @cached_property
    def random(self) -> list[int]:
        return self.having(RANDOM)

    @cached_property
    def scored(self) -> list[int]:
        return self.having(SCORED)

    @cached_property
    def top(self) -> int:
        """The most alternatives that a row asks for."""
        return max((self.rows[i].params.top_logprobs for i in self.scored), default=0)

    def scored_within(self, masks: Sequence[np.ndarray | None] | None) -> dict[int, np.ndarray]:
        """The masks of the rows whose log-probabilities are among what a grammar allows, by their index in `scored`."""
        if masks is None or not self.flags & SCORED_MASKED:
            return {}
        found = ((place, masks[i]) for place, i in enumerate(self.scored) if self.rows[i].flags & SCORED_MASKED)
        return {place: mask for place, mask in found if mask is not None}

    def having(self, flag: int) -> list[int]:
        """Indices of the rows with a flag."""
        return [i for i, row in enumerate(self.rows) if row.flags & flag] if self.flags & flag else []

    def tensors(self, width: int, device: torch.device) -> BatchTensors:
        """The batch's parameters on `device` for logits of `width` columns."""
        if self._tensors is None or self._tensors.home != (width, device):
            self._tensors = BatchTensors(self, width, device)
        return self._tensors


class BatchTensors:
    """Parameter tensors of one batch; None where no row asks for the feature."""

    def __init__(self, batch: SamplingBatch, width: int, device: torch.device) -> None:
        self.home = (width, device)
        rows = batch.rows
        penalized = batch.having(PENALIZED)
        self.penalties = Penalties([rows[i] for i in penalized], penalized, width, device) if penalized else None
        self.bias = LogitBias(rows, width, device) if batch.flags & BIASED else None
        self.min_tokens = MinTokens(rows, width, device) if batch.flags & WAITING else None
        cut = batch.having(SIGMA_CUT)
        self.top_n_sigma = TopNSigma([rows[i] for i in cut], cut, width, device) if cut else None
        # which has these: no cycle keeps tables as wide as the vocabulary
        self._batch: SamplingBatch = weakref.proxy(batch)
        self._race: SamplingNoiseTensors | None = None
        self._table: Tensor | None = None

    @property
    def race(self) -> SamplingNoiseTensors | None:
        """For the torch sampler; None when no row is random."""
        if self._race is None and self._batch.random:
            self._race = SamplingNoiseTensors(self._batch, *self.home)
        return self._race

    @property
    def table(self) -> Tensor:
        """For the kernels: int32 [n, 8], the packed rows."""
        if self._table is None:
            self._table = upload(self._batch.packed, self.home[1])
        return self._table


class SamplingNoiseTensors:
    """Of the rows that are sampled, not argmaxed: m of the n.

    Attributes:
        indices: int64 [m], or None when all rows are sampled.
        words: uint64 [m] seeds.
        columns: int32 [V].
        inverse_temperature, min_p, top_p, top_k: float32 [m, 1]; unlimited top_p and top_k are inf.
    """

    def __init__(self, batch: SamplingBatch, width: int, device: torch.device) -> None:
        rows = [batch.rows[i] for i in batch.random]
        params = [row.params for row in rows]
        self.indices = None if len(rows) == len(batch) else torch.tensor(batch.random, device=device)
        self.rows = batch.random
        self.words = seed_hash_words([row.seed for row in rows])
        self.columns = torch.from_numpy(column_hash(width)).to(device)
        self.inverse_temperature = _column([1.0 / p.temperature for p in params], device)
        self.min_p = _column([p.min_p for p in params], device) if any(p.min_p > 0 for p in params) else None
        self.top_p = _column([p.top_p if p.top_p < 1 else np.inf for p in params], device)
        self.top_k = _column([p.top_k if p.top_k > 0 else np.inf for p in params], device)
        self.truncated = any(p.top_p < 1 or p.top_k > 0 for p in params)


def _column(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)
