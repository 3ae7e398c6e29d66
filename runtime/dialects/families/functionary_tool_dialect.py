"""Functionary 3.2: `>>>name`, a line break and JSON; text has the name `all`. Prompts end after the first `>>>`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..framed_tool_dialect import FramedToolDialect, ToolCallFrame
from ..model_output_parser import ModelOutputParser
from ..parsing.framed_tool_call_parser import FramedToolCallParser
from ..parsing.incremental_text import Reading
from ..reasoning_marks import ReasoningMarks
from ..tool_call_grammars import const, sequence, several, structural, triggered
from ..tool_types import DialectToolCall, Tool

MARK, ALL = ">>>", "all\n"


class FunctionaryToolDialect(FramedToolDialect):
    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> ModelOutputParser:
        return _FunctionaryReader(self.frame.form, names, marks)

    def write(self, text: str, calls: Sequence[DialectToolCall]) -> str:
        written = super().write("", calls).removeprefix(MARK)
        return f"{ALL}{text}{MARK}{written}" if text and calls else text or written

    def grammar(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> str:
        once = not parallel or choice not in ("auto", "required")
        called = several(self._tags(tools, ""), MARK, once)
        if choice != "auto":
            return structural(called)
        said = sequence(const(ALL), triggered(self._tags(tools, MARK), [MARK], once))
        return structural({"type": "or", "elements": [called, said]})


class _FunctionaryReader(FramedToolCallParser):
    def _start(self) -> Reading[None]:
        yield from self._calls(strict=True)

    def _framed(self) -> Reading[bool]:
        if (yield from self.tape.skip(ALL)):
            self.tape.take()
            self._speech.pause()
            return False
        return (yield from super()._framed())

    def _word(self) -> Reading[str]:
        """A name of a tool, where the tools are known: texts without a header begin with other words."""
        word = yield from super()._word()
        return word if not self.names or word in self.names else ""


FUNCTIONARY = FunctionaryToolDialect("functionary-v3.2", ToolCallFrame(MARK, "\n", "", lead=""))
