"""One step of the model: which new tokens of which sequences run, and where their KV lives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor


@dataclass(slots=True)
class Batch:
    """The new tokens of all sequences of a step, laid end to end, sequences in order, decodes first.

    token_ids: int64 [T].  positions: int64 [T], place of each token in its sequence.
    slots: int64 [T], physical KV slot of each new token.
    query_lens: new tokens per sequence, summing to T.
    context_lens: tokens per sequence after this step, cached and new.
    context_slots: per sequence int32 [context_len], the slots of all its tokens in order, new ones included.
    logit_rows: int64 [R], indices into T whose logits are wanted.
    plan: filled by `AttentionBackend.plan`; opaque to everybody else.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    query_lens: list[int]
    context_lens: list[int]
    context_slots: list[np.ndarray]
    logit_rows: Tensor
    plan: Any = None
