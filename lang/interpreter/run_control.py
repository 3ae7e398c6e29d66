"""What all states of one run share: how it is stopped, what it has used, and its history."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from ..concurrency.timeout_alarms import TimeoutAlarm, deadlines
from ..errors import BudgetExceeded, DeadlineExceeded, ProgramError
from .run_history import RunBranch
from .run_observer import RunObserver, observed_run
from .token_usage import Budget, Usage

if TYPE_CHECKING:
    from ..backend import Backend


class CancellableState(Protocol):
    """What a run asks of its states."""

    @property
    def working(self) -> bool: ...
    def cancel(self, error: ProgramError | None = None) -> None: ...


_current: ContextVar[RunControl | None] = ContextVar("sgl_run", default=None)


class RunControl:
    """One run. Programs that its body starts are stopped with it and count for its budget."""

    def __init__(
        self, backend: Backend, program: str = "", timeout: float | None = None, budget: Budget | None = None
    ) -> None:
        self.root = RunBranch(backend, program)
        self.observer: RunObserver | None = observed_run(program, backend) if program else None
        self.budget = budget
        self.stopped: ProgramError | None = None
        self.warned: set[Hashable] = set()  # what was warned about; the runs of a batch share one
        self._parent = _current.get()
        self._over = False
        self._counted = Usage()
        self._lock = threading.Lock()
        self._states: weakref.WeakSet[CancellableState] = weakref.WeakSet()
        self._nested: weakref.WeakSet[RunControl] = weakref.WeakSet()
        if self._parent is not None:
            self._parent._adopt(self)
        self._alarm = self._set_alarm(timeout)

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "budget": self.budget, "stopped": self.stopped, "_counted": self._counted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, warned=set(), observer=None, _parent=None, _over=True, _alarm=None)
        self._lock = threading.Lock()
        self._states, self._nested = weakref.WeakSet(), weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<run of {self.root.program or 'a program'}: {self.usage}>"

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is started inside belongs to this run."""
        token = _current.set(self)
        try:
            with self.observer.scope() if self.observer else nullcontext():
                yield
        finally:
            _current.reset(token)

    def called(self, program: str) -> AbstractContextManager[object]:
        """Inside, the body of another program runs on a state of this run."""
        return self.observer.called(program) if self.observer else nullcontext()

    @property
    def usage(self) -> Usage:
        """What the run has used so far, with the programs that it started."""
        return self._counted

    def enter(self, state: CancellableState) -> None:
        """A state of this run begins."""
        with self._lock:
            self._states.add(state)
        if self.stopped:
            state.cancel(self.stopped)

    def count(self, usage: Usage) -> None:
        """An operation is done. Stops the run when that passes its budget."""
        with self._lock:
            self._counted += usage
        if self.budget and (excess := self.budget.excess(self._counted)):
            self.stop(BudgetExceeded(excess))
        if self._parent is not None:
            self._parent.count(usage)

    def stop(self, error: ProgramError) -> None:
        """Give up what is running and queued in all states; their readers get `error`. The first call counts."""
        with self._lock:
            if self.stopped is not None:
                return
            self.stopped = error
            states, nested = list(self._states), list(self._nested)
        for state in states:
            state.cancel(error)
        for run in nested:
            run.stop(error)

    def is_new(self, warning: Hashable) -> bool:
        """Whether a warning has not been given yet; from now on it has."""
        with self._lock:
            new = warning not in self.warned
            self.warned.add(warning)
        return new

    def finished(self, error: BaseException | None = None) -> None:
        """The body has ended, and all operations of its state are done; forks may still be working."""
        self._over = True
        if self.observer:
            self.observer.ended(error)
        self.rest()

    def rest(self) -> None:
        """A state has nothing to do. When that holds for all, after the body, nothing is left to be stopped."""
        if not self._over or self._alarm is None:
            return
        with self._lock:
            working = any(state.working for state in self._states)
        if not working:
            deadlines.cancel(self._alarm)

    def _adopt(self, nested: RunControl) -> None:
        with self._lock:
            self._nested.add(nested)
        if self.stopped:
            nested.stop(self.stopped)

    def _set_alarm(self, timeout: float | None) -> TimeoutAlarm | None:
        if timeout is None:
            return None
        this = weakref.ref(self)

        def ring() -> None:
            if run := this():
                run.stop(DeadlineExceeded(f"the run took longer than its timeout of {timeout:g} s"))

        return deadlines.after(timeout, ring)
