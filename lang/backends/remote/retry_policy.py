"""When a failed remote call is tried again, and how long to wait before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import TypeVar
from urllib.parse import urlsplit

from ...errors import RemoteError, RemoteStatusError

T = TypeVar("T")

_WORTH_ANOTHER_TRY = frozenset({408, 409, 425, 429})


@dataclass(frozen=True)
class RetryPolicy:
    """At most `retries` further tries. The pause is about `backoff` seconds and doubles, up to `longest`.

    `sleep` and `random` (in [0, 1)) are there for tests.
    """

    retries: int = 3
    backoff: float = 0.5
    longest: float = 30.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random: Callable[[], float] = random.random

    def pause(self, failed: int, error: RemoteError) -> float:
        """Seconds to wait after try number `failed` (from 0): at least what the server asked for."""
        wait = min(self.backoff * 2**failed, self.longest)
        return max(wait * (0.5 + 0.5 * self.random()), error.retry_after or 0.0)

    async def run(
        self, call: Callable[[], Awaitable[T]], may_retry: Callable[[], bool], left: Callable[[], float]
    ) -> T:
        """The result of the first try that succeeds. `left()`: the seconds that all tries together still have.

        Raises the error of the last try; its `attempts` says how many there were.
        """
        for failed in count():
            try:
                return await call()
            except RemoteError as error:
                error.attempts = failed + 1
                pause = self.pause(failed, error)
                if failed >= self.retries or not error.retryable or not may_retry() or pause >= left():
                    raise
            await self.sleep(pause)
        raise AssertionError("unreachable")


def status_error(
    status: int, message: str, url: str | None = None, headers: Mapping[str, str] | None = None
) -> RemoteStatusError:
    """The error of an answer with that HTTP status; `message` is the server's own."""
    shown = public_url(url) if url else None
    where = f" from {shown}" if shown else ""
    return RemoteStatusError(
        f"HTTP {status}{where}: {message.strip() or 'no message'}",
        status=status,
        url=shown,
        retry_after=retry_after_of(headers or {}),
        retryable=is_retryable(status),
    )


def is_retryable(status: int) -> bool:
    return status in _WORTH_ANOTHER_TRY or (status >= 500 and status != 501)


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """The seconds that a Retry-After header asks for (a number or a date); None without one."""
    value = headers.get("retry-after") or headers.get("Retry-After")
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        return _seconds_until(value)


def _seconds_until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def public_url(url: str) -> str:
    """The address without user, password and query, which may hold keys."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}"
