"""Moves large tensors' bytes into their places with many threads: from files, or back from the main memory.

    reader 1:  read ─ copy ─ read ─ copy       each reader has two page-locked buffers and a stream of its own:
    reader 2:  read ─ copy ─ read ─ copy       it fills one while the device takes in the other
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 16 * 2**20  # bytes that are read and copied at a time, a multiple of every item's size
READERS = 8


class Chunk(NamedTuple):
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
) -> Iterator[Chunk]:
    """A tensor cut into chunks. `reader(offset)` reads from that byte of the source on."""
    flat, step = target.view(-1), CHUNK // dtype.itemsize
    for first in range(0, flat.numel(), step):
        yield Chunk(reader(first * dtype.itemsize), dtype, flat[first : first + step])


def transfer(work: Iterable[Chunk], device: torch.device, done: Callable[[int], None] | None = None) -> None:
    """Fetch every chunk; returns when all have arrived. `done(bytes)` is called by the readers as they go on.

    What a `read` raises is raised here, after the other readers have stopped.
    """
    queue = deque(work)
    if not queue:
        return
    threads = min(READERS, len(queue), os.cpu_count() or 1)
    ready = torch.cuda.current_stream(device) if device.type == "cuda" else None
    with ThreadPoolExecutor(threads, "sgl-load") as pool:
        readers = [pool.submit(_read_all, queue, device, ready, done) for _ in range(threads)]
        for reader in readers:
            reader.result()


def _read_all(
    queue: deque[Chunk],
    device: torch.device,
    ready: torch.cuda.Stream | None,
    done: Callable[[int], None] | None,
) -> None:
    lane = _HostLane() if ready is None else _DeviceLane(device, ready)
    try:
        with lane.context():
            while queue:
                try:
                    chunk = queue.popleft()
                except IndexError:  # another reader was faster
                    return
                lane.carry(chunk)
                if done is not None:
                    done(chunk.bytes)
    except BaseException:
        queue.clear()
        raise
    finally:
        lane.finish()


class _HostLane:
    """To places in main memory: read straight into them, but for what has to be converted."""

    _buffer: Tensor | None = None

    def context(self) -> AbstractContextManager[object]:
        return nullcontext()

    def carry(self, chunk: Chunk) -> None:
        if chunk.dtype == chunk.target.dtype:
            chunk.read(chunk.target.view(torch.uint8))
        else:
            if self._buffer is None:
                self._buffer = torch.empty(CHUNK, dtype=torch.uint8)
            part = self._buffer[: chunk.bytes]
            chunk.read(part)
            chunk.target.copy_(part.view(chunk.dtype))

    def finish(self) -> None: ...


class _DeviceLane(_HostLane):
    """To places on a GPU, through two page-locked buffers in turn, on a stream that follows `ready`."""

    def __init__(self, device: torch.device, ready: torch.cuda.Stream) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(ready)
        self._buffers: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def context(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def carry(self, chunk: Chunk) -> None:
        buffer, copied = self._next_buffer()
        copied.synchronize()
        part = buffer[: chunk.bytes]
        chunk.read(part)
        values = part.view(chunk.dtype)
        if chunk.dtype != chunk.target.dtype:
            values = values.to(self._device, non_blocking=True)
        chunk.target.copy_(values, non_blocking=True)
        copied.record(self._stream)

    def _next_buffer(self) -> tuple[Tensor, torch.cuda.Event]:
        if len(self._buffers) < 2:
            buffer = torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True)
            self._buffers.append((buffer, torch.cuda.Event(blocking=True)))
        else:
            self._buffers.rotate(1)
        return self._buffers[-1]

    def finish(self) -> None:
        self._stream.synchronize()
