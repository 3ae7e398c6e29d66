"""How JSON is written, and which keywords count."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urldefrag, urlsplit

from sgl.grammars.errors import GrammarError, InvalidGrammarError
from sgl.grammars.schema.schema_source import canonical_schema

DIGITS = 40  # integers of 128 bits have 39, the shortest spelling of a double 17
_CHOICES = {
    "whitespace": ("default", "compact", "spaced", "indented", "free"),  # `json_spelling.WHITESPACE` has them
    "order": ("schema", "any"),
    "integers": ("plain", "json"),
    "formats": ("enforced", "annotation"),
    "content": ("draft", "enforced", "annotation"),
}
_FLAGS = ("additional_properties", "ascii")
Resources = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """How JSON is written and how absent keywords are read.

    Attributes:
        whitespace: "default" (at most one space after `,` and `:`), "compact" (none), "spaced" (exactly one, like
            `json.dumps`), "indented" (one member per line) or "free" (up to 40 blanks between tokens).
        additional_properties: True allows other properties in an object whose schema names properties but does not
            mention others, as the specification says. False closes such objects: they hold only properties that one of
            their
            schemas declares, where all schemas of an object count together, as for `unevaluatedProperties: false`. An
            object
            whose schemas have no `properties` stays free. `"x-additional-properties": false` at the root of a schema
            says the same.
        order: "schema" (the order of `properties`, then other names; any order if several schemas apply to one
            object) or "any".
        integers: "plain" (whole numbers of the type integer are digits, `1`) or "json" (also `1.0` and, from 10**16 on,
            `1e+16`, which JSON Schema takes for integers and many readers do not).
        digits: the most digits before and after a number's point (at most four in its exponent), and in the numbers of
            a format (at most twelve after a second); more if the number's bounds need more. None: no limit.
        ascii: True writes characters beyond ASCII only as escapes.
        formats: "enforced" (all known ones) or "annotation" (none).
        content: "draft" (`contentEncoding` and `contentMediaType` restrict strings where `$schema` is draft 7, and say
            nothing in later drafts unless the schema has "x-content": "enforced" at its root), "enforced" or
            "annotation". Base64, base64url, base32, base16 and JSON are supported.
        copied_from: the text that strings with the keyword `x-copied` are pieces of; `x-copied-from` at the root of a
            schema gives it as well.
        resources: other documents that references may lead to, `{uri: schema}`; nothing is ever fetched.
        weaken: keywords to ignore; `explain` and the compiled grammar's `weakened` list them.
    """

    whitespace: str = "default"
    additional_properties: bool = True
    order: str = "schema"
    integers: str = "plain"
    digits: int | None = DIGITS
    ascii: bool = False
    formats: str = "enforced"
    content: str = "draft"
    weaken: tuple[str, ...] = ()
    resources: tuple[tuple[str, str], ...] = ()  # (uri, JSON text)
    copied_from: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SchemaOptions:
        """Check the names and values and return the options."""
        if not options:
            return _DEFAULTS
        known = [f.name for f in fields(cls)]
        for name, value in options.items():
            if name not in known:
                raise GrammarError(f"unknown schema option {name!r}{_nearest(name, known)}")
            _check(name, value)
        given = dict(options)
        given["weaken"] = tuple(options.get("weaken", ()))
        given["resources"] = resources_of(options.get("resources", ()))
        return cls(**given)


_DEFAULTS = SchemaOptions()


def _check(name: str, value: Any) -> None:
    if name in _CHOICES and value not in _CHOICES[name]:
        hint = _nearest(str(value), list(_CHOICES[name]))
        raise GrammarError(f"{name}={value!r} is not one of {', '.join(_CHOICES[name])}{hint}")
    if name == "digits" and value is not None and (type(value) is not int or value < 1):
        raise GrammarError(f"digits={value!r} must be a whole number of at least 1, or None for no limit")
    if name in _FLAGS and not isinstance(value, bool):
        raise GrammarError(f"{name}={value!r} must be True or False")
    if name == "copied_from" and not isinstance(value, str | None):
        raise GrammarError(f"copied_from={value!r} must be a text, or None")
    if name == "weaken" and (isinstance(value, str) or not all(isinstance(k, str) for k in value)):
        raise GrammarError(f"weaken={value!r} must be a list of keywords, such as ('uniqueItems',)")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.4)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def resources_of(given: Any) -> Resources:
    """(uri, JSON text) of each document of `{uri: schema}`; what has that form already stays. Nothing is fetched.

    Raises:
        InvalidGrammarError: it is no such mapping, or one of the schemas is malformed; names its uri.
    """
    if isinstance(given, tuple):
        return given
    if not isinstance(given, Mapping) or not all(isinstance(uri, str) for uri in given):
        raise InvalidGrammarError(f"resources={given!r} must map addresses to schemas")
    return tuple((_address(uri), _text(uri, schema)) for uri, schema in given.items())


def _address(uri: str) -> str:
    address, fragment = urldefrag(uri)
    if fragment or not urlsplit(address).scheme:
        raise InvalidGrammarError(f"resources: {uri!r} is not the absolute address of a document")
    return address


def _text(uri: str, schema: Any) -> str:
    try:
        return canonical_schema(schema)[1]
    except InvalidGrammarError as error:
        raise InvalidGrammarError(error.what, f"resources[{uri!r}]") from error
