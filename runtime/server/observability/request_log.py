"""One line of JSON for each request: what it cost and how it ended. What was said only where that is asked for."""

from __future__ import annotations

import json
import logging
import queue
import sys
import time
from logging.handlers import QueueListener, WatchedFileHandler
from typing import Any

from sgl.runtime.errors import ConfigError

from .request_record import RequestRecord

log = logging.getLogger("sgl.server")

MOST_WAITING = 10_000  # lines for a disk that is slow; more are dropped, and counted


class RequestLog:
    """Appends lines to a file, or to the standard output where `target` is "-", on a separate thread.

    A file that was moved away is opened anew, so that the system's log rotation works. Raises ConfigError where it
    cannot be opened.
    """

    def __init__(self, target: str) -> None:
        self._waiting: queue.Queue[Any] = queue.Queue()  # with room for what ends the listener, whatever waits
        self._dropped = 0
        self._closed = False
        self._handler = _handler(target)
        self._listener = _Listener(self._waiting, self._handler)
        self._listener.start()

    def finished(self, record: RequestRecord) -> None:
        """A request has ended. Never waits."""
        if self._waiting.qsize() >= MOST_WAITING:
            self._dropped += 1
            return
        line = json.dumps(line_of(record) | ({"dropped_lines": self._dropped} if self._dropped else {}))
        self._waiting.put_nowait(logging.makeLogRecord({"msg": line}))
        self._dropped = 0

    def close(self) -> None:
        """Write what waits, and end. Idempotent."""
        if not self._closed:
            self._closed = True
            self._listener.stop()
            self._handler.close()


def line_of(record: RequestRecord) -> dict[str, Any]:
    """The fields of a line. Seconds are of three digits; `None` where a request had no such thing."""
    fields: dict[str, Any] = {
        "time": _timestamp(record.clock),
        "id": record.id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "error": record.error,
        "tenant": record.tenant,
        **({"adapter": record.adapter} if record.adapter else {}),
        "seconds": _rounded(record.seconds),
        "queue_seconds": _rounded(record.queue_seconds),
        "first_token_seconds": _rounded(record.first_token_seconds),
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "forced_tokens": record.forced_tokens,
        "drafted_tokens": record.drafted_tokens,
        "accepted_tokens": record.accepted_tokens,
        "finish_reasons": record.finish_reasons,
    }
    return fields if record.content is None else fields | {"content": record.content}


class _Listener(QueueListener):
    def handle(self, record: logging.LogRecord) -> None:
        """Where a file that was moved away cannot be opened anew, its lines are lost, the later ones need not be."""
        try:
            super().handle(record)
        except OSError as error:
            log.error("the request log cannot be written: %s", error)


def _handler(target: str) -> logging.StreamHandler[Any]:
    if target == "-":
        return logging.StreamHandler(sys.stdout)
    try:
        return WatchedFileHandler(target, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(
            f"cannot write the request log {target}: {error.strerror}; give another file, or -"
        ) from error


def _timestamp(clock: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(clock))}.{int(clock % 1 * 1000):03}Z"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
