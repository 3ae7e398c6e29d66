"""Llama 3: a call is a JSON object with name and parameters, several are separated by `; `."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .calls import ToolCall, ToolCalls, numbered
from .formats import ToolFormat, tag
from .nodes import calls_in_marks
from .scan import Found, call_in, joined, json_at
from .tool import Tool

MARK = "<|python_tag|>"


class Llama(ToolFormat):
    name = "llama"

    def describe(self, tools: Sequence[Tool]) -> str:
        listed = "\n\n".join(json.dumps(tool.openai, indent=4, ensure_ascii=False) for tool in tools)
        return (
            "You have access to the following functions. To call a function, please respond with JSON for a "
            'function call. Respond in the format {"name": function name, "parameters": dictionary of argument '
            f"name and its value}}. Do not use variables.\n\n{listed}"
        )

    def grammar(self, tools: Sequence[Tool], choice: str) -> str:
        begin = '{{"name": "{}", "parameters": '
        tags = [tag(begin.format(tool.name), tool.arguments_schema, "}") for tool in tools]
        return calls_in_marks(tags, choice, '{"name": "', "; ")

    def parse(self, text: str, names: Sequence[str] = ()) -> ToolCalls:
        parts: list[str] = []
        found: list[Found] = []
        done = at = 0
        while (start := text.find("{", at)) >= 0:
            value, end = json_at(text, start)
            at = max(end, start + 1)
            call = call_in(value)
            if call is None or (names and call[0] not in names):
                continue
            parts.append(_between(text[done:start], bool(found)))
            found.append(call)
            done = at
        return numbered(joined([*parts, text[done:]]), found)

    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        written = [
            json.dumps({"name": call.name, "parameters": call.arguments}, ensure_ascii=False)
            for call in calls
        ]
        return "\n".join([*([text] if text else []), *(["; ".join(written)] if written else [])])


def _between(text: str, calls_before: bool) -> str:
    """The text before a call, without the marks that belong to calls."""
    kept = text.strip().removesuffix(MARK).strip()
    return "" if calls_before and kept in (";", ",") else kept


FORMAT = Llama()
