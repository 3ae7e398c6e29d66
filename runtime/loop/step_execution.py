"""One step of the model: launched, decided (what its logits are for), finished (what came of it).

The forward may run ahead of the host: it needs no sampled token by value, only the place where the device keeps it.
Decisions never do: masks, penalties and positions are made when every earlier token is known.

    launch(k + 1) ── finish(k) ── decide(k + 1) ── launch(k + 2) ── finish(k + 1) ...       one step ahead
    launch(k) ── decide(k) ── finish(k) ── launch(k + 1) ...                                 in step

Between launch and decide a sequence may have ended, failed or been cut; what was computed for it is then ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

import sgl.grammars
from sgl.grammars.automaton.automaton_work_budget import WorkUnfinished

from ..common.argument_checks import shown
from ..errors import RuntimeFailure, note_sequence
from ..executor.runner_protocol import Runner
from ..sampling import SampledTokens, SamplingBatch, launch_top_logprobs, make_sampler
from ..sequences.generation import TokenLogprobs
from ..sequences.op_future import note
from ..sequences.ops.embed_op import Embed, Floats
from ..sequences.ops.generate_op import Generate
from ..sequences.sequence_state import ScheduledWork, SequenceOp, SequenceState
from ..step.device_upload import fetch
from . import draft_verification
from .deferred_sampling import DeferredSampling
from .failing_sequence import failing_sequence
from .sequence_lifecycle import SequenceLifecycle

MOST_BATCHES = 64  # that are kept while there is work
NO_ROWS = range(0)

Found = tuple[list[TokenLogprobs], list[TokenLogprobs]]
Item = TypeVar("Item", bound=tuple[Any, ...])
Ready = TypeVar("Ready")


class RowsToSample(NamedTuple):
    """A generation that gets a token, and tokens of its draft: rows of the step's logits, and its grammar's masks."""

    seq: SequenceState
    op: Generate
    rows: range
    masks: Sequence[np.ndarray | None] = ()


class RowsToScore(NamedTuple):
    """An operation that gets log-probabilities at these rows of the step's logits."""

    seq: SequenceState
    op: SequenceOp
    rows: range


class WantedRows(NamedTuple):
    """Rows of a step's logits that an operation asked for: those of `positions`, from row `first` on."""

    seq: SequenceState
    op: SequenceOp
    hi: int
    positions: range
    first: int

    def rows(self) -> range:
        """The rows that it still wants."""
        seq, op, hi, positions, first = self
        if not (positions and is_current(seq, op) and seq.computed >= hi):
            return NO_ROWS
        now, shift = op.rows(seq, positions.start, hi), first - positions.start
        return range(now.start + shift, now.stop + shift)


@dataclass(slots=True)
class RunningStep:
    """What a step was asked for.

    samples: the generations that get a token, in groups, each with where it comes from.
    scores: the same of operations that get log-probabilities, and of how many rows each.
    pooled: operations that get sums of hidden states, and over which positions, in the order of `sums`.
    """

    wants: list[WantedRows]
    logits: torch.Tensor | None
    samples: list[tuple[list[RowsToSample], Callable[[], SampledTokens]]] = field(default_factory=list)
    scores: list[tuple[list[RowsToScore], Callable[[], Found]]] = field(default_factory=list)
    pooled: list[tuple[SequenceState, Embed, range]] = field(default_factory=list)
    sums: Callable[[], list[Floats]] | None = None

    @property
    def waits(self) -> bool:
        """Whether the host waits for its results."""
        return bool(self.samples or self.scores or self.sums)


