"""Gemma 4: `<|tool_call>call:f{a:<|"|>text<|"|>,b:3}<tool_call|>`, keys in the order of the alphabet."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sgl.grammars.schema.closed_objects import KEYWORD as CLOSING
from sgl.runtime.errors import ConfigError

from ..framed_tool_dialect import FramedToolDialect, ToolCallFrame
from ..model_output_parser import ModelOutputParser
from ..parsing.framed_tool_call_parser import FramedToolCallParser
from ..parsing.incremental_text import Reading
from ..parsing.incremental_text import TextMarks as Wanted
from ..parsing.json_value_parser import DEEPEST, SCALAR
from ..parsing.unquoted_values import quoted
from ..reasoning_marks import ReasoningMarks
from ..tool_call_grammars import Format, const, members, sequence
from ..tool_types import DialectToolCall, Tool

MOST_LINKS = 30  # schemas inside each other
NOTES = frozenset({"type", "title", "description", "default", "examples", "$comment", "nullable", CLOSING})
KNOWN = {
    "string": {"minLength", "maxLength"},
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
TYPES = ("string", "number", "boolean", "null")
QUOTE = '<|"|>'
_CLOSER = {"{": "}", "[": "]"}
_QUOTES = Wanted([QUOTE])


class GemmaToolCallParser(FramedToolCallParser):
    """A call is reported incrementally; whether its values made up an object is known in the end."""

    def _json(self, name: str, id: str) -> Reading[bool]:
        if (yield from self.tape.visible()) != "{":
            return False
        index, head = self._begin(name, id)
        self._whole, self._index, written = list[str](), index, [head]
        ended = (yield from self._values(written)) and _is_object("".join(self._whole))
        if not ended:
            written.append(self.tape.take())
            self._break(index, "".join(written), id)
            return False
        yield from self._passed_end()
        self._end(index, id)
        return True

    def _values(self, written: list[str]) -> Reading[bool]:
        """Everything up to the bracket that closes the first one."""
        closers: list[str] = []
        while char := (yield from self.tape.visible()):
            if (yield from self.tape.skip(QUOTE)):
                if not (yield from self._text(written)):
                    return False
            elif char in _CLOSER or char in "}],:":
                self.tape.at += 1
                if char in _CLOSER:
                    closers.append(_CLOSER[char])
                elif char in "}]" and (not closers or closers.pop() != char):
                    return False
                self._emit_json(char + " " * (char in ",:"))
            elif not (yield from self._word_of_json()):
                return False
            written.append(self.tape.take())
            if not closers or len(closers) > DEEPEST:
                return not closers
        return False

    def _text(self, written: list[str]) -> Reading[bool]:
        written.append(self.tape.take())
        self._emit_json('"')

        def flow(text: str) -> None:
            written.append(text)
            self._emit_json(quoted(text)[1:-1])

        self.tape.flow = flow
        mark = yield from self.tape.until(_QUOTES)
        self.tape.flow = None
        if mark:
            self._emit_json('"')
        return bool(mark)

    def _word_of_json(self) -> Reading[bool]:
        """A key, or a number, true, false or null."""
        start = self.tape.place
        while (char := (yield from self.tape.peek())) and char not in ",:{}[]<\"' \t\r\n":
            self.tape.at += 1
        word = self.tape.since(start)
        is_key = (yield from self.tape.visible()) == ":"
        word = "null" if word == "None" and not is_key else word  # as its template writes it
        if not word or not (is_key or SCALAR.fullmatch(word)):
            return False
        self._emit_json(quoted(word) if is_key else word)
        return True

    def _emit_json(self, text: str) -> None:
        self._whole.append(text)
        self._argue(self._index, [], text)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class GemmaToolDialect(FramedToolDialect):
    def read(self, names: Collection[str], marks: ReasoningMarks | None) -> ModelOutputParser:
        return GemmaToolCallParser(self.frame.form, names, marks)

    def _arguments(self, call: DialectToolCall) -> str:
        return _written(call.arguments)

    def _tag(self, tool: Tool, opening: str, link: str) -> Format:
        schema = tool.arguments_schema
        content = GemmaValueFormats(tool.name, schema).value(schema, MOST_LINKS)
        return {
            "type": "tag",
            "begin": f"{opening}{self.frame.head}{tool.name}",
            "content": content,
            "end": self.frame.end,
        }


def _written(value: Any) -> str:
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_written(value[key])}" for key in sorted(value, key=str.lower)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


class GemmaValueFormats:
    """The formats of a tool's values. Raises ConfigError for keywords that they cannot keep to; names the tool."""

    written = staticmethod(lambda value: _written(value))

    def __init__(self, name: str, root: Any) -> None:
        self._name, self._root = name, root

    def value(self, schema: Any, left: int) -> Format:
        if not left:
            raise ConfigError(f"the parameters of the tool {self._name!r} are nested too deeply for calls in this form")
        schema = schema if isinstance(schema, dict) else {}
        if "$ref" in schema:
            return self.value(self._target(str(schema["$ref"])), left - 1)
        if "enum" in schema or "const" in schema:
            return {
                "type": "choices",
                "choices": [self.written(one) for one in schema.get("enum", [schema.get("const")])],
            }
        branches = schema.get("anyOf") or schema.get("oneOf")
        kind = schema.get("type", list(TYPES))
        if not branches and isinstance(kind, str):
            return self._of(kind, schema, left)
        self._check(schema, {"anyOf", "oneOf"} if branches else set().union(*(KNOWN.get(one, set()) for one in kind)))
        branches = branches or [{**schema, "type": one} for one in kind]
        return {"type": "or", "elements": [self.value(branch, left - 1) for branch in branches]}

    def _of(self, kind: str, schema: dict[str, Any], left: int) -> Format:
        if kind not in KNOWN:
            return {"type": "json_schema", "json_schema": schema}
        self._check(schema, KNOWN[kind] if isinstance(schema.get("type"), str) else set())
        if kind == "object":
            return self._object(schema, left)
        return self._array(schema, left) if kind == "array" else self._text(schema)

    def _object(self, schema: dict[str, Any], left: int) -> Format:
        properties, required = self._properties(schema)
        named = [
            (sequence(const(f"{name}:"), self.value(properties[name], left - 1)), name in required)
            for name in sorted(properties, key=str.lower)
        ]
        return sequence(const("{"), *members(named, ","), const("}"))

    def _properties(self, schema: dict[str, Any]) -> tuple[dict[str, Any], Collection[str]]:
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        if missing := [name for name in required if name not in properties]:
            raise ConfigError(
                f"the tool {self._name!r} requires {missing[0]!r}, which is none of its properties; describe it there"
            )
        return properties, required

    def _array(self, schema: dict[str, Any], left: int) -> Format:
        item = self.value(schema.get("items"), left - 1)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if most == 0:
            return const("[]")
        more: Format = {
            "type": "repeat",
            "content": sequence(const(","), item),
            "min": max(least - 1, 0),
            "max": -1 if most is None else most - 1,
        }
        listed = sequence(item, more)
        return sequence(const("["), listed if least else {"type": "optional", "content": listed}, const("]"))

    def _text(self, schema: dict[str, Any]) -> Format:
        """A string between its marks; where its length is bounded, without the character that they begin with."""
        bounds = schema.get("minLength", 0), schema.get("maxLength", "")
        free: Format = {"type": "any_text"}
        counted: Format = {"type": "regex", "pattern": f"[^<]{{{bounds[0]},{bounds[1]}}}"}
        return {"type": "tag", "begin": QUOTE, "content": free if bounds == (0, "") else counted, "end": QUOTE}

    def _check(self, schema: dict[str, Any], known: set[str]) -> None:
        odd = next((key for key in schema if key not in NOTES | known and key not in ("$defs", "definitions")), None)
        if odd is not None:
            raise ConfigError(
                f"the parameters of the tool {self._name!r} have {odd!r}, which calls in this form cannot keep to"
            )

    def _target(self, ref: str) -> Any:
        found = self._root
        for part in ref.removeprefix("#").split("/")[1:]:
            found = found.get(part) if isinstance(found, dict) else None
        if found is None:
            raise ConfigError(f"the parameters of the tool {self._name!r} refer to {ref!r}, which is not there")
        return found


GEMMA = GemmaToolDialect("gemma4", ToolCallFrame("<|tool_call>", "", "<tool_call|>", "call:", lead=""))
