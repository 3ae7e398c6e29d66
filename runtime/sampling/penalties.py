"""Repetition, frequency and presence penalties of the rows of a batch that ask for them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sgl.runtime.sampling.sampling_row import SamplingRow
from sgl.runtime.step.device_upload import upload

_SLACK = 64  # tokens that a row may add before the table is built anew


class Penalties:
    """A table of the (row, token) pairs that are penalized, kept in step with the growing outputs.

    Frequency and presence look at the output, repetition at prompt and output. The table is built anew when it is full
    and when an output was rewritten (jump-forward).
    """

    def __init__(self, rows: list[SamplingRow], indices: list[int], width: int, device: torch.device) -> None:
        self._rows, self._indices = rows, indices
        self._width, self._device = width, device
        self._repeats = any(row.params.repetition_penalty != 1.0 for row in rows)
        self._build()

    def apply(self, logits: Tensor) -> None:
        """Change the penalized rows of `logits` (float32 [n, width], contiguous) in place."""
        self._catch_up()
        places = self._places[: self._used]
        count, frequency, presence, repetition = self._entries[:, : self._used]
        flat = logits.view(-1)
        values = flat[places]
        if self._repeats:
            values = torch.where(values > 0, values / repetition, values * repetition)
        flat[places] = values - frequency * count - presence * (count > 0)

    def _build(self) -> None:
        self._seen = [list(row.output_ids) for row in self._rows]
        self._counts = [self._count(row) for row in self._rows]
        self._slots: list[dict[int, int]] = []
        tables = [self._columns(index, list(counts.items())) for index, counts in enumerate(self._counts)]
        self._used = 0
        for counts in self._counts:
            self._slots.append(dict(zip(counts, range(self._used, self._used + len(counts)), strict=True)))
            self._used += len(counts)
        spare = _SLACK * len(self._rows)
        places = np.concatenate([*(places for places, _ in tables), np.zeros(spare, np.int64)])
        entries = np.concatenate([*(entries for _, entries in tables), np.zeros((4, spare), np.float32)], 1)
        self._places = upload(places, self._device)
        self._entries = upload(entries, self._device)

    def _count(self, row: SamplingRow) -> dict[int, int]:
        """Output count of each token that matters; prompt tokens that were not repeated have 0."""
        prompt = row.prompt_ids if row.params.repetition_penalty != 1.0 else []
        tokens, counts = np.unique(np.asarray(row.output_ids, np.int64), return_counts=True)
        before = dict.fromkeys(np.unique(np.asarray(prompt, np.int64)).tolist(), 0)
        found = before | dict(zip(tokens.tolist(), counts.tolist(), strict=True))
        return {token: count for token, count in found.items() if token < self._width}

    def _columns(self, index: int, pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """For (token, count) pairs of one row: places in the flat logits int64 [k], entries float32 [4, k]."""
        params = self._rows[index].params
        entries = np.empty((4, len(pairs)), np.float32)
        entries[0] = [count for _, count in pairs]
        entries[1:] = [[params.frequency_penalty], [params.presence_penalty], [params.repetition_penalty]]
        start = self._indices[index] * self._width
        return np.array([start + token for token, _ in pairs], np.int64), entries

    def _catch_up(self) -> None:
        slots: list[int] = []
        columns: list[tuple[np.ndarray, np.ndarray]] = []
        for index, (row, seen) in enumerate(zip(self._rows, self._seen, strict=True)):
            if row.output_ids[: len(seen)] != seen or self._used + len(row.output_ids) - len(seen) > len(self._places):
                self._build()
                return
            if fresh := row.output_ids[len(seen) :]:
                seen += fresh
                pairs = self._add(index, fresh)
                slots += [self._slots[index][token] for token, _ in pairs]
                columns.append(self._columns(index, pairs))
        if slots:
            where = upload(np.array(slots, np.int64), self._device)
            self._places[where] = upload(np.concatenate([c[0] for c in columns]), self._device)
            self._entries[:, where] = upload(np.concatenate([c[1] for c in columns], 1), self._device)

    def _add(self, index: int, fresh: list[int]) -> list[tuple[int, int]]:
        """Count new tokens of one row; the (token, count) pairs that changed."""
        counts, slots = self._counts[index], self._slots[index]
        for token in fresh:
            counts[token] = counts.get(token, 0) + 1
            if token not in slots:
                slots[token] = self._used
                self._used += 1
        return [(token, counts[token]) for token in dict.fromkeys(fresh)]
