"""For whom a request runs: its tenant, whose prefixes it may reuse, how urgent it is, until when it is waited for."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

from starlette.datastructures import Headers

from sgl.runtime.sequences.sequence_options import USUAL, SequenceOptions

from .http.http_errors import RequestError
from .http.response_size_limit import ALLOWANCE, LogprobBudget
from .server_settings import ServerSettings

MOST_URGENT = 100  # priorities of requests are in -100..100

CALLER: ContextVar[SequenceOptions] = ContextVar("CALLER", default=USUAL)  # on whose terms sequences are opened
ADAPTER: ContextVar[str | None] = ContextVar("ADAPTER", default=None)  # by which they are computed
PATIENCE: ContextVar[float | None] = ContextVar("PATIENCE", default=None)  # seconds of the deadline


def tenant_of(key: str) -> str:
    """A short name that is always the same for an API key, and does not tell it: 12 hexadecimal digits."""
    return hashlib.blake2b(key.encode(), digest_size=6, person=b"sgl-tenant").hexdigest()


def key_of(headers: Headers) -> bytes:
    """The API key that a request brings, as a bearer token or in X-Api-Key; empty where it brings none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if own := headers.get("x-api-key"):  # Anthropic's clients
        scheme, key = "bearer", own
    return key.strip().encode() if scheme.lower() == "bearer" else b""


@contextmanager
def calling(tenant: str, settings: ServerSettings) -> Iterator[None]:
    """Within, everything runs for this tenant, for as long as the settings let a request take."""
    terms = SequenceOptions(tenant=tenant, namespace=tenant if settings.isolated else "")
    before: list[Token[Any]] = [
        CALLER.set(terms),
        PATIENCE.set(None),
        ALLOWANCE.set(LogprobBudget()),
        ADAPTER.set(None),
    ]
    try:
        apply_caller(settings)
        yield
    finally:
        for token in before:
            token.var.reset(token)


def apply_caller(settings: ServerSettings, priority: int | None = None, timeout: float | None = None) -> None:
    """From here on, in this context: the request's own priority, and its deadline.

    timeout: seconds, at most `settings.request_timeout` of which are granted.
    Raises RequestError for a priority where the server gives none.
    """
    if priority and not settings.allow_priority:
        raise RequestError(
            f"priority={priority}: this server gives all requests the same; leave it out, or start it with "
            "--allow-priority",
            param="priority",
        )
    granted = min((seconds for seconds in (timeout, settings.request_timeout) if seconds is not None), default=None)
    PATIENCE.set(granted)
    CALLER.set(
        CALLER.get()._replace(priority=priority or 0, deadline=None if granted is None else time.monotonic() + granted)
    )


def seconds_left(terms: SequenceOptions) -> float | None:
    """Until the deadline; None: there is none. Raises TimeoutError when it has passed."""
    if terms.deadline is None:
        return None
    left = terms.deadline - time.monotonic()
    if left <= 0:
        raise deadline_error(PATIENCE.get())
    return left


def deadline_error(granted: float | None) -> TimeoutError:
    return TimeoutError(
        "the request took too long" if granted is None else f"the request took more than its {granted:g} seconds"
    )
