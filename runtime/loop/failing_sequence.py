"""Whose work it was when an error came up in what is done for many at once."""

from __future__ import annotations

from collections.abc import Container

from ..errors import take_noted_sequences
from ..sequences.sequence_state import SequenceState


def failing_sequence(error: BaseException, live: Container[SequenceState]) -> SequenceState | None:
    """The innermost of the error's sequences that is live and has operations; None: none can be blamed.

    Takes the notes of `note_sequence` from the error. Draft models note sequences that are not live.
    """
    return next((seq for seq in take_noted_sequences(error) if seq in live and seq.ops), None)


def bare(error: BaseException) -> BaseException:
    """Without sequences, and without the tracebacks, whose frames hold the model."""
    seen: list[BaseException | None] = [None]
    link: BaseException | None = error
    while link not in seen:
        assert link is not None
        take_noted_sequences(link)
        seen.append(link.with_traceback(None))
        link = link.__cause__ or link.__context__
    return error
