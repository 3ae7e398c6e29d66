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


class PendingGrammar(WorkBudget):
    """spent: steps of this text so far.  error: why it cannot go on."""

    def __init__(self, work: Callable[[], None], spent: int) -> None:
        super().__init__(0, False, MOST_WORK)
        self.spent = spent + HANDED
        self.error: BaseException | None = None
        self._work: Callable[[], None] | None = work

    def start(self, workers: GrammarWorkers, done: Callable[[], object]) -> None:
        """Have it worked on in turns; `done` is called on one of the threads."""
        workers.add(self.spent, partial(self._turn, workers, done))

    def cancel(self) -> None:
        """No operation waits for it any more."""
        self._work = None

    def more(self) -> int:
        """In the middle of what would have to begin anew: the next slice, when it is its turn again."""
        if self.spent > self.most:
            return 0
        self._workers.rest(self.spent)
        self.left = 0 if self._work is None else self._slice
        return self.left

    def _turn(self, workers: GrammarWorkers, done: Callable[[], object]) -> None:
        self._workers = workers
        self._go_on()
        if self._work is None:
            done()
        else:
            self.start(workers, done)

    def _go_on(self) -> None:
        """Work for a slice; nothing is left to do when it is done, or cannot go on."""
        work, self.left = self._work, self._slice
        try:
            if work is not None:
                with metered(self):
                    work()
            self._work = None
        except WorkUnfinished:
            pass
        except Exception as error:
            self.error, self._work = error.with_traceback(None), None
        if self.error is None and self.spent > self.most:
            self.error, self._work = GrammarLimitError(TOO_MUCH), None

    @property
    def _slice(self) -> int:
        return min(max(SLICE, self.spent // 2), LONGEST_SLICE)
