"""Whose work it was when an error came up in what is done for many at once."""

from __future__ import annotations

from types import TracebackType

from ..sequences.sequence_state import SequenceState


def failing_sequence(error: BaseException) -> SequenceState | None:
    """The sequence with operations that the innermost of the error's frames was at; None: none can be blamed.

    Planning and staging go through the sequences one by one and call the one at hand `seq`: nothing has to be noted
    in steps that go well.
    """
    found: SequenceState | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        found = _at(trace) or found
        trace = trace.tb_next
    return found


def _at(trace: TracebackType) -> SequenceState | None:
    names = trace.tb_frame.f_locals
    seq = names.get("seq")
    if isinstance(seq, SequenceState) and seq.ops:
        return seq
    others = {value for value in names.values() if isinstance(value, SequenceState) and value.ops}
    return others.pop() if len(others) == 1 else None


def bare(error: BaseException) -> BaseException:
    """Without the tracebacks, whose frames hold the model."""
    seen: list[BaseException | None] = [None]
    link: BaseException | None = error
    while link not in seen:
        assert link is not None
        seen.append(link.with_traceback(None))
        link = link.__cause__ or link.__context__
    return error
