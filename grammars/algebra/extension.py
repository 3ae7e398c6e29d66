"""The compiled core as a Python module: it lowers expressions, and its address is what `native.py` calls."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Any

from sgl.grammars.algebra import expr


@cache
def extension() -> Any:
    """The module, or None where it is not built or SGL_PURE_PYTHON=1."""
    if os.environ.get("SGL_PURE_PYTHON", "0") not in ("", "0"):
        return None
    try:
        core = importlib.import_module("sgl.grammars._core")
        core.learn(expr)
    except (ImportError, AttributeError):
        return None
    return core
