"""Adds drafts to the plan of a step, and learns what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sgl.grammars.automaton.automaton_work_budget import WorkUnfinished
from sgl.grammars.errors import GrammarError

from ..sequences.draft_tokens import DraftTokens
from ..sequences.op_future import note
from ..sequences.ops.generate_op import Generate
from .choice_list_drafter import ListDrafter
from .draft_length_control import DraftLengthControl
from .draft_trials import DraftTrials
from .drafter import Drafter, fitted
from .run_ahead_policy import RunAheadPolicy

if TYPE_CHECKING:
    from sgl.grammars import Matcher

    from ..cache import PrefixCache
    from ..sequences.running_generation import RunningGeneration
    from ..sequences.sequence_state import ScheduledWork, SequenceState
    from .model_drafter import ModelDrafter


APPENDED = 64  # tokens that a step computes of a text, next to which a draft counts for something


PATIENCE = 8  # failures of a draft model in a row


class Speculation:
    """Only the scheduler thread calls this.

    A draft is stored after the tokens of its sequence, not among them; its pages are those that are free anyway, and go
    back with what is not kept. Of several drafts that is taken of which most is expected.

    control: None: every draft is taken whole.  most: tokens of a draft.  learns: drafters are shown finished texts.
    clock: returns the seconds by which steps are measured.  trials: say which steps may have drafts, next to the
        control; None: all.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        cache: PrefixCache,
        control: DraftLengthControl | None,
        most: int = 16,
        learns: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        trials: DraftTrials | None = None,
    ) -> None:
        self._clock, self.trials = clock, trials
        self._turn = 0.0  # when it began
        self._growing: list[
            tuple[RunningGeneration, int]
        ] = []  # the texts that it goes on with, and how long they were; none where prompts are computed too
        self._lengths_before: dict[RunningGeneration, int] = {}  # of the turn before, when this one began
        self.drafters, self.control = list(drafters), control
        self.most, self.learns = most, learns
        self.model: ModelDrafter | None = None  # drafts for all sequences of a step at once
        self._cache, self._failures = cache, 0
        self._texts, self._rows, self._began = 0, 0, 0.0  # of the step under way; 0: it is of no kind that is measured
        self._asking, self._kept = (
            0.0,
            0,
        )  # of the step under way: seconds in which drafts were asked for, and draft tokens that were kept
        self._laid: list[SequenceState] = []  # that have drafts in the step under way
        self._resting = 0, 0  # with how many texts drafts do not pay, and for how many more steps that was said
        self.turns, self.known = RunAheadPolicy(), True  # known: no step is under way whose tokens the host lacks

    def begin(self) -> None:
        """A turn of a step, which may finish the step before it is planned."""
        if self.trials is not None:
            self._turn = self._clock()
            self._lengths_before, self._growing = {text: len(text.output) for text, _ in self._growing}, []

    def extend(self, work: dict[SequenceState, ScheduledWork], budget: int) -> None:
        """Draft for sequences that get a token in this step, up to `budget` tokens together."""
        self._drop_laid()
        if self.trials is not None:
            self._growing = [(text, self._lengths_before.get(text, len(text.output))) for text in _texts(work)]
        if self._rests(len(work)):
            return
        self._began, self._asking, self._kept = self._clock(), 0.0, 0
        alone = all(item.hi - item.lo == 1 for item in work.values())
        could = any(map(_may_be_drafted, work))
        tries = self.trials is None or not self._growing or self.trials.drafting(len(work))
        hopes = could and tries and (self.turns.waits or self.control is None or self.control.worth(len(work)))
        if self.known:
            self._draft(work, budget, hopes)
        self.turns.planned(self.known, hopes, any(seq.draft is not None for seq in work))
        self._texts = len(work)
        self._rows = sum(item.hi - item.lo for item in work.values()) if alone else 0
        if could and tries and not hopes and self.control is not None and self.model is None:
            self._resting = self._texts, self.control.rest(self._texts)

    def _rests(self, texts: int) -> bool:
        """Whether the control said that drafts do not pay for so many texts, for this step too."""
        resting, left = self._resting
        if left <= 0 or texts != resting or self.turns.waits:
            return False
        self._resting, self._rows = (texts, left - 1), 0
        self.turns.planned(self.known, False, False)
        return True

    def _drop_laid(self) -> None:
        """What is left of a step that failed."""
        for seq in self._laid:
            seq.draft = None
        self._laid.clear()

    def _draft(self, work: dict[SequenceState, ScheduledWork], budget: int, worth: bool) -> None:
        if not (worth or self.model is not None):
            return
        decoding = {seq: op for seq, item in work.items() if (op := _decodes(seq, item)) is not None}
        spent = time.thread_time()
        drafts = {seq: draft for seq, op in decoding.items() if worth and (draft := self._proposed(seq, op))}
        if worth and decoding and self.control is not None:
            self._began, self._asking = (
                self._clock(),
                time.thread_time() - spent,
            )  # while others hold the interpreter they get on
            self.control.drafts_requested(len(decoding), self._asking)
        if self.model is not None and self._failures < PATIENCE:
            known = self.control is None or self.control.measured(len(work))
            drafts |= self._modelled(self.model, work, decoding if known else {}, drafts)
        for seq, length in zip(drafts, self._lengths(work, list(drafts.values())), strict=True):
            if 0 < length <= budget and self._lay(seq, drafts[seq].cut(length)):
                work[seq] = work[seq]._replace(hi=work[seq].hi + length)
                budget -= length

    def stepped(self, waited: bool = True) -> None:
        """The turn of the step that was planned is over. waited: for a step, this one or the one before."""
        if self._rows and waited and self.control is not None:
            self.control.took(self._texts, self._rows, self._clock() - self._began)
            if self._asking:
                self.control.came(self._texts, self._rows, self._asking, self._kept)
        if self.trials is not None:
            grown = sum(len(text.output) - before for text, before in self._growing)
            self.trials.took(len(self._growing), grown, self._clock() - self._turn)
        self._rows = 0
        self._drop_laid()

    def rest(self) -> None:
        """There is nothing to do: hold no texts."""
        self._growing.clear()
        self._lengths_before.clear()

    def tried(self, draft: DraftTokens, kept: int) -> None:
        if self.control is not None:
            self._kept += draft.guessed(kept)
            self.control.tried_per_sequence(draft.kinds(), kept)

    def learn(self, seq: SequenceState, decoding: RunningGeneration) -> None:
        for drafter in self.drafters if self.learns and decoding.op.params.speculation else ():
            _tried(drafter.learn, seq, decoding)

    def forget(self) -> None:
        for drafter in self.drafters:
            drafter.forget()
        if self.model is not None:
            self.model.forget()

    def close(self) -> None:
        if self.model is not None:
            self.model.runner.close()

    def _proposed(self, seq: SequenceState, op: Generate) -> DraftTokens | None:
        """What a drafter says, as far as the grammar allows it and there may be more text."""
        assert op.decoding is not None
        most, drafts = self._room(op), list[DraftTokens]()
        for drafter in self.drafters if most > 0 else ():
            if (
                not (drafts and isinstance(drafter, ListDrafter))
                and (draft := _tried(drafter.propose, seq, op, most)) is not None
            ):
                drafts.append(draft)
        best = max(drafts, key=self._expected) if len(drafts) > 1 else drafts[0] if drafts else None
        return None if best is None else _tried(fitted, best, op.decoding, most, partial(self._goes_on, seq))

    def _goes_on(self, seq: SequenceState, draft: DraftTokens, matcher: Matcher) -> list[int]:
        """What the first drafter says that knows what follows a draft."""
        if self.control is not None and not self.control.goes_on(draft.kinds()):
            return []
        asked = (getattr(drafter, "onward", None) for drafter in self.drafters)
        return next(
            (found for onward in asked if onward is not None and (found := _tried(onward, seq, draft.tokens, matcher))),
            [],
        )

    def _modelled(
        self,
        model: ModelDrafter,
        work: dict[SequenceState, ScheduledWork],
        decoding: dict[SequenceState, Generate],
        drafts: dict[SequenceState, DraftTokens],
    ) -> dict[SequenceState, DraftTokens]:
        """What the model drafts for those of which less is expected without it.

        The time counts as the model's, not the step's.
        """
        began, hoped = self._clock(), model.timing.gain()
        wanting = {
            seq: (op, self._room(op))
            for seq, op in decoding.items()
            if seq not in drafts or self._expected(drafts[seq]) < hoped
        }
        made = _tried(model.propose, work, wanting)
        self._failures = 0 if made is not None else self._failures + 1
        if made is None:
            _tried(model.forget)
        if self._failures == PATIENCE:
            note("the draft model drafts no more", RuntimeError(f"it failed {PATIENCE} times in a row"))
        found = {
            seq: draft
            for seq, each in (made or {}).items()
            if (draft := _tried(fitted, each, wanting[seq][0].decoding, wanting[seq][1]))
        }
        self._began += self._clock() - began
        return {
            seq: draft
            for seq, draft in found.items()
            if seq not in drafts or self._expected(draft) > self._expected(drafts[seq])
        }

    def _room(self, op: Generate) -> int:
        """Tokens that a draft may have, as there may be one more of the text after them."""
        assert op.decoding is not None
        return min(self.most, op.decoding.limit - len(op.decoding.output) - 1)

    def _expected(self, draft: DraftTokens) -> float:
        return float(len(draft.tokens)) if self.control is None else sum(self.control.survives(draft.kinds()))

    def _lengths(self, work: dict[SequenceState, ScheduledWork], drafts: list[DraftTokens]) -> list[int]:
        if self.control is None:
            return [len(draft.tokens) for draft in drafts]
        known = sum(item.hi - item.lo for item in work.values()) - len(work) if drafts else 0
        return self.control.lengths(
            len(work), [(draft.source, self.control.survives(draft.kinds())) for draft in drafts], known
        )

    def _lay(self, seq: SequenceState, draft: DraftTokens) -> bool:
        """After the text, if there are free pages: no sequence loses any for a draft."""
        length = len(seq) + len(draft.tokens)
        missing, windows = self._cache.missing(seq, length), self._cache.windows
        free = self._cache.pool.free if windows is None else min(self._cache.pool.free, windows.free)
        if missing > free or not self._cache.grow(seq, length):
            return False
        seq.tokens.append_rows(draft.tokens)
        seq.draft = draft
        self._laid.append(seq)
        return True


