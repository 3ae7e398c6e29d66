"""The types that `gen("x", T)` writes or refuses: the source of docs/types.md and of its tests.

A row is a type as a program writes it, and what may be written for it; of what is refused the program says why.
"""

from __future__ import annotations

from typing import Any

READABLE: dict[str, list[tuple[str, str]]] = {
    "Numbers and truth": [
        ("int", "a whole number, bare: `42`"),
        ("float", "a number, bare: `-1.5e3`"),
        ("bool", "`True` or `False`, bare"),
        ("None", "`null`"),
        ("Decimal", "a number; the value keeps all its digits, in any type that holds one"),
        ("Fraction", 'a number, or a text such as `"1/3"`'),
        ("PositiveInt", "within its bounds"),
        ("NegativeFloat", "within its bounds"),
        ("StrictInt", "digits alone"),
        ("FiniteFloat", "up to 1e30 on both sides of 0"),
        ("conint(gt=1, le=10, multiple_of=3)", "`3`, `6` or `9`"),
        ("conint(ge=10**20)", "within its bounds"),
        ("confloat(gt=0.1, lt=0.9)", "within its bounds"),
        ("confloat(multiple_of=0.01)", "multiples as far as pydantic finds them to be such: up to some millions"),
        ("condecimal(max_digits=5, decimal_places=2)", "at most three digits before the point and two behind it"),
        ("condecimal(max_digits=5)", "at most five digits in all"),
        ("condecimal(max_digits=2, decimal_places=2)", "as it says, but not 0, which pydantic refuses here"),
        ("condecimal(ge=0, le=Decimal('99.95'), multiple_of=Decimal('0.05'))", "as it says"),
        ("Annotated[Fraction, Field(gt=0)]", "a number"),
        ("Annotated[int | float, Field(gt=3)]", "the bound holds for each of the numbers"),
        ("Annotated[Optional[int], Field(gt=3)]", "`null`, or within the bound"),
        ("at.IsFinite[float]", "up to 1e30 on both sides of 0"),
        ("ByteSize", 'a whole number, or a text such as `"1.5 MiB"`'),
        ("UserId", "a `NewType` is the type that it is made of"),
    ],
    "Choices": [
        ("Literal['a', 'b c']", "one of the texts, bare"),
        ("Literal[1, 2]", "one of the numbers, bare"),
        ("Literal['a', 1, True, None]", "JSON of one of them"),
        ("Size", "a `StrEnum`: one of the values, bare"),
        ("Floor", "an `IntEnum`: one of the values, bare"),
        ("Rights", "a `Flag`: the value of one member, bare"),
        ("Share", "an Enum of numbers with a point: JSON"),
        ("Mixed", "an Enum of texts, numbers and None: JSON"),
        ("int | str", "one or the other"),
        ("Union[float, Decimal]", "a number; pydantic makes a float of it"),
        (
            "Annotated[Cat | Dog, Field(discriminator='kind')]",
            "one of the models; the field that tells them apart is always written",
        ),
    ],
    "Texts": [
        ("str", "anything, bare"),
        ("constr(min_length=2, max_length=5)", "so many characters"),
        (
            "constr(strip_whitespace=True, min_length=1)",
            "a text without blanks at its ends: what is stripped would not count",
        ),
        (
            "constr(to_lower=True, pattern='^[A-Z]+$')",
            "what the pattern matches; pydantic changes the letters afterwards",
        ),
        (r"constr(pattern=r'^\S+ [^\d\s]+$')", "what the pattern matches for Rust's regex, Python's re and ECMA alike"),
        ("Annotated[str, Field(pattern=re.compile('^a.b$', re.I))]", "the same"),
        ("at.LowerCase[str]", "a text of ASCII that fulfils the predicate"),
        ("bytes", "any text; its bytes are UTF-8"),
        ("conbytes(min_length=2, max_length=3)", "a text of ASCII"),
        ("Base64Bytes", "Base64 with padding"),
        ("Base64Str", "Base64 of ASCII with padding"),
        ("Base64UrlBytes", "the alphabet of URLs, with padding"),
        ("Base64UrlStr", "the same, of ASCII"),
        ("BytesInBase64", "a model with `val_json_bytes='base64'`: the alphabet of URLs"),
        ("HexBytes", "a model with `val_json_bytes='hex'`: two digits a byte"),
        ("SecretStr", "any text"),
        ("Annotated[SecretStr, Field(min_length=8)]", "so many characters"),
        ("SecretBytes", "any text"),
        ("Secret[int]", "what is secret, as the type in it"),
        ("re.Pattern", "a regular expression that ECMA and Python both read"),
        ("Path", "any text"),
        ("ZoneInfo", "the name of one of the time zones of this machine"),
        ("Json[list[int]]", "a text that is JSON of the type"),
        ("Json[Node]", "the same, of a model"),
        ("Json[Json[int]]", "a text of a text"),
        ("Json", "a text that is any JSON"),
    ],
    "Dates and times": [
        ("date", "`YYYY-MM-DD`; days that the month has"),
        ("datetime", "`YYYY-MM-DDTHH:MM:SS`, with a fraction and an offset or without"),
        ("time", "`HH:MM:SS`, likewise"),
        ("timedelta", "ISO 8601: `P1DT2H`"),
        ("NaiveDatetime", "without an offset"),
        ("AwareDatetime", "with one"),
        ("PastDate", "before today, as of the moment the gen runs"),
        ("FutureDate", "after today, as of that moment"),
        ("PastDatetime", "before this minute; with offsets other than `Z` two days before"),
        ("FutureDatetime", "two minutes from now or later; with offsets other than `Z` two days"),
        ("condate(ge=date(2020, 2, 10), lt=date(2024, 3, 5))", "within its bounds"),
        (
            "Annotated[datetime, Field(ge=datetime(2024, 1, 2, 3, 4, 5))]",
            "within its bounds, which count in whole seconds",
        ),
        (
            "Annotated[AwareDatetime, Field(lt=datetime(2024, 1, 2, tzinfo=UTC))]",
            "with `Z` up to the bound, with other offsets two days off",
        ),
        ("Annotated[time, Field(ge=time(8), lt=time(18, 30))]", "within its bounds"),
        (
            "Annotated[timedelta, Field(ge=timedelta(0), lt=timedelta(hours=3))]",
            "whole seconds, minutes, hours or days within the bounds: `PT90M`",
        ),
    ],
    "Identifiers and addresses": [
        ("uuid.UUID", "in small letters"),
        *[(f"UUID{version}", f"of version {version}, with RFC 9562's variant") for version in (1, 3, 4, 5, 6, 7, 8)],
        *[(f"ipaddress.IPv{version}Address", "an address") for version in (4, 6)],
        *[(f"ipaddress.IPv{version}Network", "a network: the bits behind the prefix are zero") for version in (4, 6)],
        *[(f"ipaddress.IPv{version}Interface", "an address with a prefix or without") for version in (4, 6)],
        ("IPvAnyAddress", "of either kind"),
        ("IPvAnyNetwork", "of either kind"),
        ("IPvAnyInterface", "of either kind"),
        (
            "HttpUrl",
            "scheme, host of lower-case labels or IPv4, port, path, query and fragment of ASCII; at most 2083 "
            "characters",
        ),
        ("AnyUrl", "the same with any scheme; a port only where the web has one"),
        *[(name, "the same with its schemes") for name in ("AnyHttpUrl", "WebsocketUrl", "AnyWebsocketUrl", "FtpUrl")],
        ("FileUrl", "`file://`, perhaps a host, and a path"),
        *[
            (name, "its schemes, several hosts perhaps, a user perhaps")
            for name in ("PostgresDsn", "MongoDsn", "NatsDsn")
        ],
        *[
            (name, "its schemes, a host, a user perhaps")
            for name in (
                "RedisDsn",
                "AmqpDsn",
                "KafkaDsn",
                "MySQLDsn",
                "MariaDBDsn",
                "CockroachDsn",
                "ClickHouseDsn",
                "SnowflakeDsn",
            )
        ],
        ("Annotated[AnyUrl, UrlConstraints(allowed_schemes=['x-y'], max_length=30)]", "as it says"),
        ("Annotated[HttpUrl, Field(max_length=25)]", "so many characters, with the slash that pydantic adds"),
        (
            "EmailStr",
            "letters, digits, `_`, `+`, `-` and dots at a host with a last label of letters; needs email-validator",
        ),
        ("NameEmail", "the same, or `Ann Lee <ann@lee.org>`"),
    ],
    "Lists, tuples and sets": [
        ("list[int]", "any number of them"),
        ("list", "of anything"),
        ("conlist(int, min_length=1, max_length=3)", "so many"),
        ("tuple[int, str]", "exactly these"),
        ("tuple[int, ...]", "any number of them"),
        ("tuple[()]", "`[]`"),
        ("set[int]", "repeated ones fall together"),
        ("set", "of texts, numbers, true, false and null, which a set can hold"),
        ("frozenset[tuple[int, UUID4]]", "as `list`"),
        ("conset(int, min_length=2, max_length=3)", "different ones"),
        ("set[Frozen]", "models that can be hashed"),
        ("collections.deque[int]", "as `list`"),
        ("Sequence[int]", "as `list`"),
        ("Iterable[int]", "as `list`; pydantic reads each when it is asked for"),
        ("collections.abc.Set[int]", "as `set`"),
    ],
    "Dicts": [
        ("dict[str, int]", "any names"),
        ("dict", "anything"),
        ("dict[int, str]", "names of digits"),
        ("dict[conint(ge=3, le=12, multiple_of=3), int]", "names of numbers within the bounds"),
        ("dict[float, int]", "names that are numbers without an exponent"),
        ("dict[PositiveFloat, int]", "the same, above 0"),
        ("dict[Decimal, int]", "the same"),
        ("dict[bool, int]", '`"true"` and `"false"`'),
        ("dict[Floor, int]", "the values of the Enum as names"),
        ("dict[Size, int]", "the same"),
        (
            "dict[Mixed, int]",
            "the values that are texts: of other Enums than those of numbers only pydantic reads these",
        ),
        ("dict[Literal['a', 'b'], int]", "these names"),
        ("dict[UUID4, int]", "names of its form"),
        ("dict[date, int]", "names of its form"),
        ("dict[ipaddress.IPv4Network, int]", "names of its form"),
        ("dict[constr(min_length=2, max_length=3), int]", "names of so many characters"),
        ("dict[Optional[int], int]", "no name is read as None"),
        ("dict[int | str, int]", "any names"),
        ("Annotated[Mapping[str, int], Field(min_length=1, max_length=2)]", "so many"),
        ("defaultdict[str, list[int]]", "as `dict`"),
        ("OrderedDict[str, int]", "as `dict`"),
        ("Counter[str]", "as `dict[str, int]`"),
    ],
    "Classes": [
        ("Guest", "a dataclass: its fields, those with a default perhaps; nothing else"),
        ("Initial", "a dataclass with an `InitVar`: the same"),
        ("Checked", "a dataclass of pydantic, with an alias"),
        ("Film", "a `TypedDict`"),
        ("Extra", "a `TypedDict` with `extra_items`: other names too"),
        ("Point", "a `NamedTuple`: a list of its fields"),
        ("Plain", "a `namedtuple` without types: a list of anything"),
        ("Node", "a model of itself"),
        ("Box[UUID4]", "a generic model"),
        ("Strict", "a model with `strict=True`"),
        ("Stripped", "a model with `str_strip_whitespace`, `str_min_length` and `str_max_length`"),
        ("Forbidding", "a model with aliases: the first one is the name"),
        ("Open", "a model with `extra='allow'`: other names too"),
        ("Computed", "a model with a computed field, which is not written"),
        ("Numbers", "a `RootModel`"),
        ("Page", "a model with a URL"),
        ("Order", "a model of many of these"),
        ("Camel", "a model with an alias generator"),
        ("Doubly", "a model that is a choice in a choice"),
        ("list[Annotated[Cat | Dog, Field(discriminator='kind')] | int]", "a choice among others"),
        ("Alias", "a type alias"),
        ("Json_", "a recursive type alias"),
        ("JsonValue", "any JSON"),
        ("Any", "any JSON"),
        ("InstanceOf[int]", "as the type in it"),
    ],
    "Classes of attrs": [
        ("own.Room", "what the converter takes; private fields without the underscore"),
        (
            "own.Bounded",
            "what attrs' own validators allow: `ge`, `gt`, `le`, `lt`, `in_`, `min_len`, `max_len`, `matches_re`, "
            "`instance_of`, `optional`",
        ),
        ("own.Tree", "a class of itself"),
        ("own.Parts", "what the converter's parameter is annotated with"),
        ("set[own.Spot]", "a frozen class"),
        ("list[own.Bounded]", "a list of them"),
    ],
    "Types of msgspec": [
        ("more.Cat", "a `Struct` with a tag, which is written, and renamed fields"),
        ("more.Cat | more.Dog", "one of them"),
        ("more.Row", "a `Struct` with `array_like`: a list"),
        ("more.Node", "a Struct of itself"),
        ("more.Sparse", "fields with defaults may be left out"),
        ("more.Box[uuid.UUID]", "a generic Struct"),
        ("more.Limits", "what `Meta` allows"),
        ("more.Everything", "all kinds of fields; bytes are Base64"),
        ("more.Keys", "keys of all kinds"),
        ("more.Pair", "a `NamedTuple` with a Struct: msgspec reads the whole"),
        ("list[more.Cat]", "likewise"),
        ("Annotated[int, more.Meta(ge=3)]", "a type with `Meta`: msgspec reads it"),
        ("more.Raw", "any JSON"),
    ],
}

