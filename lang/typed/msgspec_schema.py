"""The JSON Schema of what msgspec reads, made from its description of a type. Imported when needed."""

from __future__ import annotations

import typing
from fractions import Fraction
from typing import Any, NoReturn

import msgspec
from msgspec import inspect

from .copied_marks import KEYWORD, NO_TEXT, Copied, marked, with_marks
from .pydantic_scalars import finite, text
from .regexes import datetime_regexes, encoding_regexes
from .regexes.datetime_regexes import DatetimeRange
from .regexes.ecma_regexes import of_ecma
from .regexes.number_range_regexes import integers
from .unsupported_types import UnsupportedType

Schema = dict[str, Any]

_SECONDS = r"\d{1,6}(?:\.\d{1,6})?S"
_HOURS = rf"T(?:\d{{1,6}}H(?:\d{{1,6}}M)?(?:{_SECONDS})?|\d{{1,6}}M(?:{_SECONDS})?|{_SECONDS})"
_DURATION = rf"-?P(?:\d{{1,6}}D(?:{_HOURS})?|{_HOURS})"
_BOUNDS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
}
_FLOAT = r"-?(?:0|[1-9]\d{0,29})(?:\.\d{1,30})?"
_UNHASHABLE = ("ListType", "DictType", "SetType", "TypedDictType")
_DISTINCT = ("IntType", "StrType", "BoolType", "DateType", "UUIDType", "EnumType", "LiteralType")


def schema_of(kind: Any) -> Schema:
    """Raises Unwritable for what no schema says, or what msgspec reads only with hooks."""
    made = _Describing()
    whole = made.of(inspect.type_info(with_marks(kind, _meta)))
    return {**whole, "$defs": made.definitions} if made.definitions else whole


