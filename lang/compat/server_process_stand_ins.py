"""What stands for servers that programs launch, where the embedded engine is there already."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from .server_args import ServerArgs
from .sglang_alias_settings import print_once, settings
from .stand_in_http_server import StandInServer, server_at

_PIDS = itertools.count(1 << 30)  # no process has such an id: a signal to it reaches none
_launched: dict[int, ServerStandIn] = {}  # by port


class ServerStandIn:
    """What a program gets as the process of a server that was not started."""

    stdin = stdout = stderr = None

    def __init__(self, args: ServerArgs, port: int, server: StandInServer | None = None) -> None:
        self.server_args = args
        self._server = server
        self.port = port
        self.pid = next(_PIDS)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self.terminate()
        return 0

    def terminate(self) -> None:
        self.returncode = 0
        _launched.pop(self.port, None)
        if self._server is not None:
            self._server.close()

    kill = terminate

    def communicate(self, *args: Any, **kwargs: Any) -> tuple[None, None]:
        self.terminate()
        return None, None


def launched_at(base_url: str) -> ServerArgs | None:
    """The options of the server that the program believes to have launched at this URL."""
    port = urlsplit(base_url).port
    return _launched[port].server_args if port in _launched else None


def with_pid(pid: int | None) -> ServerStandIn | None:
    """The stand-in that a program knows by this process id."""
    return next((stand_in for stand_in in _launched.values() if stand_in.pid == pid), None)


def stand_in_for(words: Sequence[str]) -> ServerStandIn:
    """What stands for the server that a command line would launch."""
    options = dict(_options(words))
    port = int(options.pop("port", 30000))
    args = ServerArgs(options.pop("model_path", None) or options.pop("model", None), **options)
    who = settings.url or "the embedded engine"
    print_once(f"no server is launched for {args.model_path!r} at port {port}: {who} answers")
    server = server_at(args, port) if settings.url is None else None
    _launched[port] = ServerStandIn(args, port, server)
    return _launched[port]


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """`--name value`, `--name=value` and `--flag` of a command line."""
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            after = words[index + 1] if index + 1 < len(words) else "--"
            found = value if equals else (True if after.startswith("--") else after)
            yield name.replace("-", "_"), int(found) if str(found).lstrip("-").isdigit() else found
