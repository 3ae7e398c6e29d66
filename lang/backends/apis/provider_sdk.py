"""What the backends over providers' SDKs share: importing them, their errors, the count of tokens paid for."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...errors import LanguageError, RemoteConnectionError, RemoteError, RemoteProtocolError
from ..remote.retry_policy import public_url, status_error

CONNECT_SECONDS = 10.0
LONGEST_MESSAGE = 1000  # characters; some servers answer with a whole page
_TRANSPORTS = ("httpx", "httpx2", "httpcore", "aiohttp", "anyio")
_STATUS_OF_KIND = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class MissingPackageError(LanguageError, ImportError):
    """A backend needs a package that is not installed."""


def require(module: str, extra: str, others: str = "") -> Any:
    """Import an optional package. Raises MissingPackageError, which names the extra (and others) to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"this backend needs the package {module!r}: pip install 'sgl[{extra}]'{others} ({error})"
        ) from error


class TokenUsage:
    """Tokens that calls have cost so far. `prompt_tokens` and `completion_tokens` may be read at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self.prompt_tokens = self.completion_tokens = self.calls = 0

    def add(self, prompt_tokens: int, completion_tokens: int) -> None:
        """One call more, with its tokens."""
        with self._lock:
            self.prompt_tokens += prompt_tokens
            self.completion_tokens += completion_tokens
            self.calls += 1

    def __repr__(self) -> str:
        return f"TokenUsage(prompt_tokens={self.prompt_tokens}, completion_tokens={self.completion_tokens})"


@contextmanager
def sdk_errors() -> Iterator[None]:
    """Errors of an SDK and of its HTTP client become RemoteErrors, chained to them; others pass."""
    try:
        yield
    except LanguageError:
        raise
    except Exception as error:
        found = remote_error(error)
        if found is None:
            raise
        raise found from error


def remote_error(error: Exception) -> RemoteError | None:
    """The RemoteError for an error of an SDK (OpenAI, Anthropic, LiteLLM) or its transport; None for others."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if (status := _status(error)) is not None:
        return _status_error(error, status)
    if "APIConnectionError" in kinds or type(error).__module__.partition(".")[0] in _TRANSPORTS:
        return _connection_error(error)
    if "APIError" in kinds:  # an error event inside a stream, of a kind that says no status
        return RemoteProtocolError(f"the server reported in its stream: {error}")
    if isinstance(error, ValueError):  # what is no JSON
        return RemoteProtocolError(f"the answer does not follow the protocol: {error}")
    return None


def _status_error(error: Exception, status: int) -> RemoteError:
    response = getattr(error, "response", None)
    found = status_error(status, _message(error), _url(error), getattr(response, "headers", None))
    if _kind(error, "code") == "insufficient_quota":
        found.retryable = False
    return found


def _connection_error(error: Exception) -> RemoteError:
    cause = error.__cause__ or error
    where = _url(error)
    about = f"no whole answer from {where}" if where else "no whole answer"
    return RemoteConnectionError(f"{about}: {type(cause).__name__}: {cause or error}", url=where, retryable=True)


def _status(error: Exception) -> int | None:
    """The HTTP status of an error; for an error inside a stream, which began with 200, that of its kind."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        return status
    code = _kind(error, "code")
    if isinstance(code, int) or (isinstance(code, str) and code.isdigit()):
        return int(code)
    return _STATUS_OF_KIND.get(str(code)) or _STATUS_OF_KIND.get(str(_kind(error, "type")))


def _kind(error: Exception, name: str) -> Any:
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        body = body.get("error", body)
    return body.get(name) if isinstance(body, Mapping) else None


def _message(error: Exception) -> str:
    """What the server said. openai from 3 on leaves a body without a message out of the error's text."""
    said = _kind(error, "message") or getattr(error, "message", None) or error
    body = getattr(error, "body", None)
    if body and not _kind(error, "message"):
        text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=str)
        said = said if text in str(said) else f"{said}: {text}"
    return str(said)[:LONGEST_MESSAGE]


def _url(error: Exception) -> str | None:
    try:
        return public_url(str(error.request.url))  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError, ValueError):  # httpx raises RuntimeError for a request that is not set
        return None
