"""Values whose text is bare: `42`, `True`, `red`."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from ..sampling.options import SamplingOptions
from .type_constraint import constrained, type_name
from .typed_text_parsing import WholeTextParser

if TYPE_CHECKING:
    from ..backend import Backend

Constraint = dict[str, str]

_DIGITS = 999  # int() reads up to 4300; other engines' grammars are slow where much may be repeated
INT = rf"-?(0|[1-9][0-9]{{0,{_DIGITS}}})"
FLOAT = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?"
BOOL = "True|False"


def bare_reading(kind: Any) -> UnquotedValueParser | PlainText | None:
    """The reading of a type whose texts are bare; None for other types."""
    if kind is str:
        return PlainText()
    if isinstance(kind, type) and kind in _SCALARS:
        pattern, read = _SCALARS[kind]
        return UnquotedValueParser(kind, ({"regex": pattern}, {"dtype": kind.__name__}), read)
    values = _values(kind)
    if values is None:
        return None
    return UnquotedValueParser(kind, _one_of(values), partial(_find, values))


class PlainText(WholeTextParser):
    """Of `str`: any text, as it is."""

    def constrain(self, options: SamplingOptions, backend: Backend) -> SamplingOptions:
        return options

    def read(self, text: str, backend: Backend) -> str:
        return text


class UnquotedValueParser(WholeTextParser):
    """Texts that fulfil a constraint (the next one where a backend knows not the first), and what they mean."""

    def __init__(self, kind: Any, constraints: tuple[Constraint, ...], value: Callable[[str], Any]) -> None:
        self.kind = kind
        self._constraints = constraints
        self._value = value

    def constrain(self, options: SamplingOptions, backend: Backend) -> SamplingOptions:
        return constrained(options, backend, self.kind, *self._constraints)

    def read(self, text: str, backend: Backend) -> Any:
        try:
            return self._value(text)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"expected {type_name(self.kind)}, but the text is {text!r}") from error


def _bool(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


_SCALARS: dict[Any, tuple[str, Callable[[str], Any]]] = {int: (INT, int), float: (FLOAT, float), bool: (BOOL, _bool)}


def _values(kind: Any) -> Mapping[str, Any] | None:
    """The values of a Literal or Enum by their texts, where all are strings or all are whole numbers."""
    if get_origin(kind) is Literal:
        return _texts((value, value) for value in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _texts((member.value, member) for member in kind)
    return None


def _texts(pairs: Iterable[tuple[Any, Any]]) -> Mapping[str, Any] | None:
    found = list(pairs)
    plain = {str if isinstance(raw, str) else type(raw) for raw, _ in found}
    if plain not in ({str}, {int}):
        return None
    return {str.__str__(raw) if isinstance(raw, str) else str(raw): value for raw, value in found}


def _one_of(values: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """One of the texts; for backends without regexes as JSON, of which `_find` knows the quotes."""
    pattern = "|".join(re.escape(text) for text in values)
    return {"regex": pattern}, {"json_schema": json.dumps({"type": "string", "enum": list(values)})}


def _find(values: Mapping[str, Any], text: str) -> Any:
    if text in values:
        return values[text]
    bare = text.strip()
    return values[json.loads(bare) if bare.startswith('"') else bare]
