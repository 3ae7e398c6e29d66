"""pydantic's schema of a type, said so that what the schema allows is what pydantic reads. Imported when needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticOmit, SchemaError

from ..errors import BadValueError
from .hashable_items import distinct, followed, hashable
from .json_decimals import unmarked
from .json_dict_keys import names_of
from .pydantic_scalars import ScalarSchema, text, with_patterns
from .pydantic_typed_dicts import modern
from .pydantic_validators import checked
from .regexes import address_regexes
from .type_constraint import type_name
from .unsupported_types import UnsupportedType

Schema = dict[str, Any]
CONTENT = "x-content"  # the keyword that asks for enforced contents of texts

_ADDRESSES: dict[str, Callable[[], str]] = {
    "ipv4network": address_regexes.ipv4_network,
    "ipv4interface": address_regexes.ipv4_interface,
    "ipv6network": address_regexes.ipv6_network,
    "ipv6interface": address_regexes.ipv6_interface,
    "ipvanyaddress": lambda: f"{address_regexes.IPV4}|{address_regexes.IPV6}",
    "ipvanyinterface": lambda: f"{address_regexes.ipv4_interface()}|{address_regexes.ipv6_interface()}",
    "ipvanynetwork": lambda: f"{address_regexes.ipv4_network()}|{address_regexes.ipv6_network()}",
}


class ReadableSchema(ScalarSchema):
    """The schema of what a model may write: closed objects, and texts that Python's types can hold.

    Raises Unwritable for a type whose readable texts no schema can say.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._names: dict[int, str] = {}  # of fields by the identity of their core schemas
        self._tags: list[tuple[Schema, str]] = []  # members of tagged unions, and the names that distinguish them
        self._contents = False

    def generate(self, schema: Any, mode: Any = "validation") -> Schema:
        made = super().generate(schema, mode)
        return {**made, CONTENT: "enforced"} if self._contents else made

    def generate_inner(self, schema: Any) -> Schema:
        name = self._names.get(id(schema))
        if name is not None:
            self.path.append(name)
        made = super().generate_inner(schema)
        if schema["type"].startswith("function-"):
            made = checked(self, schema, made)
        if name is not None:
            self.path.pop()
        return _without_format(made)

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        """As people write schemas, and models have read them: the type first."""
        if isinstance(value, dict) and parent_key not in ("properties", "default"):
            value = {**{key: value[key] for key in ("type", "description") if key in value}, **value}
        if isinstance(value, dict):
            return {key: self.sort(inner, key) for key, inner in value.items()}
        return [self.sort(inner) for inner in value] if isinstance(value, list) else value

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Titles that only repeat the names of fields are left out."""
        return False

    # --- objects -----------------------------------------------------------------------------------------

    def model_schema(self, schema: Any) -> Schema:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> Schema:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> Schema:
        return _closed(super().typed_dict_schema(schema))

    def _named_required_fields_schema(self, named_required_fields: Any) -> Schema:
        self._names |= {id(field): name for name, _, field in named_required_fields}
        return super()._named_required_fields_schema(named_required_fields)

    def _get_alias_name(self, field: Any, name: str) -> str:
        alias = field.get("validation_alias", name)
        paths = alias if isinstance(alias, list) else [[alias]]
        paths = paths if isinstance(paths[0], list) else [paths]
        if not any(len(path) == 1 for path in paths) and not self._config.validate_by_name:
            self.refuse(f"{name!r} is read from the path {paths[0]!r}; give it a plain name as alias")
        return super()._get_alias_name(field, name)

    def _common_dict_schema(self, schema: Any) -> Schema:
        """JSON has only texts as keys: keys of numbers, dates ... are distinguished by their pattern."""
        names = names_of(schema["keys_schema"], self) if "keys_schema" in schema else {}
        values = self.generate_inner(schema["values_schema"]).copy() if "values_schema" in schema else {}
        values.pop("title", None)
        made: Schema = {"type": "object"}
        if set(names) == {"pattern"}:
            made |= {"patternProperties": {names["pattern"]: values}, "additionalProperties": False}
        else:
            made |= {"additionalProperties": values or True, **({"propertyNames": names} if names else {})}
        self.update_with_validations(made, schema, self.ValidationsMapping.object)
        return made

    # --- lists -------------------------------------------------------------------------------------------

    def _common_set_schema(self, schema: Any) -> Schema:
        """A set of a text with repeated items is a smaller set; only where its size counts they must differ."""
        made, items = super()._common_set_schema(schema), schema.get("items_schema", {"type": "any"})
        if followed(items, self.cores)["type"] == "any":
            made["items"] = {"type": ["string", "number", "boolean", "null"]}
        elif not hashable(items, self.cores):
            self.refuse("no set holds lists, dicts or objects that can be changed; give list[...] or a frozen class")
        if made.get("minItems", 0) < 2:
            made.pop("uniqueItems", None)
        elif not distinct(items, self.cores):
            self.refuse(
                "different texts may be the same value, so that a set of them is too small; leave out min_length"
            )
        return made

    # --- choices -----------------------------------------------------------------------------------------

    def tagged_union_schema(self, schema: Any) -> Schema:
        """The tag distinguishes the members, so `anyOf` serves: each member requires its tag."""
        if callable(schema["discriminator"]):
            self.refuse("its discriminator is Python code; give Field(discriminator='name of a field')")
        made = super().tagged_union_schema(schema)
        tag = made.pop("discriminator", {}).get("propertyName")
        self._tags += [(one, tag) for one in made.get("oneOf", ()) if tag]
        return {("anyOf" if key == "oneOf" else key): value for key, value in made.items()}

    def _garbage_collect_definitions(self, schema: Any) -> None:
        """Called when all definitions are made: now the members of tagged unions can require their tags."""
        for member, tag in self._tags:
            _require(self._end(member), tag, self._end)
        super()._garbage_collect_definitions(schema)

    def _end(self, made: Schema) -> Schema:
        return self.get_schema_from_definitions(made["$ref"]) or {} if "$ref" in made else made

    def literal_schema(self, schema: Any) -> Schema:
        for value in schema["expected"]:
            if not isinstance(getattr(value, "value", value), str | int | float | None):
                self.refuse(f"the Literal has {value!r}, which JSON has not; give texts or numbers")
        return super().literal_schema(schema)

    def enum_schema(self, schema: Any) -> Schema:
        """Its values; those that JSON writes otherwise than Python has them could not be read again."""
        for member in schema["members"]:
            if not isinstance(member.value, str | int | float | None) or member.value in (float("inf"), -float("inf")):
                raise PydanticInvalidForJsonSchema(
                    f"{member} is {member.value!r}, neither text nor number; give it such a value"
                )
        made = super().enum_schema(schema)
        return (
            {**made, "enum": list(dict.fromkeys(made["enum"]))} if "enum" in made else made
        )  # other names are the same

    # --- others ------------------------------------------------------------------------------------------

    def json_schema(self, schema: Any) -> Schema:
        """A text that is JSON of a type."""
        self._contents = True
        return super().json_schema(schema)

    def chain_schema(self, schema: Any) -> Schema:
        """The first step reads the text. Of later ones only patterns of texts can be said."""
        first, *steps = schema["steps"]
        made = self.generate_inner(first)
        for step in steps:
            if step["type"] == "is-instance":
                self.is_instance_schema(step)
            inner = step.get("schema", {})
            if made.get("type") != "string" or inner.get("type") != "str":
                self.refuse(
                    f"a step of kind {step['type']} after the first one has no counterpart; check the value after "
                    "reading"
                )
            said = self.str_schema(inner)
            patterns = [one["pattern"] for one in (said, *said.get("allOf", ())) if "pattern" in one]
            made = with_patterns(made, *patterns)
        return made

    def callable_schema(self, schema: Any) -> Schema:
        raise PydanticInvalidForJsonSchema("JSON has no functions; give a Literal of their names")

    def is_subclass_schema(self, schema: Any) -> Schema:
        self.refuse("JSON has no classes; give a Literal of their names")

    def is_instance_schema(self, schema: Any) -> Schema:
        self.refuse(f"JSON has no instances of {schema['cls'].__name__}; give a class that pydantic reads")


def _require(made: Schema, tag: str, end: Any) -> None:
    """Put a name among the required ones of an object, or of all the objects of a choice."""
    if tag in made.get("properties", {}) and tag not in made.get("required", ()):
        made["required"] = [*made.get("required", ()), tag]
    for one in (*made.get("anyOf", ()), *made.get("oneOf", ())):
        _require(end(one), tag, end)


def _without_format(made: Schema) -> Schema:
    """Formats that only pydantic knows become patterns."""
    name = made.get("format", "")
    if made.get("type") == "string" and name in _ADDRESSES:
        return {**{key: value for key, value in made.items() if key != "format"}, **text(_ADDRESSES[name]())}
    if name[:4] == "uuid" and name != "uuid":
        return {key: value for key, value in made.items() if key != "format"}
    return made


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """pydantic's reader of a type. Raises BadValueError for what pydantic knows no schema of."""
    from .attrs_types import with_attrs

    try:
        return TypeAdapter(modern(with_attrs(kind)))
    except UnsupportedType as error:
        raise _refused(kind, error) from error
    except (PydanticUserError, SchemaError, NameError, TypeError, ImportError) as error:
        raise _no_type(kind, error) from error


