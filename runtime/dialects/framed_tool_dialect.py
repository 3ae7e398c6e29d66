"""Calls with marks around the name and the arguments: each family is an entry of a table."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sgl.grammars.structural.parameter_styles import ParameterStyle

from .model_output_parser import ModelOutputParser, ToolCallSyntax
from .parsing.framed_tool_call_parser import (
    ID,
    JSON,
    NUMBER,
    PLACES,
    WRAPPED,
    FramedToolCallParser,
    FramedToolCallSyntax,
    style_marks,
)
from .parsing.json_tool_call_parser import JsonToolCallParser, JsonToolCallSyntax
from .reasoning_marks import ReasoningMarks
from .tool_call_grammars import Format, const, sequence, several, structural, tag, triggered
from .tool_dialect import Dialect
from .tool_types import DialectToolCall, Tool

NUMBERED = f":{NUMBER}"
_GIVEN: dict[str, Format] = {
    NUMBER: {"type": "regex", "pattern": "[0-9]{1,4}"},
    ID: {"type": "regex", "pattern": "[A-Za-z0-9_-]{1,64}"},
}
_PYTHON = {True: "True", False: "False", None: "None"}


@dataclass(frozen=True)
class ToolCallFrame:
    """How a family writes calls: `opening`, `head`, name, `link`, arguments, `end`, then the next head or `closing`.

    Attributes:
        separator: between calls.
        links: other texts than `link` that models write there.
        closing: after all calls; without it, every call has its own `opening`.
        lead: between what is said and the calls.
        style: of the arguments, as of a structural tag's schema.
        gap: between the marks of parameters.
        pad: around the values of parameters.
        id_before: the text before a name that is part of the call's id.
        also: another opening that is read.
        first: the number of the first call.

    `%d` in `head` or `link` is the number of the call, `%s` its id.
    """

    opening: str
    link: str
    end: str
    head: str = ""
    closing: str = ""
    separator: str = ""
    lead: str = "\n"
    links: tuple[str, ...] = ()
    style: str | ParameterStyle = JSON
    gap: str = ""
    pad: str = ""
    id_before: str = ""
    also: str = ""
    first: int = 0

    @property
    def form(self) -> FramedToolCallSyntax:
        links = tuple(link.removeprefix(NUMBERED) for link in (self.link, *self.links))
        return FramedToolCallSyntax(
            self.opening.strip(),
            close=self.closing.strip(),
            also=self.also,
            head=self.head,
            links=links,
            end=self.end,
            separator=self.separator,
            many=bool(self.closing),
            numbered=self.link.startswith(NUMBERED),
            id_before=self.id_before,
            style=self.style,
            padded=bool(self.pad),
        )


class FramedToolDialect(Dialect):
    """A dialect of frames."""

    form: ToolCallSyntax

    def __init__(self, name: str, frame: ToolCallFrame) -> None:
        self.name, self.frame = name, frame
        self.form = frame.form

    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> ModelOutputParser:
        return FramedToolCallParser(self.frame.form, names, marks)

    # --- what the model sees -----------------------------------------------------------------------------

    def describe(self, tools: Sequence[Tool]) -> str:
        listed = "\n".join(json.dumps(tool.openai, ensure_ascii=False) for tool in tools)
        example = self._calls([DialectToolCall("function-name", {"key-1": "value-1", "key-2": "value-2"})])
        return (
            "# Tools\n\nYou may call one or more functions to help with the user's request. These are their "
            "signatures:\n"
            f"<tools>\n{listed}\n</tools>\n\nTo call a function, write it in this form:\n{example}"
        )

    def write(self, text: str, calls: Sequence[DialectToolCall]) -> str:
        if not calls:
            return text
        return f"{text}{self.frame.lead}{self._calls(calls)}" if text else self._calls(calls)

    def _calls(self, calls: Sequence[DialectToolCall]) -> str:
        frame = self.frame
        written = [
            frame.head.replace(NUMBER, str(place)).replace(ID, call.id or f"call-{place}")
            + call.name
            + frame.link.replace(NUMBER, str(place)).replace(ID, call.id or f"call-{place}")
            + self._arguments(call)
            + frame.end
            for place, call in enumerate(calls, frame.first)
        ]
        if frame.closing:
            return f"{frame.opening}{frame.separator.join(written)}{frame.closing}"
        return frame.separator.join(frame.opening + one for one in written)

    def _arguments(self, call: DialectToolCall) -> str:
        if self.frame.style == JSON:
            return json.dumps(call.arguments, ensure_ascii=False)
        return "".join(self._parameter(key, value) for key, value in call.arguments.items())

    def _parameter(self, key: str, value: Any) -> str:
        style, frame = style_marks(self.frame.style), self.frame
        naming = (
            style.naming
            if isinstance(value, str) or style.typed is None
            else tuple(one.format(json_type(value)) for one in style.typed)
        )
        python = style.python and (value is None or isinstance(value, bool))
        text = value if isinstance(value, str) else _PYTHON[value] if python else json.dumps(value, ensure_ascii=False)
        if style.cdata and isinstance(value, str) and any(char in value for char in "<&\n"):
            text = text.join(WRAPPED)
        return f"{style.opening}{key}{frame.gap.join(naming)}{frame.pad}{text}{frame.pad}{style.closing}{frame.gap}"

    # --- what the model writes ---------------------------------------------------------------------------

    def grammar(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> str:
        once = not parallel or choice not in ("auto", "required")
        calls = self._section(tools, once) if self.frame.closing else None
        if choice == "auto":
            tags = self._tags(tools, self.frame.opening) if calls is None else [calls]
            return structural(triggered(tags, [self.form.mark], once))
        return structural(
            several(self._tags(tools, self.frame.opening), self.frame.separator, once) if calls is None else calls
        )

    def _section(self, tools: Sequence[Tool], once: bool) -> Format:
        """All the calls of an answer."""
        calls = several(self._tags(tools, ""), self.frame.separator, once)
        return {"type": "tag", "begin": self.frame.opening, "content": calls, "end": self.frame.closing}

    def _tags(self, tools: Sequence[Tool], opening: str) -> list[Format]:
        return [
            one
            for tool in tools
            for link in (self.frame.link, *self.frame.links)
            for one in [self._tag(tool, opening, link)]
        ]

    def _tag(self, tool: Tool, opening: str, link: str) -> Format:
        frame = self.frame
        begin, *more = PLACES.split(f"{opening}{frame.head}{tool.name}{link}")
        style = frame.style if isinstance(frame.style, str) else frame.style.spelled
        found = tag(begin, tool.arguments_schema, frame.end, style)
        if more:
            found["content"] = sequence(*(_GIVEN.get(part) or const(part) for part in more), found["content"])
        return found


def json_type(value: Any) -> str:
    """The JSON type of a value that is no string."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return "object" if isinstance(value, dict) else "array" if isinstance(value, list) else "number"


class FramedObjectToolDialect(FramedToolDialect):
    """The same, where name and arguments are members of JSON objects: models write them in other orders, too."""

    def __init__(self, name: str, frame: ToolCallFrame) -> None:
        super().__init__(name, frame)
        listed = frame.opening.rstrip().endswith("[")
        mark = frame.opening.rstrip().removesuffix("[") if listed else frame.opening.strip()
        close = (frame.closing.strip() or frame.end.removeprefix("}").strip()).removeprefix("]" if listed else "")
        between = "," if frame.closing and not listed else ""
        self.form = self._form = JsonToolCallSyntax(mark, close=close, listed=listed, also=frame.also, between=between)

    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> ModelOutputParser:
        return JsonToolCallParser(self._form, names, marks)
