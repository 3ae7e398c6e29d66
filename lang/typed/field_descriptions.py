"""What a model must know of a type before it writes one: its fields in words, a line each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from sgl.runtime.dialects import known_name
from sgl.runtime.nano import nano_prompts

from ..errors import BadValueError
from .type_constraint import type_name

Schema = dict[str, Any]

FORMATS = {
    "date": "date as YYYY-MM-DD",
    "time": "time as HH:MM:SS",
    "date-time": "date and time as YYYY-MM-DDTHH:MM:SS",
}
NULL = {"type": "null"}


class FieldDescriptions:
    """The fields of a type, or of a JSON Schema, in the words of every model and in those of sgl-nano."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind if isinstance(kind, dict) else type_name(kind)
        schema = _schema_of(kind)
        self._defs: Schema = schema.get("$defs", {})
        top = self._resolved(schema)
        self._top = tuple(schema[key] for key in schema if key == "$ref")  # what the fields are those of
        self._is_list = top.get("type") == "array"
        self._object = self._resolved(top.get("items") or {}) if self._is_list else top
        if not self._object.get("properties"):
            raise BadValueError(f"fields({self._kind}): it has no fields; give a class with fields, or a list of one")

    @property
    def name(self) -> str:
        """The type as a program says it, without modules."""
        return "schema" if isinstance(self._kind, dict) else re.sub(r"(\w+\.)+(?=\w)", "", self._kind)

    def text(self, backend: Any, task: str | None = None) -> str:
        """The description for the backend's model; that for most models where `backend` is None."""
        nano = backend is not None and known_name(backend.get_model_name()) == "nano"
        return self.nano(task) if nano else self.plain(task)

    def plain(self, task: str | None = None) -> str:
        """`- name (kind): description`; what objects and lists hold is indented below."""
        lines = [self._task() if task is None else task, *self._lines(self._object, "", self._top)]
        return "\n".join(line for line in lines if line)

    def nano(self, task: str | None = None) -> str:
        """As sgl-nano was trained to read them; it knows no lists of objects."""
        fields = nano_prompts.fields_of({**self._object, "$defs": self._defs})
        lines = [nano_prompts.EXTRACT_TASK if task is None else task, *nano_prompts.field_lines(fields)]
        return "\n".join(line for line in lines if line)

    def _task(self) -> str:
        what = "a list of objects with these fields" if self._is_list else "these fields"
        return " ".join([f"Extract {what} from the text as JSON.", *self._where_silent()])

    def _where_silent(self) -> Iterator[str]:
        """What to write where the text says nothing, if the type allows for it."""
        properties = self._object["properties"]
        if set(properties) - set(self._object.get("required", ())):
            yield "Leave out what the text does not say."
        elif any(NULL in one.get("anyOf", ()) for one in properties.values()):
            yield "Write null where the text does not say."

    # --- lines -------------------------------------------------------------------------------------------

    def _lines(self, schema: Schema, indent: str, above: tuple[str, ...]) -> Iterator[str]:
        required = schema.get("required", ())
        all_required = set(required) >= set(schema["properties"])
        for name, value in schema["properties"].items():
            kind = self._kind_of(value, name in required)
            note = ", required" if name in required and not all_required else ""
            about = " ".join((self._resolved(value).get("description") or value.get("description") or "").split())
            yield f"{indent}- {name} ({kind}{note})" + (f": {about}" if about else "")
            yield from self._inside(value, indent + "  ", above)

    def _inside(self, schema: Schema, indent: str, above: tuple[str, ...]) -> Iterator[str]:
        """The fields of the objects that a value is, or holds; of an object inside itself they are not said again."""
        found = list(self._objects(schema, above))
        for position, (inner, path) in enumerate(found):
            if len(found) > 1:
                yield f"{indent}{'or' if position else 'either'} an object with"
            yield from self._lines(inner, indent + "  " * (len(found) > 1), path)

    def _objects(self, schema: Schema, above: tuple[str, ...]) -> Iterator[tuple[Schema, tuple[str, ...]]]:
        if "$ref" in schema:
            if schema["$ref"] in above:
                return
            above = (*above, schema["$ref"])
        schema = self._resolved(schema)
        if schema.get("properties"):
            yield schema, above
        held = [
            schema.get("items"),
            schema.get("additionalProperties"),
            *_members(schema),
            *schema.get("prefixItems", ()),
        ]
        for inner in held:
            if isinstance(inner, dict):
                yield from self._objects(inner, above)

    # --- kinds -------------------------------------------------------------------------------------------

    def _kind_of(self, schema: Schema, required: bool = True) -> str:
        """A kind in words. A field that may be null is described so only where it may not be left out."""
        schema = self._resolved(schema)
        if members := _members(schema):
            shown = [one for one in members if required or one != NULL]
            return " or ".join(dict.fromkeys(self._kind_of(one) for one in shown))
        if choices := schema.get("enum", [schema["const"]] if "const" in schema else []):
            return " | ".join(choice if isinstance(choice, str) else json.dumps(choice) for choice in choices)
        kind = schema.get("type", "any JSON")
        return " or ".join(kind) if isinstance(kind, list) else self._named(kind, schema)

    def _named(self, kind: str, schema: Schema) -> str:
        if kind == "array":
            return self._list_of(schema)
        if kind == "object" and isinstance(values := schema.get("additionalProperties"), dict):
            return f"object with any names and values of kind {self._kind_of(values)}"
        named: str = schema.get("format", kind) if kind == "string" else kind
        return FORMATS.get(named, named)

    def _list_of(self, schema: Schema) -> str:
        if "prefixItems" in schema:
            return f"list: {', '.join(self._kind_of(one) for one in schema['prefixItems'])}"
        items = schema.get("items")
        if not isinstance(items, dict) or not items:
            return "list"
        kind = self._kind_of(items)
        return f"list of {kind}s" if kind.isalpha() else f"list of ({kind})"

    def _resolved(self, schema: Schema) -> Schema:
        for _ in range(len(self._defs) + 1):  # no chain of references is longer than there are definitions
            if "$ref" not in schema:
                break
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**self._defs.get(schema["$ref"].rpartition("/")[2], {}), **siblings}
        return schema


