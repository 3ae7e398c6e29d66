"""The compiled core as a Python module: it makes and lowers expressions, and its address is what `native.py` calls."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def extension() -> Any:
    """The module, or None where it is not built or SGL_PURE_PYTHON=1."""
    if os.environ.get("SGL_PURE_PYTHON", "0") not in ("", "0"):
        return None
    try:
        core = importlib.import_module("sgl.grammars._core")
        core.learn(importlib.import_module("sgl.grammars.algebra.expr"))
    except (ImportError, AttributeError):
        return None
    return core if hasattr(core, "add_pieces") else None  # the newest function: an older core is none


def compiled(plain: Function) -> Function:
    """The function of the same name in the core, whose reference is the plain one; without a core, the plain one."""
    return cast(Function, getattr(extension(), plain.__name__.removeprefix("plain_"), plain))
