"""Llama 3.2 (small) and Llama 4: the whole answer is a Python list of calls, `[f(a=1), g(b="x")]`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from sgl.grammars.schema.closed_objects import KEYWORD as CLOSING
from sgl.runtime.errors import ConfigError

from ..parsing.pythonic_tool_call_parser import FORM, PythonicToolCallParser
from ..reasoning_marks import ReasoningMarks
from ..tool_call_grammars import Format, const, members, sequence, structural, triggered
from ..tool_dialect import Dialect
from ..tool_types import DialectToolCall, Tool

NAME = re.compile(r"\w+")
JOINT = (
    "$ref",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "enum",
    "const",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "patternProperties",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
)
SHARED = ("$defs", "definitions", CLOSING)
MOST_CHARACTERS = 2_000_000
SINGLE_QUOTED = r"'(?:[^'\\\x00-\x1f]|\\[\\'nt])*'"
NOTES = frozenset({"type", "title", "description", "default", "examples"})  # what a plain boolean or string may have


class PythonicToolDialect(Dialect):
    """A list of calls. `marks`: the texts before and after it, always or, `also`, sometimes."""

    def __init__(
        self, name: str, marks: tuple[str, str] = ("", ""), also: str = "", close: str = "", tool_role: str = "ipython"
    ) -> None:
        self.name, self.tool_role, self._around = name, tool_role, marks
        self.form = replace(FORM, mark=marks[0] or FORM.mark, bare=not marks[0], also=also, close=marks[1] or close)

    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> PythonicToolCallParser:
        return PythonicToolCallParser(self.form, names, marks)

    def describe(self, tools: Sequence[Tool]) -> str:
        listed = json.dumps([tool.openai["function"] for tool in tools], indent=4, ensure_ascii=False)
        return (
            "You may call functions. If you decide to call any, answer with nothing but the calls, in the form "
            "[func_name1(name1=value1, name2=value2), func_name2(name3=value3)]. Otherwise answer in words.\n\n"
            f"These are the functions, in JSON:\n\n{listed}"
        )

    def write(self, text: str, calls: Sequence[DialectToolCall]) -> str:
        written = [
            f"{call.name}({', '.join(f'{key}={_literal(value)}' for key, value in call.arguments.items())})"
            for call in calls
        ]
        return "\n".join([*([text] if text else []), *([self._listed(", ".join(written))] if written else [])])

    def _listed(self, calls: str) -> str:
        before, after = self._around
        return f"{before}[{calls}]{after}"

    def grammar(self, tools: Sequence[Tool], choice: str, parallel: bool = True) -> str:
        several_calls = parallel and choice in ("auto", "required")
        _check(tools, several_calls)
        bodies = [sequence(*_arguments(tool)) for tool in tools]
        later = [sequence(const(f", {tool.name}("), body) for tool, body in zip(tools, bodies, strict=True)]
        several: list[Format] = [{"type": "star", "content": {"type": "or", "elements": later}}]
        more = several if several_calls else []
        before, after = self._around
        tags: list[Format] = [
            {"type": "tag", "begin": f"{before}[{tool.name}(", "content": sequence(body, *more), "end": f"]{after}"}
            for tool, body in zip(tools, bodies, strict=True)
        ]
        if choice != "auto":
            return structural({"type": "or", "elements": tags})
        return structural(triggered(tags, [before] if before else [str(one["begin"]) for one in tags], not parallel))


def _literal(value: Any) -> str:
    """As Python where that says more than JSON, so that True stays True; else JSON."""
    if value is None or isinstance(value, bool):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


# --- the grammar: keyword arguments in the order of the schema -------------------------------------------------


def _check(tools: Sequence[Tool], several_calls: bool) -> None:
    """Raise ConfigError for what keyword arguments cannot say, or this grammar not enforce or not hold."""
    for tool in tools:
        _check_one(tool)
    if sum(map(_length, tools)) * (1 + len(tools) * several_calls) > MOST_CHARACTERS:
        raise ConfigError(
            f"calls of {', '.join(tool.name for tool in tools[:3])} ... in Python's form need a grammar of more than "
            f"{MOST_CHARACTERS} characters; give fewer tools, or fewer optional parameters before a required one"
        )


def _length(tool: Tool) -> int:
    """Characters of the schemas in the grammar of a tool's arguments: each occurs after all that may come first."""
    schema = tool.arguments_schema
    shared = sum(len(json.dumps(schema[key])) for key in SHARED if key in schema)
    values = (schema.get("properties") or {}).values()
    return sum((len(json.dumps(value)) + shared) * place for place, value in enumerate(values, 1))


def _check_one(tool: Tool) -> None:
    schema = tool.arguments_schema
    properties = schema.get("properties") or {}
    odd = next((name for name in properties if not NAME.fullmatch(name)), None)
    if odd is not None:
        raise ConfigError(
            f"the tool {tool.name!r} takes {odd!r}, which is not a valid keyword argument; use letters, digits and _"
        )
    unnamed = next((name for name in schema.get("required") or () if name not in properties), None)
    if unnamed is not None:
        raise ConfigError(
            f"the tool {tool.name!r} requires {unnamed!r}, which is none of its properties; describe it there"
        )
    joint = next((key for key in JOINT if key in schema), None)
    if joint is not None:
        raise ConfigError(
            f"the parameters of the tool {tool.name!r} have {joint!r}, which calls in Python's form cannot keep to"
        )


def _arguments(tool: Tool) -> list[Format]:
    """The formats of a tool's arguments and of the closing parenthesis."""
    schema = tool.arguments_schema
    properties, required = schema.get("properties") or {}, set(schema.get("required") or ())
    named = [(_value(name, value, schema), name in required) for name, value in properties.items()]
    return [*members(named, ", "), const(")")]


def _value(name: str, schema: Any, whole: Any) -> Format:
    """`name=value`; true, false and null as Python writes them where they stand alone."""
    if isinstance(schema, dict) and schema.get("type") == "boolean" and schema.keys() <= NOTES:
        value: Format = {"type": "choices", "choices": ["True", "False"]}
    else:
        kept = {key: whole[key] for key in SHARED if key in whole}
        value = {"type": "json_schema", "json_schema": {**schema, **kept} if isinstance(schema, dict) else schema}
    if isinstance(schema, dict) and schema.get("type") == "string" and schema.keys() <= NOTES:
        value = {"type": "or", "elements": [value, {"type": "regex", "pattern": SINGLE_QUOTED}]}
    return sequence(const(f"{name}="), value)
