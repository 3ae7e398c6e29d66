"""The names of members of an object that pydantic reads as keys of a dict: JSON has only texts there."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from typing import Any

from .hashable_items import followed
from .pydantic_scalars import ScalarSchema, text
from .pydantic_validators import bounds_values, reads_otherwise
from .regexes.number_range_regexes import integers

Schema = dict[str, Any]
Core = Mapping[str, Any]

_INNER = {"function-before": "schema", "function-after": "schema", "function-wrap": "schema", "nullable": "schema"}
_INNER |= {"default": "schema", "custom-error": "schema", "json-or-python": "json_schema"}
_TEXTS = (
    "str",
    "bytes",
    "uuid",
    "date",
    "datetime",
    "time",
    "timedelta",
    "url",
    "multi-host-url",
    "lax-or-strict",
    "function-plain",
)
_LISTED = 1000  # multiples that are listed
_PLAIN_FLOAT = r"(?:0|[1-9]\d{0,38})(?:\.\d{1,40})?"
_POSITIVE = r"(?:0\.\d{0,20}[1-9]|[1-9]\d{0,38}(?:\.\d{1,40})?)"


def names_of(core: Core, generator: ScalarSchema) -> Schema:
    """The schema of the names. {} where any name is read; Unwritable where none is."""
    found = [one for one in _names(core, generator) if one is not None]
    if not found:
        generator.refuse("no name of a JSON object is read as such a key; give str, int, an Enum of them or similar")
    if {} in found:
        return {}
    return found[0] if len(found) == 1 else {"anyOf": found}


def _names(core: Core, generator: ScalarSchema) -> list[Schema | None]:
    """One schema or several of which each will do; None for what can be no name."""
    core = followed(core, generator.cores)
    kind = core["type"]
    if kind in ("function-before", "function-after", "function-wrap"):
        said = generator.resolved(generator.generate_inner(core))  # refuses what no grammar says
        if bounds_values(core):
            generator.refuse("a bound around the type of a key has no counterpart; put it on the type itself")
        if reads_otherwise(core):
            return [_name(one) for one in said.get("anyOf", [said]) if one.get("type") == "string"]
    if kind == "union":
        choices = [one[0] if isinstance(one, tuple) else one for one in core["choices"]]
        return [name for choice in choices for name in _names(choice, generator)]
    made = _MAKERS[kind](core, generator) if kind in _MAKERS else None
    if made is None and kind in _INNER and not _is_text(core, generator):
        return _names(core[_INNER[kind]], generator)
    return [made if kind in _MAKERS else _text(core, generator)]


def _is_text(core: Core, generator: ScalarSchema) -> bool:
    return generator.resolved(generator.generate_inner(core)).get("type") == "string"


def _text(core: Core, generator: ScalarSchema) -> Schema | None:
    """The schema of a text is that of a name. What a name may be instead is `str` with any characters."""
    if core["type"] not in (*_TEXTS, *_INNER):
        return None
    made = generator.resolved(generator.generate_inner(core))
    if made.get("type") != "string":
        return None
    return _name(made)


def _name(made: Schema) -> Schema:
    """The keywords of a text that say something of a name too."""
    kept = {
        key: value for key, value in made.items() if key not in ("type", "title", "description", "format", "writeOnly")
    }
    return kept | ({"format": made["format"]} if made.get("format") in ("ipv4", "ipv6") else {})


def _anything(core: Core, generator: ScalarSchema) -> Schema:
    return {}


def _integer(core: Core, generator: ScalarSchema) -> Schema:
    low = [core["ge"]] if "ge" in core else []
    low += [floor(core["gt"]) + 1] if "gt" in core else []
    high = [core["le"]] if "le" in core else []
    high += [ceil(core["lt"]) - 1] if "lt" in core else []
    least, most = max(low, default=None), min(high, default=None)
    if "multiple_of" in core:
        return _multiples(core["multiple_of"], least, most, generator)
    return _pattern(integers(least, most))


def _multiples(step: int, least: int | None, most: int | None, generator: ScalarSchema) -> Schema:
    if least is None or most is None or (most - least) // step > _LISTED:
        generator.refuse(
            f"multiple_of={step} of a key needs bounds with at most {_LISTED} multiples between them; give ge and le"
        )
    return {"enum": [str(value) for value in range(ceil(least / step) * step, most + 1, step)]}


def _number(core: Core, generator: ScalarSchema) -> Schema:
    """Without an exponent. Of bounds only 0 can be said."""
    bounds = {
        key: core[key] for key in ("ge", "gt", "le", "lt", "multiple_of", "max_digits", "decimal_places") if key in core
    }
    if not bounds:
        return _pattern(f"-?{_PLAIN_FLOAT}")
    if bounds == {"gt": 0}:
        return _pattern(_POSITIVE)
    if bounds == {"ge": 0}:
        return _pattern(_PLAIN_FLOAT)
    generator.refuse(
        f"bounds of a key that is a {core['type']} have no counterpart; leave them out, or give int or str"
    )


def _boolean(core: Core, generator: ScalarSchema) -> Schema:
    return {"enum": ["true", "false"]}


def _enum(core: Core, generator: ScalarSchema) -> Schema | None:
    """Only where all members are numbers, as those of IntEnum, pydantic reads names as numbers."""
    kind = {"int": int, "float": float}.get(core.get("sub_type", ""), str)
    values = [member.value for member in core["members"]]
    names = [
        str.__str__(value) if isinstance(value, str) else str(value) for value in values if isinstance(value, kind)
    ]
    return {"enum": names} if names else None


def _literal(core: Core, generator: ScalarSchema) -> Schema | None:
    names = [str.__str__(value) for value in core["expected"] if isinstance(value, str)]
    return {"enum": names} if names else None


def _pattern(pattern: str) -> Schema:
    return {"pattern": text(pattern)["pattern"]}


_MAKERS = {
    "any": _anything,
    "int": _integer,
    "float": _number,
    "decimal": _number,
    "bool": _boolean,
    "enum": _enum,
    "literal": _literal,
}
