"""A prefix that stays in the KV cache for as long as somebody holds on to it."""

from __future__ import annotations

from typing import Self

from .ops.sequence_ops import Pin as PinOp
from .sequence import Sequence


class PrefixPin:
    """What `Engine.pin` returns.

    `release()`, the end of a `with` block and dropping the last reference let go of it.
    """

    def __init__(self, sequence: Sequence) -> None:
        """Compute the sequence's whole pages and keep them; blocks."""
        self._sequence = sequence
        try:
            self.tokens: int = sequence._core.submit(sequence._state, PinOp()).result()
        except BaseException:
            sequence.close()  # the error's traceback would hold it until the next garbage collection
            raise

    def release(self) -> None:
        """Let the prefix be evicted like any other. Idempotent."""
        self._sequence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
