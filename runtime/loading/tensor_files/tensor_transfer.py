"""Moves large tensors' bytes into their places with many threads: from files, or back from the main memory.

reader 1:  read ─ copy ─ read ─ copy       each reader has two page-locked buffers and its own stream:
reader 2:  read ─ copy ─ read ─ copy       it fills one while the device takes in the other
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 16 * 2**20  # bytes that are read and copied at a time, a multiple of every item's size
READERS = 8


class TransferChunk(NamedTuple):
    """Bytes to fetch and where they belong.

    read: fills a uint8 CPU tensor of exactly the chunk's bytes.  dtype: what the bytes are.
    target: flat, contiguous; converted where its dtype is another.
    """

    read: Callable[[Tensor], None]
    dtype: torch.dtype
    target: Tensor

    @property
    def bytes(self) -> int:
        return self.target.numel() * self.dtype.itemsize


def chunks(
    reader: Callable[[int], Callable[[Tensor], None]], dtype: torch.dtype, target: Tensor
) -> Iterator[TransferChunk]:
    """A tensor cut into chunks. `reader(offset)` reads from that byte of the source on."""
    flat, step = target.view(-1), CHUNK // dtype.itemsize
    for first in range(0, flat.numel(), step):
        yield TransferChunk(reader(first * dtype.itemsize), dtype, flat[first : first + step])


def transfer(work: Iterable[TransferChunk], device: torch.device, done: Callable[[int], None] | None = None) -> None:
    """Fetch every chunk; returns when all have arrived. `done(bytes)` is called by the readers as they go on.

    What a `read` raises is raised here, after the other readers have stopped.
    """
    with TransferThreads(device, done) as readers:
        readers.fetch(work).wait()


class TransferJob:
    """Chunks that were asked for together.

    `wait` returns when they are in their places, for what the caller's stream does next.
    """

    def __init__(self, chunks: list[TransferChunk], stream: torch.cuda.Stream | None) -> None:
        self._left, self._lock, self._over = len(chunks), threading.Lock(), threading.Event()
        self._error: BaseException | None = None
        self._copies: dict[int, torch.cuda.Event] = {}
        self._stream, self.free = stream, None if stream is None else stream.record_event()
        if not chunks:
            self._over.set()

    def arrived(self, copy: torch.cuda.Event | None) -> None:
        with self._lock:
            self._left -= 1
            if copy is not None:
                self._copies[id(copy)] = copy
            if not self._left:
                self._over.set()

    def failed(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            self._over.set()

    @property
    def broken(self) -> bool:
        return self._error is not None

    def wait(self) -> None:
        self._over.wait()
        if self._error is not None:
            raise self._error
        for copy in self._copies.values():  # an event that was recorded again is later on the same stream
            copy.synchronize()


class TransferThreads:
    """Threads that fetch chunks, in the order in which they were asked for, until the `with` ends.

    done: called with the bytes of each chunk.
    """

    def __init__(self, device: torch.device, done: Callable[[int], None] | None = None) -> None:
        self._device, self._done = device, done
        self._queue: deque[tuple[TransferChunk, TransferJob]] = deque()
        self._more = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def fetch(self, work: Iterable[TransferChunk]) -> TransferJob:
        """The targets must not be touched before `wait` returns."""
        chunks = list(work)
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        load = TransferJob(chunks, stream)
        with self._more:
            if self._error is not None:
                raise self._error
            self._queue.extend((chunk, load) for chunk in chunks)
            self._more.notify_all()
        self._start(min(READERS, len(self._queue), os.cpu_count() or 1))
        return load

    def _start(self, count: int) -> None:
        for _ in range(count - len(self._threads)):
            thread = threading.Thread(target=self._read_all, name="sgl-load", daemon=True)
            self._threads.append(thread)
            thread.start()

    def __enter__(self) -> TransferThreads:
        return self

    def __exit__(self, *_: object) -> None:
        with self._more:
            self._closed = True
            self._queue.clear()
            self._more.notify_all()
        for thread in self._threads:
            thread.join()

    def _next(self) -> tuple[TransferChunk, TransferJob] | None:
        with self._more:
            while not self._queue:
                if self._closed:
                    return None
                self._more.wait()
            return self._queue.popleft()

    def _read_all(self) -> None:
        try:
            self._carry_all()
        except BaseException as error:  # without a lane nothing is carried, and no wait is allowed
            with self._more:
                self._error = self._error or error
                for _, load in self._queue:
                    load.failed(error)
                self._queue.clear()

    def _carry_all(self) -> None:
        lane = _HostTransfer() if self._device.type != "cuda" else _DeviceTransfer(self._device)
        with lane.context():
            while (found := self._next()) is not None:
                chunk, load = found
                if load.broken:
                    continue
                try:
                    load.arrived(lane.carry(chunk, load.free))
                    if self._done is not None:
                        self._done(chunk.bytes)
                except BaseException as error:  # the loader's thread raises it
                    load.failed(error)
                del found, chunk  # the target's memory may go while this thread waits for the next one
        lane.finish()


class _HostTransfer:
    """To places in main memory: read straight into them, but for what has to be converted."""

    _buffer: Tensor | None = None

    def context(self) -> AbstractContextManager[object]:
        return nullcontext()

    def carry(self, chunk: TransferChunk, free: torch.cuda.Event | None) -> torch.cuda.Event | None:
        if chunk.dtype == chunk.target.dtype:
            chunk.read(chunk.target.view(torch.uint8))
        else:
            if self._buffer is None:
                self._buffer = torch.empty(CHUNK, dtype=torch.uint8)
            part = self._buffer[: chunk.bytes]
            chunk.read(part)
            chunk.target.copy_(part.view(chunk.dtype))
        return None

    def finish(self) -> None: ...


class _DeviceTransfer(_HostTransfer):
    """To places on a GPU, through two page-locked buffers in turn, on its own stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._buffers: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def context(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def carry(self, chunk: TransferChunk, free: torch.cuda.Event | None) -> torch.cuda.Event | None:
        """free: when the caller's stream no longer uses what the target's memory was before."""
        buffer, copied = self._next_buffer()
        copied.synchronize()
        part = buffer[: chunk.bytes]
        chunk.read(part)
        values = part.view(chunk.dtype)
        if free is not None:
            self._stream.wait_event(free)
        if chunk.dtype != chunk.target.dtype:
            values = values.to(self._device, non_blocking=True)
        chunk.target.copy_(values, non_blocking=True)
        copied.record(self._stream)
        return copied

    def _next_buffer(self) -> tuple[Tensor, torch.cuda.Event]:
        if len(self._buffers) < 2:
            buffer = torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True)
            self._buffers.append((buffer, torch.cuda.Event(blocking=True)))
        else:
            self._buffers.rotate(1)
        return self._buffers[-1]

    def finish(self) -> None:
        self._stream.synchronize()
