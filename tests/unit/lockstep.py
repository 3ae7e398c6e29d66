"""A backend that holds back its results until nobody hands over anything more: it sees the round trips of a run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from lang_rules import RuleBackend, RuleStream
from random_programs import from_prompt

from sgl.lang.backend import Backend, Media, Stream
from sgl.lang.concurrency.replay_feed import ReplayFeed


class LockstepBackend(Backend):
    """Texts are those of a RuleBackend. `operations` counts the calls of its streams' operations."""

    def __init__(self) -> None:
        self.rules = RuleBackend(from_prompt)
        self.operations = 0
        self.lock = threading.Lock()
        self.held: list[tuple[Future[Any], Future[Any]]] = []

    def open(self) -> Stream:
        self.count()
        return LockstepStream(self, self.rules.open())

    def count(self) -> None:
        with self.lock:
            self.operations += 1

    def hold(self, inner: Future[Any]) -> Future[Any]:
        self.count()
        outer: Future[Any] = Future()
        with self.lock:
            self.held.append((inner, outer))
        return outer

    def answer(self) -> None:
        with self.lock:
            held, self.held = self.held, []
        for inner, outer in held:
            outer.set_result(inner.result(20))

    def round_trips(self, idle: Callable[[], None]) -> int:
        """Answer until nothing is asked any more; how often operations followed. `idle` waits until none can come."""
        trips = 0
        idle()
        while self.held:
            before = self.operations
            self.answer()
            idle()
            trips += self.operations > before
        return trips


class LockstepStream(Stream):
    def __init__(self, backend: LockstepBackend, inner: Any) -> None:
        self.backend = backend
        self.inner: RuleStream = inner

    def append(self, text: str) -> None:
        self.backend.count()
        self.inner.append(text)

    def attach(self, media: Media, token: str) -> None:
        self.backend.count()
        self.inner.append(token)

    def generate(self, request: Any, on_chunk: Any = None) -> Future[Any]:
        return self.backend.hold(self.inner.generate(request, on_chunk))

    def select(self, request: Any) -> Future[Any]:
        return self.backend.hold(self.inner.select(request))

    def prefill(self) -> Future[None]:
        return self.backend.hold(self.inner.prefill())

    def fork(self, size: int) -> list[Stream]:
        self.backend.count()
        return [LockstepStream(self.backend, child) for child in self.inner.fork(size)]

    def fork_adapted(self, adapters: Sequence[str | None]) -> list[Stream]:
        self.backend.count()
        return [LockstepStream(self.backend, child) for child in self.inner.fork_adapted(adapters)]

    def close(self) -> None:
        self.inner.close()


def interpreted(program: Any, backend: LockstepBackend, *args: Any, **options: Any) -> tuple[Any, int, int]:
    """The state of a real run, its operations and its round trips."""
    before, states = backend.operations, []
    body = threading.Thread(target=lambda: states.append(program.run(*args, backend=backend, **options)))
    body.start()
    trips = backend.round_trips(lambda: _until_blocked(body))
    body.join(20)
    return states[0], backend.operations - before, trips


def compiled(program: Any, backend: LockstepBackend, *args: Any, **options: Any) -> tuple[Any, int, int]:
    """As `interpreted`, for a compiled program."""
    before = backend.operations
    state = program.run(*args, backend=backend, **options)
    trips = backend.round_trips(lambda: _until_idle(program._pool))
    return state, backend.operations - before, trips


def _until_blocked(body: threading.Thread) -> None:
    """Until the body has ended or waits for a value that is not there: then it is inside the feed that will have it."""
    while body.is_alive():
        frame = sys._current_frames().get(body.ident or 0)
        if frame is not None and frame.f_code is ReplayFeed._wait.__code__ and not frame.f_locals["ready"]():
            return
        time.sleep(0.0005)


def _until_idle(pool: Any) -> None:
    """Until all threads of the pool are free: each of them has come to the barrier."""
    barrier = threading.Barrier(pool._max_workers + 1)
    for _ in range(pool._max_workers):
        pool.submit(barrier.wait, 20)
    barrier.wait(20)
