"""The HTTP server of a stand-in: at the port that a program launched a server for, the engine of this process answers.

It starts with the first connection: programs that use the engine in process pay for no server.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from typing import Any

from ..errors import BadValueError
from .server_args import ServerArgs
from .sglang_alias_settings import choose_model, print_once
from .shared_engines import EngineHold, engines

SECONDS = 10.0  # that a server may take to shut down


class StandInServer:
    """Listens at 127.0.0.1 and a port from the start, serves in a separate thread. `close()` frees the port."""

    def __init__(self, args: ServerArgs, port: int) -> None:
        self._args, self._closed = args, False
        self._server: Any = None  # uvicorn's, once somebody has connected
        self._listener = socket.create_server(("127.0.0.1", port))
        self._waking, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name=f"sgl-server-{port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        self._wake.close()
        if self._server is not None:
            self._server.should_exit = True
        if threading.current_thread() is not self._thread:
            self._thread.join(SECONDS)

    def _run(self) -> None:
        with self._listener, self._waking:
            select.select([self._listener, self._waking], [], [])
            if self._closed:
                return
            try:
                self._serve()
            except Exception as error:  # no thread of the program waits for it
                print_once(f"the server for {self._args.model_path!r} did not start: {error}")

    def _serve(self) -> None:
        choice = choose_model(self._args.model_path)
        hold = engines.take(choice.path, self._args.engine_options(choice.replaced))
        try:
            self._serve_engine(hold, choice.replaced)
        finally:
            hold.release()

    def _serve_engine(self, hold: EngineHold, replaced: bool) -> None:
        listening, app_of = (
            import_module("sgl.runtime.server.server_listener"),
            import_module("sgl.runtime.server.server_app"),
        )
        app = app_of.create_app(hold.engine, settings_of(self._args, replaced))
        try:
            self._server = import_module("uvicorn").Server(listening.config_of(app))
            self._server.should_exit = self._closed
            asyncio.run(self._server.serve(sockets=[self._listener]))
        finally:
            app.state.watchers.close()


def settings_of(args: ServerArgs, replaced: bool) -> Any:
    """The server's settings by the options of a launched one.

    Formats of tools belong to the model that was asked for.
    """
    server, dialects = import_module("sgl.runtime.server.server_settings"), import_module("sgl.runtime.dialects")
    names = [name for name in (args.served_model_name, args.model_path) if name]
    reasoning = _known("reasoning_parser", args.reasoning_parser, dialects.MARKS)
    tools = None if replaced else _known("tool_call_parser", args.tool_call_parser, dialects.DIALECTS)
    keys = frozenset([args.api_key] if args.api_key else [])
    return server.ServerSettings(
        served_name=tuple(names) or None, api_keys=keys, reasoning_format=reasoning, tool_format=tools
    )


def _known(option: str, name: str | None, known: Collection[str]) -> str | None:
    """The format of that name; None where it is not known, which is said: the model's own is used then."""
    if name is None or name in known:
        return name
    print_once(
        f"{option}={name!r} is not known here: the format is read off the model's chat template; known: "
        f"{', '.join(known)}"
    )
    return None


def server_at(args: ServerArgs, port: int) -> StandInServer | None:
    """A server at the port; None where none can be, which is said once. Raises BadValueError for a port that is
    taken."""
    missing = None
    for module in ("fastapi", "uvicorn"):
        with suppress(ImportError):
            import_module(module)
            continue
        missing = missing or module
    if missing is not None:
        print_once(f"nothing listens at port {port}: {missing} is not installed (pip install '.[server]')")
        return None
    try:
        return StandInServer(args, port)
    except OSError as error:
        raise BadValueError(
            f"no server can listen at port {port}: {error.strerror}; launch it at another port"
        ) from error
