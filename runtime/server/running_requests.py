"""What runs, by the names that clients know it by, so that it can be aborted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from sgl.runtime.errors import RequestAborted
from sgl.runtime.sequences.sequence import Sequence

from .observability.request_record import RECORD
from .request_context import CALLER

ABORTED = "aborted by a call of /abort_request"


@dataclass(eq=False, slots=True)
class RunningRequest:
    """One prompt of a request. `held` are the sequences it has opened: lists that may still grow.

    names: what a client may call it by: its own name, and that of the batch it is of.
    """

    tenant: str
    names: tuple[str, ...]
    held: list[list[Sequence]] = field(default_factory=list)
    aborted: bool = False

    def abort(self) -> None:
        self.aborted = True
        for sequences in self.held:
            for sequence in sequences:
                sequence.abort()


RUN: ContextVar[RunningRequest | None] = ContextVar("RUN", default=None)


class RunningRequests:
    """Those of one server, under the names that clients gave them, or the id of the request."""

    def __init__(self) -> None:
        self._runs: dict[RunningRequest, None] = {}

    @contextmanager
    def named(self, *names: str) -> Iterator[RunningRequest]:
        """What this task asks of the engine within goes by these names, from now on."""
        run = RunningRequest(CALLER.get().tenant, names)
        RUN.set(run)  # a task has one run: nothing is to be set back
        with self._entered(run):
            yield run

    @contextmanager
    def holding(self, sequences: list[Sequence]) -> Iterator[None]:
        """Within, the sequences end when their run is aborted. Raises RequestAborted where it was already."""
        run = RUN.get()
        if run is None:
            run = RunningRequest(CALLER.get().tenant, (record.id,) if (record := RECORD.get()) else ())
        if run.aborted:
            raise RequestAborted(ABORTED)
        run.held.append(sequences)
        with self._entered(run):
            yield

    @contextmanager
    def _entered(self, run: RunningRequest) -> Iterator[None]:
        outermost = run not in self._runs
        self._runs[run] = None
        try:
            yield
        finally:
            if outermost:
                del self._runs[run]

    def abort(self, name: str | None) -> int:
        """Abort the caller's runs of that name, or of the batch of that name; None: all of the caller's.

        Returns how many there were. Clients of other API keys are not touched.
        """
        tenant = CALLER.get().tenant
        mine = [run for run in list(self._runs) if run.tenant == tenant and not run.aborted]
        found = [run for run in mine if name is None or name in run.names]
        for run in found:
            run.abort()
        return len(found)
