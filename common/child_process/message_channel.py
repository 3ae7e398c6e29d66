"""One end of the connection between a process and its child: numbered messages through a pair of sockets."""

from __future__ import annotations

import io
import pickle
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .serialized_error import SerializedError

HEARTBEAT, FAILURE = -1, -2  # numbers of the channel's own messages; all others are 0 or more
LOOK = 0.5  # seconds between two looks at what else is due
AT_ONCE = 1 << 16  # bytes
LONGEST = 1 << 36  # bytes of a message: what says that it is longer is none
_HEAD = struct.Struct("<qQ")


def frame(number: int, data: bytes) -> bytes:
    """A message as it is sent."""
    return _HEAD.pack(number, len(data)) + data


class HeartbeatLost(Exception):
    """Nothing was heard for as long as there was patience. Its text continues a sentence about the other process."""


class SocketReader(io.RawIOBase):
    """What comes in.

    patience: seconds of silence that are borne, None: any. They are counted in waits of half a second each, so that
    time in which this process itself was stopped or busy does not count.
    look: called between two waits, and about as often when much comes in.
    """

    def __init__(self, source: socket.socket) -> None:
        self.patience: float | None = None
        self.look: Callable[[], None] | None = None
        self._source, self._looked = source, time.monotonic()
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any, /) -> int:
        """Some bytes, none where the other end is closed. Raises OSError and HeartbeatLost."""
        if self.patience is None and self.look is None:
            return self._source.recv_into(into)
        if time.monotonic() - self._looked > LOOK:
            self._look()
        silent = 0.0
        while True:
            with suppress(BlockingIOError):
                return self._source.recv_into(into, 0, socket.MSG_DONTWAIT)
            if self.patience is not None and silent >= self.patience:
                raise HeartbeatLost(
                    f"was stopped or hung: it gave no sign of life for {self.patience:g} s, and was killed"
                )
            wait = LOOK if self.patience is None else min(LOOK, self.patience - silent)
            if not self._poll.poll(1000 * wait):
                silent += wait
                self._look()

    def _look(self) -> None:
        self._looked = time.monotonic()
        if self.look is not None:
            self.look()


class MessageChannel:
    """Any thread may send, one receives.

    sign: what came with the newest sign of life.  failure: why the other end fails, once it has said so.
    make_sign: makes what goes with each of this end's.
    """

    def __init__(self, end: socket.socket) -> None:
        self.reader = SocketReader(end)
        self.sign = b""
        self.make_sign: Callable[[], bytes] = bytes
        self.failure: BaseException | None = None
        self._socket, self._sending = end, threading.Lock()
        self._file = io.BufferedReader(self.reader, AT_ONCE)

    def receive(self) -> tuple[int, bytes]:
        """The number and the bytes of the next message that is not the channel's own.

        Raises EOFError or OSError when the other end is gone, also in the middle of one, and HeartbeatLost.
        """
        while True:
            number, size = _HEAD.unpack(self._exactly(_HEAD.size))
            if size > LONGEST:
                raise ConnectionError(f"a message of {size:,} bytes is announced")
            data = self._exactly(size)
            if number >= 0:
                return number, data
            if number == HEARTBEAT:
                self.sign = data
            else:
                self.failure = pickle.loads(data).error()

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError("the other end is gone")
        return data

    def send(self, number: int, data: bytes = b"") -> None:
        """Raises OSError when the other end is gone."""
        self.write(frame(number, data))

    def write(self, frames: bytes) -> None:
        """Send messages that are framed already."""
        with self._sending:
            self._socket.sendall(frames)

    def send_failure(self, error: BaseException) -> None:
        """Say why nothing more will be done at this end."""
        self.send(FAILURE, pickle.dumps(SerializedError.of(error)))

    def beat(self, seconds: float) -> None:
        """Begin to give a sign of life so often, on a separate thread, until the other end is gone.

        A process that is stopped gives none, nor does one in which something keeps Python's lock.
        """
        threading.Thread(target=self._beat, args=(seconds,), name="sgl-heartbeat", daemon=True).start()

    def _beat(self, seconds: float) -> None:
        pause = threading.Event()
        with suppress(OSError):
            while not pause.wait(seconds):
                self.send(HEARTBEAT, self.make_sign())

    def leave(self) -> None:
        """Send no more: the other end reads to the end of what was sent. From any thread, and again."""
        self._shut(socket.SHUT_WR)

    def close(self) -> None:
        self._shut(socket.SHUT_RDWR)  # a thread that receives is woken
        self._socket.close()

    def _shut(self, how: int) -> None:
        with suppress(OSError):  # it is gone already
            self._socket.shutdown(how)
