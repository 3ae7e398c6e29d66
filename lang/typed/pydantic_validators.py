"""pydantic's own functions among a type's validators: what each of them asks of the text.

The functions of a program are taken as they are: what they refuse is refused when a text is read.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .pydantic_scalars import ScalarSchema, finite, text, with_patterns
from .regexes import address_regexes, encoding_regexes
from .regexes.ecma_regexes import ASCII

Schema = dict[str, Any]
Core = Mapping[str, Any]
Check = Callable[[ScalarSchema, Core, Schema], Schema]

_LIBRARIES = ("pydantic", "pydantic_core", "pydantic_extra_types", "annotated_types")
_SIZE = r"\d{1,9}(?:\.\d{1,3})? ?(?:[kMGTPE]i?B|B)"
_LENGTHS = {"min_length": "minLength", "max_length": "maxLength"}
_KEYWORDS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
}
_UPDATES = (*_KEYWORDS, "minLength", "maxLength", "minItems", "maxItems")
_SECRETS = ("SecretStr", "SecretBytes")


def checked(generator: ScalarSchema, core: Core, made: Schema) -> Schema:
    """The schema of a type with a function of a library around it, as narrow as the function is."""
    function = core["function"]["function"]
    name = _library_name(function)
    if name is None or name in _HARMLESS:
        return made
    if name in _CHECKS:
        return _CHECKS[name](generator, core, made)
    if name in _REFUSED:
        generator.refuse(_REFUSED[name])
    generator.refuse(
        f"what {name} of {_module(function)} reads is not known; give str, and check the value after reading"
    )


def _module(function: Any) -> str:
    plain = function.func if isinstance(function, partial) else function
    return getattr(plain, "__module__", None) or ""


def _library_name(function: Any) -> str | None:
    """The name of a library's function, None for one of the program's."""
    plain = function.func if isinstance(function, partial) else function
    if _module(function).partition(".")[0] not in _LIBRARIES:
        return None
    return str(getattr(plain, "__qualname__", plain))


# --- what the functions ask for -------------------------------------------------------------------------------


def _pattern(pattern: Callable[[], str]) -> Check:
    return lambda generator, core, made: text(pattern())


def _encoded(generator: ScalarSchema, core: Core, made: Schema) -> Schema:
    """Base64 of pydantic; encoders of the program are taken as they are."""
    function = core["function"]["function"]
    name = function.__self__.encoder.__name__
    if not {"minLength", "maxLength"}.isdisjoint(made):
        generator.refuse("the length of encoded bytes is not that of the text; leave out the bound")
    alphabet = {"Base64Encoder": "base64", "Base64UrlEncoder": "base64url"}.get(name)
    if alphabet is None:
        return made
    return text(
        (encoding_regexes.base64_of_ascii if function.__name__ == "decode_str" else encoding_regexes.base64)(alphabet)
    )


def _zone_names(generator: ScalarSchema, core: Core, made: Schema) -> Schema:
    from zoneinfo import available_timezones

    return {"type": "string", "enum": sorted(available_timezones())}


def _finite(generator: ScalarSchema, core: Core, made: Schema) -> Schema:
    return finite(made) if made.get("type") == "number" else made


def _length(generator: ScalarSchema, core: Core, made: Schema) -> Schema:
    """Of what has as many characters as its text. pydantic has put the keyword into the schema."""
    inner = _unwrapped(core["schema"])
    (bound, value), *_ = core["function"]["function"].keywords.items()
    if inner == "list":
        return made
    if inner == "address" and bound == "max_length":  # reading may add the slash of an empty path
        tighter = min(value - 1, made.get("maxLength", value))
        return {**made, "maxLength": tighter}
    if inner not in _SECRETS:
        generator.refuse(f"{bound}={value} counts the value, not its text; leave out the bound")
    bounded = {**made, _LENGTHS[bound]: value}
    return with_patterns(bounded, ASCII) if inner == "SecretBytes" and "pattern" not in bounded else bounded


def _unwrapped(core: Core) -> str:
    """What a length is counted of: a kind of core schema, "address" or one of the secrets."""
    while core["type"] in ("function-after", "function-before", "function-wrap", "lax-or-strict", "json-or-python"):
        name = _library_name(core["function"]["function"]) if "function" in core else None
        if name in _SECRETS or core["type"] == "function-wrap":
            return name if name in _SECRETS else "address" if core["schema"]["type"].endswith("url") else ""
        core = next(core[key] for key in ("lax_schema", "json_schema", "schema") if key in core)
    return str(core["type"])


def _bound(generator: ScalarSchema, core: Core, made: Schema) -> Schema:
    """A bound around several kinds of numbers becomes one of each."""
    (name, value), *_ = core["function"]["function"].keywords.items()
    plain = {key: inner for key, inner in made.items() if key not in _KEYWORDS}
    kinds = [generator.resolved(one) for one in plain.get("anyOf", [plain])]
    if not isinstance(value, int | float) or any(one.get("type") not in ("integer", "number") for one in kinds):
        generator.refuse(
            f"{name}={value!r} around {core['schema']['type']} has no counterpart; put it on the numbers themselves"
        )
    keyword = _KEYWORDS[name]
    bounded = [one if keyword in one else {**one, keyword: value} for one in kinds]
    return {**plain, "anyOf": bounded} if "anyOf" in plain else bounded[0]


def bounds_values(core: Core) -> bool:
    """Whether a function of pydantic is a bound of the value."""
    return core["type"] == "function-after" and _library_name(core["function"]["function"]) in _BOUNDS


def reads_otherwise(core: Core) -> bool:
    """Whether a function of pydantic reads other texts than the type in it."""
    return _library_name(core["function"]["function"]) in _CHECKS


def _predicate(generator: ScalarSchema, core: Core, made: Schema) -> Schema:
    """A predicate of the program is taken as it is; of methods of str those with a pattern."""
    found = inspect.getclosurevars(core["function"]["function"]).nonlocals.get("annotation")
    test = getattr(found, "func", None)
    if inspect.isfunction(test) or inspect.ismethod(test):
        return made
    if test is math.isfinite and type(found).__name__ == "Predicate" and made.get("type") == "number":
        return finite(made)
    if test not in _WORDS or type(found).__name__ != "Predicate" or made.get("type") != "string":
        generator.refuse(f"{found!r} has no counterpart; give a pattern, or check the value after reading")
    return with_patterns(made, _WORDS[test])


_WORDS: dict[Any, str] = {
    str.islower: r"^[ -@\[-~]*[a-z][ -@\[-~]*$",
    str.isupper: r"^[ -`{-~]*[A-Z][ -`{-~]*$",
    str.isdigit: r"^[0-9]+$",
    str.isdecimal: r"^[0-9]+$",
    str.isnumeric: r"^[0-9]+$",
    str.isalpha: r"^[A-Za-z]+$",
    str.isalnum: r"^[A-Za-z0-9]+$",
    str.isascii: r"^[\x00-\x7f]*$",
    str.isidentifier: r"^[A-Za-z_][A-Za-z0-9_]*$",
    str.isspace: r"^[ \t\n]+$",
    str.isprintable: r"^[ -~]*$",
}
_BOUNDS = tuple(
    f"{name}_validator"
    for name in ("greater_than", "greater_than_or_equal", "less_than", "less_than_or_equal", "multiple_of")
)
_HARMLESS = frozenset(
    (
        "_BaseUrl.__get_pydantic_core_schema__.<locals>.wrap_val",
        "_BaseMultiHostUrl.__get_pydantic_core_schema__.<locals>.wrap_val",
        "GenerateSchema._path_schema.<locals>.path_validator",
        "IPvAnyAddress._validate",
        "IPvAnyInterface._validate",
        "IPvAnyNetwork._validate",
        "ip_v4_address_validator",
        "ip_v6_address_validator",
        "ip_v4_network_validator",
        "ip_v6_network_validator",
        "ip_v4_interface_validator",
        "ip_v6_interface_validator",
        "pattern_either_validator",
        "pattern_str_validator",
        "SecretStr",
        "SecretBytes",
        "Secret.__get_pydantic_core_schema__.<locals>.<lambda>",
        "Secret.__get_pydantic_core_schema__.<locals>.validate_secret_value",
        "sequence_validator",
        "defaultdict_validator",
        "deque_validator",
    )
)
_CHECKS: dict[str, Check] = {
    "EmailStr._validate": _pattern(address_regexes.email),
    "NameEmail._validate": _pattern(address_regexes.name_and_email),
    "ByteSize._validate": lambda generator, core, made: {"anyOf": [text(_SIZE), {"type": "integer", "minimum": 0}]},
    "Color._validate": _pattern(lambda: "#(?:[0-9a-f]{3}|[0-9a-f]{6})"),
    "EncodedBytes.decode": _encoded,
    "EncodedStr.decode_str": _encoded,
    "validate_str_is_valid_iana_tz": _zone_names,
    "forbid_inf_nan_check": _finite,
    "min_length_validator": _length,
    "max_length_validator": _length,
    **dict.fromkeys(_BOUNDS, _bound),
    "apply_known_metadata.<locals>.val_func": _predicate,
}
_FILES = "whether a path exists is known only when it is read; give Path, and look after reading"
_REFUSED = {
    "import_string": "ImportString runs an import of what a model wrote; give a Literal of names, and import after "
    "reading",
    "PathType.validate_file": _FILES,
    "PathType.validate_directory": _FILES,
    "PathType.validate_socket": _FILES,
    "PathType.validate_new": _FILES,
    "PaymentCardNumber.validate": "the last digit of a card number is a checksum; give str with a pattern, and "
    "check it after reading",
    "pattern_bytes_validator": "JSON has texts, and a pattern of bytes is read only from bytes; give re.Pattern[str]",
}
