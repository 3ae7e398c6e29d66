"""HTTP/1.1 on one connection, beyond uvicorn's: half-closed clients, and heads that never end."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0  # for the head of a request, from its first byte or the connection's beginning
FIRST_PROBE, SECOND_PROBE, LATER_PROBES = 0.5, 0.25, 5.0  # seconds


class HttpProtocol(H11Protocol):
    """Answers a client that has sent a whole request, and closes on one that is too slow to do so.

    Only sending to a silent client shows whether it still listens: until the answer begins it gets a
    `100 Continue` now and then, which every client has to skip. One that has left answers that with a reset.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._half_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and not self._answering:
            self._await_head()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._answering:
            self._stop(head=True)

    def on_response_complete(self) -> None:
        self._stop(probe=True)
        super().on_response_complete()
        if self._half_closed and not self._answering:  # nothing was pipelined after it
            self.transport.close()
        elif self._half_closed:
            self._listen_for_reset()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(head=True, probe=True)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open for an answer: where a whole request is here that has none yet.

        A client of HTTP/1.0 cannot be asked whether it listens, and counts as gone.
        """
        if not self._answering or self.cycle.more_body or self.scope["http_version"] == "1.0":
            return False
        self._half_closed = True
        self._listen_for_reset()
        return True

    # inside

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._head_timer = None
        if not self._answering and not self.transport.is_closing():
            self.transport.close()

    def _listen_for_reset(self) -> None:
        self._probe_timer = self.loop.call_later(FIRST_PROBE, self._probe, SECOND_PROBE)

    def _probe(self, after: float) -> None:
        """Say that the answer is being made, and again so many seconds later."""
        if self.transport.is_closing() or self.cycle.response_started:
            return
        self.transport.write(
            self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")) or b""
        )
        self._probe_timer = self.loop.call_later(after, self._probe, LATER_PROBES)

    def _stop(self, head: bool = False, probe: bool = False) -> None:
        if head and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if probe and self._probe_timer is not None:
            self._probe_timer.cancel()
            self._probe_timer = None
