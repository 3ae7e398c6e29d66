"""What a generation waits for: its grammar, computed on another thread, which alone touches its matcher meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sgl.grammars.automaton.automaton_work_budget import WorkBudget, WorkUnfinished, metered
from sgl.grammars.errors import GrammarLimitError

from .grammar_workers import GrammarWorkers

MOST_WORK = (
    1_000_000_000  # steps of a text that are done here, see `grammars/automaton/automaton_work_budget.py`: some seconds
)
SLICE, LONGEST_SLICE = 1_000_000, 8_000_000  # steps in one go; half as many as there were before
HANDED = 20_000  # steps that it counts for to come here at all, so that no text comes for ever
TOO_MUCH = (
    f"the grammar needs more than {MOST_WORK:,} steps of work in the middle of this text; simplify it, bound its "
    "repeats, "
    "or ask for fewer items that must differ"
)


class PendingGrammar:
    """spent: steps of this text so far.  error: why it cannot go on."""

    def __init__(self, work: Callable[[], None], spent: int) -> None:
        self.spent = spent + HANDED
        self.error: BaseException | None = None
        self._work: Callable[[], None] | None = work

    def start(self, workers: GrammarWorkers, done: Callable[[], None]) -> None:
        """Have it worked on in turns; `done` is called on one of the threads."""
        workers.add(self.spent, partial(self._turn, workers, done))

    def _turn(self, workers: GrammarWorkers, done: Callable[[], None]) -> None:
        if self.go_on(lambda: workers.rest(self.spent)):
            done()
        else:
            self.start(workers, done)

    def cancel(self) -> None:
        """No operation waits for it any more."""
        self._work = None

    def go_on(self, rest: Callable[[], None]) -> bool:
        """Work for a slice; True when it is done, or cannot go on.

        What would have to begin anew calls `rest` between slices, which returns when it has its turn again.
        """
        work, before = self._work, self.spent

        def more() -> int:
            self.spent = before + meter.spent
            rest()
            return 0 if self._work is None else self._slice

        meter = WorkBudget(self._slice, False, MOST_WORK - before, more)
        try:
            if work is not None:
                with metered(meter):
                    work()
            self._work = None
        except WorkUnfinished:
            pass
        except Exception as error:
            self.error, self._work = error.with_traceback(None), None
        self.spent = before + meter.spent
        return self._over()

    @property
    def _slice(self) -> int:
        return min(max(SLICE, self.spent // 2), LONGEST_SLICE)

    def _over(self) -> bool:
        if self.error is None and self.spent > MOST_WORK:
            self.error, self._work = GrammarLimitError(TOO_MUCH), None
        return self._work is None
