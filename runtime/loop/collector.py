"""Full collections of Python's cyclic garbage, which stop every thread for up to 0.1 s, kept out of steps.

What stands when an engine is ready (modules, weights, tables) is frozen: no collection looks at it again. While steps
run, garbage is collected in full between two of them, and seldom; else when nothing has come for a moment. What was
changed of Python's collector is put back when the last engine is closed. Who has switched the collector off is left alone,
and so is who has frozen objects before the first engine: nothing more is frozen, since Python can only thaw all at once.
"""

from __future__ import annotations

import gc
import threading
import time

NEVER = 2**31 - 1  # as a threshold
SELDOM = 30.0  # seconds between full collections while steps run
QUIET = 0.02  # seconds without work before one

_lock = threading.Lock()
_standing: set[Collector] = set()
_busy: set[Collector] = set()
_usual = gc.get_threshold()
_freezes = True  # or who uses engines does it himself


class Collector:
    """That of one engine; `stand` and `close` on any thread, the rest on the engine's own."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._works = False

    def stand(self) -> None:
        """The engine is ready: freeze what there is."""
        global _freezes
        with _lock:
            if not _standing:
                gc.collect()
                _freezes = not gc.get_freeze_count()
            _standing.add(self)
            if _freezes:
                gc.freeze()

    def close(self) -> None:
        self.rest()
        with _lock:
            if self in _standing:
                _standing.remove(self)
                if _freezes and not _standing:
                    gc.unfreeze()

    def work(self) -> None:
        """Before each step. Collects where that has waited for long."""
        if not self._works:
            self._works = True
            _begin(self)
        elif time.monotonic() - self._last > SELDOM and self.due:
            self.collect()

    def rest(self) -> None:
        """There is nothing to do."""
        if self._works:
            self._works = False
            _end(self)

    @property
    def due(self) -> bool:
        """Whether Python would have collected in full by now, and may."""
        return gc.isenabled() and gc.get_count()[2] > _usual[2] > 0

    def collect(self) -> None:
        gc.collect()
        self._last = time.monotonic()


def _begin(collector: Collector) -> None:
    global _usual
    with _lock:
        if not _busy:
            _usual = gc.get_threshold()
            gc.set_threshold(*_usual[:2], NEVER)
        _busy.add(collector)


def _end(collector: Collector) -> None:
    with _lock:
        _busy.discard(collector)
        if not _busy and gc.get_threshold()[2] == NEVER:
            gc.set_threshold(*_usual)
