"""Repetition, frequency and presence penalties of the rows of a batch that ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from sgl.runtime.sampling.batch import SamplingRow


class Penalties:
    """Token counts of the penalized rows, kept in step with their growing outputs.

    Frequency and presence look at the output, repetition at prompt and output. An output that was rewritten
    (jump-forward) is counted anew.
    """

    def __init__(self, rows: list[SamplingRow], indices: list[int], width: int, device: torch.device) -> None:
        self._rows = rows
        self._indices = torch.tensor(indices, device=device)
        self._width, self._device = width, device
        params = [row.params for row in rows]
        self._frequency = _column([p.frequency_penalty for p in params], device)
        self._presence = _column([p.presence_penalty for p in params], device)
        self._repetition = _column([p.repetition_penalty for p in params], device)
        self._repeats = any(p.repetition_penalty != 1.0 for p in params)
        self._prompts = self._stack([row.prompt_ids for row in rows]) > 0 if self._repeats else None
        self._counted: list[list[int]] = [list(row.output_ids) for row in rows]
        self._counts = self._stack(self._counted)

    def apply(self, logits: Tensor) -> None:
        """Change the penalized rows of `logits` (float32 [n, width]) in place."""
        self._catch_up()
        rows = logits.index_select(0, self._indices)
        present = self._counts > 0
        if self._prompts is not None:
            penalized = torch.where(rows > 0, rows / self._repetition, rows * self._repetition)
            rows = torch.where(present | self._prompts, penalized, rows)
        rows = rows - self._frequency * self._counts - self._presence * present
        logits.index_copy_(0, self._indices, rows)

    def _catch_up(self) -> None:
        where: list[int] = []
        tokens: list[int] = []
        for index, row in enumerate(self._rows):
            counted, output = self._counted[index], row.output_ids
            if output[: len(counted)] != counted:
                self._counts[index] = self._stack([output])[0]
                self._counted[index] = list(output)
                continue
            fresh = output[len(counted) :]
            counted += fresh
            where += [index] * len(fresh)
            tokens += fresh
        if tokens:
            places = (torch.tensor(where, device=self._device), torch.tensor(tokens, device=self._device))
            self._counts.index_put_(places, self._counts.new_ones(()), accumulate=True)

    def _stack(self, ids: list[list[int]]) -> Tensor:
        counts = [np.bincount(np.asarray(row, np.int64), minlength=self._width)[: self._width] for row in ids]
        return torch.from_numpy(np.stack(counts).astype(np.float32)).to(self._device)


def _column(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)
