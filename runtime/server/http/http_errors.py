"""What a client receives of an error: one table from exceptions to statuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
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


class RequestError(Exception):
    """What a client receives of an error: HTTP status, words, OpenAI's `code`, and `param`, the field at fault.

    retry_after: seconds after which to ask again. details: what programs read of it, in the words of their protocol.
    """

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

    @property
    def type(self) -> str:
        """As OpenAI's errors have it."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    def body(self, path: str = "") -> dict[str, Any]:
        """The JSON of the answer: in the shape of the API that the path is of."""
        message, param = _printable(self.message), self.param and _printable(self.param)
        fields = {"message": message, "type": self.type, "param": param, "code": self.code}
        return error_in_api_shape(path, self.status, message, param, self.details) or {"error": fields}


_KNOWN: Mapping[type[BaseException], tuple[int, str | None]] = {
    ContextLengthError: (400, "context_length_exceeded"),
    OutOfPages: (400, "context_length_exceeded"),
    TruncatedError: (400, "truncated"),
    NoTokenAllowed: (400, "no_token_allowed"),
    GrammarError: (400, "invalid_grammar"),
    ConfigError: (400, None),
    RequestAborted: (499, "request_aborted"),
    asyncio.CancelledError: (499, "request_aborted"),
    EngineClosed: (503, "engine_closed"),
    EngineDied: (503, "engine_restarting"),
    DeadlineExceeded: (504, "timeout"),
    TimeoutError: (504, "timeout"),
}
RESTART_SECONDS = 2  # after which an engine that died may take requests again


def problem(error: BaseException) -> RequestError:
    """The client's view of `error`, also put into the request's record. Unexpected errors are logged, without details
    for the client.
    """
    found = error if isinstance(error, RequestError) else _problem(error)
    if (record := RECORD.get()) is not None:
        record.status, record.error = found.status, found.code or found.type
    return found


def _problem(error: BaseException) -> RequestError:
    for known, (status, code) in _KNOWN.items():
        if isinstance(error, known):
            words = str(error) or _WORDS.get(status, "the request ended early")
            return RequestError(words, None, code, status, RESTART_SECONDS if known is EngineDied else None)
    log.error("a request failed", exc_info=error)
    return RequestError("internal error; the server's log says more", None, "internal_error", 500)


def _printable(text: str) -> str:
    """What a client sent may be long, and no Unicode text."""
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return shown.encode("utf-8", "backslashreplace").decode()


_WORDS = {499: "the request was cancelled", 504: "the request took too long"}
