"""Drives a decoder by hand: sequences with scattered slots, steps with any mix of chunks and decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgl.runtime.adapters.lora_linear import rows_of
from sgl.runtime.attention import attention_backend
from sgl.runtime.cache.recurrent_state_memory import RecurrentStateMemory
from sgl.runtime.cache.recurrent_state_slots import EMPTY_SLOT, FIRST_SLOT
from sgl.runtime.loading import load_model
from sgl.runtime.step.step_batch import StepBatch


class Row:
    """A sequence: its tokens, and the slots of those that are computed. state: the slot of the state behind these."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = list(tokens)
        self.slots = np.zeros(0, np.int32)
        self.state = EMPTY_SLOT

    def behind(self, tokens: list[int]) -> Row:
        """Another one that goes on from here; `tokens` are all of its own."""
        row = Row(tokens)
        row.slots, row.state = self.slots.copy(), self.state
        return row

    @property
    def pending(self) -> int:
        return len(self.tokens) - len(self.slots)


class Rig:
    """A model of a directory on a pool whose free slots hold NaN and are handed out in random order.

    memory: of the states, None where the model keeps none; every step of a row leaves its state in another slot.
    adapters: of each row of a step the slot of its adapter.
    kept: the dtype of keys and values in the pool, where it is another.
    """

    memory: RecurrentStateMemory | None = None
    adapters: list[int] | None = None

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype = torch.float32,
        slots: int = 1024,
        seed: int = 0,
        device: str = "cpu",
        attention: str = "auto",
        model: Any = None,
        kept: torch.dtype | None = None,
    ) -> None:
        self.model = model or load_model(path, dtype, device)
        layout = self.model.config.attention
        self.pool: Any = layout.pool(slots, kept or dtype, device)
        self.attention = attention_backend(attention, self.pool, layout)
        self.free = list(np.random.default_rng(seed).permutation(np.arange(1, slots)))
        self.pool.fill_nan(self.free)
        self.keep_states(slots, dtype, device, seed)

    def keep_states(self, slots: int, dtype: torch.dtype, device: str, seed: int = 0) -> None:
        if states := self.model.config.states:
            self.memory = RecurrentStateMemory(states, slots, dtype, device)
            self.free_states = list(np.random.default_rng(seed).permutation(np.arange(FIRST_SLOT, slots)))
            self.memory.fill_nan(self.free_states)

    def step(self, work: list[tuple[Row, int]], every_row: bool = False) -> torch.Tensor:
        """Compute the next tokens of each row; logits of each one's last token, or of every token."""
        counts = [count for _, count in work]
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for row, count in work:
            done = len(row.slots)
            new = np.array([self.free.pop() for _ in range(count)], np.int32)
            row.slots = np.concatenate([row.slots, new])
            tokens += row.tokens[done : done + count]
            positions += range(done, done + count)
            slots += new.tolist()
        rows = np.arange(sum(counts)) if every_row else np.cumsum(counts) - 1
        batch = StepBatch(
            token_ids=torch.tensor(tokens),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            query_lens=counts,
            context_lens=[len(row.slots) for row, _ in work],
            context_slots=[row.slots for row, _ in work],
            logit_rows=torch.from_numpy(rows),
        )
        if self.adapters is not None:
            batch.adapters = rows_of(self.adapters, counts, rows.tolist())
        if self.memory is not None:
            self._place_states(batch, [row for row, _ in work])
        return self.run(batch)

    def _place_states(self, batch: StepBatch, rows: list[Row]) -> None:
        """Each row goes on from its state and leaves another one, so that what stood on the old one can go on too."""
        batch.state_read = torch.tensor([row.state for row in rows])
        for row in rows:
            row.state = int(self.free_states.pop())
        batch.state_write = torch.tensor([row.state for row in rows])

    def run(self, batch: StepBatch) -> torch.Tensor:
        self.attention.plan(batch)
        return self.model.forward(batch, self.attention, *([] if self.memory is None else [self.memory]))

    def release(self, row: Row) -> None:
        """Give a row's slots back, poisoned."""
        self.pool.fill_nan(row.slots.tolist())
        self.free += row.slots.tolist()
        row.slots = np.zeros(0, np.int32)
