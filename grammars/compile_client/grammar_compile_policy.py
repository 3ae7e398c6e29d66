"""Whether this process has another one that compiles its grammars: as long as somebody here uses it.

Who asks for it `always` has all grammars compiled by it; it starts with the first one, or with `start_early`. Others
have it once what was compiled here has taken as long as it takes to start it, so that a program with a few ordinary
grammars never pays for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sgl.grammars.compile_client.grammar_compile_client import CompileProcess, RunningCompileProcess

WORTHWHILE = 0.25  # seconds of processor time


class CompileProcessUse:
    """Somebody's use of it, until `leave`."""

    def __init__(self, always: bool) -> None:
        self.always = always
        with _STATE.lock:
            _STATE.uses.add(self)

    def leave(self) -> None:
        """When it is of no more use to anybody, the process ends."""
        with _STATE.lock:
            _STATE.uses.discard(self)
            if not _STATE.uses:
                _STATE.spent = 0.0
            ended = None if _STATE.needed else _STATE.helper
            if ended is not None:
                _STATE.helper = None
        if ended is not None:
            ended.close()


def use(how: bool | None) -> CompileProcessUse | None:
    """True: for every grammar; None: once it is worthwhile; False: not at all."""
    return None if how is False else CompileProcessUse(bool(how))


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.uses: set[CompileProcessUse] = set()
        self.helper: CompileProcess | None = None
        self.spent = 0.0  # seconds of processor time that compiling took in this process

    @property
    def needed(self) -> bool:
        return bool(self.uses) and (self.spent > WORTHWHILE or self.always)

    @property
    def always(self) -> bool:
        return any(use.always for use in tuple(self.uses))

    def wanted(self) -> CompileProcess | None:
        """The one that exists or is to be started; None where none is wanted, or it belongs to the process that forked
        this one.
        """
        with self.lock:
            if self.helper is None and self.needed:
                from sgl.grammars.compile_client.grammar_compile_client import CompileProcess

                self.helper = CompileProcess()
            helper = self.helper
        return helper if helper is not None and helper.owner == os.getpid() else None


_STATE = _State()


def process() -> RunningCompileProcess | None:
    """The process that compiles; None: this one does."""
    helper = _STATE.wanted() if _STATE.uses else None
    if helper is None:
        return None
    running = helper.running()
    return running if helper.ready or _STATE.always else None


def start_early() -> None:
    """Start the process that every grammar is for, before the first one asks for it."""
    if _STATE.always:
        process()


@contextmanager
def here() -> Iterator[None]:
    """Compile in this process."""
    began = time.thread_time()
    try:
        yield
    finally:
        _STATE.spent += time.thread_time() - began


def describe() -> str:
    """Where grammars are compiled, in words."""
    helper = _STATE.helper
    if helper is None:
        return "in a separate process" if _STATE.always else "in this process"
    return f"in this process: {helper.broken}" if helper.broken else "in a separate process"
