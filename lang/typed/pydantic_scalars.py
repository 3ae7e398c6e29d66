"""Texts and numbers: what pydantic reads of them, as JSON Schema."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from .json_decimals import MARK
from .regexes import address_regexes, datetime_regexes, encoding_regexes
from .regexes.datetime_regexes import DAY, SECOND, DatetimeRange
from .regexes.ecma_regexes import ASCII, CASELESS, TRIMMED, ignores_case, of_ecma
from .unsupported_types import UnsupportedType

Schema = dict[str, Any]
Core = Mapping[str, Any]

# Of numbers that must be finite; at the bounds of doubles their grammar would be slow to compile.
_LARGEST = 1e30
_LARGEST_MULTIPLE = 1e15  # Decimal divides with 28 digits, and a double holds all whole numbers up to here
_BOUNDS = ("ge", "gt", "le", "lt", "multiple_of")
_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_FRACTION = r"-?(?:0|[1-9]\d{0,17})/[1-9]\d{0,17}"


class ScalarSchema(GenerateJsonSchema):
    """Of values that hold no others. `timely` says whether the schema depends on the time of day."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.path: list[str] = []
        self.cores: dict[str, Any] = {}  # core schemas by the names of their definitions
        self.timely = False

    def refuse(self, reason: str) -> NoReturn:
        raise UnsupportedType(reason, tuple(self.path))

    # --- definitions -------------------------------------------------------------------------------------

    def definitions_schema(self, schema: Any) -> Schema:
        self.cores |= {core["ref"]: core for core in schema["definitions"]}
        return super().definitions_schema(schema)

    def resolved(self, made: Schema) -> Schema:
        """The definition that a reference names, as far as it is made already."""
        return self.resolve_ref_schema(made) if "$ref" in made else made

    # --- numbers -----------------------------------------------------------------------------------------

    def float_schema(self, schema: Any) -> Schema:
        made = super().float_schema(schema)
        if "multipleOf" in made:
            return _clipped(made, _largest_multiple(made["multipleOf"]))
        return made if schema.get("allow_inf_nan", self._config.allow_inf_nan) else finite(made)

    def decimal_schema(self, schema: Any) -> Schema:
        """A number, with as many places as the type allows."""
        made: Schema = {"type": "number", MARK: True, **self._bounds(schema)}
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        if digits is not None:
            return self._counted(made, digits, places)
        if places is not None:
            made.setdefault("multipleOf", float(Decimal(1).scaleb(-places)))
        return _exact(made)

    def _counted(self, made: Schema, digits: int, places: int | None) -> Schema:
        """At most so many digits in all: the more places, the smaller the number."""
        if places is not None and places > digits:
            self.refuse(f"no Decimal has decimal_places={places} and max_digits={digits}; give more digits than places")
        if "multipleOf" in made:
            self.refuse("multiple_of next to max_digits has no counterpart; give decimal_places instead")
        if digits > 15:
            self.refuse(f"max_digits={digits} has too many forms; give 15 or fewer")
        forms = [_places(made, digits, count) for count in ([places] if places is not None else range(digits + 1))]
        if places == digits:  # pydantic counts the zero before the point of 0, but of no other number
            forms = [{**forms[0], **side} for side in ({"exclusiveMinimum": 0}, {"exclusiveMaximum": 0})]
            forms = [form for form in forms if _lower(form) < _upper(form)]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def fraction_schema(self, schema: Any) -> Schema:
        made: Schema = {"type": "number", MARK: True, **self._bounds(schema)}
        if len(made) > 2:
            return _exact(made)
        return {"anyOf": [finite(made), text(_FRACTION)]}

    def _bounds(self, schema: Core) -> Schema:
        """The bounds of exact numbers, as doubles that are not further out."""
        return {_KEYWORDS[key]: self._double(key, schema[key]) for key in _BOUNDS if key in schema}

    def _double(self, key: str, bound: Any) -> int | float:
        if bound == int(bound):
            return int(bound)
        number = float(bound)
        exact = Fraction(repr(number))
        if exact == Fraction(bound):
            return number
        if key == "multiple_of":
            self.refuse(f"multiple_of={bound} has more digits than a number of JSON Schema")
        outward = exact < Fraction(bound) if key in ("ge", "gt") else exact > Fraction(bound)
        return math.nextafter(number, math.inf if key in ("ge", "gt") else -math.inf) if outward else number

    def complex_schema(self, schema: Any) -> Schema:
        raise PydanticInvalidForJsonSchema("JSON has no complex numbers; give a list of two floats")

    # --- texts -------------------------------------------------------------------------------------------

    def str_schema(self, schema: Any) -> Schema:
        made = super().str_schema(schema)
        for bound, keyword in (("str_min_length", "minLength"), ("str_max_length", "maxLength")):
            if (length := getattr(self._config, bound)) is not None and (length or bound == "str_max_length"):
                made.setdefault(keyword, length)
        patterns = [ASCII] if schema.get("ascii_only") else []
        if schema.get("strip_whitespace", self._config.str_strip_whitespace):
            patterns.append(TRIMMED)  # what is stripped would not count
        if (own := schema.get("pattern")) is not None:
            engine = schema.get("regex_engine", self._config.regex_engine)
            made["pattern"] = self._pattern(own, engine != "python-re")
            patterns += [CASELESS] if ignores_case(made["pattern"]) else []
        return with_patterns(made, *patterns)

    def _pattern(self, pattern: Any, rust: bool) -> str:
        try:
            return of_ecma(pattern, rust)
        except UnsupportedType as error:
            self.refuse(str(error))

    def bytes_schema(self, schema: Any) -> Schema:
        """In UTF-8, or as the model's config says.

        Lengths are those of the bytes: of ASCII they are those of the text.
        """
        made, encoding = super().bytes_schema(schema), self._config.val_json_bytes
        bounded = "minLength" in made or "maxLength" in made
        if encoding == "utf8":
            return with_patterns(made, ASCII) if bounded else made
        if bounded:
            self.refuse(f"the length of bytes in {encoding} is not that of the text; leave out the bound")
        return text(encoding_regexes.hexadecimal() if encoding == "hex" else encoding_regexes.base64("base64url"))

    def uuid_schema(self, schema: Any) -> Schema:
        return text(encoding_regexes.uuid(schema.get("version")))

    def url_schema(self, schema: Any) -> Schema:
        return self._address(address_regexes.url(schema.get("allowed_schemes")), schema)

    def multi_host_url_schema(self, schema: Any) -> Schema:
        return self._address(address_regexes.hosts_url(schema.get("allowed_schemes")), schema)

    def _address(self, pattern: str, schema: Core) -> Schema:
        longest = schema.get("max_length")
        return text(pattern) if longest is None else {**text(pattern), "maxLength": longest}

    # --- moments -----------------------------------------------------------------------------------------

    def date_schema(self, schema: Any) -> Schema:
        span = DatetimeRange.of(schema, DAY)
        if "now_op" in schema:
            span = self._sided(schema["now_op"], self._now(schema).date(), DAY, span)
        return text(datetime_regexes.dates(span))

    def time_schema(self, schema: Any) -> Schema:
        span = DatetimeRange.of({key: _since_midnight(schema[key]) for key in _BOUNDS if key in schema}, SECOND)
        if any(getattr(schema.get(key), "tzinfo", None) for key in _BOUNDS):
            self.refuse("bounds of a time with an offset have no counterpart; give bounds without one")
        offset = {"aware": datetime_regexes.OFFSET, "naive": ""}.get(self._zone(schema), f"{datetime_regexes.OFFSET}?")
        if (span.high is not None and span.high < datetime.timedelta(0)) or (span.low is not None and span.low >= DAY):
            self.refuse("no whole second of a day is within the bounds; give wider ones")
        return text(datetime_regexes.times(DatetimeRange(_time(span.low), _time(span.high))) + offset)

    def datetime_schema(self, schema: Any) -> Schema:
        span = DatetimeRange.of(schema, SECOND)
        if "now_op" in schema:
            span = self._sided(schema["now_op"], self._now(schema), SECOND, span)
        return text(datetime_regexes.moments(span, self._zone(schema)))

    def timedelta_schema(self, schema: Any) -> Schema:
        if "multiple_of" in schema:
            self.refuse(
                "multiple_of of a timedelta has no counterpart; leave it out, and check the value after reading"
            )
        return text(datetime_regexes.durations(DatetimeRange.of(schema, SECOND)))

    def _zone(self, schema: Core) -> str:
        zone = schema.get("tz_constraint", "")
        if isinstance(zone, int):
            self.refuse("a fixed offset has no counterpart; use AwareDatetime")
        return str(zone)

    def _now(self, schema: Core) -> datetime.datetime:
        """As pydantic takes it. A gen makes the schema anew when another minute has begun."""
        self.timely = True
        offset = schema.get("now_utc_offset")
        zone = None if offset is None else datetime.timezone(datetime.timedelta(seconds=offset))
        now = datetime.datetime.now(zone) if zone else datetime.datetime.now().astimezone()
        return now.replace(second=0, microsecond=0)

    def _sided(self, side: str, now: Any, step: datetime.timedelta, span: DatetimeRange) -> DatetimeRange:
        """The moments before or after now. Future moments are at least two minutes ahead: reading comes later."""
        if span:
            self.refuse(f"a bound next to {side!r} has no counterpart; give only one of them")
        if side == "past":
            return DatetimeRange(high=now - step)
        return DatetimeRange(low=now + (DAY if step == DAY else 120 * SECOND))


