"""One step of the model: which new tokens of which sequences run, and where their KV lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from .adapter_rows import AdapterRows
from .window_slots import WindowSlots


@dataclass(slots=True)
class DeviceBatch:
    """What kernels on a GPU read of a step in addition to its tokens; sequences in the batch's order.

    rows: int32 [S], each sequence's row of `table`.  token_rows: int32 [T], the row of each token's sequence.
    starts: int32 [S + 1], where each sequence's tokens begin in the batch.
    contexts: int32 [S], tokens per sequence after this step.
    table: int32 [rows, most pages], the KV pages of each row in order; filled for this step by the embedding's kernel
        before any layer runs. Slot of position p: table[row, p // page_size] * page_size + p % page_size.
    page_size: token slots of a page.
    last: int32 [rows], the token that was sampled last for each row, maybe by a step still running.
    static: a decode step inside a CUDA graph: all tensors keep their addresses, the sequences are padded to the
    graph's size with sequences of one token in the last row of `table`, whose slot is PAD_SLOT (never written).
    """

    rows: Tensor
    token_rows: Tensor
    starts: Tensor
    contexts: Tensor
    table: Tensor
    page_size: int
    last: Tensor
    static: bool = False


@dataclass(slots=True)
class StepBatch:
    """The new tokens of all sequences of a step, laid end to end, sequences in order, decodes first.

    token_ids, positions, slots and logit_rows are int64 on the CPU and int32 on a GPU.
    token_ids: [T]; on a GPU -1 - row means the token sampled last for that row.
    positions: [T], place of each token in its sequence.  slots: [T], physical KV slot of each new token.
    query_lens: new tokens per sequence, summing to T.
    context_lens: tokens per sequence after this step, cached and new.
    context_slots: per sequence int32 [context_len], the slots of all its tokens in order, new ones included.
    logit_rows: [R], indices into T whose logits are wanted.
    pools: spans of T (first token, token after the last) over each of which the last hidden states are to be summed.
    sums: float32 [pools, hidden], filled by the model where there are such.  keeps: so is `hidden`, the last states of
        all T.
    state_read, state_write: [S], integers as above; of each sequence the slot that its state is read from, and the one
    that the state after its last new token is left in (see `runtime/cache`). None: the model keeps no states. plan:
    filled by `AttentionBackend.plan`; opaque to all others. chosen: filled by layers that choose what their queries
    attend to, for later layers that attend to the same. device: what kernels on a GPU need besides; None on the CPU.
    windows: of models whose windowed layers have separate slots. adapters: which rows have one; None: none has.
    entering: of a stage after the first one, [T, hidden]: what comes from the stage before; it may be written over.
    waits: attention is to start when what is before it has ended, not under its tail. own: the rows that this rank
    attends for, of models whose attention is shared out among ranks by rows.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    query_lens: list[int]
    context_lens: list[int]
    context_slots: Sequence[np.ndarray]
    logit_rows: Tensor
    plan: Any = None
    chosen: Any = None
    device: DeviceBatch | None = None
    pools: list[tuple[int, int]] = field(default_factory=list)
    sums: Tensor | None = None
    keeps: bool = False
    hidden: Tensor | None = None
    state_read: Tensor | None = None
    state_write: Tensor | None = None
    windows: WindowSlots | None = None
    adapters: AdapterRows | None = None
    entering: Tensor | None = None
    waits: bool = False
    own: RankRows | None = None

    @property
    def whole(self) -> bool:
        """Whether the last states of all tokens are wanted."""
        return self.keeps or bool(self.pools)


@dataclass(frozen=True, slots=True)
class RankRows:
    """rows: which of the step's.  batch: of them alone, to be planned and attended; None: there are none."""

    rows: slice
    batch: StepBatch | None