class StepExecutor:
    """Runs the scheduler's plans on the runner; every method is the scheduler thread's."""

    def __init__(self, runner: Runner, life: SequenceLifecycle) -> None:
        self.runner, self.life = runner, life
        self.sampler = make_sampler(life.text.tokenizer.vocab_size, runner.device)
        self.late = DeferredSampling(life)
        self._batches: dict[int, SamplingBatch] = {}  # the last of each number of rows

    def forget(self) -> None:
        """Hold no requests while there is nothing to do."""
        self._batches.clear()

    # launch

    def launch(self, work: list[ScheduledWork]) -> RunningStep | None:
        """Start computing the plan; None where that failed, or there is nothing to do."""
        if not work:
            return None
        real = [item for item in work if item.hi > item.lo]
        try:
            wants = _wants(work)
            step = RunningStep(wants, self.runner.forward(real))
            self._pool(step, real)
        except BaseException as error:
            note("a step failed", error)
            self._fail_step(real, error)
            return None
        advance, computed = self.life.cache.advance, 0
        for seq, lo, hi in work:
            advance(seq, hi)
            computed += hi - lo if seq.draft is None else hi - lo - len(seq.draft.tokens)
            if hi > lo and hi == seq.border and seq.draft is None:
                self.life.attempt(seq, self.life.cache.publish, seq)
            if seq.prefilling:
                self.life.attempt(seq, self._prefilled, seq)
        self.life.stats.computed_tokens += computed
        return step

    def _prefilled(self, seq: SequenceState) -> None:
        if seq.computed >= seq.target:
            seq.prefilling = False
            self.life.cache.publish(seq)

    def _pool(self, step: RunningStep, work: list[ScheduledWork]) -> None:
        """Have the sums of the step brought to the host."""
        step.pooled = _pooled(work)
        if step.pooled:
            assert self.runner.sums is not None
            step.sums = fetch(self.runner.sums)

    def _fail_step(self, work: list[ScheduledWork], error: BaseException) -> None:
        """Fail the one that is to blame, or all; the others are computed in the next step.

        What a failed step wrote is after `computed`: it is not read, it is written again.
        """
        for item in work:
            self.life.cache.spoil(item.seq)
        failure = (
            error
            if isinstance(error, RuntimeFailure)
            else RuntimeFailure(f"a step of the engine failed: {shown(error)}")
        )
        blamed = failing_sequence(error, self.life.live)
        for seq in [blamed] if blamed is not None else [item.seq for item in work]:
            self.life.fail(seq, failure)

    def _fail_current(self, what: str, those: Iterable[tuple[Any, ...]], error: BaseException) -> None:
        note(f"{what} failed", error)
        for seq, op, *_ in those:
            if is_current(seq, op):
                self.life.fail(seq, RuntimeFailure(f"{what} failed: {shown(error)}"))

    def _in_groups(
        self, what: str, those: list[Item], launch: Callable[[list[Item]], Ready]
    ) -> list[tuple[list[Item], Ready]]:
        """What `launch` returns for all at once; where it raises, for each half, down to the one that is to blame."""
        try:
            return [(those, launch(those))]
        except BaseException as error:
            if len(those) == 1:
                self._fail_current(what, those, error)
                return []
        middle = len(those) // 2
        return self._in_groups(what, those[:middle], launch) + self._in_groups(what, those[middle:], launch)

    # decide

    def decide(self, step: RunningStep) -> None:
        """Have the logits of the step sampled and scored for those that still want them, and waiting logits sampled."""
        self._sample_late(step)
        sampled: list[RowsToSample] = []
        scored: list[RowsToScore] = []
        for want in step.wants:
            try:
                rows = want.rows()
            except BaseException as error:
                self.life.fail(want.seq, error)
                continue
            if rows and isinstance(want.op, Generate):
                sampled.append(RowsToSample(want.seq, want.op, rows))
            elif rows:
                scored.append(RowsToScore(want.seq, want.op, rows))
        if sampled and (masked := self._masked(sampled, step.logits)):
            step.samples += self._in_groups("sampling", masked, partial(self._sample, step))
        if scored:
            step.scores = self._in_groups("scoring", scored, partial(self._score, step))
        step.logits = None
        for seq, op, _, positions, _ in step.wants:
            if not (positions or isinstance(op, Generate)) and is_current(seq, op):
                self.life.collect(seq, op, [], [])

    def _sample(self, step: RunningStep, sampled: list[RowsToSample]) -> Callable[[], SampledTokens]:
        seqs = [seq for seq, _, rows, _ in sampled for _ in rows]
        rows = [row for _, _, rows, _ in sampled for row in rows]
        ready = self._choose(self._rows(step, rows), sampled, self.runner.last, self.runner.places(seqs))
        for seq in seqs:
            seq.ahead = 1
        return ready

    def _sample_late(self, step: RunningStep) -> None:
        """Those that waited with their logits get their tokens after what is computed: the next step knows these."""
        computed = {want.seq for want in step.wants if want.positions}
        waited = self.late.ready(computed) if len(self.late) else []
        if not waited:
            return
        logits = torch.cat([kept.logits for _, kept in waited])
        sampled = [RowsToSample(seq, kept.op, range(i, i + 1)) for i, (seq, kept) in enumerate(waited)]
        if masked := self._masked(sampled, logits):
            step.samples += self._in_groups(
                "sampling",
                masked,
                lambda some: self._choose(self._picked(logits, [each.rows[0] for each in some]), some),
            )

    def _choose(
        self,
        logits: torch.Tensor,
        sampled: list[RowsToSample],
        last: torch.Tensor | None = None,
        places: list[int] | None = None,
    ) -> Callable[[], SampledTokens]:
        positions = [seq.tokens.length + offset for seq, _, rows, _ in sampled for offset in range(len(rows))]
        masks = [mask for *_, masks in sampled for mask in masks]
        return self.sampler.launch(logits, self._sampling_batch(sampled), positions, masks or None, last, places)

    def _masked(self, sampled: list[RowsToSample], logits: torch.Tensor | None) -> list[RowsToSample]:
        """Those whose grammar has a mask, with their masks; the others fail, or wait with their logits for one.

        No masks at all where no sequence has a grammar.
        """
        if not any(map(_has_grammar, sampled)):
            return sampled
        for each in [each for each in sampled if each.op.grammar_pending]:
            self._wait(each, logits)
            sampled.remove(each)
        found = sgl.grammars.fill_masks(
            [matcher for each in sampled for matcher in draft_verification.matchers(*each[:3])]
        )
        good: list[RowsToSample] = []
        start = 0
        for seq, op, rows, _ in sampled:
            masks, start = found[start : start + len(rows)], start + len(rows)
            if isinstance(masks[0], WorkUnfinished):
                self._wait(RowsToSample(seq, op, rows), logits)
            elif isinstance(masks[0], Exception):
                self.life.fail(seq, masks[0])
            else:
                usable = draft_verification.usable(masks)
                good.append(RowsToSample(seq, op, rows[: len(usable)], usable))
        return good

    def _wait(self, each: RowsToSample, logits: torch.Tensor | None) -> None:
        """Until its grammar is worked out; the others go on."""
        seq, op, rows, _ = each
        assert logits is not None and op.decoding is not None
        self.late.keep(seq, op, self._picked(logits, [rows[0]]).clone())
        if not op.grammar_pending:
            op.decoding.work_in_background(seq)

    def _sampling_batch(self, sampled: list[RowsToSample]) -> SamplingBatch:
        rows = [row for seq, op, rows, _ in sampled for row in draft_verification.sampling_rows(seq, op, len(rows))]
        known = self._batches.get(len(rows))
        if known is None or not draft_verification.common_count(known.rows, rows):
            if len(self._batches) >= MOST_BATCHES:
                self._batches.clear()
            known = self._batches[len(rows)] = SamplingBatch(rows)
        return known

    def _score(self, step: RunningStep, scored: list[RowsToScore]) -> Callable[[], Found]:
        rows = [row for *_, rows in scored for row in rows]
        ids = [wanted for seq, op, rows in scored for wanted in op.wanted(seq, len(rows))]
        top = max(op.top for _, op, _ in scored)
        return launch_top_logprobs(self._rows(step, rows), ids, top, self.life.text.tokenizer.vocab_size)

    def _rows(self, step: RunningStep, rows: list[int]) -> torch.Tensor:
        assert step.logits is not None
        return self._picked(step.logits, rows)

    def _picked(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
        return logits if len(rows) == len(logits) else logits.index_select(0, self.runner.index(rows))

    # finish

    def finish(self, step: RunningStep) -> None:
        """Wait for what was decided and hand it out."""
        for sampled, samples in step.samples:
            self._take_all(sampled, samples)
        for scored, scores in step.scores:
            self._collect_all(scored, scores)
        if step.sums is not None:
            self._add_all(step, step.sums)

    def _take_all(self, sampled: list[RowsToSample], ready: Callable[[], SampledTokens]) -> None:
        try:
            samples = ready()
        except BaseException as error:
            self._fail_current("sampling", sampled, error)
            return
        start = 0
        for seq, op, rows, _ in sampled:
            own, start = range(start, start + len(rows)), start + len(rows)
            if is_current(seq, op):
                seq.ahead = 0
                try:
                    self._take(seq, op, samples, own)
                except BaseException as error:
                    self.life.fail(seq, error)

    def _collect_all(self, scored: list[RowsToScore], ready: Callable[[], Found]) -> None:
        try:
            pairs, tops = ready()
        except BaseException as error:
            self._fail_current("scoring", scored, error)
            return
        start = 0
        for seq, op, rows in scored:
            own = slice(start, start := start + len(rows))
            if is_current(seq, op):
                self.life.collect(seq, op, pairs[own], tops[own])

    def _add_all(self, step: RunningStep, ready: Callable[[], list[Floats]]) -> None:
        try:
            [sums] = ready()
        except BaseException as error:
            self._fail_current("pooling", step.pooled, error)
            return
        for (seq, op, positions), total in zip(step.pooled, sums, strict=True):
            if is_current(seq, op):
                self.life.attempt(seq, op.add, total, positions)
                self.life.collect(seq, op, [], [])

    def _take(self, seq: SequenceState, op: Generate, samples: SampledTokens, rows: range) -> None:
        decoding = op.decoding
        assert decoding is not None
        if draft_verification.accept_draft(self.life, seq, decoding, samples, rows):
            self.life.conclude(seq)
            self.life.advance(seq)


def _has_grammar(each: RowsToSample) -> bool:
    decoding = each.op.decoding
    return decoding is not None and decoding.matcher is not None


def is_current(seq: SequenceState, op: SequenceOp) -> bool:
    """Whether an operation is still the one that its sequence is at: it was not aborted, and did not fail."""
    return bool(seq.ops) and seq.ops[0] is op


def _wants(work: list[ScheduledWork]) -> list[WantedRows]:
    wants, first = [], 0
    try:
        for seq, lo, hi in work:
            op = seq.ops[0]
            positions = op.rows(seq, lo, hi) if hi > lo else range(0)
            wants.append(WantedRows(seq, op, hi, positions, first))
            first += len(positions)
    except BaseException as error:
        note_sequence(error, seq)
        raise
    return wants


def _pooled(work: list[ScheduledWork]) -> list[tuple[SequenceState, Embed, range]]:
    """Whose hidden states are summed, over which positions. Each is informed that its sums are on their way."""
    found = []
    try:
        for seq, lo, hi in work:
            op = seq.ops[0]
            if isinstance(op, Embed) and (positions := op.pool(seq, lo, hi)):
                found.append((seq, op, positions))
                op.mark_requested(positions)
    except BaseException as error:
        note_sequence(error, seq)
        raise
    return found
