"""What a handle asks of the scheduler's thread itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..sequences.ops import Op

if TYPE_CHECKING:
    from ..sequences.life import Life
    from ..sequences.sequence import SequenceState


class Call(Op):
    """A question put to the scheduler thread."""

    __slots__ = ("task",)

    def __init__(self, task: Any) -> None:
        super().__init__()
        self.task = task

    def begin(self, seq: SequenceState, life: Life) -> bool:
        self.resolve(self.task())
        return True
