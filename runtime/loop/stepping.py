"""One step of the model: launched, decided (what its logits are for), finished (what came of it).

The forward may run ahead of the host: it needs no sampled token by value, only the place where the device keeps
it. Decisions never do: masks, penalties and positions are made when every earlier token is known.

    launch(k + 1) ── finish(k) ── decide(k + 1) ── launch(k + 2) ── finish(k + 1) ...       one step ahead
    launch(k) ── decide(k) ── finish(k) ── launch(k + 1) ...                                 in step

Between launch and decide a sequence may have ended, failed or been cut; what was computed for it is then ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from sgl.grammars.automaton.batch import fill_masks

from ..errors import RuntimeFailure
from ..executor.runner import Runner
from ..sampling import Samples, SamplingBatch, launch_top_logprobs, make_sampler
from ..sequences.embedding import Embed, Floats
from ..sequences.ops import Generate, Op, TokenLogprobs
from ..sequences.sequence import SequenceState, Work
from ..step.staging import fetch
from .lifecycle import Lifecycle

log = logging.getLogger("sgl.runtime")

Found = tuple[list[TokenLogprobs], list[TokenLogprobs]]


class Want(NamedTuple):
    """Rows of a step's logits that an operation asked for: those of `positions`, from row `first` on."""

    seq: SequenceState
    op: Op
    hi: int
    positions: range
    first: int

    def rows(self) -> range:
        """The rows that it still wants."""
        if not (is_current(self.seq, self.op) and self.seq.computed >= self.hi):
            return range(0)
        now = self.op.rows(self.seq, self.positions.start, self.hi) if self.positions else range(0)
        shift = self.first - self.positions.start
        return range(now.start + shift, now.stop + shift)


@dataclass(slots=True)
class Step:
    """Attributes:
    sampled: the generations that get a token, in the order of `samples`.
    scored: operations that get log-probabilities, and of how many rows each.
    pooled: operations that get sums of hidden states, and over which positions, in the order of `sums`.
    """

    wants: list[Want]
    logits: torch.Tensor | None
    sampled: list[tuple[SequenceState, Generate]] = field(default_factory=list)
    samples: Callable[[], Samples] | None = None
    scored: list[tuple[SequenceState, Op, int]] = field(default_factory=list)
    scores: Callable[[], Found] | None = None
    pooled: list[tuple[SequenceState, Embed, range]] = field(default_factory=list)
    sums: Callable[[], list[Floats]] | None = None


