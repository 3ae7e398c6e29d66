"""Fronts of rooms whose names are imported when they are asked for, so that importing one name costs only that one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .moved_names import moved_names


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]], moved: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """A `__getattr__` for a package. homes: names by the module in it that has them.  moved: see `moved_names`.

    Raises AttributeError for other names.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    others = moved_names(package, moved or {})

    def __getattr__(name: str) -> Any:
        if name not in home_of:
            return others(name)
        found = getattr(import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return __getattr__
