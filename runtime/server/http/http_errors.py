"""What a client receives of an error: one table from exceptions to statuses, and the two shapes of the answer."""

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
    DeadlineExceeded,
    EngineClosed,
    EngineDied,
    NoTokenAllowed,
    OutOfPages,
    RequestAborted,
    TruncatedError,
)

from ..observability.request_record import RECORD
from .api_error_formats import error_in_api_shape

log = logging.getLogger("sgl.server")

LONGEST = 2000  # characters of a message
ENDINGS = (
    asyncio.CancelledError,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
)  # no failures, though no Exceptions either
INVALID, SERVER = "invalid_request_error", "server_error"


class RequestError(Exception):
    """A request that the server refuses. `param` names the field at fault; `retry_after`: seconds after which to ask
    again;
    `details`: what programs read of the error, in the words of their protocol."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        retry_after: int | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status
        self.retry_after, self.details = retry_after, details


@dataclass(frozen=True)
class HttpProblem:
    """An error as a client sees it: HTTP status, OpenAI's `type`, `code` and `param`, and words."""

    status: int
    type: str
    code: str | None
    param: str | None
    message: str
    retry_after: int | None = None  # seconds
    details: dict[str, Any] | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    def body(self, path: str = "") -> dict[str, Any]:
        """The JSON of the answer: in the shape of the API that the path is of."""
        message, param = _printable(self.message), self.param and _printable(self.param)
        fields = {"message": message, "type": self.type, "param": param, "code": self.code}
        return error_in_api_shape(path, self.status, message, param, self.details) or {"error": fields}


_KNOWN: Mapping[type[BaseException], tuple[int, str, str | None]] = {
    ContextLengthError: (400, INVALID, "context_length_exceeded"),
    OutOfPages: (400, INVALID, "context_length_exceeded"),
    TruncatedError: (400, INVALID, "truncated"),
    NoTokenAllowed: (400, INVALID, "no_token_allowed"),
    GrammarError: (400, INVALID, "invalid_grammar"),
    ConfigError: (400, INVALID, None),
    RequestAborted: (499, INVALID, "request_aborted"),
    asyncio.CancelledError: (499, INVALID, "request_aborted"),
    EngineClosed: (503, SERVER, "engine_closed"),
    EngineDied: (503, SERVER, "engine_restarting"),
    DeadlineExceeded: (504, SERVER, "timeout"),
    TimeoutError: (504, SERVER, "timeout"),
}
RESTART_SECONDS = 2  # after which an engine that died may take requests again
RATE_LIMITED = "rate_limit_error"  # OpenAI's type of a 429


def problem(error: BaseException) -> HttpProblem:
    """The client's view of `error`, also put into the request's record. Unexpected errors are logged, without details
    for the client.
    """
    found = _problem(error)
    if (record := RECORD.get()) is not None:
        record.status, record.error = found.status, found.code or found.type
    return found


def _problem(error: BaseException) -> HttpProblem:
    if isinstance(error, RequestError):
        kind = RATE_LIMITED if error.status == 429 else INVALID if error.status < 500 else SERVER
        return HttpProblem(error.status, kind, error.code, error.param, error.message, error.retry_after, error.details)
    for known, (status, kind, code) in _KNOWN.items():
        if isinstance(error, known):
            words = str(error) or _WORDS.get(status, "the request ended early")
            return HttpProblem(status, kind, code, None, words, RESTART_SECONDS if known is EngineDied else None)
    log.error("a request failed", exc_info=error)
    return HttpProblem(500, SERVER, "internal_error", None, "internal error; the server's log says more")


def _printable(text: str) -> str:
    """What a client sent may be long, and no Unicode text."""
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return shown.encode("utf-8", "backslashreplace").decode()


_WORDS = {499: "the request was cancelled", 504: "the request took too long"}
