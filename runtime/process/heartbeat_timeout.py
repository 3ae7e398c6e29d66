"""How the parent hears the engine's process: it notices when that says nothing for too long."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

LOOK = 0.5  # seconds between two looks at what else is due
AT_ONCE = 1 << 16  # bytes


class HeartbeatLost(Exception):
    """Nothing was heard for as long as there was patience."""


class HeartbeatReader:
    """Reads from a socket as a file does.

    patience: seconds of silence that are borne, None: any. They are counted in waits of half a second each, so that
    time in which this process itself was stopped or busy does not count.
    look: called between two waits, and about as often when much comes in.
    """

    def __init__(self, source: socket.socket) -> None:
        self.patience: float | None = None
        self.look: Callable[[], None] | None = None
        self._source, self._buffer, self._looked = source, bytearray(), time.monotonic()
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)

    def read(self, count: int) -> bytes:
        """So many bytes; fewer where the other side has ended. Raises OSError and Silence."""
        while len(self._buffer) < count:
            data = self._receive(max(AT_ONCE, count - len(self._buffer)))
            if not data:
                break
            self._buffer += data
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found

    def _receive(self, most: int) -> bytes:
        if time.monotonic() - self._looked > LOOK:
            self._look()
        silent = 0.0
        while True:
            try:
                return self._source.recv(most, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            if self.patience is not None and silent >= self.patience:
                raise HeartbeatLost
            wait = LOOK if self.patience is None else min(LOOK, self.patience - silent)
            if not self._poll.poll(1000 * wait):
                silent += wait
                self._look()

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self.look is not None:
            self.look()
