"""Generations that wait for their grammars, which worker threads compute, and the logits that they wait with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ..sequences.ops.generate_op import Generate
from ..sequences.sequence_state import SequenceState

if TYPE_CHECKING:
    from .sequence_lifecycle import SequenceLifecycle


class DeferredLogits(NamedTuple):
    """The logits [1, vocabulary] after the tokens up to `hi`."""

    op: Generate
    hi: int
    logits: torch.Tensor


class DeferredSampling:
    """Nothing is computed of them meanwhile; of those that lost their pages, the last token is computed again."""

    def __init__(self, life: SequenceLifecycle) -> None:
        self._life = life
        self._kept: dict[SequenceState, DeferredLogits] = {}

    def keep(self, seq: SequenceState, op: Generate, logits: torch.Tensor) -> None:
        """logits: [1, vocabulary], after its last token; what was drafted after that is dropped."""
        if seq.draft is not None:
            seq.draft = None
            self._life.rewind(seq, len(seq))
        seq.ahead = 0
        self._kept[seq] = DeferredLogits(op, len(seq), logits)

    def ready(self, computed: set[SequenceState]) -> list[tuple[SequenceState, DeferredLogits]]:
        """Who can be sampled now. Those who are `computed` anew, or were cut, need other logits."""
        self._kept = {seq: kept for seq, kept in self._kept.items() if seq not in computed and _still_valid(seq, kept)}
        found = [(seq, kept) for seq, kept in self._kept.items() if not kept.op.grammar_pending]
        for seq, _ in found:
            del self._kept[seq]
        return found

    def __len__(self) -> int:
        return len(self._kept)


def _still_valid(seq: SequenceState, kept: DeferredLogits) -> bool:
    return bool(seq.ops) and seq.ops[0] is kept.op and seq.computed == kept.hi == len(seq)