class Stepper:
    """Runs the scheduler's plans on the runner; every method is the scheduler thread's."""

    def __init__(self, runner: Runner, life: Lifecycle) -> None:
        self.runner, self.life = runner, life
        self.sampler = make_sampler(life.text.tokenizer.vocab_size, runner.device)
        self._batch: tuple[list[Generate], SamplingBatch] | None = None

    def forget(self) -> None:
        """Hold no requests while there is nothing to do."""
        self._batch = None

    # launch

    def launch(self, work: list[Work]) -> Step | None:
        """Start computing the plan; None where that failed, or there is nothing to do."""
        if not work:
            return None
        real = [item for item in work if item.hi > item.lo]
        try:
            logits = self.runner.forward(real)
        except Exception as error:
            log.exception("a step failed")
            self._fail_step([seq for seq, *_ in real], error)
            return None
        step = Step(_wants(work), logits)
        self._pool(step, real)
        for seq, _, hi in work:
            seq.computed = hi
            if seq.prefilling and hi >= seq.target:
                seq.prefilling = False
                self.life.cache.publish(seq)
        self.life.stats.computed_tokens += sum(hi - lo for _, lo, hi in work)
        return step

    def _pool(self, step: Step, work: list[Work]) -> None:
        """Have the sums of the step brought to the host."""
        for seq, lo, hi in work:
            op = seq.ops[0]
            if isinstance(op, Embed) and (positions := op.pool(seq, lo, hi)):
                step.pooled.append((seq, op, positions))
                op.asked(positions)
        if step.pooled:
            assert self.runner.sums is not None
            step.sums = fetch(self.runner.sums)

    def _fail_step(self, seqs: list[SequenceState], error: Exception) -> None:
        """What a failed step wrote lies behind `computed`: nobody reads it, it is written again."""
        failure = error if isinstance(error, RuntimeFailure) else RuntimeFailure(f"a step of the engine failed: {error!r}")
        for seq in seqs:
            self.life.fail(seq, failure)

    def _fail_current(self, what: str, those: Iterable[tuple[SequenceState, Op]], error: Exception) -> None:
        log.error("%s failed", what, exc_info=error)
        for seq, op in those:
            if is_current(seq, op):
                self.life.fail(seq, RuntimeFailure(f"{what} failed: {error!r}"))

    # decide

    def decide(self, step: Step) -> None:
        """Have the logits of the step sampled and scored for those who still want them."""
        sampled: list[tuple[SequenceState, Generate, int]] = []
        scored: list[tuple[SequenceState, Op, range]] = []
        for want in step.wants:
            rows = want.rows()
            if isinstance(want.op, Generate):
                sampled += [(want.seq, want.op, row) for row in rows]
            elif rows:
                scored.append((want.seq, want.op, rows))
        if sampled:
            self._sample(step, sampled)
        if scored:
            self._score(step, scored)
        step.logits = None
        for want in step.wants:
            if not (want.positions or isinstance(want.op, Generate)) and is_current(want.seq, want.op):
                self.life.collect(want.seq, want.op, [], [])

    def _sample(self, step: Step, sampled: list[tuple[SequenceState, Generate, int]]) -> None:
        sampled, masks = self._masked(sampled)
        if not sampled:
            return
        ops = [op for _, op, _ in sampled]
        try:
            step.samples = self.sampler.launch(
                self._rows(step, [row for *_, row in sampled]),
                self._sampling_batch(ops),
                [len(seq) for seq, *_ in sampled],
                masks,
                self.runner.last,
                self.runner.places([seq for seq, *_ in sampled]),
            )
        except Exception as error:
            self._fail_current("sampling", [(seq, op) for seq, op, _ in sampled], error)
            return
        step.sampled = [(seq, op) for seq, op, _ in sampled]
        for seq, _ in step.sampled:
            seq.ahead = 1

    def _masked(self, sampled: list[tuple[SequenceState, Generate, int]]) -> tuple[list[Any], list[Any]]:
        """Those whose grammar gives a mask, with their masks; the others fail."""
        found = fill_masks([op.decoding.matcher if op.decoding else None for _, op, _ in sampled])
        good: list[Any] = []
        masks: list[Any] = []
        for item, mask in zip(sampled, found, strict=True):
            if isinstance(mask, Exception):
                self.life.fail(item[0], mask)
            else:
                good.append(item)
                masks.append(mask)
        return good, masks

    def _sampling_batch(self, ops: list[Generate]) -> SamplingBatch:
        if self._batch is None or self._batch[0] != ops:
            self._batch = (ops, SamplingBatch([op.decoding.row for op in ops if op.decoding]))
        return self._batch[1]

    def _score(self, step: Step, scored: list[tuple[SequenceState, Op, range]]) -> None:
        rows = [row for *_, rows in scored for row in rows]
        ids = [wanted for seq, op, rows in scored for wanted in op.wanted(seq, len(rows))]
        top = max(op.top for _, op, _ in scored)
        try:
            step.scores = launch_top_logprobs(self._rows(step, rows), ids, top, self.life.text.tokenizer.vocab_size)
        except Exception as error:
            self._fail_current("scoring", [(seq, op) for seq, op, _ in scored], error)
            return
        step.scored = [(seq, op, len(rows)) for seq, op, rows in scored]

    def _rows(self, step: Step, rows: list[int]) -> torch.Tensor:
        logits = step.logits
        assert logits is not None
        return logits if len(rows) == len(logits) else logits.index_select(0, self.runner.index(rows))

    # finish

    def finish(self, step: Step) -> None:
        """Wait for what was decided and hand it out."""
        if step.samples is not None:
            self._take_all(step, step.samples)
        if step.scores is not None:
            self._collect_all(step, step.scores)
        if step.sums is not None:
            self._add_all(step, step.sums)

    def _take_all(self, step: Step, ready: Callable[[], Samples]) -> None:
        try:
            samples = ready()
        except Exception as error:
            self._fail_current("sampling", step.sampled, error)
            return
        for index, (seq, op) in enumerate(step.sampled):
            if is_current(seq, op):
                seq.ahead = 0
                self._take(seq, op, samples, index)

    def _collect_all(self, step: Step, ready: Callable[[], Found]) -> None:
        try:
            pairs, tops = ready()
        except Exception as error:
            self._fail_current("scoring", [(seq, op) for seq, op, _ in step.scored], error)
            return
        start = 0
        for seq, op, count in step.scored:
            own = slice(start, start := start + count)
            if is_current(seq, op):
                self.life.collect(seq, op, pairs[own], tops[own])

    def _add_all(self, step: Step, ready: Callable[[], list[Floats]]) -> None:
        try:
            [sums] = ready()
        except Exception as error:
            self._fail_current("pooling", [(seq, op) for seq, op, _ in step.pooled], error)
            return
        for (seq, op, positions), total in zip(step.pooled, sums, strict=True):
            if is_current(seq, op):
                op.add(total, positions)
                self.life.collect(seq, op, [], [])

    def _take(self, seq: SequenceState, op: Generate, samples: Samples, index: int) -> None:
        decoding = op.decoding
        assert decoding is not None
        try:
            done = decoding.take(seq, samples, index)
        except Exception as error:
            self.life.fail(seq, error)
            return
        if done:
            seq.ops.popleft()
            self.life.conclude(seq, decoding)
            self.life.advance(seq)


def is_current(seq: SequenceState, op: Op) -> bool:
    """Whether an operation is still the one that its sequence is at: it was not aborted, and did not fail."""
    return bool(seq.ops) and seq.ops[0] is op


def _wants(work: list[Work]) -> list[Want]:
    wants, first = [], 0
    for seq, lo, hi in work:
        op = seq.ops[0]
        positions = op.rows(seq, lo, hi) if hi > lo else range(0)
        wants.append(Want(seq, op, hi, positions, first))
        first += len(positions)
    return wants
