"""Fields whose values are copied: `Annotated[str, sgl.copied]`, which `sgl.Quote` is, and where the values occur.

class Line(BaseModel):
    article: sgl.Quote                                    # whole words of the text, exactly as they are there
    code: Annotated[str, sgl.copied(whole_words=False)]   # any characters of it
    note: sgl.Quote | None                                # null where the text has none
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import count
from typing import Any, NamedTuple

from . import reading_of
from .copied_marks import KEYWORD, Copied, Quote, copied

__all__ = ["Copied", "Quote", "Span", "copied", "copied_spans"]

Schema = dict[str, Any]


class Span(NamedTuple):
    """A place in a text: `text[span.start : span.end]`, in characters."""

    start: int
    end: int


def copied_spans(kind: Any, value: Any, text: str) -> dict[str, list[Span]]:
    """Where the copied values of `value` occur in `text`, by the paths of their fields: `lines[0].article`.

    kind: the type, such as a dataclass with fields of `sgl.Quote`. value: a value of it. Fields go by the names that
    JSON has for them. All places are given, in order, also those that overlap. A value that is no piece of the text,
    which only a backend without masks can give, has none; a field that is None has no entry.

    Raises BadValueError for a type that has no JSON form.
    """
    from sgl.grammars.copied.text_boundaries import boundaries

    places = {pieces: boundaries(text, pieces) for pieces in ("words", "characters")}
    found: dict[str, list[Span]] = {}
    for path, piece, pieces in copied_values(kind, value):
        found[path] = list(_occurrences(piece, text, *places[pieces][:2]))
    return found


def _occurrences(piece: str, text: str, starts: Any, ends: Any) -> Iterator[Span]:
    at = text.find(piece) if piece else -1
    while at >= 0:
        if starts[at] and ends[at + len(piece)]:
            yield Span(at, at + len(piece))
        at = text.find(piece, at + 1)


def copied_values(kind: Any, value: Any) -> Iterator[tuple[str, str, str]]:
    """The copied texts of a value of a type: path, text, and of what pieces are made."""
    schema = getattr(reading_of(kind), "schema", {})
    return _walked(schema, value, "", schema.get("$defs", {}))


def _walked(schema: Any, value: Any, path: str, defs: Schema) -> Iterator[tuple[str, str, str]]:
    if not isinstance(schema, dict) or value is None:
        return
    if "$ref" in schema:
        yield from _walked(defs.get(schema["$ref"].rpartition("/")[2]), value, path, defs)
    if KEYWORD in schema and isinstance(value, str):
        yield path, str(value), schema[KEYWORD]
    members = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    for one in sorted(
        members, key=lambda member: not {"enum", "const"} & set(member)
    ):  # constants are copied by chance
        if _fits(one, value, defs):
            yield from _walked(one, value, path, defs)
            break
    for one in schema.get("allOf", ()):
        yield from _walked(one, value, path, defs)
    for steps, inner, held in _held(schema, value):
        yield from _walked(inner, held, (path + steps).removeprefix("."), defs)


def _held(schema: Schema, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """What an object or a list holds, with the schema of each."""
    if _is_list(value):
        firsts = schema.get("prefixItems", ())
        schemas = (firsts[i] if i < len(firsts) else schema.get("items") for i in count())
        yield from ((f"[{i}]", inner, item) for i, (inner, item) in enumerate(zip(schemas, value, strict=False)))
        return
    named = schema.get("properties", {})
    for name, inner in named.items():
        if (held := _member(value, name)) is not _MISSING:
            yield f".{name}", inner, held
    if isinstance(value, Mapping):
        others = schema.get("additionalProperties")
        yield from ((f".{name}", others, held) for name, held in value.items() if name not in named)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence | Set) and not isinstance(value, str | bytes)


def _fits(schema: Any, value: Any, defs: Schema) -> bool:
    """Whether a member of a choice is the one that a value is of, as far as its kind and its fields say."""
    for _ in range(len(defs) + 1):
        if "$ref" in schema:
            schema = defs.get(schema["$ref"].rpartition("/")[2], {})
    kind = schema.get("type")
    if isinstance(value, str) or kind == "string":
        return isinstance(value, str) and kind in ("string", None) and _is_choice(schema, value)
    if _is_list(value) or kind == "array":
        return _is_list(value) and kind in ("array", None)
    members = {name: (inner, _member(value, name)) for name, inner in schema.get("properties", {}).items()}
    return all(members.get(name, (None, _MISSING))[1] is not _MISSING for name in schema.get("required", ())) and all(
        held is _MISSING or _is_choice(inner, held) for inner, held in members.values()
    )


def _is_choice(schema: Any, value: Any) -> bool:
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [value])
    return getattr(value, "value", value) in choices


_MISSING = object()


def _member(value: Any, name: str) -> Any:
    """The field of an object that JSON knows by a name, `_MISSING` where it has none; of msgspec also its tag."""
    if isinstance(value, Mapping):
        return value.get(name, _MISSING)
    config = getattr(value, "__struct_config__", None)
    if config is not None and config.tag_field == name:
        return config.tag
    return getattr(value, _attributes(type(value)).get(name, name), _MISSING)


def _attributes(kind: type) -> dict[str, str]:
    """The attributes of a class by the names that JSON has for them, where these differ."""
    if hasattr(kind, "__struct_encode_fields__"):
        return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))  # type: ignore[attr-defined]
    if hasattr(kind, "__attrs_attrs__"):
        return {one.alias: one.name for one in kind.__attrs_attrs__}
    fields = getattr(kind, "__pydantic_fields__", {})
    return {
        alias: name
        for name, field in fields.items()
        for alias in (field.alias, field.validation_alias)
        if isinstance(alias, str)
    }
