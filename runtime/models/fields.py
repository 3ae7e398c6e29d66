"""Typed look-ups in decoded JSON, with errors that name the file, the key and the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..errors import ConfigError

T = TypeVar("T", int, float, bool, str)


class Fields:
    """Typed look-ups in a decoded JSON object; `where` names it in errors.

    A key that is absent or null takes the default, and is an error without one.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ConfigError(
                    f"{self.where}: key {key!r} is missing; it must be given as {kind.__name__}"
                )
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(f"{self.where}: key {key!r} must be {kind.__name__}, not {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.get(key, int, default)
        if value < 1:
            raise ConfigError(f"{self.where}: key {key!r} must be at least 1, not {value}")
        return value
