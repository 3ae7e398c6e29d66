"""Mistral: the special token [TOOL_CALLS], then a JSON list of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..backend import Generated
from ..ir import SglConstantText, SglExpr, SglGen
from ..options import SamplingOptions
from ..typed.constraint import constrained, reject_constraints
from .calls import ToolCall, ToolCalls, numbered
from .formats import ToolFormat, tag
from .nodes import Continuation, SglContinued, SglToolCall, ToolReading, structural
from .scan import Found, call_in, joined, json_at
from .tool import Tool

if TYPE_CHECKING:
    from ..backend import Backend

MARK = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[ARGS\])?\s*(?=\{)")  # newer models: name[ARGS]{...}


class Mistral(ToolFormat):
    """The mark is a special token, which no grammar can write: the step is free text up to it, then the list."""

    name = "mistral"

    def describe(self, tools: Sequence[Tool]) -> str:
        listed = json.dumps([tool.openai for tool in tools], ensure_ascii=False)
        return f"[AVAILABLE_TOOLS] {listed}[/AVAILABLE_TOOLS]"

    def grammar(self, tools: Sequence[Tool], choice: str) -> str:
        """The list behind the mark."""
        begin = '{{"name": "{}", "arguments": '
        tags = [tag(begin.format(tool.name), tool.arguments_schema, "}") for tool in tools]
        calls = {
            "type": "tags_with_separator", "tags": tags, "separator": ", ", "at_least_one": True,
            "stop_after_first": choice not in ("auto", "required"),
        }  # fmt: skip
        ends = [{"type": "const_string", "value": text} for text in "[]"]
        return structural({"type": "sequence", "elements": [ends[0], calls, ends[1]]})

    def nodes(self, call: SglToolCall, backend: Backend) -> list[SglExpr]:
        options, reading = call.sampling_params, call.reading
        if reading.choice != "auto":
            return [SglConstantText(MARK), SglGen(call.name, options, reading)]
        reject_constraints(options, "tools")
        said = _Said(reading)
        tag = reading.toolbox.grammar("auto", backend)
        listed = constrained(options, backend, reading.toolbox, {"structural_tag": tag})
        first: SglExpr = SglGen(call.name and f"{call.name}_text", _until_mark(options))
        return [first, SglContinued(call.name, options, said, partial(said.go_on, listed, backend))]

    def parse(self, text: str, names: Sequence[str] = ()) -> ToolCalls:
        before, mark, rest = text.partition(MARK)
        found, end = _list_at(rest if mark else before)
        known = all(name in names for name, _, _ in found) if names else True
        if not found or not (mark or known):
            return ToolCalls(text.strip())
        return numbered(joined([before, rest[end:]] if mark else [before[end:]]), found)

    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        listed = [{"name": call.name, "arguments": call.arguments, "id": call.id} for call in calls]
        return f"{text}{MARK}{json.dumps(listed, ensure_ascii=False)}" if listed else text


class _Said:
    """The reading of a step whose text came before the mark."""

    def __init__(self, reading: ToolReading) -> None:
        self._reading = reading
        self._text = ""

    def go_on(self, listed: SamplingOptions, backend: Backend, before: Generated) -> Continuation:
        self._text = before.text
        return Continuation(MARK, listed) if _ended_at_mark(before, backend) else Continuation()

    def constrain(self, options: SamplingOptions, backend: Backend) -> SamplingOptions:
        return options

    def read(self, text: str, backend: Backend) -> ToolCalls:
        return self._reading.read(self._text + text, backend)


def _until_mark(options: SamplingOptions) -> SamplingOptions:
    from dataclasses import replace

    return replace(options, stop=(*(options.stop or ()), MARK), keep_stop=False)


def _ended_at_mark(before: Generated, backend: Backend) -> bool:
    reason = before.meta_info.get("finish_reason")
    matched: Any = reason.get("matched") if isinstance(reason, dict) else None
    if isinstance(matched, int):
        return backend.token_texts([matched]) == [MARK]
    return matched == MARK


def _list_at(text: str) -> tuple[list[Found], int]:
    """The calls at the beginning of a text, and where they end."""
    value, end = json_at(text, 0)
    if isinstance(value, list):
        calls = [call for call in map(call_in, value) if call]
        return (calls, end) if len(calls) == len(value) else ([], 0)
    found: list[Found] = []
    at = 0
    while named := _NAMED.match(text, at):
        arguments, end = json_at(text, named.end())
        if not isinstance(arguments, dict):
            break
        found.append((named[1], arguments, None))
        at = end + len(MARK) if text.startswith(MARK, end) else end
    return found, at


FORMAT = Mistral()
