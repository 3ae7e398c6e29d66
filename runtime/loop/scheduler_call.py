"""What a handle asks of the scheduler's thread itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..sequences.sequence_state import SequenceOp

if TYPE_CHECKING:
    from ..sequences.sequence_state import SequenceEngine, SequenceState


class SchedulerCall(SequenceOp):
    """A question put to the scheduler thread."""

    __slots__ = ("task",)

    def __init__(self, task: Callable[[], object]) -> None:
        super().__init__()
        self.task = task

    def begin(self, seq: SequenceState, life: SequenceEngine) -> bool:
        self.resolve(self.task())
        return True
