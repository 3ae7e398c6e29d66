"""How journals call classes: by the modules that had them when journals began, wherever these are now."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "sgl.lang.chat.chat_turn_template": "sgl.lang.chat",
    "sgl.lang.interpreter.token_usage": "sgl.lang.usage",
    "sgl.lang.nodes.ir": "sgl.lang.ir",
    "sgl.lang.sampling.choices": "sgl.lang.choices",
    "sgl.lang.sampling.options": "sgl.lang.options",
}
_HERE = {written: here for here, written in _MODULES.items()}


def written_name(kind: type) -> str:
    """The name of a class in a journal."""
    return f"{_MODULES.get(kind.__module__, kind.__module__)}.{kind.__qualname__}"


def named_here(name: str) -> Any:
    """What a name of a journal means here; None if there is nothing of that name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(_HERE.get(module, module)), attribute, None)
    except ImportError:
        return None