def _places(made: Schema, digits: int, places: int) -> Schema:
    """So many places, and the other digits before the point."""
    most = 10 ** (digits - places)
    form = {**made, "multipleOf": float(Decimal(1).scaleb(-places)) if places else 1}
    if _upper(made) >= most:
        form = {**_without(form, "maximum"), "exclusiveMaximum": most}
    if _lower(made) <= -most:
        form = {**_without(form, "minimum"), "exclusiveMinimum": -most}
    return form


def _without(schema: Schema, key: str) -> Schema:
    return {name: value for name, value in schema.items() if name != key}


def _upper(schema: Schema) -> float:
    return min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))


def _lower(schema: Schema) -> float:
    return max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))


def finite(made: Schema, largest: float = _LARGEST) -> Schema:
    """Numbers that Python does not read as infinite."""
    if "exclusiveMinimum" not in made:
        made.setdefault("minimum", -largest)
    if "exclusiveMaximum" not in made:
        made.setdefault("maximum", largest)
    return made


def _exact(made: Schema) -> Schema:
    return _clipped(made, _LARGEST_MULTIPLE) if "multipleOf" in made else finite(made)


def _clipped(made: Schema, largest: float) -> Schema:
    """Numbers within the bounds of the type and no larger than `largest`."""
    if _upper(made) > largest:
        made = {**_without(_without(made, "maximum"), "exclusiveMaximum"), "maximum": largest}
    if _lower(made) < -largest:
        made = {**_without(_without(made, "minimum"), "exclusiveMinimum"), "minimum": -largest}
    return made


def _largest_multiple(step: float) -> float:
    """Up to where pydantic, which divides doubles and forgives 1e-9, finds every multiple to be one."""
    error = abs(Fraction(step) - Fraction(repr(step))) / Fraction(step)
    if not error and Fraction(step).denominator < 2**10:
        return min(_LARGEST_MULTIPLE, step * 2**50)
    return math.floor(0.9e-9 / (2**-53 + float(error)))


def _since_midnight(at: datetime.time) -> datetime.timedelta:
    return datetime.timedelta(hours=at.hour, minutes=at.minute, seconds=at.second, microseconds=at.microsecond)


def _time(passed: datetime.timedelta | None) -> datetime.time | None:
    return None if passed is None else (datetime.datetime.min + passed).time()


def text(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def with_patterns(made: Schema, *patterns: str) -> Schema:
    """The schema of a text with more patterns that it must match."""
    found = [*([made["pattern"]] if "pattern" in made else []), *patterns]
    if len(found) < 2:
        return {**made, "pattern": found[0]} if found else made
    return {**_without(made, "pattern"), "allOf": [{"pattern": pattern} for pattern in found]}
