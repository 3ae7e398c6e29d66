"""Turns a step's plan into one batch and runs the model on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..attention.backend_protocols import AttentionBackend
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..cache.state_checkpoints import read_slot, write_slot
from ..step.adapter_rows import AdapterRows
from ..step.step_batch import StepBatch
from ..step.window_slots import WindowSlots
from .logit_rows import logit_rows, pooled_rows
from .runner_protocol import EnterStage, Steps
from .sequence_row_map import SequenceRowMap

if TYPE_CHECKING:
    from ..adapters.batch_adapters import BatchAdapters
    from ..cache import WindowPages, WindowPageTable
    from ..models.transformers_backend import AnyDecoder
    from ..parallel.ep.expert_balance import ExpertBalancer
    from ..parallel.workers.worker_group import RankGroup
    from ..sequences.sequence_state import ScheduledWork, SequenceState
    from .ranks.stage_steps import PipelineTimer


class EagerRunner:
    """The plain runner: each step eagerly, on any device. See `Runner`.

    rows: sequences of a step at most, where one runs ahead.  enter: of a pipeline's stage.
    """

    team: RankGroup | None = None
    experts: ExpertBalancer | None = None
    pipeline: PipelineTimer | None = None

    def __init__(
        self,
        model: AnyDecoder,
        attention: AttentionBackend,
        device: torch.device,
        rows: int | None = None,
        memory: RecurrentStateMemory | None = None,
        windows: WindowPages | None = None,
        enter: EnterStage | None = None,
    ) -> None:
        self.model, self.attention, self.device, self.memory, self.windows = model, attention, device, memory, windows
        self._enter = enter
        self.steps: Steps = EagerRunner.compute
        self.vocab_size = model.config.vocab_size
        self.rows = SequenceRowMap(rows or 0)
        self.last = None if rows is None else torch.zeros(rows, dtype=torch.int32, device=device)
        self.sums: Tensor | None = None
        self.adapters: BatchAdapters | None = None

    def on_device(self) -> AbstractContextManager[object]:
        return nullcontext()

    def warm_up(self) -> bool:
        return False

    def waited(self) -> tuple[float, float]:
        return 0.0, 0.0

    @torch.inference_mode()
    def forward(self, work: list[ScheduledWork]) -> Tensor | None:
        return self.steps(self, work) if work else None

    def compute(self, work: list[ScheduledWork]) -> Tensor:
        batch = self.build(work)
        self.attention.plan(batch)
        if self._enter is not None:
            self._enter(batch, len(batch.token_ids))
        logits = self.model.forward(batch, self.attention, *states_for(self.memory))
        self.sums = batch.sums
        return logits

    def places(self, seqs: list[SequenceState]) -> list[int] | None:
        return None if self.last is None else [self.rows[seq] for seq in seqs]

    def index(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, device=self.device)

    def release(self) -> None:
        del self.attention

    def restore(self, attention: AttentionBackend) -> None:
        self.attention = attention

    def close(self) -> None:
        if self.team is not None:
            self.team.close()

    def build(self, work: list[ScheduledWork]) -> StepBatch:
        """The flat batch of a step; sequences with one new token come first, in the plan's order."""
        lengths = [hi - lo for _, lo, hi in work]
        slots = [seq.slots.array[:hi] for seq, _, hi in work]
        wanted = logit_rows(work)
        read, write = (
            (None, None) if self.memory is None else (self._tensor(np.array(found)) for found in state_slots(work))
        )
        return StepBatch(
            token_ids=self._tensor(np.concatenate(self._token_ids(work))),
            positions=self._tensor(positions(work, lengths)),
            slots=self._tensor(np.concatenate([s[lo:] for s, (_, lo, _) in zip(slots, work, strict=True)])),
            query_lens=lengths,
            context_lens=[hi for _, _, hi in work],
            context_slots=slots,
            logit_rows=self._tensor(np.asarray(wanted)),
            adapters=adapter_rows(self.adapters, work, lengths, wanted),
            pools=pooled_rows(work),
            state_read=read,
            state_write=write,
            windows=None if self.windows is None else window_slots(self.windows, work, slots, self._tensor),
        )

    def _token_ids(self, work: list[ScheduledWork]) -> list[np.ndarray]:
        if self.last is None:
            return [seq.tokens.reaching(hi)[lo:] for seq, lo, hi in work]
        rows, _ = self.rows.place([seq for seq, *_ in work])
        last = self.last.numpy(force=True)
        return [
            seq.tokens.reaching(hi)[lo:] if hi <= seq.known else np.append(seq.tokens.array[lo:], last[row])
            for (seq, lo, hi), row in zip(work, rows, strict=True)
        ]

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.device)


def state_slots(work: list[ScheduledWork]) -> tuple[list[int], list[int]]:
    """Of each sequence where its state is read from, and where the next one is left."""
    return [read_slot(seq) for seq, *_ in work], [write_slot(seq) for seq, *_ in work]


def adapter_slots(adapters: BatchAdapters | None, work: list[ScheduledWork]) -> Sequence[int]:
    """Of the sequences' adapters; empty: no row of the step has one."""
    if adapters is None or not any(seq.terms.adapter for seq, *_ in work):
        return ()
    return adapters.adapter_slots_for(seq.terms.adapter for seq, *_ in work)


def adapter_rows(
    adapters: BatchAdapters | None, work: list[ScheduledWork], lengths: list[int], wanted: list[int]
) -> AdapterRows | None:
    """None: no row of the step has one."""
    if adapters is None or not any(digests := [seq.terms.adapter for seq, *_ in work]):
        return None
    return adapters.rows(digests, lengths, wanted)


def states_for(memory: RecurrentStateMemory | None) -> tuple[RecurrentStateMemory, ...]:
    """What a forward is given besides."""
    return () if memory is None else (memory,)


def positions(work: list[ScheduledWork], lengths: list[int]) -> np.ndarray:
    """The place of each token of the flat batch in its sequence."""
    ends = np.cumsum(lengths)
    return np.repeat([hi for *_, hi in work] - ends, lengths) + np.arange(ends[-1])


def window_slots(
    windows: WindowPageTable, work: list[ScheduledWork], slots: list[np.ndarray], tensor: Callable[[np.ndarray], Tensor]
) -> WindowSlots:
    """Where windowed layers keep what a step reads and writes. slots: of all tokens of each sequence, in the others."""
    found = [windows.slots(row, lo) for row, (_, lo, _) in zip(slots, work, strict=True)]
    return WindowSlots(tensor(np.concatenate([row[lo:] for row, (_, lo, _) in zip(found, work, strict=True)])), found)
