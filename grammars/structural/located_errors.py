"""What is read in a specification, with errors that say where in it they arose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sgl.grammars.algebra.expr import Expr
from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError
from sgl.grammars.structural.free_text import literal
from sgl.grammars.structural.structural_fields import strings_of

T = TypeVar("T")
_GREATEST_COUNT = 2**31 - 1


def literal_at(text: str, place: str) -> Expr:
    return placed(place, lambda: literal(text))


def count_at(value: int | None, place: str) -> int | None:
    """How often something may come, None for any number of times."""
    if value is not None and value > _GREATEST_COUNT:
        raise UnsupportedGrammarError(f"a count above {_GREATEST_COUNT}", place, "give a smaller one")
    return value


def text_at(value: Any, place: str) -> str:
    """A string that can be written in UTF-8."""
    (text,) = strings_of([value], place)
    literal_at(text, place)
    return text


def placed(place: str, make: Callable[[], T]) -> T:
    """What `make` makes; its errors say where in the specification they arose."""
    try:
        return make()
    except InvalidGrammarError as error:
        raise InvalidGrammarError(error.what, _within(place, error.where)) from error
    except UnsupportedGrammarError as error:
        hint = str(error).partition("; ")[2]
        raise UnsupportedGrammarError(error.keyword, _within(place, error.where), hint) from error


def _within(place: str, where: str) -> str:
    return f"{place}, {where}" if where else place
