"""Full collections of Python's cyclic garbage, which stop every thread for up to 0.1 s, kept out of steps.

What exists when an engine is ready (modules, weights, tables) is frozen: no collection looks at it again, but for one
when nothing has come for long. While steps run, garbage is collected in full between two of them, and seldom; else when
nothing has come for a moment. What was changed of Python's collector is put back when the last engine is closed, except
at the end of the process, which then does not look at all objects once more. A program that has switched the collector
off is left alone. So is one that has frozen objects before the first engine: nothing more is frozen from then on, since
Python can only thaw all at once.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from sgl.common.process_memory import resident

NEVER = 2**31 - 1  # as a threshold
SELDOM, OFTEN = (
    30.0,
    10.0,
)  # seconds between full collections while steps run, of all and of what came since the last one
# collections of younger objects after which a full one that freezes comes sooner: it takes about 1 ms for each
MANY = 24
QUIET, LONG_QUIET = 0.02, 1.0  # seconds without work before one, and before one of all that was frozen meanwhile
WHOLE, MOST_GROWN = (
    1800.0,
    1 << 30,
)  # seconds, or bytes that the process has grown by, between such ones where work never ends

_lock = threading.Lock()
_active: set[GarbageCollector] = set()
_busy: set[GarbageCollector] = set()
_usual = gc.get_threshold()
_freezes = True  # or who uses engines does it himself
_kept = False  # whether anything was frozen without a look at it
_switch = threading.Lock()
_users_off, _was_on = 0, False  # how many want no collection, and whether there were any before the first of them
_looked, _size = 0.0, 0  # when all was looked at last, and how large the process was then


class GarbageCollector:
    """That of one engine; `stand` and `close` on any thread, the rest on the engine's own.

    keeps: freezes what survives in the middle of work.
    """

    def __init__(self, keeps: bool = False) -> None:
        self._keeps = keeps
        self._last = time.monotonic()
        self._works = False

    def stand(self) -> None:
        """The engine is ready: freeze what there is."""
        global _freezes, _kept
        with _lock:
            if not _active:
                _note_looked()
                _freezes = _freezes and not gc.get_freeze_count()  # which counts them one by one
            _active.add(self)
            if _freezes:
                gc.freeze()
                _kept = True

    def close(self) -> None:
        global _kept
        self.rest()
        with _lock:
            if self in _active:
                _active.remove(self)
                ends = not threading.main_thread().is_alive()  # Python is shutting down
                if _freezes and not _active and not ends:
                    gc.unfreeze()
                    _kept = False

    def work(self) -> None:
        """Before each step. Collects where that has waited for long."""
        if not self._works:
            self._works = True
            _begin(self)
        elif self.due and (self._much or time.monotonic() - self._last > (OFTEN if self._freezing else SELDOM)):
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

    @property
    def _freezing(self) -> bool:
        return self._keeps and _freezes

    @property
    def _much(self) -> bool:
        """Whether so much is new that others would notice a collection that waits longer."""
        return self._freezing and gc.get_count()[2] > MANY

    @property
    def needs_full_collection(self) -> bool:
        """Whether all is to be looked at, once nothing has come for long."""
        return _kept and not _busy

    def collect(self) -> None:
        """In full, but for what is frozen."""
        global _kept
        if self._works and self._freezing:
            if time.monotonic() - _looked > WHOLE or resident() - _size > MOST_GROWN:
                _look_at_all()
            gc.collect()
            gc.freeze()
            _kept = True
        else:
            gc.collect()
        self._last = time.monotonic()

    def collect_all_generations(self) -> None:
        """What was frozen as well."""
        with _lock:
            if self.needs_full_collection:
                _look_at_all()


@contextmanager
def collector_off() -> Iterator[None]:
    """No collection inside; also for functions, `collector_off()(function)`. A program's own gc.disable() stays.

    On several threads at once: until the last one leaves.
    """
    global _users_off, _was_on
    with _switch:
        if not _users_off:
            _was_on = gc.isenabled()
            gc.disable()
        _users_off += 1
    try:
        yield
    finally:
        with _switch:
            _users_off -= 1
            if _was_on and not _users_off:
                gc.enable()


def import_uncollected(name: str) -> ModuleType:
    """Import a module that imports many. They stay: no collection looks at them, neither meanwhile nor soon after.

    Collections would take a tenth of the time of importing torch.
    """
    with collector_off():
        module = import_module(name)
        if not gc.get_freeze_count():
            gc.freeze()  # both together move what is young to the oldest generation
            gc.unfreeze()
    return module


def _look_at_all() -> None:
    global _kept
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _kept = False
    _note_looked()


def _note_looked() -> None:
    global _looked, _size
    _looked, _size = time.monotonic(), resident()


def _begin(collector: GarbageCollector) -> None:
    global _usual
    with _lock:
        if not _busy:
            _usual = gc.get_threshold()
            gc.set_threshold(*_usual[:2], NEVER)
        _busy.add(collector)


def _end(collector: GarbageCollector) -> None:
    with _lock:
        _busy.discard(collector)
        if not _busy and gc.get_threshold()[2] == NEVER:
            gc.set_threshold(*_usual)
