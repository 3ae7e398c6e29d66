"""What stays the same for a batch of rows from step to step, gathered into tensors once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sgl.runtime.sampling.bias import LogitBias, MinTokens
from sgl.runtime.sampling.noise import column_hash, seed_words
from sgl.runtime.sampling.params import SamplingParams
from sgl.runtime.sampling.penalties import Penalties


@dataclass(slots=True)
class SamplingRow:
    """One request as the sampler sees it.

    Attributes:
        seed: of the noise; with the token's position it decides the choice.
        prompt_ids: read once, for the repetition penalty.
        output_ids: the live list; the engine appends to it (or rewrites its end).
        end_ids: tokens banned before `params.min_tokens`: `params.end_ids(tokenizer.eos_ids)`.
    """

    params: SamplingParams
    seed: int
    prompt_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    end_ids: frozenset[int] = frozenset()


class SamplingBatch:
    """Rows in the order of the logits. Make a new one when the composition changes, not each step."""

    def __init__(self, rows: list[SamplingRow]) -> None:
        self.rows = rows
        self.random = [i for i, row in enumerate(rows) if not row.params.greedy]
        self.scored = [i for i, row in enumerate(rows) if row.params.logprobs or row.params.top_logprobs]
        self.top = max((rows[i].params.top_logprobs for i in self.scored), default=0)
        self._tensors: BatchTensors | None = None

    def __len__(self) -> int:
        return len(self.rows)

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
        penalized = [i for i, row in enumerate(rows) if row.params.penalized]
        self.penalties = (
            Penalties([rows[i] for i in penalized], penalized, width, device) if penalized else None
        )
        self.bias = LogitBias(rows, width, device) if any(row.params.logit_bias for row in rows) else None
        waiting = any(row.params.min_tokens > 0 and row.end_ids for row in rows)
        self.min_tokens = MinTokens(rows, width, device) if waiting else None
        self.race = RaceTensors(batch, width, device) if batch.random else None


class RaceTensors:
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
        self.words = seed_words([row.seed for row in rows])
        self.columns = torch.from_numpy(column_hash(width)).to(device)
        self.inverse_temperature = _column([1.0 / p.temperature for p in params], device)
        self.min_p = _column([p.min_p for p in params], device) if any(p.min_p > 0 for p in params) else None
        self.top_p = _column([p.top_p if p.top_p < 1 else np.inf for p in params], device)
        self.top_k = _column([p.top_k if p.top_k > 0 else np.inf for p in params], device)
        self.truncated = any(p.top_p < 1 or p.top_k > 0 for p in params)


def _column(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)
