"""Calls as JSON objects: Hermes and Qwen between tags, Llama 3 bare."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..parsing.json_tool_call_parser import JsonToolCallParser, JsonToolCallSyntax
from ..reasoning_marks import ReasoningMarks
from ..tool_call_grammars import several, structural, tag, triggered
from ..tool_dialect import Dialect
from ..tool_prompt import Message
from ..tool_types import DialectToolCall, Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class TaggedJsonToolDialect(Dialect):
    """A dialect of objects.

    Attributes:
        around: the texts before and after an object.
        member: the one that has the arguments.
        separator: the text between calls.
        trigger: by what a call begins in free text.
    """

    form: JsonToolCallSyntax
    around: tuple[str, str]
    member: str
    separator: str
    trigger: str

    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> JsonToolCallParser:
        return JsonToolCallParser(self.form, names, marks)

    def grammar(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> str:
        before, after = self.around
        begin = before + '{{"name": "{}", "' + self.member + '": '
        tags = [tag(begin.format(tool.name), tool.arguments_schema, "}" + after) for tool in tools]
        once = not parallel or choice not in ("auto", "required")
        if choice == "auto":
            return structural(triggered(tags, [self.trigger], once))
        return structural(several(tags, self.separator, once))

    def write(self, text: str, calls: Sequence[DialectToolCall]) -> str:
        before, after = self.around
        written = [
            before + json.dumps({"name": call.name, self.member: call.arguments}, ensure_ascii=False) + after
            for call in calls
        ]
        return "\n".join([*([text] if text else []), *([self.separator.join(written)] if written else [])])


class HermesToolDialect(TaggedJsonToolDialect):
    """Hermes, Qwen and many others: every call is JSON between <tool_call> and </tool_call>."""

    name = "hermes"
    form = JsonToolCallSyntax(OPEN, close=CLOSE)
    around = (f"{OPEN}\n", f"\n{CLOSE}")
    member, separator, trigger = "arguments", "\n", OPEN

    def describe(self, tools: Sequence[Tool]) -> str:
        listed = "\n".join(json.dumps(tool.openai, ensure_ascii=False) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            "You are provided with function signatures within <tools></tools> XML "
            f"tags:\n<tools>\n{listed}\n</tools>\n\n"
            "For each function call, return a json object with function name and arguments within "
            f'{OPEN}{CLOSE} XML tags:\n{OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CLOSE}'
        )

    def _answer(self, text: str, message: Mapping[str, Any]) -> Message:
        return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>", "answers": True}


class LlamaToolDialect(TaggedJsonToolDialect):
    """Llama 3: a call is a JSON object with name and parameters, several are separated by `; `."""

    name = "llama"
    tool_role = "ipython"
    form = JsonToolCallSyntax("{", bare=True, known=True, between=";,", also="<|python_tag|>")
    around = ("", "")
    member, separator, trigger = "parameters", "; ", '{"name": "'

    def describe(self, tools: Sequence[Tool]) -> str:
        listed = "\n\n".join(json.dumps(tool.openai, indent=4, ensure_ascii=False) for tool in tools)
        return (
            "You have access to the following functions. To call a function, please respond with JSON for a "
            'function call. Respond in the format {"name": function name, "parameters": dictionary of argument '
            f"name and its value}}. Do not use variables.\n\n{listed}"
        )
