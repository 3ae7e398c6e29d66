"""`ReasoningParser`: the thoughts in whole texts, and in texts that arrive piece by piece."""

from __future__ import annotations

import enum
from typing import Any

from ..reasoning import MARKS, Marks, marks_of, split_reasoning


class ReasoningParser:
    """Splits texts of a family of models. BadValueError (a ValueError) for a family that is not known.

    `stream_reasoning=False` keeps a streamed thought back until it is whole.
    """

    DetectorMap = MARKS

    def __init__(
        self,
        model_type: str | None = None,
        stream_reasoning: bool = True,
        force_reasoning: bool | None = None,
        request: Any = None,
    ) -> None:
        marks = marks_of(model_type)
        self.model_type = model_type
        self.marks = marks if force_reasoning is None else marks._replace(open=bool(force_reasoning))
        self._cut = StreamCut(self.marks, stream_reasoning)

    def parse_non_stream(self, full_text: str) -> tuple[str, str]:
        """(thought, answer) of a whole text."""
        if self.marks.open and self.marks.begin not in full_text:
            full_text = self.marks.begin + full_text
        return split_reasoning(full_text, self.model_type)

    def parse_stream_chunk(self, chunk_text: str) -> tuple[str, str]:
        """(new thought, new answer) of the next piece. A mark that may be half there waits for the rest."""
        return self._cut.feed(chunk_text)

    def flush(self) -> tuple[str, str]:
        """What still waits for the rest of a mark, when the text has ended."""
        return self._cut.flush()


class Phase(enum.Enum):
    """Where in its text a model is."""

    OPENING = enum.auto()  # inside the thought; the first mark may still come
    BEFORE = enum.auto()  # the thought
    THINKING = enum.auto()
    AFTER = enum.auto()


class StreamCut:
    """Cuts a growing text at the marks of one thought."""

    def __init__(self, marks: Marks, stream_thought: bool) -> None:
        self._marks = marks
        self._stream_thought = stream_thought
        self._phase = Phase.OPENING if marks.open else Phase.BEFORE
        self._held = ""
        self._thought = ""

    def feed(self, chunk: str) -> tuple[str, str]:
        self._held += chunk
        thought = answer = ""
        if self._phase is Phase.OPENING:
            self._open()
        if self._phase is Phase.BEFORE:
            answer = self._take(self._marks.begin, Phase.THINKING)
        if self._phase is Phase.THINKING:
            thought = self._take(self._marks.end, Phase.AFTER)
        if self._phase is Phase.AFTER:
            answer, self._held = answer + self._held, ""
        return self._told(thought), answer

    def flush(self) -> tuple[str, str]:
        rest, self._held = self._thought + self._held, ""
        return (rest, "") if self._phase in (Phase.OPENING, Phase.THINKING) else ("", rest)

    def _open(self) -> None:
        start, mark = self._held.lstrip(), self._marks.begin
        if len(start) >= len(mark) or not mark.startswith(start):
            self._held = start.removeprefix(mark)
            self._phase = Phase.THINKING

    def _take(self, mark: str, after: Phase) -> str:
        """The text up to a mark, which is dropped; or up to where the mark may begin."""
        before, found, rest = self._held.partition(mark)
        if found:
            self._held, self._phase = rest, after
            return before
        half = next((n for n in range(len(mark) - 1, 0, -1) if before.endswith(mark[:n])), 0)
        self._held = before[len(before) - half :]
        return before[: len(before) - half]

    def _told(self, thought: str) -> str:
        """What of the thought is given out now: all, or the whole of it once it has ended."""
        if self._stream_thought:
            return thought
        self._thought += thought
        if self._phase is not Phase.AFTER:
            return ""
        whole, self._thought = self._thought, ""
        return whole
