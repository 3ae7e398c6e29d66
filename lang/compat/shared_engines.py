"""The engines of programs under the alias: those who ask for the same model share one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..backends.default_backend import shared_engine


@dataclass
class SharedEngine:
    """An open engine and how many hold it."""

    engine: Any
    holders: int = 0


class EngineHold:
    """The right to use an engine, until `release()` (idempotent) or until the hold is no longer referenced."""

    def __init__(self, engine: Any, give_back: Callable[[], object]) -> None:
        self.engine = engine
        self.release = weakref.finalize(self, give_back)


class SharedEngines:
    """Engines by model and options, each open as long as somebody holds it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a hold may be collected while its thread is in here
        self._open: dict[tuple[Any, ...], SharedEngine] = {}

    def take(self, model: str | None, options: dict[str, Any]) -> EngineHold:
        """An engine with `model` (None: the bundled one). Raises what opening it raises."""
        if model is None and not options:
            return EngineHold(shared_engine(), lambda: None)  # the default engine stays open
        key = (model, *sorted((name, repr(value)) for name, value in options.items()))
        with self._lock:
            shared = self._open.get(key)
            if shared is None or shared.engine.closed:
                shared = self._open[key] = SharedEngine(_open(model, options))
            shared.holders += 1
        return EngineHold(shared.engine, partial(self._give_back, shared))

    def _give_back(self, shared: SharedEngine) -> None:
        with self._lock:
            shared.holders -= 1
            if shared.holders == 0:
                shared.engine.close()


def _open(model: str | None, options: dict[str, Any]) -> Any:
    from sgl.runtime.engine import Engine

    return Engine(model, **options)


engines = SharedEngines()
