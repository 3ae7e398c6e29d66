"""A thread that sends what others post, so that no other thread waits for the socket."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from sgl.common.child_process.message_channel import MessageChannel


class MessageOutbox:
    """`post` may be called anywhere, in a destructor too. Messages leave in their order once `send` is called.

    frames: the bytes of all that has gathered.  What `later` posts waits until something else leaves, or `ring`: who
        has many small messages lets them go as one.
    """

    def __init__(self, name: str, frames: Callable[[list[Any]], bytes]) -> None:
        self._name, self._frames = name, frames
        self._gathered: deque[Any] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._rung = False
        self.thread: threading.Thread | None = None

    def post(self, message: Any) -> None:
        self._gathered.append(message)
        self.ring()

    def later(self, message: Any) -> None:
        self._gathered.append(message)

    def ring(self) -> None:
        """Let go what has gathered."""
        if self._gathered and not self._rung:  # who has rung takes what is there by then
            self._rung = True
            self._bell.put(None)

    def send(self, through: MessageChannel, first: bytes = b"") -> None:
        """Begin to send: `first`, then what was posted and will be."""
        self.thread = threading.Thread(target=self._run, args=(through, first), name=self._name, daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Once everything posted before is sent, or cannot be: end the thread."""
        self.post(_END)
        if self.thread is not None:
            self.thread.join()

    def _run(self, through: MessageChannel, first: bytes) -> None:
        batch: list[Any] = []
        try:
            through.write(first)
            while not batch or batch[-1] is not _END:
                batch = self._next()
                through.write(self._frames([message for message in batch if message is not _END]))
        except OSError:
            pass  # the other side is gone: its reader learns why

    def _next(self) -> list[Any]:
        """All that has gathered, at least one, and nothing after the end."""
        batch: list[Any] = []
        while not batch:
            self._bell.get()
            self._rung = False
            while self._gathered and not (batch and batch[-1] is _END):
                batch.append(self._gathered.popleft())
        return batch


_END = object()
