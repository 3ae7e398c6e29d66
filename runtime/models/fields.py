"""Typed look-ups in decoded JSON, with errors that name the file, the key and the value; it knows what was not looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..errors import ConfigError

T = TypeVar("T", int, float, bool, str)
LARGEST = 2**31 - 1  # of any size


class Fields:
    """Typed look-ups in a decoded JSON object; `where` names it in errors.

    A key that is absent or null takes the default, and is an error without one. Several keys are names of one thing
    in different families and times: the first that is there counts.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where
        self.seen: set[str] = set()

    def raw(self, *keys: str) -> Any:
        """The first value that is there and not null, of any type, or None."""
        self.seen.update(keys)
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def get(self, key: str | tuple[str, ...], kind: type[T], default: T | None = None) -> T:
        keys = (key,) if isinstance(key, str) else key
        value = self.raw(*keys)
        if value is None:
            if default is None:
                raise ConfigError(
                    f"{self.where}: key {keys[0]!r} is missing; it must be given as {kind.__name__}"
                )
            return default
        named = next(key for key in keys if self.values.get(key) is not None)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(f"{self.where}: key {named!r} must be {kind.__name__}, not {value!r}")
        return value

    def flag(self, key: str | tuple[str, ...], default: bool = False) -> bool:
        return self.get(key, bool, default)

    def number(self, key: str | tuple[str, ...], default: float | None = None) -> float:
        return self.get(key, float, default)

    def positive(self, key: str | tuple[str, ...], default: int | None = None, most: int = LARGEST) -> int:
        value = self.get(key, int, default)
        if not 1 <= value <= most:
            bound = "at least 1" if value < 1 else f"at most {most:,}"
            shown = key if isinstance(key, str) else next((k for k in key if self.values.get(k) is not None), key[0])
            raise ConfigError(f"{self.where}: key {shown!r} must be {bound}, not {value}")
        return value

    def optional(self, key: str | tuple[str, ...], kind: type[T]) -> T | None:
        """None where it is absent or null."""
        keys = (key,) if isinstance(key, str) else key
        return None if self.raw(*keys) is None else self.get(keys, kind)

    def require(self, key: str, *allowed: object) -> None:
        """Raises ConfigError where the key is there with a value that no family computes."""
        value = self.raw(key)
        if value is not None and value not in allowed:
            only = " or ".join(map(repr, allowed))
            raise ConfigError(f"{self.where}: {key}={value!r} is not supported; only {only} is")

    def unread(self) -> list[str]:
        """Keys that hold something and that nobody has asked for."""
        return [key for key, value in self.values.items() if key not in self.seen and value not in (None, False, "", [], {})]
