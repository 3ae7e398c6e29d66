"""`ReasoningParser`: the thoughts in whole texts, and in texts that arrive piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sgl.runtime.dialects import ContentDelta, Event, ReasoningDelta
from sgl.runtime.dialects.model_output_parser import ModelOutputParser, ToolCallSyntax

from ...chat.reasoning_split import MARKS, marks_of, split_reasoning


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
        self._reader = ModelOutputParser(ToolCallSyntax(""), marks=self.marks)
        self._streams = stream_reasoning
        self._kept = ""

    def parse_non_stream(self, full_text: str) -> tuple[str, str]:
        """(thought, answer) of a whole text."""
        if self.marks.open and self.marks.begin not in full_text:
            full_text = self.marks.begin + full_text
        return split_reasoning(full_text, self.model_type)

    def parse_stream_chunk(self, chunk_text: str) -> tuple[str, str]:
        """(new thought, new answer) of the next piece. A mark that may be half there waits for the rest."""
        return self._released(self._reader.feed(chunk_text), self._streams or not self._reader.thinking)

    def flush(self) -> tuple[str, str]:
        """What still waits for the rest of a mark, when the text has ended."""
        return self._released(self._reader.feed("", last=True), True)

    def _released(self, events: Sequence[Event], release: bool) -> tuple[str, str]:
        """The thought and the answer in some events; `release`: the thought so far may be given out."""
        self._kept += "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        thought, self._kept = (self._kept, "") if release else ("", self._kept)
        return thought, "".join(event.text for event in events if isinstance(event, ContentDelta))
