"""What a client is told of an error: one table from exceptions to statuses, and the two shapes of the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sgl.grammars import GrammarError
from sgl.runtime.errors import (
    ConfigError,
    ContextLengthError,
    EngineClosed,
    OutOfPages,
    RequestAborted,
    TruncatedError,
)

log = logging.getLogger("sgl.server")

LONGEST = 2000  # characters of a message
INVALID, SERVER = "invalid_request_error", "server_error"


class RequestError(Exception):
    """A request that the server refuses. `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


@dataclass(frozen=True)
class Problem:
    """An error as a client sees it: HTTP status, OpenAI's `type`, `code` and `param`, and words."""

    status: int
    type: str
    code: str | None
    param: str | None
    message: str

    def body(self, path: str = "") -> dict[str, Any]:
        """The JSON of the answer: {"error": {"message"}} of the native protocol, else OpenAI's."""
        if path in NATIVE_PATHS:
            return {"error": {"message": _printable(self.message)}}
        param = self.param and _printable(self.param)
        fields = {"message": _printable(self.message), "type": self.type, "param": param, "code": self.code}
        return {"error": fields}


NATIVE_PATHS = frozenset({"/generate"})

_KNOWN: Mapping[type[BaseException], tuple[int, str, str | None]] = {
    ContextLengthError: (400, INVALID, "context_length_exceeded"),
    OutOfPages: (400, INVALID, "context_length_exceeded"),
    TruncatedError: (400, INVALID, "truncated"),
    GrammarError: (400, INVALID, "invalid_grammar"),
    ConfigError: (400, INVALID, None),
    RequestAborted: (499, INVALID, "request_aborted"),
    asyncio.CancelledError: (499, INVALID, "request_aborted"),
    EngineClosed: (503, SERVER, "engine_closed"),
    TimeoutError: (504, SERVER, "timeout"),
}


def problem(error: BaseException) -> Problem:
    """What to tell of `error`. Unexpected ones are logged, and nothing of them is told."""
    if isinstance(error, RequestError):
        kind = INVALID if error.status < 500 else SERVER
        return Problem(error.status, kind, error.code, error.param, error.message)
    for known, (status, kind, code) in _KNOWN.items():
        if isinstance(error, known):
            return Problem(status, kind, code, None, str(error) or _WORDS.get(status, "the request ended early"))
    log.error("a request failed", exc_info=error)
    return Problem(500, SERVER, "internal_error", None, "internal error; the server's log says more")


def _printable(text: str) -> str:
    """What a client sent may be long, and no Unicode text."""
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return shown.encode("utf-8", "backslashreplace").decode()


_WORDS = {499: "the request was cancelled", 504: "the request took too long"}