class _Describing:
    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}
        self._refs: dict[Any, str] = {}
        self._path: list[str] = []

    def _refuse(self, reason: str) -> NoReturn:
        raise UnsupportedType(reason, tuple(self._path))

    def of(self, info: Any) -> Schema:
        name = type(info).__name__
        if name in ("StructType", "DataclassType", "TypedDictType", "NamedTupleType") or name == "EnumType":
            return self._named(info)
        make = getattr(self, f"_{name}", None)
        if make is None:
            shown = getattr(info, "cls", name)
            self._refuse(
                f"msgspec reads {getattr(shown, '__name__', shown)} only with a hook; give a type that it knows"
            )
        made: Schema = make(info)
        return made

    # --- scalars -----------------------------------------------------------------------------------------

    def _Metadata(self, info: Any) -> Schema:
        made, extra = self.of(info.type), info.extra_json_schema or {}
        if KEYWORD not in extra:
            return {**made, **extra}
        return marked(made, extra) or self._refuse(NO_TEXT)

    def _AnyType(self, info: Any) -> Schema:
        return {}

    _RawType = _AnyType

    def _NoneType(self, info: Any) -> Schema:
        return {"type": "null"}

    def _BoolType(self, info: Any) -> Schema:
        return {"type": "boolean"}

    def _IntType(self, info: Any) -> Schema:
        made = {"type": "integer", **_bounds(info)}
        return finite(made, 2**63 - 1) if len(made) > 1 else made

    def _FloatType(self, info: Any) -> Schema:
        step = info.multiple_of
        if step is not None and Fraction(step).denominator > 2**10:
            self._refuse(f"multiple_of={step} is not exact in a double; give one such as 0.5, or Decimal")
        return finite({"type": "number", **_bounds(info)}, 1e15 if step else 1e30)

    def _DecimalType(self, info: Any) -> Schema:
        return finite({"type": "number"})

    def _StrType(self, info: Any) -> Schema:
        made: Schema = {"type": "string", **_lengths(info, "Length")}
        if info.pattern is not None:
            made["pattern"] = of_ecma(info.pattern, rust=False)
        return made

    def _BytesType(self, info: Any) -> Schema:
        if info.min_length is not None or info.max_length is not None:
            self._refuse("the length of bytes is not that of their text in base64; leave out the bound")
        return text(encoding_regexes.base64("base64"))

    _ByteArrayType = _MemoryViewType = _BytesType

    def _DateType(self, info: Any) -> Schema:
        return text(datetime_regexes.DATE)

    def _TimeType(self, info: Any) -> Schema:
        return text(datetime_regexes.TIME + _offset(info.tz))

    def _DateTimeType(self, info: Any) -> Schema:
        return text(datetime_regexes.datetimes(DatetimeRange()) + _offset(info.tz))

    def _TimeDeltaType(self, info: Any) -> Schema:
        return text(_DURATION)

    def _UUIDType(self, info: Any) -> Schema:
        return text(encoding_regexes.uuid(None))

    def _LiteralType(self, info: Any) -> Schema:
        return {"enum": list(info.values)}

    def _UnionType(self, info: Any) -> Schema:
        return {"anyOf": [self.of(one) for one in info.types]}

    # --- collections -------------------------------------------------------------------------------------

    def _ListType(self, info: Any) -> Schema:
        return {"type": "array", "items": self.of(info.item_type), **_lengths(info, "Items")}

    _VarTupleType = _ListType

    def _SetType(self, info: Any) -> Schema:
        kind = type(info.item_type).__name__
        if kind in _UNHASHABLE or (kind == "StructType" and not info.item_type.cls.__struct_config__.frozen):
            self._refuse("no set holds lists, dicts or objects that can be changed; give list[...] or a frozen Struct")
        made = self._ListType(info)
        if kind in ("AnyType", "RawType"):
            made["items"] = {"type": ["string", "number", "boolean", "null"]}
        if (info.min_length or 0) > 1:
            if kind not in _DISTINCT:
                self._refuse(
                    "different texts may be the same value, so that a set of them is too small; leave out min_length"
                )
            made["uniqueItems"] = True
        return made

    _FrozenSetType = _SetType

    def _TupleType(self, info: Any) -> Schema:
        items = [self.of(one) for one in info.item_types]
        return {"type": "array", **_closed_list(items, len(items))}

    def _DictType(self, info: Any) -> Schema:
        made: Schema = {"type": "object", "additionalProperties": self.of(info.value_type) or True}
        names = self._names(info.key_type)
        return {**made, **({"propertyNames": names} if names else {}), **_lengths(info, "Properties")}

    def _names(self, info: Any) -> Schema:
        found = [name for name in self._key(info) if name is not None]
        if not found:
            self._refuse("no name of a JSON object is read as such a key; give str, int, an Enum of them or similar")
        if {} in found:
            return {}
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _key(self, info: Any) -> list[Schema | None]:
        """One schema of a name or several of which each will do; None for what can be no name."""
        name = type(info).__name__
        if name == "UnionType":
            return [key for one in info.types for key in self._key(one)]
        if name == "Metadata":
            return self._key(info.type)
        if name == "AnyType":
            return [{}]
        if name == "IntType":
            return [self._whole_key(info)]
        if name in ("FloatType", "DecimalType"):
            return (
                [_pattern(_FLOAT)]
                if not _bounds(info)
                else self._refuse("bounds of such keys have no counterpart; leave them out")
            )
        if name in ("EnumType", "LiteralType"):
            values = [member.value for member in info.cls] if name == "EnumType" else info.values
            texts = [str(value) for value in values if isinstance(value, str | int)]
            return [{"enum": texts} if texts else None]
        made = self.of(info) if name != "RawType" else {}
        return [{key: value for key, value in made.items() if key != "type"} if made.get("type") == "string" else None]

    def _whole_key(self, info: Any) -> Schema:
        if info.multiple_of is not None:
            self._refuse("multiple_of of a key has no counterpart; leave it out")
        low = max(
            (bound for bound in (info.ge, None if info.gt is None else info.gt + 1) if bound is not None), default=None
        )
        high = min(
            (bound for bound in (info.le, None if info.lt is None else info.lt - 1) if bound is not None), default=None
        )
        return _pattern(integers(low, high))

    # --- classes -----------------------------------------------------------------------------------------

    def _named(self, info: Any) -> Schema:
        """A reference to the definition of a class."""
        key = getattr(info, "cls", info)
        if key not in self._refs:
            plain = getattr(info.cls, "__name__", "class")
            name = plain if plain not in self.definitions else f"{plain}_{len(self.definitions)}"
            self._refs[key] = name
            self.definitions[name] = {}
            made: Schema = getattr(self, f"_{type(info).__name__}")(info)
            self.definitions[name] = {"title": plain, **made}
        return {"$ref": f"#/$defs/{self._refs[key]}"}

    def _EnumType(self, info: Any) -> Schema:
        return {"enum": [member.value for member in info.cls]}

    def _StructType(self, info: Any) -> Schema:
        tag = [] if info.tag is None else [(info.tag_field, {"enum": [info.tag]}, True)]
        return self._list(info, tag) if info.array_like else self._object(info, tag)

    def _DataclassType(self, info: Any) -> Schema:
        return self._object(info, [])

    _TypedDictType = _DataclassType

    def _NamedTupleType(self, info: Any) -> Schema:
        return self._list(info, [])

    def _members(self, info: Any, tag: list[tuple[str, Schema, bool]]) -> list[tuple[str, Schema, bool]]:
        found = list(tag)
        hints = _copied_hints(info.cls)
        for field in info.fields:
            self._path.append(field.encode_name)
            held = inspect.type_info(hints[field.name]) if field.name in hints else field.type
            found.append((field.encode_name, self.of(held), field.required))
            self._path.pop()
        return found

    def _object(self, info: Any, tag: list[tuple[str, Schema, bool]]) -> Schema:
        members = self._members(info, tag)
        required = [name for name, _, needed in members if needed]
        properties = {name: schema for name, schema, _ in members}
        made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**made, "required": required} if required else made

    def _list(self, info: Any, tag: list[tuple[str, Schema, bool]]) -> Schema:
        members = self._members(info, tag)
        least = sum(needed for _, _, needed in members)
        return {"type": "array", **_closed_list([schema for _, schema, _ in members], least)}


