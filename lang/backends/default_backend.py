"""The backend of programs that name none, and what may be given for a backend."""

from __future__ import annotations

import atexit
import threading
from typing import Any

from ..backend import Backend
from ..errors import BadValueError
from ..global_config import global_config


def set_default_backend(backend: Any) -> None:
    """Run programs on `backend` (a Backend or an sgl.Engine) unless they name another. None: the bundled model."""
    if backend is not None:
        _shared.keep(as_backend(backend))
    global_config.default_backend = backend


def resolve_backend(backend: Any = None) -> Backend:
    """The backend to run on: the one given, else the default one, else the bundled model (started once)."""
    if backend is not None:
        return as_backend(backend)
    chosen = global_config.default_backend
    return _shared.keep(as_backend(chosen if chosen is not None else _shared.engine()))


def as_backend(value: Any) -> Backend:
    """A Backend from a Backend, an Engine, or an object whose `.endpoint` is one. BadValueError otherwise."""
    value = getattr(value, "endpoint", value)
    if isinstance(value, Backend):
        return value
    if not all(hasattr(value, name) for name in ("open", "tokenizer", "vocabulary")):
        raise BadValueError(f"{value!r} is not a backend; {_meant(value)}")
    from .embedded.embedded_backend import EmbeddedBackend

    return EmbeddedBackend.of(value)


def _meant(value: Any) -> str:
    if isinstance(value, str) and "://" in value:
        return (
            f"for a server of sgl or SGLang give sgl.RuntimeEndpoint({value!r}), for another one "
            "sgl.OpenAI(model, base_url=...)"
        )
    if isinstance(value, type):
        return f"it is a class: give an instance, as {value.__name__}(...)"
    if isinstance(value, str):
        return f"for a model give sgl.Engine({value!r}), for an API sgl.OpenAI(model) or sgl.Anthropic(model)"
    return "give an sgl.Engine or an instance of sgl.lang.backend.Backend"


def flush_cache(backend: Any = None) -> Any:
    """Empty the prefix cache of `backend`, by default the default backend. False if that has not started yet."""
    found = _existing(backend)
    return False if found is None else found.flush_cache()


def get_server_info(backend: Any = None) -> dict[str, Any] | None:
    """Return what the backend reports about itself: model_path, tokenizer_path, version, max_total_num_tokens, ..."""
    found = _existing(backend)
    return None if found is None else found.get_server_info()


def _existing(backend: Any) -> Backend | None:
    chosen = backend if backend is not None else global_config.default_backend
    if chosen is None:
        chosen = _shared.started
    return None if chosen is None else as_backend(chosen)


class _DefaultBackend:
    """What programs without a backend share: by default one engine with the bundled model."""

    def __init__(self) -> None:
        self.started: Any = None
        self._lock = threading.Lock()
        self._kept: Backend | None = None

    def keep(self, backend: Backend) -> Backend:
        """Hold on to the backend that is in use as the default one."""
        self._kept = backend
        return backend

    def engine(self) -> Any:
        with self._lock:
            if self.started is None or self.started.closed:
                from sgl.runtime.engine import Engine

                self.started = Engine()
                atexit.register(self.started.close)
            return self.started


_shared = _DefaultBackend()


def shared_engine() -> Any:
    """The engine of programs that name no backend: the bundled model, started once."""
    return _shared.engine()
