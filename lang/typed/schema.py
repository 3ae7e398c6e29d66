"""pydantic's schema of a type, said so that what the schema allows is what pydantic reads. Imported when needed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticOmit, SchemaError

from ..errors import BadValueError
from .constraint import type_name
from .typed_dicts import modern

Schema = dict[str, Any]

_LARGEST = (
    1e30  # of numbers that must be finite; at the bounds of doubles their grammar would be slow to compile
)

_DATE = (
    r"(?:(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
    r"|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
_ZONE = r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)?"
_SECONDS = r"\d{1,6}(?:\.\d{1,6})?S"
_HOURS = rf"T(?:\d{{1,6}}H(?:\d{{1,6}}M)?(?:{_SECONDS})?|\d{{1,6}}M(?:{_SECONDS})?|{_SECONDS})"
_DURATION = rf"-?P(?:(?:\d{{1,6}}Y(?:\d{{1,6}}D)?|\d{{1,6}}D)(?:{_HOURS})?|{_HOURS})"


class ReadableSchema(GenerateJsonSchema):
    """The schema of what a model may write: closed objects, and texts that Python's types can hold."""

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        """As people write schemas, and models have read them: the type first."""
        if isinstance(value, dict) and parent_key not in ("properties", "default"):
            value = {**{key: value[key] for key in ("type", "description") if key in value}, **value}
        if isinstance(value, dict):
            return {key: self.sort(inner, key) for key, inner in value.items()}
        return [self.sort(inner) for inner in value] if isinstance(value, list) else value

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Titles that only repeat the names of fields tell a model nothing."""
        return False

    def model_schema(self, schema: Any) -> Schema:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> Schema:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> Schema:
        return _closed(super().typed_dict_schema(schema))

    def tagged_union_schema(self, schema: Any) -> Schema:
        """The tag tells the members apart: any of them is one of them."""
        made = super().tagged_union_schema(schema)
        made.pop("discriminator", None)
        return {("anyOf" if key == "oneOf" else key): value for key, value in made.items()}

    def dict_schema(self, schema: Any) -> Schema:
        """JSON has only texts as keys: those of numbers, dates ... are told apart by their pattern."""
        made = super().dict_schema(schema)
        key = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
        if "patternProperties" in made:
            made.setdefault("additionalProperties", False)
        elif "propertyNames" not in made and (names := _names(key)):
            made["propertyNames"] = names
        return made

    def enum_schema(self, schema: Any) -> Schema:
        """Its values; those that JSON writes otherwise than Python has them could not be read again."""
        for member in schema["members"]:
            if not isinstance(member.value, str | int | float | None):
                raise PydanticInvalidForJsonSchema(f"{member} is {member.value!r}, neither text nor number")
        return super().enum_schema(schema)

    def complex_schema(self, schema: Any) -> Schema:
        raise PydanticInvalidForJsonSchema("JSON has no complex numbers")

    def float_schema(self, schema: Any) -> Schema:
        made = super().float_schema(schema)
        return made if schema.get("allow_inf_nan", True) else _finite(made)

    def set_schema(self, schema: Any) -> Schema:
        return _repeatable(super().set_schema(schema))

    def frozenset_schema(self, schema: Any) -> Schema:
        return _repeatable(super().frozenset_schema(schema))

    def decimal_schema(self, schema: Any) -> Schema:
        """A number, with as many places as the type allows."""
        bounds = {key: schema[key] for key in ("ge", "gt", "le", "lt", "multiple_of") if key in schema}
        made = self.float_schema({"type": "float", **{key: float(value) for key, value in bounds.items()}})
        if (places := schema.get("decimal_places")) is not None:
            made.setdefault("multipleOf", float(Decimal(1).scaleb(-places)))
        if (digits := schema.get("max_digits")) is not None:
            most = 10 ** (digits - (places or 0))
            made.setdefault("exclusiveMaximum", most)
            made.setdefault("exclusiveMinimum", -most)
        return _finite(made)

    def date_schema(self, schema: Any) -> Schema:
        return _text(_DATE)

    def time_schema(self, schema: Any) -> Schema:
        return _text(_TIME + _ZONE)

    def datetime_schema(self, schema: Any) -> Schema:
        return _text(f"{_DATE}T{_TIME}{_ZONE}")

    def timedelta_schema(self, schema: Any) -> Schema:
        return _text(_DURATION)


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """pydantic's reader of a type. Raises BadValueError for what pydantic knows no schema of."""
    try:
        return TypeAdapter(modern(kind))
    except (PydanticUserError, SchemaError, NameError, TypeError) as error:
        raise _no_type(kind, error) from error


def schema_of(
    adapter: TypeAdapter[Any], kind: Any, generator: type[GenerateJsonSchema] = ReadableSchema
) -> Schema:
    """The JSON Schema of what `adapter` reads. Raises BadValueError for types without a JSON form."""
    try:
        return adapter.json_schema(schema_generator=generator)
    except (PydanticInvalidForJsonSchema, PydanticOmit, PydanticUserError) as error:
        raise _no_type(kind, error) from error


def _no_type(kind: Any, error: Exception) -> BadValueError:
    reason = str(error).partition("\n\n")[0]
    if isinstance(error, PydanticSchemaGenerationError):
        reason = f"pydantic does not know its fields ({reason.partition('. Set ')[0]}); make it a dataclass, a TypedDict or a pydantic model"
    return BadValueError(f"{type_name(kind)} cannot be written as JSON: {reason}")


def _closed(made: Schema) -> Schema:
    """Members that are not named are not written, unless the type keeps them."""
    if made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def _names(key: Schema) -> Schema | None:
    if key.get("type") == "integer":
        return {"pattern": "^-?(0|[1-9][0-9]{0,4298})$"}
    if key.get("type") == "boolean":
        return {"enum": ["true", "false"]}
    if key.get("type") == "number":
        return {"pattern": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"}
    return key if "pattern" in key or "format" in key or "enum" in key else None


def _repeatable(made: Schema) -> Schema:
    """A set of a text with repeated items is a smaller set; only where its size counts they must differ."""
    if not made.get("minItems"):
        made.pop("uniqueItems", None)
    return made


def _finite(made: Schema) -> Schema:
    """Numbers that Python does not read as infinite."""
    if "exclusiveMinimum" not in made:
        made.setdefault("minimum", -_LARGEST)
    if "exclusiveMaximum" not in made:
        made.setdefault("maximum", _LARGEST)
    return made


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}
