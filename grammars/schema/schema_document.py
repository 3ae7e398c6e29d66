"""A JSON Schema document: its places by JSON pointer, and what references refer to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.schema.dynamic_scopes import DynamicScopes, bare
from sgl.grammars.schema.schema_options import SchemaOptions
from sgl.grammars.schema.schema_source import canonical_schema

__all__ = ["SchemaDocument", "SchemaOptions", "canonical_schema", "child"]

_LEGACY = ("draft-03", "draft-04", "draft-06", "draft-07")
_DRAFT_4 = ("draft-03", "draft-04")
_UNEVALUATED = frozenset(("unevaluatedProperties", "unevaluatedItems"))
_MISSING = object()
_RECURSIVE = "$recursiveAnchor"
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


class SchemaDocument:
    """The root schema and its places; a place is a JSON pointer with `#` before it."""

    def __init__(self, root: Any, resources: Mapping[str, Any] | None = None) -> None:
        self.root = root
        self._resources = resources or {}
        self.legacy, self.draft_4, self.draft_2019 = _draft(root)
        self._values: dict[str, Any] = {"#": root, "false": False}
        self._values |= {f"{uri}#": schema for uri, schema in self._resources.items()}
        self._anchors: dict[str, str] | None = None
        self._dynamic: dict[tuple[str, str], str] = {}  # by the root of a resource and the name of its dynamic anchor
        self._scopes = DynamicScopes()
        self._targets: dict[str, str] = {}  # of references that mean the same everywhere
        self.referred = False  # whether a reference was followed: without one nothing is recursive

    @cached_property
    def asks_for_unevaluated(self) -> bool:
        """Whether it may matter anywhere which members and items a keyword has spoken of."""
        return any(
            not inner.keys().isdisjoint(_UNEVALUATED) for inner in _dicts([self.root, *self._resources.values()])
        )

    @cached_property
    def _single(self) -> bool:
        """Whether nothing below the root can be a separate resource, so that `#` is the root everywhere."""
        return not self._resources and not any(
            isinstance(inner.get("id"), str) or isinstance(inner.get("$id"), str)
            for inner in _dicts(list(self.root.values()))
        )

    def value(self, place: str) -> Any:
        """The value at a place."""
        found = self._find(bare(place))
        if found is _MISSING:
            raise InvalidGrammarError("there is nothing", place)
        return found

    def define(self, place: str, value: Any) -> str:
        """Put a value at a separate place, outside the document."""
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
        target = self._entered(self._resolved(reference, bare(at), keyword), at)
        if reference[:2] == "#/" and self._single:
            self._targets[reference] = target
        return target

    def _entered(self, target: str, at: str) -> str:
        """The place of a target as it is reached from a place; the way matters only where dynamic references differ."""
        if not self._scoped:
            return target
        return self._scopes.numbered(target, (*self._scope(at), self._resource(target)[1]), at)

    def _scope(self, at: str) -> tuple[str, ...]:
        """The resources on the way to a place: those of its scope, then those between its entry and the place."""
        resources, entry = self._scopes.of(at)
        inside = [place for place in _schemas_around(bare(at)) if len(place) >= len(entry)]
        return (*resources, *(self._resource(place)[1] for place in inside))

    def _resolved(self, reference: str, at: str, keyword: str) -> str:
        base, place = self._resource(at)
        address, fragment = _split(base, reference, at)
        if address != base:
            place = self._anchor_places().get(address, "")
            if not place:
                raise UnsupportedGrammarError(
                    keyword, at, f"{reference!r} is in another document; inline it, or give it in resources="
                )
        if fragment and not fragment.startswith("/"):
            target = self._anchor_places().get(f"{address}#{fragment}", "")
        else:
            target = place + unquote(fragment)
        if not target or self._find(target) is _MISSING:
            raise InvalidGrammarError(f"{keyword} {reference!r} refers to nothing", at)
        self._check_draft(target)
        return target

    def _check_draft(self, place: str) -> None:
        """Another document means what the root's draft means by it, unless it says something else itself."""
        other = self._values[place.partition("#")[0] + "#"]
        if isinstance(other, dict) and "$schema" in other and _draft(other) != _draft(self.root):
            hint = f"{other['$schema']!r} is not the draft of the schema that refers to it"
            raise UnsupportedGrammarError("$schema", place, hint)

    def dynamic(self, keyword: str, reference: Any, at: str) -> str:
        """The place of a dynamic reference: of the outermost resource in its scope that has the same dynamic anchor.

        Raises:
            UnsupportedGrammarError: there are too many scopes.
        """
        static = self.resolve(reference, at, keyword)
        name = reference.rpartition("#")[2] if keyword == "$dynamicRef" else _RECURSIVE
        if not self._scoped or (self._resource(bare(static))[1], name) not in self._dynamic:
            return static
        if self._dynamic[self._resource(bare(static))[1], name] != bare(static):
            return static
        outermost = next((root for root in self._scope(at) if (root, name) in self._dynamic), None)
        return static if outermost is None else self._entered(self._dynamic[outermost, name], at)

    @cached_property
    def _scoped(self) -> bool:
        """Whether a dynamic anchor is in several resources, so that it matters how a place was reached."""
        if not any(
            "$dynamicRef" in inner or "$recursiveRef" in inner
            for inner in _dicts([self.root, *self._resources.values()])
        ):
            return False
        self._anchor_places()
        names = [name for _, name in self._dynamic]
        return len(set(names)) < len(names)

    def _resource(self, place: str) -> tuple[str, str]:
        """Base address and root place of the schema resource around a place."""
        base = place.partition("#")[0]
        root = f"{base}#"
        for at in _schemas_around(place):
            name = self._identity(self._find(at))
            if name:
                base, root = _split(base, name, at)[0], at
        return base, root

    def _identity(self, schema: Any) -> str:
        if not isinstance(schema, dict) or (self.legacy and "$ref" in schema):
            return ""
        name = schema.get("id" if self.draft_4 else "$id")
        return name if isinstance(name, str) and not name.startswith("#") else ""

    def _anchor_places(self) -> dict[str, str]:
        if self._anchors is None:
            self._anchors = {}
            starts = ["#"]
            for start in starts:
                self._anchors.setdefault(start[:-1], start)
                for place, schema in schemas(start, self._values[start]):
                    base, root = self._resource(place)
                    self._anchors.setdefault(base, root)
                    self._add_anchors(place, schema, base, root)
                    starts += [new for new in self._leads_to(schema, base, place) if new not in starts]
        return self._anchors

    def _leads_to(self, schema: dict[str, Any], base: str, place: str) -> list[str]:
        """The roots of the given documents that the references of one schema lead to."""
        references = [schema[k] for k in ("$ref", "$dynamicRef") if isinstance(schema.get(k), str)]
        addresses = [_split(base, reference, place)[0] for reference in references]
        return [f"{address}#" for address in addresses if address in self._resources]

    def _add_anchors(self, place: str, schema: dict[str, Any], base: str, root: str) -> None:
        assert self._anchors is not None
        legacy = schema.get("id" if self.draft_4 else "$id")
        if isinstance(legacy, str) and legacy.startswith("#"):
            self._anchors.setdefault(base + legacy, place)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(keyword), str):
                self._anchors.setdefault(f"{base}#{name}", place)
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault((root, name), place)
        if schema.get("$recursiveAnchor") is True and place == root:
            self._dynamic[root, _RECURSIVE] = place


def _draft(schema: Any) -> tuple[bool, bool, bool]:
    """Whether it is of draft 7 or before, of draft 4 or before, of draft 2019-09."""
    draft = str(schema.get("$schema", "")) if isinstance(schema, dict) else ""
    return any(name in draft for name in _LEGACY), any(name in draft for name in _DRAFT_4), "2019-09" in draft


def _split(base: str, reference: str, at: str) -> tuple[str, str]:
    """The address and the fragment of a reference that is relative to a base."""
    try:
        found = urldefrag(base + reference if reference[:1] == "#" else urljoin(base, reference))
    except ValueError as error:
        raise InvalidGrammarError(f"{reference!r} is no address: {error}", at) from error
    return found.url, found.fragment


def _member(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return value.get(key, _MISSING)
    if isinstance(value, list) and key.isdigit() and int(key) < len(value):
        return value[int(key)]
    return _MISSING


def _schemas_around(place: str) -> Iterator[str]:
    """The places of the schemas that lead to a place, as far as keywords are known."""
    address, _, pointer = place.partition("#")
    _, *keys = pointer.split("/")
    at, inside = f"{address}#", False
    yield at
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
