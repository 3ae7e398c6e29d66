"""The operation that samples text by a grammar which is still being compiled."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from sgl.grammars import Grammar

from ..sequences.ops.generate_op import Generate
from ..sequences.sequence_state import SequenceStatus

if TYPE_CHECKING:
    from ..loop.sequence_lifecycle import SequenceLifecycle
    from ..sequences.sequence_state import SequenceEngine, SequenceState


class LateGenerate(Generate):
    """Waits at the head of its sequence's queue for the grammar, and fails with its error."""

    __slots__ = ("ready",)

    def __init__(self, params: Any, ready: Future[Grammar], on_chunk: Any) -> None:
        super().__init__(params, None, on_chunk)
        self.ready = ready

    @property
    def blocked(self) -> bool:
        return not self.ready.done()

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        self.grammar = self.ready.result()
        return super().begin(seq, life)

    def resume_when_ready(self, core: Any, seq: SequenceState) -> None:
        """Have the sequence go on once the grammar is there, if the generation is at its head and not begun by then."""
        self.ready.add_done_callback(lambda _: core.soon(partial(self._go_on, core.life, seq)))

    def _go_on(self, life: SequenceLifecycle, seq: SequenceState) -> None:
        if seq.ops and seq.ops[0] is self and self.decoding is None and seq.status is not SequenceStatus.CHILD_PENDING:
            life.advance(seq)
