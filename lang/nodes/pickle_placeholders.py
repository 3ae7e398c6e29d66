"""Placeholders in pickled states for what Python cannot pickle: a type or a method that a function defines."""

from __future__ import annotations

import pickle
from typing import Any


class UnpicklableParser:
    """Says what was there when it is asked to read or to choose."""

    copies = False

    def __init__(self, what: str) -> None:
        self.what = what

    def __repr__(self) -> str:
        return f"<{self.what}, not pickled>"

    def constrain(self, options: Any, backend: Any) -> Any:
        self.read("", backend)

    def is_cut(self, text: str, options: Any, meta: Any, backend: Any) -> bool:
        return False

    def read(self, text: str, backend: Any) -> Any:
        raise ValueError(
            f"{self.what} could not be pickled with the state; define it at the top level of a module, or use "
            "get(name, type)"
        )

    def __call__(self, **arguments: Any) -> Any:
        self.read("", None)


def kept(value: Any) -> Any:
    """The value if it can be pickled."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    try:
        pickle.dumps(value)
    except Exception:
        kind = getattr(value, "kind", value)
        return UnpicklableParser(getattr(kind, "__qualname__", None) or f"{kind!r:.80}")
    return value
