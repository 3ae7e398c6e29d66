"""Public names that have moved: they still resolve, with a DeprecationWarning that gives the new name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def moved_names(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for `module`. homes: the old name -> "module.NewName", relative to the package `sgl.runtime`.

    Raises AttributeError for a name that is not in `homes`.
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new = homes[name].rpartition(".")
        warnings.warn(f"{module}.{name} is now sgl.runtime.{home}.{new}; import that", DeprecationWarning, stacklevel=2)
        return getattr(import_module(f"sgl.runtime.{home}"), new)

    return __getattr__
