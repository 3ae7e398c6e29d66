"""Where the fields of a JSON text are, and which ones its schema has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Schema = dict[str, Any]

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[^\s,\]}]+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass(frozen=True)
class JsonLeaf:
    """A value without fields, at `text[start:end]`. `path`: `lines[0].price`; "" is the whole."""

    path: str
    start: int
    end: int


@dataclass
class JsonObject:
    """An object. members: its names in their order, with the index of the first leaf that each holds.

    after: the index of the leaf that follows the object, which may be one beyond the last.
    """

    path: str
    members: list[tuple[str, int]] = field(default_factory=list)
    after: int = 0


class JsonPlaces:
    """The leaves and the objects of a JSON text, in the order of the text. Raises ValueError for other texts."""

    def __init__(self, text: str) -> None:
        json.loads(text)
        self.leaves: list[JsonLeaf] = []
        self.objects: list[JsonObject] = []
        self._text = text
        self._value(self._after_space(0), "")

    def _value(self, at: int, path: str) -> int:
        """Read the value at a place; the place after it."""
        opening = self._text[at]
        if opening not in "{[" or self._text[self._after_space(at + 1)] in "}]":
            return self._leaf(at, path)
        return self._object(at + 1, path) if opening == "{" else self._list(at + 1, path)

    def _leaf(self, at: int, path: str) -> int:
        if self._text[at] in "{[":  # nothing is in it
            end = self._after_space(at + 1) + 1
            if self._text[at] == "{":
                self.objects.append(JsonObject(path, after=len(self.leaves) + 1))
        else:
            found = (_STRING if self._text[at] == '"' else _SCALAR).match(self._text, at)
            assert found is not None
            end = found.end()
        self.leaves.append(JsonLeaf(path, at, end))
        return end

    def _object(self, at: int, path: str) -> int:
        found = JsonObject(path)
        self.objects.append(found)
        for place in self._items(at, "}"):
            name = _STRING.match(self._text, place)
            assert name is not None
            known: str = json.loads(name[0])
            found.members.append((known, len(self.leaves)))
            colon = self._after_space(name.end())
            self._end = self._value(self._after_space(colon + 1), f"{path}.{known}".removeprefix("."))
        found.after = len(self.leaves)
        return self._end

    def _list(self, at: int, path: str) -> int:
        for index, place in enumerate(self._items(at, "]")):
            self._end = self._value(place, f"{path}[{index}]")
        return self._end

    def _items(self, at: int, closing: str) -> Iterator[int]:
        """The beginning of each item of a list or object that is not empty; `_end` is set to the end of each."""
        self._end = at
        while True:
            yield self._after_space(self._end)
            at = self._after_space(self._end)
            self._end = at + 1
            if self._text[at] == closing:
                return

    def _after_space(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        assert found is not None
        return found.end()


def properties_inside(value: Any, schema: Schema) -> Iterator[tuple[str, list[str]]]:
    """The properties that a schema has for each object of a value of JSON, by the object's path."""
    return _properties(value, schema, "", schema.get("$defs", {}))


def _properties(value: Any, schema: Any, path: str, defs: Schema) -> Iterator[tuple[str, list[str]]]:
    schema = _resolved(schema, defs)
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if _fits(value, _resolved(one, defs)):
            yield from _properties(value, one, path, defs)
            return
    if isinstance(value, dict) and (named := schema.get("properties")):
        yield path, [*named]
        for name, held in value.items():
            yield from _properties(held, named.get(name), f"{path}.{name}".removeprefix("."), defs)
    elif isinstance(value, list):
        firsts = schema.get("prefixItems", ())
        schemas = (firsts[i] if i < len(firsts) else schema.get("items") for i in count())
        for index, (held, inner) in enumerate(zip(value, schemas, strict=False)):
            yield from _properties(held, inner, f"{path}[{index}]", defs)


def _resolved(schema: Any, defs: Schema) -> Schema:
    for _ in range(len(defs) + 1):  # no chain of references is longer than there are definitions
        if isinstance(schema, dict) and "$ref" in schema:
            schema = defs.get(schema["$ref"].rpartition("/")[2])
    return schema if isinstance(schema, dict) else {}


def _fits(value: Any, schema: Schema) -> bool:
    """Whether a member of a choice may be the one that a value is of, as far as its names and its constants say."""
    if not isinstance(value, dict):
        return isinstance(value, list) and schema.get("type") == "array"
    named = schema.get("properties", {})
    if "properties" not in schema or not {*schema.get("required", ())} <= value.keys() <= named.keys():
        return False
    constants = {name: inner["const"] for name, inner in named.items() if "const" in inner}
    return all(value.get(name, constant) == constant for name, constant in constants.items())
