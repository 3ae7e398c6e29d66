"""MiniMax M3: parameters as elements, each mark after `]<]minimax[>[`; objects and lists are elements in elements."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from ..framed_tool_dialect import FramedToolDialect, ToolCallFrame
from ..model_output_parser import ModelOutputParser
from ..parsing.framed_tool_call_parser import FramedToolCallParser
from ..parsing.incremental_text import Reading
from ..parsing.incremental_text import TextMarks as Wanted
from ..parsing.unquoted_values import json_of, quoted, types_of
from ..reasoning_marks import ReasoningMarks
from ..tool_call_grammars import Format, const, members, sequence
from ..tool_types import DialectToolCall, Tool
from .gemma_tool_dialect import MOST_LINKS, GemmaValueFormats

MARK = "]<]minimax[>["
ITEM = "item"
DEEPEST = 60  # elements in each other
_ELEMENT = re.compile(rf"{re.escape(MARK)}<(/?)([^<>/]+)>")


class MiniMaxM3ToolDialect(FramedToolDialect):
    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> ModelOutputParser:
        return _Elements(self.frame.form, names, marks)

    def _arguments(self, call: DialectToolCall) -> str:
        return "".join(_element(key, value) for key, value in call.arguments.items())

    def _tag(self, tool: Tool, opening: str, link: str) -> Format:
        schema = tool.arguments_schema
        content = _ElementValues(tool.name, schema).value(schema, MOST_LINKS)
        return {
            "type": "tag",
            "begin": f"{opening}{self.frame.head}{tool.name}{link}",
            "content": content,
            "end": self.frame.end,
        }


def _element(name: str, value: Any) -> str:
    if isinstance(value, dict):
        inner = "".join(_element(key, one) for key, one in value.items())
    elif isinstance(value, list):
        inner = "".join(_element(ITEM, one) for one in value)
    else:
        inner = value if isinstance(value, str) else json.dumps(value)
    return f"{MARK}<{name}>{inner}{MARK}</{name}>"


class _ElementValues(GemmaValueFormats):
    """The formats of a tool's values as elements."""

    written = staticmethod(lambda value: value if isinstance(value, str) else json.dumps(value))

    def _object(self, schema: dict[str, Any], left: int) -> Format:
        properties, required = self._properties(schema)
        named = [(_tagged(name, self.value(one, left - 1)), name in required) for name, one in properties.items()]
        return sequence(*members(named, ""), const(""))

    def _array(self, schema: dict[str, Any], left: int) -> Format:
        item = _tagged(ITEM, self.value(schema.get("items"), left - 1))
        return {"type": "repeat", "content": item, "min": schema.get("minItems", 0), "max": schema.get("maxItems", -1)}

    def _text(self, schema: dict[str, Any]) -> Format:
        bounds = schema.get("minLength", 0), schema.get("maxLength", "")
        return (
            {"type": "any_text"}
            if bounds == (0, "")
            else {"type": "regex", "pattern": f"[^\\]]{{{bounds[0]},{bounds[1]}}}"}
        )


def _tagged(name: str, content: Format) -> Format:
    return {"type": "tag", "begin": f"{MARK}<{name}>", "content": content, "end": f"{MARK}</{name}>"}


class _Elements(FramedToolCallParser):
    """A call is reported once it is complete; an element's JSON type follows from its schema and its contents."""

    def _json(self, name: str, id: str) -> Reading[bool]:
        begun, head = self._begin(name, id)
        end, start = Wanted([self.form.end.strip()]), self.tape.place
        if not (yield from self.tape.until(end)):
            self._break(begun, head + self.tape.take(), id)
            return False
        body = self.tape.since(start).removesuffix(end.texts[0])
        found = _read(body, self._schemas.get(name))
        if found is None:
            self._break(begun, head + self.tape.take(), id)
            return False
        self._argue(begun, [], found)
        self._end(begun, id)
        return True


def _read(body: str, schema: Any) -> str | None:
    """The JSON object of a call's elements; None where they are not in order."""
    return _Body(body, schema if isinstance(schema, Mapping) else {}).object()


class _Body:
    def __init__(self, text: str, schema: Mapping[str, Any]) -> None:
        self._text, self._root = text, schema
        self._marks = list(_ELEMENT.finditer(text))
        self._next = 0

    def object(self) -> str | None:
        found = self._children("", self._root, 0)
        whole = found is not None and self._next == len(self._marks)
        return _object(found) if whole and found is not None else None

    def _children(self, parent: str, schema: Any, depth: int) -> list[tuple[str, str]] | None:
        """The elements up to the end of their parent; None where they are not in order."""
        found: list[tuple[str, str]] = []
        while self._next < len(self._marks) and not self._marks[self._next][1]:
            mark = self._marks[self._next]
            self._next += 1
            value = self._value(mark, schema, depth + 1)
            if value is None or depth > DEEPEST:
                return None
            found.append((mark[2], value))
        return found

    def _value(self, mark: re.Match[str], schema: Any, depth: int) -> str | None:
        name, inner = mark[2], _inner(schema, mark[2], self._root)
        types = types_of({"properties": {name: inner}}, name)
        children = self._children(name, inner, depth)
        if children is None or self._next == len(self._marks) or self._marks[self._next][2] != name:
            return None
        end = self._marks[self._next]
        self._next += 1
        if children:
            listed = "array" in types and {key for key, _ in children} == {ITEM}
            return f"[{', '.join(value for _, value in children)}]" if listed else _object(children)
        text = self._text[mark.end() : end.start()]
        if not text and "string" not in types:
            return "[]" if "array" in types else "{}" if "object" in types else quoted(text)
        return json_of(text, types)


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{quoted(key)}: {value}" for key, value in dict(members).items()) + "}"


def _inner(schema: Any, name: str, root: Any) -> Any:
    """The schema of an element in one of that schema."""
    if not isinstance(schema, Mapping):
        return {}
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("items") if name == ITEM else {}


MINIMAX_M3 = MiniMaxM3ToolDialect(
    "minimax-m3",
    ToolCallFrame(
        f"{MARK}<tool_call>\n",
        '">',
        f"{MARK}</invoke>\n",
        f'{MARK}<invoke name="',
        f"{MARK}</tool_call>",
        lead="",
    ),
)
