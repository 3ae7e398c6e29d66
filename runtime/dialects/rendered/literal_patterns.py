"""The texts of a regular expression that is a text with named groups in it; nothing is matched by it."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

# not in the stubs: mypy says so with a cold cache and not with a warm one, or the other way round
parser: Any = import_module("re._parser")
kinds: Any = import_module("re._constants")

LONGEST = 1000


class NotLiteralPattern(Exception):
    """An expression that may stand for many texts outside of its groups."""


def pieces_of(pattern: str) -> list[str]:
    """Texts at even places; at odd ones the names of groups, or empty for any text (`.*?`, `[^<]*`).

    What may be left out counts as left out, of alternatives the longest counts; any text at the beginning says nothing.

    Raises:
        NotLiteralPattern: it is more than that, longer than any known, or no expression.
    """
    if len(pattern) > LONGEST:
        raise NotLiteralPattern(f"a pattern of {len(pattern)} characters is not read")
    try:
        parsed = parser.parse(pattern, re.DOTALL)
        found = _Pieces({number: name for name, number in parsed.state.groupdict.items()}).of(parsed)
    except (re.error, RecursionError, OverflowError) as error:
        raise NotLiteralPattern(f"the pattern {pattern!r:.200} is no regular expression: {error}") from None
    except NotLiteralPattern:
        raise NotLiteralPattern(f"the pattern {pattern!r:.200} is no plain text with named groups") from None
    return found[2:] if found[:2] == ["", ""] else found


class _Pieces:
    def __init__(self, names: dict[int, str]) -> None:
        self._names = names

    def of(self, parsed: Any) -> list[str]:
        found = [""]
        for kind, value in parsed:
            first, *more = self._one(kind, value)
            found[-1] += first
            found += more
        return found

    def _one(self, kind: Any, value: Any) -> list[str]:
        if kind is kinds.LITERAL:
            return [chr(value)]
        if kind is kinds.AT:
            return [""]
        if kind is kinds.SUBPATTERN:
            return ["", self._names[value[0]], ""] if value[0] in self._names else self.of(value[3])
        if kind is kinds.BRANCH:
            return max((self.of(branch) for branch in value[1]), key=lambda pieces: len("".join(pieces)))
        if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT) and value[0] == 0:
            return ["", "", ""] if _is_free(value[1], value[2]) else [""]
        raise NotLiteralPattern


def _is_free(most: Any, repeated: Any) -> bool:
    """Whether it is any number of characters that are not only white space."""
    ((kind, value), *more) = repeated
    negated = kind is kinds.IN and value[0][0] is kinds.NEGATE
    return most is kinds.MAXREPEAT and not more and (kind is kinds.ANY or negated)
