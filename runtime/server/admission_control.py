"""Limits the load of the engine; what is beyond is refused at once, with a Retry-After."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager

from .http.http_errors import RequestError
from .request_context import CALLER

WINDOW = 30.0  # seconds over which the rate of completions is measured
MOST_MEASURED = 1024  # completions kept for it
NEXT_SERVER = 10  # seconds after which a server that shuts down may be there again
LONGEST_WAIT = 60  # seconds: the largest Retry-After


class AdmissionControl:
    """Counts the samples that run or wait in the engine, together and of each tenant. Thread-safe.

    most   samples in the engine
    share  of `most` that one tenant may have
    """

    def __init__(self, most: int, share: float = 1.0) -> None:
        self.most, self.most_each = most, max(1, int(most * share))
        self.draining = False  # what runs may end, nothing new is taken
        self._opened = time.monotonic()
        self._held: Counter[str] = Counter()
        self._ended: deque[float] = deque(maxlen=MOST_MEASURED)
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Samples in the engine."""
        return self._held.total()

    def check(self, samples: int = 1) -> None:
        """Raise RequestError where so many more samples of this caller are too many: 429, or 400 for ever."""
        with self._lock:
            self._check(CALLER.get().tenant, samples)

    @contextmanager
    def admit(self, samples: int, refuse: bool = True) -> Iterator[None]:
        """Room for so many samples of this caller, given back however it ends.

        refuse: raise as `check` does where there is none; else they are counted only.
        """
        tenant = CALLER.get().tenant
        with self._lock:
            if refuse:
                self._check(tenant, samples)
            self._held[tenant] += samples
        try:
            yield
        finally:
            with self._lock:
                self._leave(tenant, samples)

    @contextmanager
    def admit_some(self, most: int) -> Iterator[int]:
        """Room for up to so many samples of this caller, of which the others keep most; raises where there is none."""
        tenant = CALLER.get().tenant
        with self._lock:
            self._check(tenant, 1)
            left = min(self.most - self._held.total(), self.most_each - self._held[tenant])
            places = max(1, min(most, left, self.most_each // 4))
            self._held[tenant] += places
        try:
            yield places
        finally:
            with self._lock:
                self._leave(tenant, places)

    # inside, with the lock

    def _leave(self, tenant: str, samples: int) -> None:
        self._held[tenant] -= samples
        if not self._held[tenant]:
            del self._held[tenant]
        self._ended.extend([time.monotonic()] * samples)

    def _check(self, tenant: str, samples: int) -> None:
        if self.draining:
            raise shutting_down(NEXT_SERVER)
        if samples > self.most_each:
            raise RequestError(
                f"{samples} samples in one request are more than the {self.most_each} "
                "that this server runs for a client; send fewer"
            )
        mine, held = self._held[tenant], self._held.total()
        if held + samples > self.most:
            wait = self._wait(held + samples - self.most)
            raise _full(f"the server is full: {held} samples run or wait, of at most {self.most}", wait)
        if mine + samples > self.most_each:
            wait = self._wait(mine + samples - self.most_each)
            raise _full(f"{mine} samples run or wait for this API key, of at most {self.most_each}", wait)

    def _wait(self, samples: int) -> int:
        """Whole seconds until so many have ended, at the rate of late."""
        now = time.monotonic()
        while self._ended and now - self._ended[0] > WINDOW:
            self._ended.popleft()
        full = len(self._ended) == MOST_MEASURED
        span = now - self._ended[0] if full else min(WINDOW, now - self._opened)
        return min(LONGEST_WAIT, max(1, math.ceil(samples * span / max(1, len(self._ended)))))


def _full(what: str, seconds: int) -> RequestError:
    message = f"{what}; ask again in {seconds} s"
    return RequestError(message, code="rate_limited", status=429, retry_after=seconds)


def shutting_down(seconds: int) -> RequestError:
    return RequestError("the server is shutting down; ask again later", None, "shutting_down", 503, seconds)
