"""A JSON Schema document: its places by JSON pointer, and what references refer to."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.schema.options import SchemaOptions
from sgl.grammars.schema.source import canonical_schema

__all__ = ["Document", "SchemaOptions", "canonical_schema", "child"]

_LEGACY = ("draft-03", "draft-04", "draft-06", "draft-07")
_DRAFT_4 = ("draft-03", "draft-04")
_UNEVALUATED = frozenset(("unevaluatedProperties", "unevaluatedItems"))
_MISSING = object()
_ONE = frozenset(
    ("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not")
    + ("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties")
)
_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_MAPS = frozenset(("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"))


class EndlessReference(InvalidGrammarError):
    """A schema that refers to itself without a value in between."""


def child(pointer: str, *keys: str | int) -> str:
    """The pointer of a member of what a pointer points to."""
    return pointer + "".join("/" + str(k).replace("~", "~0").replace("/", "~1") for k in keys)


class Document:
    """The root schema and its places; a place is a JSON pointer with `#` before it."""

    def __init__(self, root: Any) -> None:
        self.root = root
        draft = str(root.get("$schema", "")) if isinstance(root, dict) else ""
        self.legacy = any(name in draft for name in _LEGACY)
        self.draft_4 = any(name in draft for name in _DRAFT_4)
        self.draft_2019 = "2019-09" in draft
        self._values: dict[str, Any] = {"#": root, "false": False}
        self._anchors: dict[str, str] | None = None
        self._dynamic: dict[str, int] = {}
        self._targets: dict[str, str] = {}  # of references that mean the same everywhere
        self.referred = False  # whether a reference was followed: without one nothing is recursive

    @cached_property
    def asks_for_unevaluated(self) -> bool:
        """Whether it may matter anywhere which members and items a keyword has spoken of."""
        return any(not inner.keys().isdisjoint(_UNEVALUATED) for inner in _dicts(self.root))

    @cached_property
    def _single(self) -> bool:
        """Whether nothing below the root can be a resource of its own, so that `#` is the root everywhere."""
        return not any(
            isinstance(inner.get("id"), str) or isinstance(inner.get("$id"), str)
            for inner in _dicts(list(self.root.values()))
        )

    def value(self, place: str) -> Any:
        """What stands at a place."""
        found = self._find(place)
        if found is _MISSING:
            raise InvalidGrammarError("there is nothing", place)
        return found

    def define(self, place: str, value: Any) -> str:
        """Put a value at a place of its own, outside the document."""
        self._values[place] = value
        return place

    def _find(self, place: str) -> Any:
        if place not in self._values:
            parent, _, key = place.rpartition("/")
            found = self._find(parent) if parent else _MISSING
            self._values[place] = _member(found, key.replace("~1", "/").replace("~0", "~"))
        return self._values[place]

    def resolve(self, reference: Any, at: str, keyword: str = "$ref") -> str:
        """The place that a reference at a place refers to.

        Raises:
            InvalidGrammarError: there is no such place.
            UnsupportedGrammarError: it is in another document.
        """
        if not isinstance(reference, str):
            raise InvalidGrammarError(f"{keyword} must be a string, not {reference!r}", at)
        self.referred = True
        if reference in self._targets:
            return self._targets[reference]
        target = self._resolved(reference, at, keyword)
        if reference[:2] == "#/" and self._single:
            self._targets[reference] = target
        return target

    def _resolved(self, reference: str, at: str, keyword: str) -> str:
        base, place = self._resource(at)
        address, fragment = urldefrag(base + reference if reference[:1] == "#" else urljoin(base, reference))
        if address != base:
            place = self._anchor_places().get(address, "")
            if not place:
                raise UnsupportedGrammarError(keyword, at, f"{reference!r} is in another document; inline it")
        if fragment and not fragment.startswith("/"):
            target = self._anchor_places().get(f"{address}#{fragment}", "")
        else:
            target = place + unquote(fragment)
        if not target or self._find(target) is _MISSING:
            raise InvalidGrammarError(f"{keyword} {reference!r} refers to nothing", at)
        return target

    def dynamic(self, keyword: str, reference: Any, at: str) -> str:
        """The place of a dynamic reference that can have but one target.

        Raises:
            UnsupportedGrammarError: where it leads depends on how it was reached.
        """
        self._anchor_places()
        name = str(reference).rpartition("#")[2] if keyword == "$dynamicRef" else "$recursiveAnchor"
        if self._dynamic.get(name, 0) > 1:
            raise UnsupportedGrammarError(keyword, at, f"{reference!r} has more than one target")
        return self.resolve(reference, at, keyword)

    def _resource(self, place: str) -> tuple[str, str]:
        """Base address and root place of the schema resource around a place."""
        base, root = "", "#"
        for at in _schemas_around(place):
            name = self._identity(self._find(at))
            if name:
                base, root = urldefrag(urljoin(base, name))[0], at
        return base, root

    def _identity(self, schema: Any) -> str:
        if not isinstance(schema, dict) or (self.legacy and "$ref" in schema):
            return ""
        name = schema.get("id" if self.draft_4 else "$id")
        return name if isinstance(name, str) and not name.startswith("#") else ""

    def _anchor_places(self) -> dict[str, str]:
        if self._anchors is None:
            self._anchors = {}
            for place, schema in schemas("#", self.root):
                base, root = self._resource(place)
                self._anchors.setdefault(base, root)
                self._add_anchors(place, schema, base)
        return self._anchors

    def _add_anchors(self, place: str, schema: dict[str, Any], base: str) -> None:
        assert self._anchors is not None
        legacy = schema.get("id" if self.draft_4 else "$id")
        if isinstance(legacy, str) and legacy.startswith("#"):
            self._anchors.setdefault(base + legacy, place)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(keyword), str):
                self._anchors.setdefault(f"{base}#{name}", place)
                self._dynamic[name] = self._dynamic.get(name, 0) + (keyword == "$dynamicAnchor")
        if schema.get("$recursiveAnchor") is True:
            self._dynamic["$recursiveAnchor"] = self._dynamic.get("$recursiveAnchor", 0) + 1


def _member(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value.get(key, _MISSING)
    if isinstance(value, list) and key.isdigit() and int(key) < len(value):
        return value[int(key)]
    return _MISSING


def _schemas_around(place: str) -> Iterator[str]:
    """The places of the schemas that lead to a place, as far as keywords are known."""
    first, *keys = place.split("/")
    yield first
    at, inside = first, False
    for i, key in enumerate(keys):
        at += "/" + key
        if inside:
            yield at
            inside = False
        elif key in _MAPS or (key in _LISTS and i + 1 < len(keys) and keys[i + 1].isdigit()):
            inside = True
        elif key in _ONE:
            yield at
        else:
            return


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """All dicts in a value."""
    work = [value]
    while work:
        inner = work.pop()
        if inner.__class__ is dict:
            yield inner
            work += inner.values()
        elif inner.__class__ is list:
            work += inner


def schemas(place: str, schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All schemas with their places, as far as keywords are known."""
    if not isinstance(schema, dict):
        return
    yield place, schema
    for keyword, value in schema.items():
        if keyword in _MAPS and isinstance(value, dict):
            for name, member in value.items():
                yield from schemas(child(place, keyword, name), member)
        elif keyword in _LISTS and isinstance(value, list):
            for i, member in enumerate(value):
                yield from schemas(child(place, keyword, i), member)
        elif keyword in _ONE:
            yield from schemas(child(place, keyword), value)
