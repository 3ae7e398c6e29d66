"""What a JSON text has written so far, as far as items of arrays must differ from each other."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

UNFINISHED = object()


class OpenContainer:
    """An array or object that is not closed yet; immutable.

    `outer` is the number of arrays and objects around the outermost one whose items must differ, None outside of any;
    only within it are values kept: the items of an array, or pairs of names and members. `names` are those of the
    members of an object whose names must differ, None for any other.
    """

    __slots__ = ("depth", "items", "key", "known", "names", "outer", "square", "under", "unique")

    def __init__(
        self,
        under: OpenContainer | None,
        square: bool,
        unique: bool = False,
        items: tuple[Any, ...] = (),
        key: str | None = None,
        names: frozenset[str] | None = None,
    ) -> None:
        self.under, self.square, self.unique, self.items, self.key, self.names = (
            under,
            square,
            unique,
            items,
            key,
            names,
        )
        self.depth: int = 0 if under is None else under.depth + 1
        around = None if under is None else under.outer
        self.outer: int | None = self.depth if around is None and unique else around
        self.known = frozenset(items) if unique else frozenset()

    def named(self, key: str | None) -> OpenContainer:
        """The object whose next member has a name; no name is kept where no value is."""
        names = None if self.names is None or key is None else self.names | {key}
        return OpenContainer(self.under, False, False, self.items, "" if self.outer is None else key, names)

    def added(self, value: Any) -> OpenContainer:
        """With one more item or member."""
        if self.outer is None:
            return self if self.square else OpenContainer(self.under, False, names=self.names)
        more = value if self.square else (self.key, value)
        return OpenContainer(self.under, self.square, self.unique, (*self.items, more), names=self.names)

    def closed(self) -> Any:
        """The value, once it ends; of a name that comes twice the last member counts."""
        return ("[", self.items) if self.square else ("{", frozenset(dict(self.items).items()))

    def identity(self) -> tuple[Any, ...]:
        """Equal for what goes on alike; that of `under` is interned before."""
        return (id(self.under), self.square, self.unique, self.items, self.key, self.names)

    def strings(self) -> set[str]:
        """All texts and names in the values that are kept here and around."""
        found: set[str] = set()
        here: OpenContainer | None = self
        while here is not None and here.outer is not None:
            for item in here.items:
                _collect(item, found)
            here = here.under
        return found


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, str):
        found.add(value)
    elif isinstance(value, tuple | frozenset):
        for part in value:
            _collect(part, found)


def scalar(text: bytes) -> Any:
    """A value by which equal numbers and constants are known: 1 is 1.0, but
    not true. UNFINISHED: only a part of one.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = _long_number(text)
    return ("?", value) if isinstance(value, bool) else value


def _long_number(text: bytes) -> Any:
    """More digits than Python reads."""
    try:
        return Decimal(text.decode())
    except ArithmeticError:
        return UNFINISHED


def string(text: bytes) -> str:
    return str(json.loads(text.decode("utf-8", "surrogatepass")))


def ends_string(text: bytes) -> bool:
    """Whether a quote after this beginning of a string ends it: no backslash is before it, or an even number."""
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 0
