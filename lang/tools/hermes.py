"""Hermes, Qwen and many others: every call is JSON between <tool_call> and </tool_call>."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .calls import ToolCall, ToolCalls, numbered
from .formats import ToolFormat, tag
from .nodes import calls_in_marks
from .scan import Found, call_in, joined, json_at, skip_blanks
from .tool import Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes(ToolFormat):
    name = "hermes"

    def describe(self, tools: Sequence[Tool]) -> str:
        listed = "\n".join(json.dumps(tool.openai, ensure_ascii=False) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{listed}\n</tools>\n\n"
            "For each function call, return a json object with function name and arguments within "
            f'{OPEN}{CLOSE} XML tags:\n{OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CLOSE}'
        )

    def grammar(self, tools: Sequence[Tool], choice: str) -> str:
        begin = OPEN + '\n{{"name": "{}", "arguments": '
        tags = [tag(begin.format(tool.name), tool.arguments_schema, f"}}\n{CLOSE}") for tool in tools]
        return calls_in_marks(tags, choice, OPEN, "\n")

    def parse(self, text: str, names: Sequence[str] = ()) -> ToolCalls:
        parts: list[str] = []
        found: list[Found] = []
        done = at = 0
        while (start := text.find(OPEN, at)) >= 0:
            value, end = json_at(text, start + len(OPEN))
            call = call_in(value)
            at = start + len(OPEN)
            if call is None:
                continue
            parts.append(text[done:start])
            found.append(call)
            close = skip_blanks(text, end)
            done = at = close + len(CLOSE) if text.startswith(CLOSE, close) else end
        return numbered(joined([*parts, text[done:]]), found)

    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        written = [
            f"{OPEN}\n{json.dumps({'name': call.name, 'arguments': call.arguments}, ensure_ascii=False)}\n{CLOSE}"
            for call in calls
        ]
        return "\n".join([*([text] if text else []), *written])


FORMAT = Hermes()
