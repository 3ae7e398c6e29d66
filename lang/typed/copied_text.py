"""Fields whose values are copied: `Annotated[str, sgl.copied]`, which `sgl.Quote` is, and where the values occur.

class Line(BaseModel):
    article: sgl.Quote                                    # whole words of the text, exactly as they are there
    code: Annotated[str, sgl.copied(whole_words=False)]   # any characters of it
    note: sgl.Quote | None                                # null where the text has none
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, NamedTuple

from ..errors import BadValueError, shown
from .unsupported_types import UnsupportedType

KEYWORD = "x-copied"  # of the schema of a text

Schema = dict[str, Any]


class Span(NamedTuple):
    """A place in a text: `text[span.start : span.end]`, in characters."""

    start: int
    end: int


@dataclass(frozen=True)
class Copied:
    """The mark of a field whose value is a verbatim piece of a text. `whole_words`: it cuts no word."""

    whole_words: bool = True

    def __call__(self, *, whole_words: bool = True) -> Copied:
        """The mark with options. Raises BadValueError for what is neither True nor False."""
        if not isinstance(whole_words, bool):
            raise BadValueError(f"copied(whole_words={shown(whole_words)}): give True or False")
        return Copied(whole_words)

    @property
    def keyword(self) -> Schema:
        """What the schema of such a text says."""
        return {KEYWORD: "words" if self.whole_words else "characters"}

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> Schema:
        made = handler(core)
        marked = _marked(handler.resolve_ref_schema(made), self.keyword)
        if marked is None:
            raise UnsupportedType("sgl.copied is for texts; write Annotated[str, sgl.copied]")
        return marked


def _marked(schema: Schema, keyword: Schema) -> Schema | None:
    """The schema with the keyword on its texts; None if it has none."""
    if schema.get("type") == "string":
        return {**schema, **keyword}
    members = [(one, _marked(one, keyword)) for one in schema.get("anyOf", ())]
    if not any(marked for _, marked in members):
        return None
    return {**schema, "anyOf": [marked or one for one, marked in members]}


copied = Copied()
Quote = Annotated[str, copied]


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
    from . import reading_of

    schema = getattr(reading_of(kind), "schema", {})
    return _walked(schema, value, "", schema.get("$defs", {}))


def has_copied(schema: Any) -> bool:
    """Whether some text of a schema is copied."""
    if isinstance(schema, dict):
        return KEYWORD in schema or any(map(has_copied, schema.values()))
    return isinstance(schema, list) and any(map(has_copied, schema))


def _walked(schema: Any, value: Any, path: str, defs: Schema) -> Iterator[tuple[str, str, str]]:
    if not isinstance(schema, dict) or value is None:
        return
    if "$ref" in schema:
        yield from _walked(defs.get(schema["$ref"].rpartition("/")[2]), value, path, defs)
    if KEYWORD in schema and isinstance(value, str):
        yield path, str(value), schema[KEYWORD]
    for one in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
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
        if (held := _member(value, name)) is not None:
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
    return all(_member(value, name) is not None for name in schema.get("required", ())) and all(
        _is_choice(inner, _member(value, name)) for name, inner in schema.get("properties", {}).items()
    )


def _is_choice(schema: Any, value: Any) -> bool:
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [value])
    return getattr(value, "value", value) in choices or value is None


_MISSING = object()


def _member(value: Any, name: str) -> Any:
    """The field of an object that JSON knows by a name; None where it has none."""
    if isinstance(value, Mapping):
        return value.get(name)
    found = getattr(value, _attributes(type(value)).get(name, name), _MISSING)
    return None if found is _MISSING else found


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