def schema_of(adapter: TypeAdapter[Any], kind: Any, generator: type[GenerateJsonSchema] = ReadableSchema) -> Schema:
    """The JSON Schema of what `adapter` reads. Raises BadValueError for types without a JSON form."""
    return unmarked(marked_schema_of(adapter, kind, generator)[0])


def marked_schema_of(
    adapter: TypeAdapter[Any], kind: Any, generator: type[GenerateJsonSchema] = ReadableSchema
) -> tuple[Schema, bool]:
    """The same with a mark on what asks for a Decimal, and whether it depends on the time of day."""
    made: list[GenerateJsonSchema] = []

    class Kept(generator):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    try:
        schema = adapter.json_schema(schema_generator=Kept)
    except UnsupportedType as error:
        raise _refused(kind, error) from error
    except (PydanticInvalidForJsonSchema, PydanticOmit, PydanticUserError, OverflowError) as error:
        raise _no_type(kind, error) from error
    return schema, any(getattr(one, "timely", False) for one in made)


def _refused(kind: Any, error: UnsupportedType) -> BadValueError:
    field = f", field {'.'.join(error.path)!r}," if error.path else ""
    return BadValueError(f"the type {type_name(kind)}{field} cannot be enforced: {error}")


def _no_type(kind: Any, error: Exception) -> BadValueError:
    reason = str(error).partition("\n\n")[0].partition(". Set `arbitrary_types_allowed")[0]
    if isinstance(error, PydanticSchemaGenerationError):
        reason = (
            f"pydantic does not know its fields ({reason}); give a class that pydantic, attrs or msgspec reads, "
            "or a type of docs/types.md"
        )
    return BadValueError(f"{type_name(kind)} cannot be written as JSON: {reason}")


def _closed(made: Schema) -> Schema:
    """Members that are not named are not written, unless the type keeps them."""
    if made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made