def _meta(mark: Copied) -> Any:
    """msgspec keeps no marks of others."""
    return msgspec.Meta(extra_json_schema=mark.keyword)


def _copied_hints(cls: Any) -> dict[str, Any]:
    """The types of the fields with copied values, by their names."""
    hints = typing.get_type_hints(typing.get_origin(cls) or cls, include_extras=True)
    fresh = {name: with_marks(hint, _meta) for name, hint in hints.items()}
    return {name: hint for name, hint in fresh.items() if hint is not hints[name]}


def _closed_list(items: list[Schema], least: int) -> Schema:
    return {"prefixItems": items, "minItems": least, "maxItems": len(items)} if items else {"maxItems": 0}


def _bounds(info: Any) -> Schema:
    found = {keyword: getattr(info, name, None) for name, keyword in _BOUNDS.items()}
    return {keyword: value for keyword, value in found.items() if value is not None}


def _lengths(info: Any, what: str) -> Schema:
    found = {f"min{what}": info.min_length, f"max{what}": info.max_length}
    return {keyword: value for keyword, value in found.items() if value is not None}


def _offset(tz: bool | None) -> str:
    return {True: datetime_regexes.OFFSET, False: "", None: f"{datetime_regexes.OFFSET}?"}[tz]


def _pattern(pattern: str) -> Schema:
    return {"pattern": text(pattern)["pattern"]}


def read(text: str, kind: Any) -> Any:
    """The value of a text. Raises ValueError if it has none."""
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
