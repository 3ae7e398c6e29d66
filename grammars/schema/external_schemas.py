"""Other documents that a schema may refer to, as the caller gives them; none is ever fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urldefrag, urlsplit

from sgl.grammars.errors import InvalidGrammarError
from sgl.grammars.schema.schema_source import canonical_schema

Resources = tuple[tuple[str, str], ...]


def resources_of(given: Any) -> Resources:
    """(uri, JSON text) of each document of `{uri: schema}`; what has that form already stays.

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