def _tried(call: Callable[..., Any], *args: Any) -> Any:
    """What `call` returns; None where it raises: no request fails for a draft."""
    try:
        return call(*args)
    except (GrammarError, WorkUnfinished):  # of a text that may never be written
        return None
    except Exception as error:
        note("a drafter failed", error)
        return None


def _texts(work: Collection[SequenceState]) -> list[RunningGeneration]:
    """Those of a step, where all that it computes goes on with texts; otherwise none."""
    found = [
        op.decoding
        for seq in work
        if isinstance(op := seq.ops[0], Generate) and op.decoding is not None and op.decoding.output
    ]
    return found if len(found) == len(work) else []


def _may_be_drafted(seq: SequenceState) -> bool:
    op = seq.ops[0]
    return isinstance(op, Generate) and op.params.speculation and not seq.prefilling


def _decodes(seq: SequenceState, item: ScheduledWork) -> Generate | None:
    """The generation that gets a token in this step, after known tokens: one, or a few that were appended."""
    op, last = (
        seq.ops[0],
        item.hi == len(seq) and 0 < item.hi - item.lo <= APPENDED and not (seq.ahead or seq.prefilling),
    )
    if not (last and isinstance(op, Generate) and op.params.speculation):
        return None
    return op if op.decoding is not None and not op.grammar_pending else None
