"""gpt-oss: a channel for thoughts, one for calls (the tool's name is in the header) and one for the answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ..framed_tool_dialect import FramedToolDialect, ToolCallFrame
from ..model_output_parser import ModelOutputParser
from ..parsing.framed_tool_call_parser import FramedToolCallParser
from ..parsing.incremental_text import Reading
from ..reasoning_marks import MARKS, ReasoningMarks
from ..tool_call_grammars import Format, const, sequence, several, structural, triggered
from ..tool_types import DialectToolCall, Tool

TO = "to=functions."
START = "<|start|>assistant"
HEADER, THINKING = (
    f"<|channel|>{channel} {TO}" for channel in ("commentary", "analysis")
)  # calls come on either channel
ANALYSIS, PREAMBLE, FINAL = (f"<|channel|>{one}<|message|>" for one in ("analysis", "commentary", "final"))
END = "<|end|>"
_HEADERS = MARKS["gpt-oss"]._replace(begin="")
TURNED = ("<|channel|>commentary json<|message|>", "<|channel|>commentary <|constrain|>json<|message|>")


class HarmonyToolDialect(FramedToolDialect):
    """One call a message, which <|call|> ends; where that token ends the text, it is none of it."""

    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> ModelOutputParser:
        form = self.frame.form
        return _HarmonyReader(replace(form, links=(*form.links, *TURNED), more=(THINKING,)), names, marks or _HEADERS)

    def write(self, text: str, calls: Sequence[DialectToolCall]) -> str:
        written = super().write("", calls)
        return f"{PREAMBLE}{text}{END}{START}{written}" if text and calls else text or written

    def grammar(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> str:
        headed = [one for tool in tools for one in self._headed(tool)]
        called = several(headed, START, not parallel or choice not in ("auto", "required"))
        if choice != "auto":
            thought: Format = {"type": "tag", "begin": ANALYSIS, "content": {"type": "any_text"}, "end": END + START}
            return structural(sequence({"type": "star", "content": thought}, called))
        begun = [{**one, "begin": START + one["begin"]} for one in headed]
        said = triggered(begun, [f"{START} {TO}", f"{START}{HEADER}", f"{START}{THINKING}"], not parallel)
        spoken = sequence({"type": "choices", "choices": [ANALYSIS, PREAMBLE, FINAL]}, said)
        return structural({"type": "or", "elements": [called, spoken]})

    def _headed(self, tool: Tool) -> list[Format]:
        """A call with each of the headers that models write. Its end may be the token that ends the text."""
        found = [
            *self._tags([tool], HEADER),
            *self._tags([tool], THINKING),
            *(self._tag(tool, f" {TO}", link) for link in TURNED),
        ]
        end: Format = {"type": "optional", "content": const(self.frame.end)}
        return [{**one, "content": sequence(one["content"], end), "end": ""} for one in found]


class _HarmonyReader(FramedToolCallParser):
    def _start(self) -> Reading[None]:
        """The prompt may end inside of a header."""
        yield from self.tape.visible()
        if (yield from self.tape.skip(TO)):
            yield from self._calls(strict=False)


HARMONY = HarmonyToolDialect(
    "harmony",
    ToolCallFrame(
        HEADER,
        " <|constrain|>json<|message|>",
        "<|call|>",
        separator=START,
        links=("<|constrain|>json<|message|>", " json<|message|>", " code<|message|>", "<|message|>"),
        also=f"{START} {TO}",
    ),
)
