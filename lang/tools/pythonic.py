"""Llama 3.2 (small) and Llama 4: the whole answer is a Python list of calls, `[f(a=1), g(b="x")]`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from .calls import ToolCall, ToolCalls, numbered
from .formats import ToolFormat
from .nodes import structural
from .scan import NOTHING, Found, joined, json_at, skip_blanks
from .tool import Tool

Format = dict[str, Any]
_NAME = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\(")
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(\w\s*\()|['"\[\](){},]""", re.DOTALL)
_KEY = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")


class Pythonic(ToolFormat):
    name = "pythonic"

    def describe(self, tools: Sequence[Tool]) -> str:
        listed = json.dumps([tool.openai["function"] for tool in tools], indent=4, ensure_ascii=False)
        return (
            "You may call functions. If you decide to call any, answer with nothing but the calls, in the form "
            "[func_name1(name1=value1, name2=value2), func_name2(name3=value3)]. Otherwise answer in words.\n\n"
            f"These are the functions, in JSON:\n\n{listed}"
        )

    def grammar(self, tools: Sequence[Tool], choice: str) -> str:
        bodies = [_sequence(*_arguments(tool)) for tool in tools]
        later = [_sequence(_text(f", {tool.name}("), body) for tool, body in zip(tools, bodies, strict=True)]
        several: list[Format] = [{"type": "star", "content": {"type": "or", "elements": later}}]
        more = several if choice in ("auto", "required") else []
        tags: list[Format] = [
            {"type": "tag", "begin": f"[{tool.name}(", "content": _sequence(body, *more), "end": "]"}
            for tool, body in zip(tools, bodies, strict=True)
        ]
        if choice != "auto":
            return structural({"type": "or", "elements": tags})
        triggers = [str(one["begin"]) for one in tags]
        return structural({"type": "triggered_tags", "triggers": triggers, "tags": tags})

    def parse(self, text: str, names: Sequence[str] = ()) -> ToolCalls:
        parts: list[str] = []
        found: list[Found] = []
        done = at = 0
        while (start := text.find("[", at)) >= 0:
            calls, at = _calls_at(text, start)
            if not calls or (names and any(name not in names for name, _, _ in calls)):
                at = start + 1
                continue
            parts.append(text[done:start])
            found += calls
            done = at
        return numbered(joined([*parts, text[done:]]), found)

    def render(self, text: str, calls: Sequence[ToolCall]) -> str:
        written = [
            f"{call.name}({', '.join(f'{key}={_literal(value)}' for key, value in call.arguments.items())})"
            for call in calls
        ]
        return "\n".join([*([text] if text else []), *([f"[{', '.join(written)}]"] if written else [])])


# --- the grammar: keyword arguments in the order of the schema -------------------------------------------------


def _arguments(tool: Tool) -> list[Format]:
    """The formats of a tool's arguments and of the closing parenthesis."""
    schema = tool.arguments_schema
    properties, required = schema.get("properties") or {}, set(schema.get("required") or ())
    named = [(name, _value(name, value, schema), name in required) for name, value in properties.items()]
    firsts: list[Format] = []
    for i, (_, value, must) in enumerate(named):
        firsts.append(_sequence(value, *(_later(later, needed) for _, later, needed in named[i + 1 :])))
        if must:
            break
    if not firsts:
        return [_text(")")]
    one: Format = {"type": "or", "elements": firsts}
    return [one if required & properties.keys() else {"type": "optional", "content": one}, _text(")")]


def _later(value: Format, must: bool) -> Format:
    more = _sequence(_text(", "), value)
    return more if must else {"type": "optional", "content": more}


def _value(name: str, schema: Any, whole: Any) -> Format:
    """`name=value`; true, false and null as Python writes them where they stand alone."""
    if isinstance(schema, dict) and schema.get("type") == "boolean" and "enum" not in schema:
        value: Format = {"type": "choices", "choices": ["True", "False"]}
    else:
        kept = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
        value = {
            "type": "json_schema",
            "json_schema": {**schema, **kept} if isinstance(schema, dict) else schema,
        }
    return _sequence(_text(f"{name}="), value)


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}


# --- reading ---------------------------------------------------------------------------------------------------


def _calls_at(text: str, start: int) -> tuple[list[Found], int]:
    """The calls of the list that begins at `start`, and where it ends; none if it is no list of calls."""
    found: list[Found] = []
    at = start + 1
    while named := _NAME.match(text, at):
        arguments, at = _arguments_at(text, named.end())
        if arguments is None:
            return [], start
        found.append((named[1], arguments, None))
        at = skip_blanks(text, at)
        if text[at : at + 1] == "]":
            return found, at + 1
        if text[at : at + 1] != ",":
            return [], start
        at += 1
    return [], start


def _arguments_at(text: str, at: int) -> tuple[dict[str, Any] | None, int]:
    """The keyword arguments up to the closing parenthesis and where they end; None if they are something else."""
    given: dict[str, Any] = {}
    at = skip_blanks(text, at)
    while text[at : at + 1] != ")":
        key = _KEY.match(text, at)
        if key is None:
            return None, at
        value, at = _value_at(text, key.end())
        if value is NOTHING:
            return None, at
        given[key[1]] = value
        at = skip_blanks(text, at)
        if text[at : at + 1] == ",":
            at = skip_blanks(text, at + 1)
        elif text[at : at + 1] != ")":
            return None, at
    return given, at + 1


def _value_at(text: str, at: int) -> tuple[Any, int]:
    """A JSON value or a Python literal that ends where the next argument begins."""
    value, end = json_at(text, at)
    if value is not NOTHING and text[skip_blanks(text, end) :][:1] in (",", ")"):
        return value, end
    found = _literal_end(text, at)
    if found is None:
        return NOTHING, at
    try:
        value, end = ast.literal_eval(text[at:found].strip()), found
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return NOTHING, at
    return value, end


def _literal_end(text: str, at: int) -> int | None:
    """Where a Python literal ends: the comma or parenthesis in no bracket and no string. None if it is none."""
    depth = 0
    for token in _TOKEN.finditer(text, at):
        char = token[0]
        if char in ("'", '"') or token[1]:  # a string that does not end, or a call
            return None
        if depth == 0 and char in (",", ")"):
            return token.start()
        depth += (char in ("[", "{", "(")) - (char in ("]", "}", ")"))
    return None


def _literal(value: Any) -> str:
    """As Python where that says more than JSON, so that True stays True; else JSON."""
    if value is None or isinstance(value, bool):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


FORMAT = Pythonic()
