"""A JSON Schema document: reading it, its places by JSON pointer, and what `$ref` refers to."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from sgl.grammars.errors import GrammarError, InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.schema.json_text import WHITESPACE

_LEGACY = ("draft-03", "draft-04", "draft-06", "draft-07")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """How JSON is written and what an absent keyword means.

    Attributes:
        whitespace: "default" (at most one space after `,` and `:`), "compact" (none), "indented" (every member
            on a line of its own) or "free" (up to 40 blanks between tokens).
        additional_properties: whether an object schema that names properties and says nothing of others allows
            others, as the specification has it.
    """

    whitespace: str = "default"
    additional_properties: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SchemaOptions:
        """Check names and values."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise GrammarError(f"unknown schema option {name!r}{_nearest(name, known)}")
        found = cls(**options)
        if found.whitespace not in WHITESPACE:
            hint = _nearest(str(found.whitespace), list(WHITESPACE))
            raise GrammarError(f"whitespace={found.whitespace!r} is none of {', '.join(WHITESPACE)}{hint}")
        return found


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.4)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def canonical_schema(schema: Any) -> tuple[Any, str]:
    """A schema as JSON values, and as a text that is equal for equal schemas (the order of keys counts).

    Raises:
        InvalidGrammarError: it is not JSON, or neither an object nor a boolean.
    """
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    ours = isinstance(schema, str)
    if ours:
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise InvalidGrammarError(f"the schema is not JSON: {error}") from error
    if not isinstance(schema, Mapping | bool):
        raise InvalidGrammarError(
            f"a schema is a JSON object, true or false, not {schema!r}; pass a dict, JSON text or a pydantic model"
        )
    try:
        text = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidGrammarError(f"the schema is not JSON: {error}") from error
    return schema if ours else json.loads(text), text


def child(pointer: str, *keys: str | int) -> str:
    """The pointer of a member of what a pointer points to."""
    return pointer + "".join("/" + str(k).replace("~", "~0").replace("/", "~1") for k in keys)


class Document:
    """The root schema and its places; a place is a JSON pointer with `#` before it."""

    def __init__(self, root: Any) -> None:
        self.root = root
        draft = root.get("$schema", "") if isinstance(root, dict) else ""
        self.legacy = any(name in str(draft) for name in _LEGACY)
        self._values: dict[str, Any] = {"#": root, "false": False}
        self._anchors: dict[str, str] | None = None

    def value(self, place: str) -> Any:
        """What stands at a place."""
        found = self._find(place)
        if found is _MISSING:
            raise InvalidGrammarError("there is nothing", place)
        return found

    def _find(self, place: str) -> Any:
        if place not in self._values:
            parent, _, key = place.rpartition("/")
            found = self._find(parent) if parent else _MISSING
            self._values[place] = _member(found, key.replace("~1", "/").replace("~0", "~"))
        return self._values[place]

    def resolve(self, reference: Any, at: str) -> str:
        """The place that a `$ref` at a place refers to.

        Raises:
            InvalidGrammarError: there is no such place.
            UnsupportedGrammarError: it is in another document.
        """
        if not isinstance(reference, str):
            raise InvalidGrammarError(f"$ref must be a string, not {reference!r}", at)
        base, place = self._resource(at)
        address, fragment = urldefrag(urljoin(base, reference))
        if address != base:
            place = self._anchor_places().get(address, "")
            if not place:
                raise UnsupportedGrammarError("$ref", at, f"{reference!r} is in another document; inline it")
        if fragment and not fragment.startswith("/"):
            target = self._anchor_places().get(f"{address}#{fragment}", "")
        else:
            target = place + unquote(fragment)
        if not target or self._find(target) is _MISSING:
            raise InvalidGrammarError(f"$ref {reference!r} refers to nothing", at)
        return target

    def _resource(self, place: str) -> tuple[str, str]:
        """Base address and root place of the schema resource around a place."""
        chain: list[str] = []
        while place:
            chain.append(place)
            place = place.rpartition("/")[0]
        base, root = "", "#"
        for place in reversed(chain):
            name = _identity(self._find(place))
            if name:
                base, root = urldefrag(urljoin(base, name))[0], place
        return base, root

    def _anchor_places(self) -> dict[str, str]:
        if self._anchors is None:
            self._anchors = {}
            for place, schema in _objects("#", self.root):
                base, root = self._resource(place)
                self._anchors.setdefault(base, root)
                legacy_id = schema.get("$id", schema.get("id"))
                if isinstance(legacy_id, str) and legacy_id.startswith("#"):
                    self._anchors.setdefault(base + legacy_id, place)
                if isinstance(schema.get("$anchor"), str):
                    self._anchors.setdefault(f"{base}#{schema['$anchor']}", place)
        return self._anchors


def _identity(schema: Any) -> str:
    name = schema.get("$id", schema.get("id")) if isinstance(schema, dict) else None
    return name if isinstance(name, str) and not name.startswith("#") else ""


def _member(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value.get(key, _MISSING)
    if isinstance(value, list) and key.isdigit() and int(key) < len(value):
        return value[int(key)]
    return _MISSING


def _objects(place: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        yield place, value
        for key, member in value.items():
            yield from _objects(child(place, key), member)
    elif isinstance(value, list):
        for i, member in enumerate(value):
            yield from _objects(child(place, i), member)