def _members(schema: Schema) -> list[Schema]:
    return [one for key in ("anyOf", "oneOf") for one in schema.get(key, ())]


def _schema_of(kind: Any) -> Schema:
    if isinstance(kind, dict):
        return kind
    from pydantic.json_schema import GenerateJsonSchema

    from .msgspec_types import is_of_msgspec, plain_schema_of
    from .pydantic_schema import adapter_of, schema_of

    if not isinstance(kind, type) and not hasattr(kind, "__origin__"):
        raise BadValueError(f"fields({kind!r:.60}): give a class with fields, such as a dataclass or pydantic model")
    if is_of_msgspec(kind):
        return plain_schema_of(kind)
    return schema_of(adapter_of(kind), kind, GenerateJsonSchema)


def kind_in_words(kind: Any) -> str:
    """A type without fields in words: `integer`, `red | green`, `list of strings`. Raises BadValueError."""
    from pydantic.json_schema import GenerateJsonSchema

    from .pydantic_schema import adapter_of, schema_of

    schema = schema_of(adapter_of(kind), kind, GenerateJsonSchema)
    words = FieldDescriptions({"properties": {"value": schema}, "$defs": schema.get("$defs", {})})
    return words._kind_of(schema)


@lru_cache(maxsize=512)
def _cached(kind: Any) -> FieldDescriptions:
    return FieldDescriptions(kind)


def words_of(kind: Any) -> FieldDescriptions:
    """The description of a type (the same for the same type) or of a JSON Schema of an object. Raises BadValueError."""
    try:
        hash(kind)
    except TypeError:
        return FieldDescriptions(kind)
    return _cached(kind)