REFUSED: dict[str, list[str]] = {
    "Refused": [
        "complex",
        "bytearray",
        "Callable",
        "type[int]",
        "InstanceOf[Exception]",
        "Hashable",
        "range",
        "Days",
        "Literal[b'a']",
        "FilePath",
        "DirectoryPath",
        "NewPath",
        "ImportString",
        "Card",
        "re.Pattern[bytes]",
        "Behind",
        r"constr(pattern=r'\bword\b')",
        "constr(pattern='^[a-z&&[^x]]$')",
        "Annotated[Base64Bytes, Field(max_length=4)]",
        "Annotated[Path, Field(min_length=3)]",
        "condecimal(max_digits=2, decimal_places=5)",
        "condecimal(multiple_of=Decimal('0.12345678901234567890123'))",
        "set[list[int]]",
        "set[Node]",
        "conset(float, min_length=2)",
        "dict[None, int]",
        "dict[Literal[1, 2], int]",
        "dict[tuple[int, int], int]",
        "dict[confloat(gt=1), int]",
        "dict[PositiveInt, Card]",
        "Deep",
        "Annotated[Union[Annotated[Cat, Tag('cat')], Annotated[Dog, Tag('dog')]], Discriminator(tag_of)]",
        "Annotated[timedelta, Field(multiple_of=timedelta(hours=1))]",
    ],
    "Refused of attrs and msgspec": [
        "own.Unsaid",
        "own.Each",
        "more.Complex",
        "more.Bools",
        "set[more.Cat]",
        "Annotated[bytes, more.Meta(max_length=3)]",
    ],
}


