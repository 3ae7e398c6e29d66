"""Pickles for a process that does not know its parent's modules, above all not the script: of classes that it has."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

_KNOWN = sys.stdlib_module_names | {"sgl", "numpy", "torch"}  # packages whose classes a child has for sure
_PLAIN: list[tuple[type, Callable[[Any], Any]]] = [(str, str.__str__), (int, int.__int__), (float, float.__float__)]


def pack(message: Any) -> bytes:
    """The bytes of what a child can read. Raises PicklingError for classes and functions of others."""
    file = io.BytesIO()
    _KnownClassPickler(file, pickle.HIGHEST_PROTOCOL).dump(message)
    return file.getvalue()


class _KnownClassPickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Others' kinds of texts and numbers, such as an enum's, are sent as the plain ones that they are."""
        for plain, bare in _PLAIN:
            if isinstance(value, plain) and type(value).__module__.partition(".")[0] not in _KNOWN:
                return plain, (bare(value),)
        if isinstance(value, type | FunctionType) and value.__module__.partition(".")[0] not in _KNOWN:
            raise pickle.PicklingError(f"{value!r} is not known there")
        return NotImplemented
