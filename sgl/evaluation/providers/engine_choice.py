"""Which engine a model's name means in other packages."""

from __future__ import annotations

from typing import Any

from sgl.runtime.engine import Engine

BUNDLED = "nano"


def engine_named(name: str, options: dict[str, Any]) -> Engine:
    """An open engine: `nano` is the bundled model, other names are those that `sgl.Engine` takes."""
    return Engine(None if name == BUNDLED else name, **options)
