"""Dynamic scopes: the schema resources through which a place was reached, the outermost first.

`$dynamicRef` and `$recursiveRef` mean another place in another scope. So a place that was reached through references
is written with the number of its scope before it, `3!#/properties/a`; what is below it has the same number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sgl.grammars.errors import InvalidGrammarError, UnsupportedGrammarError

_MOST_SCOPES = 500
_NUMBERED = re.compile(r"(\d+)!")
Scope = tuple[tuple[str, ...], str]  # the places of the resources' roots, and the place where a reference led in


class DynamicScopes:
    """The scopes of one document by number."""

    def __init__(self) -> None:
        self._scopes: list[Scope] = [(("#",), "#")]
        self._numbers: dict[Scope, int] = {self._scopes[0]: 0}

    def of(self, place: str) -> Scope:
        """The scope of a numbered place; the root's where there is no number."""
        found = _NUMBERED.match(place)
        return self._scopes[int(found[1]) if found else 0]

    def numbered(self, place: str, resources: tuple[str, ...], at: str) -> str:
        """A place as it is reached through some resources, each of which counts where it came first."""
        scope = tuple(dict.fromkeys(resources)), place
        number = self._numbers.setdefault(scope, len(self._scopes))
        if number == len(self._scopes):
            if number == _MOST_SCOPES:
                raise UnsupportedGrammarError("$dynamicRef", at, f"more than {_MOST_SCOPES} dynamic scopes")
            self._scopes.append(scope)
        return f"{number}!{place}"


def bare(place: str) -> str:
    """The place without the number of a scope."""
    return place[found.end() :] if (found := _NUMBERED.match(place)) else place


@contextmanager
def identified_by_pointer() -> Iterator[None]:
    """Errors that are raised inside name places without the numbers of scopes."""
    try:
        yield
    except (InvalidGrammarError, UnsupportedGrammarError) as error:
        plain = bare(error.where)
        error.args = (str(error).replace(error.where, plain),) if error.where else error.args
        error.where = plain
        raise