def namespace() -> dict[str, Any]:
    """The names that the rows use. `own` and `more` are there where attrs and msgspec are."""
    import collections
    import datetime as dt
    import importlib
    import ipaddress
    import re
    import typing
    import uuid
    from collections import abc
    from decimal import Decimal
    from fractions import Fraction
    from pathlib import Path
    from zoneinfo import ZoneInfo

    import annotated_types as at
    import pydantic
    import typed_classes

    names = {name: getattr(pydantic, name) for name in pydantic.__all__}
    names |= {
        name: getattr(typing, name)
        for name in ("Annotated", "Any", "Callable", "Hashable", "Literal", "Optional", "Union")
    }
    names |= {name: getattr(abc, name) for name in ("Iterable", "Mapping", "Sequence")}
    names |= {name: getattr(collections, name) for name in ("Counter", "OrderedDict", "defaultdict")}
    names |= {name: getattr(dt, name) for name in ("date", "datetime", "time", "timedelta")}
    own = {
        name: value
        for name, value in vars(typed_classes).items()
        if name[0] != "_" and name not in ("Json", "Base64Bytes")
    }
    names |= {name: value for name, value in own.items() if getattr(value, "__module__", "") == "typed_classes"}
    names |= {"Json_": typed_classes.Json, "BytesInBase64": typed_classes.Base64Bytes, "UTC": dt.timezone.utc}  # noqa: UP017
    names |= {"UserId": typed_classes.UserId, "Alias": typed_classes.Alias, "at": at, "uuid": uuid, "re": re}
    names |= {
        "ipaddress": ipaddress,
        "collections": collections,
        "Decimal": Decimal,
        "Fraction": Fraction,
        "Path": Path,
    }
    names |= {"ZoneInfo": ZoneInfo}
    for name, module in (("own", "typed_attrs"), ("more", "typed_structs")):
        try:
            names[name] = importlib.import_module(module)
        except ImportError:  # attrs or msgspec
            pass
    return names


def kind_of(code: str) -> Any:
    """The type that a row says."""
    return eval(code, namespace())


def needs(code: str) -> str | None:
    """The library, of those that a machine may lack, that a row's type is of."""
    if "own." in code or "more." in code:
        return "attrs" if "own." in code else "msgspec"
    return "email_validator" if "Email" in code else None
