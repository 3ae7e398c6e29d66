"""The adapters that clients may name as a model: those that are loaded, and those of a folder, loaded when they are
asked for.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from sgl.runtime.engine import Engine
from sgl.runtime.errors import CheckpointError, ConfigError, RuntimeFailure

from .http.http_errors import RequestError
from .observability.request_record import RECORD
from .request_context import ADAPTER, CALLER, tenant_of
from .server_settings import ServerSettings

log = logging.getLogger("sgl.server")

USABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # names of folders that clients may cause to be read
MOST_SHOWN = 20
READERS = 4  # adapters that are read at a time
# seconds after which files that could not be used are read again, though they are the same: the model may have
# changed
AGAIN = 60.0
Stamp = tuple[tuple[str, int, int], ...]


class AdapterRefusal(NamedTuple):
    """The client's error for an adapter that cannot be loaded."""

    message: str
    code: str
    status: int

    def error(self) -> RequestError:
        return RequestError(self.message, "model", self.code, self.status)


def is_usable(name: str) -> bool:
    return USABLE.fullmatch(name) is not None and ".." not in name


class AdapterPermission:
    """Whether the caller may name an adapter, or see its name.

    Where names are kept apart, who brings no key sees none.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._names = {tenant_of(key): frozenset(names) for key, names in settings.allowed_adapters.items()}

    def __call__(self, name: str) -> bool:
        tenant = CALLER.get().tenant
        allowed = self._names.get(tenant)
        return name in allowed if allowed is not None else bool(tenant) or not self._names


class ServedAdapters:
    """Names of adapters, as the caller may use them. Thread-safe."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._folder = None if settings.adapters is None else Path(settings.adapters)
        self._allowed = AdapterPermission(settings)
        self._loaded = set(engine.config.adapters or {})
        self._readers = ThreadPoolExecutor(
            READERS, "sgl-adapters-asked"
        )  # separate: requests for adapters take no thread from others
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._reading: dict[str, Future[AdapterRefusal | None]] = {}
        self._refused: dict[str, tuple[Stamp, float, AdapterRefusal]] = {}

    @property
    def possible(self) -> bool:
        """Whether there may be any besides those that the engine is given later."""
        return self._folder is not None or bool(self._loaded)

    def names(self) -> list[str]:
        """Those that the caller may name, in the order of the alphabet."""
        return sorted(name for name in {*self._known(), *self._in_folder()} if self.allows(name))

    def has(self, name: str) -> bool:
        """Whether the caller may name it: it is loaded, or there is a folder of it."""
        return self.allows(name) and (name in self._loaded or self._path(name) is not None or name in self._known())

    def check(self, name: str, param: str) -> None:
        """Raise RequestError where the caller may not name it."""
        if not self.has(name):
            raise RequestError(
                f"there is no adapter {name!r} here; there are {listed(self.names())}", param, "adapter_not_found", 404
            )

    def allows(self, name: str) -> bool:
        return self._allowed(name)

    async def ready(self) -> str | None:
        """The adapter of this request, which is loaded by now. Raises RequestError where it cannot be."""
        name = ADAPTER.get()
        if (
            name is not None
            and name not in self._loaded
            and (refused := await asyncio.shield(asyncio.wrap_future(self._requested_adapter(name)))) is not None
        ):
            raise refused.error()
        return name

    def load(self, name: str, pin: bool = False) -> Any:
        """Read it from the folder, again if it is loaded.

        Raises RequestError where there is none, and what reading raises.
        """
        path = self._path(name)
        if path is None:
            where = (
                "this server was started without adapters=FOLDER"
                if self._folder is None
                else f"there are {listed(self._in_folder())}"
            )
            raise RequestError(f"there is no adapter {name!r} to load; {where}", "name", "adapter_not_found", 404)
        with self._turn(name):
            return self._read(name, path, pin)

    def unload(self, name: str) -> None:
        """Raises RequestError where it is not loaded, or in use."""
        if name not in self._known():
            raise RequestError(
                f"no adapter {name!r} is loaded; {listed(self._known())} are", "name", "adapter_not_found", 404
            )
        try:
            self._engine.adapters.unload(name)
        except ConfigError as error:
            raise RequestError(str(error), "name", "adapter_in_use", 409) from error
        self._loaded.discard(name)

    def loaded(self) -> list[Any]:
        return self._engine.adapters.list() if self._engine.fixed_info["adapters"]["executor"] else []

    def gone(self, name: str) -> RequestError:
        """It was unloaded since it was looked for."""
        return self._gone(name).error()

    # inside

    def _gone(self, name: str) -> AdapterRefusal:
        self._loaded.discard(name)
        return AdapterRefusal(f"adapter {name!r} is not loaded any more; ask again", "model_not_found", 404)

    def _read(self, name: str, path: Path, pin: bool) -> Any:
        info = self._engine.adapters.load(name, path, pin=pin)
        self._loaded.add(name)
        return info

    def _known(self) -> list[str]:
        return [info.name for info in self.loaded()]

    def _in_folder(self) -> list[str]:
        if self._folder is None or not self._folder.is_dir():
            return []
        return sorted(entry.name for entry in self._folder.iterdir() if self._path(entry.name) is not None)

    def _path(self, name: str) -> Path | None:
        """Its folder; None for a name that could lead out of it."""
        if self._folder is None or not is_usable(name):
            return None
        path = self._folder / name
        return path if (path / "adapter_config.json").is_file() else None

    def _turn(self, name: str) -> threading.Lock:
        """Held while it is read, so that a pin made meanwhile is not undone."""
        with self._lock:
            return self._turns.setdefault(name, threading.Lock())

    def _requested_adapter(self, name: str) -> Future[AdapterRefusal | None]:
        """Of many who ask at once the first has it read."""
        with self._lock:
            found = self._reading.get(name)
            if found is None:
                found = self._reading[name] = self._readers.submit(self._load_requested, name)
                found.add_done_callback(lambda _: self._reading.pop(name, None))
            return found

    def _load_requested(self, name: str) -> AdapterRefusal | None:
        """For a client, without paths. What cannot be used is not read again for every request."""
        try:
            with self._turn(name):
                if name in self._known():
                    self._loaded.add(name)
                elif (path := self._path(name)) is not None:
                    return self._tried(name, path)
                else:
                    return self._gone(name)
        except RuntimeFailure as error:
            log.error("adapter %r cannot be loaded: %s", name, error)
            return _unusable(name)
        return None

    def _tried(self, name: str, path: Path) -> AdapterRefusal | None:
        stamp, before = _stamp(path), self._refused.get(name)
        if before is not None and before[0] == stamp and time.monotonic() < before[1]:
            return before[2]
        try:
            self._read(name, path, False)
            self._refused.pop(name, None)
        except CheckpointError as error:
            log.error(
                "adapter %r cannot be loaded, and is not tried again within %g s unless its files change: %s",
                name,
                AGAIN,
                error,
            )
            self._refused[name] = stamp, time.monotonic() + AGAIN, _unusable(name)
            return _unusable(name)
        return None


def _unusable(name: str) -> AdapterRefusal:
    return AdapterRefusal(
        f"adapter {name!r} is here and cannot be used; the server's log says why", "adapter_unusable", 500
    )


def _stamp(path: Path) -> Stamp:
    """Of the files of an adapter: another one where these are others."""
    return tuple(
        (entry.name, entry.stat().st_mtime_ns, entry.stat().st_size) for entry in sorted(path.glob("adapter_*"))
    )


def listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:MOST_SHOWN])) + (" ..." if len(names) > MOST_SHOWN else "") if names else "none"


def check_adapters(names: Iterable[str | None], adapters: ServedAdapters) -> None:
    """Of the prompts of a call; None: the base. Raises RequestError where one is asked for that the caller may not
    name.
    """
    asked = set(names)
    for name in asked:
        if name is not None:
            adapters.check(name, "lora_path")
    if (record := RECORD.get()) is not None and len(asked) == 1:
        record.adapter = asked.pop()
