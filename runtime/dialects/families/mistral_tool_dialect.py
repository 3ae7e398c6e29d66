"""Mistral: the special token [TOOL_CALLS], then a JSON list of calls."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from ..framed_tool_dialect import FramedToolDialect, ToolCallFrame
from ..parsing.json_tool_call_parser import JsonToolCallParser, JsonToolCallSyntax
from ..reasoning_marks import ReasoningMarks
from ..tool_call_grammars import Format, const, sequence, several, structural, tag
from ..tool_dialect import Dialect, DialectStep
from ..tool_prompt import Message, short_id
from ..tool_types import DialectToolCall, Tool

MARK, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
SHORT_ID: Format = {"type": "regex", "pattern": "[A-Za-z0-9]{9}"}


class MistralToolDialect(Dialect):
    """The mark is a special token, which no grammar can write: the step is free text up to it, then the list."""

    name = "mistral"
    form = JsonToolCallSyntax(MARK, start=True, objects=False, listed=True, named=True, link=ARGS, given_id=CALL_ID)

    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> JsonToolCallParser:
        return JsonToolCallParser(self.form, names, marks)

    def describe(self, tools: Sequence[Tool]) -> str:
        listed = json.dumps([tool.openai for tool in tools], ensure_ascii=False)
        return f"[AVAILABLE_TOOLS] {listed}[/AVAILABLE_TOOLS]"

    def write(self, text: str, calls: Sequence[DialectToolCall]) -> str:
        listed = [
            {"name": call.name, "arguments": call.arguments, **({"id": short_id(call.id)} if call.id else {})}
            for call in calls
        ]
        return f"{text}{MARK}{json.dumps(listed, ensure_ascii=False)}" if listed else text

    def _assistant(self, thought: str, text: str, calls: list[DialectToolCall]) -> list[Message]:
        return super()._assistant(
            thought, text, [DialectToolCall(call.name, call.arguments, short_id(call.id)) for call in calls]
        )

    def _answer(self, text: str, message: Mapping[str, Any]) -> Message:
        return {**super()._answer(text, message), "tool_call_id": short_id(message.get("tool_call_id") or "")}

    def _plan(self, tools: Sequence[Tool], choice: str, parallel: bool) -> DialectStep:
        listed = DialectStep(MARK, ("structural_tag", self.grammar(tools, choice, parallel)))
        return DialectStep("", None, (MARK,), True, partial(_after_mark, listed)) if choice == "auto" else listed

    def grammar(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> str:
        """The list after the mark."""
        begin = '{{"name": "{}", "arguments": '
        tags = [self._with_id(tag(begin.format(tool.name), tool.arguments_schema, "")) for tool in tools]
        once = not parallel or choice not in ("auto", "required")
        return structural(sequence(const("["), several(tags, ", ", once), const("]")))

    def _with_id(self, found: Format) -> Format:
        """The call's end, before which its id may stand."""
        id = sequence(const(', "id": "'), SHORT_ID, const('"'))
        return {**found, "content": sequence(found["content"], {"type": "optional", "content": id}, const("}"))}


class MistralArgsToolDialect(FramedToolDialect):
    """Later models: the mark, a name and its arguments for every call; some write an id between the two
    (`given_ids`)."""

    def __init__(self, given_ids: bool = False) -> None:
        super().__init__("mistral-args", ToolCallFrame(MARK, ARGS, "", lead=""))
        self._given_ids = given_ids
        self.form = MistralToolDialect.form

    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> JsonToolCallParser:
        return JsonToolCallParser(MistralToolDialect.form, names, marks)

    def write(self, text: str, calls: Sequence[DialectToolCall]) -> str:
        written = [
            f"{MARK}{call.name}{self._id(call)}{ARGS}{json.dumps(call.arguments, ensure_ascii=False)}" for call in calls
        ]
        return text + "".join(written)

    def _id(self, call: DialectToolCall) -> str:
        return f"{CALL_ID}{short_id(call.id)}" if call.id and self._given_ids else ""

    @property
    def spelled(self) -> str:
        return super().spelled + CALL_ID

    def _tag(self, tool: Tool, opening: str, link: str) -> Format:
        given: Format = {"type": "optional", "content": sequence(const(CALL_ID), SHORT_ID)}
        found = tag(f"{opening}{tool.name}", tool.arguments_schema, "")
        return {**found, "content": sequence(given, const(ARGS), found["content"])}


def _after_mark(listed: DialectStep, text: str) -> DialectStep | None:
    return listed if text.endswith(MARK) else None
