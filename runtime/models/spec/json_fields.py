"""Typed look-ups in decoded JSON, with errors that name the file, the key and the value; it records the keys read."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar

from ...errors import ConfigError

T = TypeVar("T", int, float, bool, str)
LARGEST = 2**31 - 1  # of any size
EMPTY: tuple[Any, ...] = (None, False, "", [], {})
LARGEST_FLOAT = 2**1000

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 120
_brief.maxlist = _brief.maxdict = 8


def shown(value: object) -> str:
    """A value of a file as an error quotes it, shortened where it is long."""
    return _brief.repr(value)


class JsonFields:
    """Typed look-ups in a decoded JSON object; `where` names it in errors.

    A key that is absent or null takes the default, and is an error without one. Several keys are names of one thing in
    different families and versions: the first that is present counts.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where
        self.seen: set[str] = set()

    def raw(self, *keys: str) -> Any:
        """The first value that is present and not null, of any type, or None."""
        return self._first(*keys)

    def _first(self, *keys: str) -> Any:
        self.seen.update(keys)
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def named(self, key: str | tuple[str, ...]) -> str:
        """The name under which a value is present; the first name if there is none."""
        keys = (key,) if isinstance(key, str) else key
        return next((key for key in keys if self.values.get(key) is not None), keys[0])

    def get(self, key: str | tuple[str, ...], kind: type[T], default: T | None = None) -> T:
        named, value = self.named(key), self._first(*((key,) if isinstance(key, str) else key))
        if value is None:
            if default is None:
                raise ConfigError(f"{self.where}: key {named!r} is missing; it must be given as {kind.__name__}")
            return default
        if kind is float and type(value) is int and abs(value) <= LARGEST_FLOAT:
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(f"{self.where}: key {named!r} must be {kind.__name__}, not {shown(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{self.where}: key {named!r} must be a finite number, not {value}")
        return value

    def flag(self, key: str | tuple[str, ...], default: bool = False) -> bool:
        return self.get(key, bool, default)

    def flag_unless_null(self, key: str, default: bool) -> bool:
        """A flag that is off where it is null."""
        return self.flag(key, default) if key not in self.values or self.raw(key) is not None else False

    def number(self, key: str | tuple[str, ...], default: float | None = None) -> float:
        return self.get(key, float, default)

    def rate(self, key: str | tuple[str, ...], default: float | None = None) -> float:
        """A number above 0."""
        value = self.number(key, default)
        if value <= 0:
            raise ConfigError(f"{self.where}: key {self.named(key)!r} must be above 0, not {value}")
        return value

    def positive(self, key: str | tuple[str, ...], default: int | None = None, most: int = LARGEST) -> int:
        value = self.get(key, int, default)
        if not 1 <= value <= most:
            bound = "at least 1" if value < 1 else f"at most {most:,}"
            raise ConfigError(f"{self.where}: key {self.named(key)!r} must be {bound}, not {shown(value)}")
        return value

    def optional(self, key: str | tuple[str, ...], kind: type[T]) -> T | None:
        """None where it is absent or null."""
        keys = (key,) if isinstance(key, str) else key
        return None if self._first(*keys) is None else self.get(keys, kind)

    def require(self, key: str, *allowed: object) -> None:
        """Raises ConfigError if the key is present with a value that no family computes."""
        value = self.raw(key)
        if value is not None and value not in allowed:
            only = f"only {' or '.join(map(repr, allowed))} is" if allowed else "nothing but null is"
            raise ConfigError(f"{self.where}: {key}={shown(value)} is not supported; {only}")

    def unread(self) -> list[str]:
        """Keys that hold something and that have not been read."""
        return [key for key, value in self.values.items() if key not in self.seen and value not in EMPTY]
