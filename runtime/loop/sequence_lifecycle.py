"""The life of sequences: their operations begin, are collected, fail, and give birth to children."""

from __future__ import annotations

import copy
import itertools
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..adapters.adapter_manager import AdapterManager
from ..cache import Ints, PrefixCache
from ..errors import ConfigError, ContextLengthError, EngineClosed, RequestAborted, take_noted_sequences
from ..scheduling.scheduler import Scheduler
from ..sequences.detokenizer_resources import DetokenizerResources
from ..sequences.generation import TokenLogprobs
from ..sequences.grammar_workers import GrammarWorkers
from ..sequences.ops.generate_op import Generate
from ..sequences.ops.sequence_ops import Close, Extend, Fork, Pin
from ..sequences.pending_grammar import PendingGrammar
from ..sequences.sequence_deadlines import SequenceDeadlines, too_late
from ..sequences.sequence_options import USUAL, SequenceOptions
from ..sequences.sequence_state import SequenceOp, SequenceState, SequenceStatus
from ..watch.engine_stats import Stats
from ..watch.text_recording import TextRecordings

if TYPE_CHECKING:
    from ..speculative.speculation import Speculation

# slices of grammar work at once, and seconds of one after which others do not wait for it
MOST_SLICES, LONG_SLICE = 4, 0.01


class SequenceLifecycle:
    """Only the scheduler thread calls this, but for `new_state`.

    What is done for one sequence goes through `attempt`: whatever it raises is that sequence's failure.

        CHILD_PENDING ── spawn_children ──> IDLE ── advance ──> WAITING ── plan ──> RUNNING
                                  ^ suspend ───────────┴──────────────────┘        retire: CLOSED
    """

    def __init__(
        self,
        cache: PrefixCache,
        scheduler: Scheduler,
        text: DetokenizerResources,
        vocab_size: int,
        context: int,
        seed: int | None,
    ) -> None:
        self.cache, self.scheduler, self.text = cache, scheduler, text
        self.vocab_size, self.context = vocab_size, context
        self.stats = Stats()
        self.jump_limit = sys.maxsize  # more running sequences than this, and nothing is appended without sampling
        self.live: dict[SequenceState, None] = {}  # those that hold tokens, pages or operations
        self.deadlines = SequenceDeadlines()
        self.speculation: Speculation | None = None
        self.recordings = TextRecordings()
        self.grammar_workers = GrammarWorkers(MOST_SLICES, LONG_SLICE)
        self.pending_grammars = 0
        self.soon: Callable[[Callable[[], object]], object] = lambda task: task()  # on the scheduler thread
        self.adapters: AdapterManager | None = None
        self._finished: deque[Generate] = deque()
        self._due: dict[SequenceState, None] = {}  # whose next operations are to begin
        self._advancing = False
        self._random = random.Random(seed)
        self._ids = itertools.count(1)

    def new_state(self, terms: SequenceOptions = USUAL, status: SequenceStatus = SequenceStatus.IDLE) -> SequenceState:
        if terms.adapter and self.adapters is not None:
            self.adapters.enter(terms.adapter)
        return SequenceState(next(self._ids), terms, status)

    def enqueue(self, seq: SequenceState, *ops: SequenceOp) -> None:
        if seq.status is SequenceStatus.CLOSED or seq.error is not None:
            for op in ops:
                self._refuse_op(seq, op)
            return
        ops = self._in_time(seq, ops)
        if not ops:
            return
        if seq.deferred_error is not None and not isinstance(ops[0], Close):
            error, seq.deferred_error = seq.deferred_error, None
            self._fail_ops(ops, error)
            return
        self.live[seq] = None
        was_empty = not seq.ops
        seq.ops.extend(ops)
        if was_empty and seq.status is not SequenceStatus.CHILD_PENDING:
            self.advance(seq)

    def _in_time(self, seq: SequenceState, ops: tuple[SequenceOp, ...]) -> tuple[SequenceOp, ...]:
        """The operations that there is still time for; the others fail."""
        deadline = seq.terms.deadline
        if deadline is None or time.monotonic() < deadline:
            self.deadlines.watch(seq)
            return ops
        self._fail_ops([op for op in ops if not isinstance(op, Close)], too_late(seq))
        return tuple(op for op in ops if isinstance(op, Close))

    def _refuse_op(self, seq: SequenceState, op: SequenceOp) -> None:
        if isinstance(op, Close):
            op.resolve()
        else:
            closed = EngineClosed("the sequence is closed; open or fork a new one")
            self._fail_ops([op], _anew(seq.error) if seq.error else closed)

    def attempt(self, seq: SequenceState, call: Callable[..., Any], *args: Any) -> Any:
        """What `call` returns; whatever it raises fails the operations of `seq`, and returns None."""
        try:
            return call(*args)
        except BaseException as error:
            self.fail(seq, error)
            return None

    def advance(self, seq: SequenceState) -> None:
        """Begin the next operations until one has something to compute.

        Others that go on as a result, such as spawned children, do so after it and not within it. A chain of forks may
        be longer than Python's stack.
        """
        self._due[seq] = None
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._due:
                seq = next(iter(self._due))
                del self._due[seq]
                self.attempt(seq, self._advance, seq)
        finally:
            self._advancing = False

    def _advance(self, seq: SequenceState) -> None:
        while seq.ops:
            op = seq.ops[0]
            if op.blocked or not op.begin(seq, self):
                break
            if seq.ops and seq.ops[0] is op:
                seq.ops.popleft()
        if not seq.ops or seq.ops[0].blocked:
            if seq.status is not SequenceStatus.CLOSED:
                self.scheduler.suspend(seq)
            if not seq.ops and not len(seq):
                self._forget(seq)
            return
        if len(seq.slots):
            seq.ops[0].admitted(seq, seq.computed)
        self.scheduler.wait(seq)

    def proceed(self, seq: SequenceState) -> None:
        """The blocked operation of `seq` got what it waited for."""
        self.collect(seq, seq.ops[0], [], [])

    def spawn_children(self, parent: SequenceState, child: SequenceState) -> int:
        """Let `child` begin where `parent` is; returns the computed tokens that it shares."""
        child.tokens.extend(parent.tokens.array)
        child.guarded = parent.guarded
        self.recordings.born(parent, child)
        if child.terms.adapter == parent.terms.adapter:
            shared = self.cache.share(parent, child)
        else:
            shared, child.reread = 0, len(child)
            self.stats.reread_tokens += child.reread
        child.status = SequenceStatus.IDLE
        self.live[child] = None
        self.advance(child)
        return shared

    def fail(self, seq: SequenceState, error: BaseException) -> None:
        """Fail the operations of one sequence; what it holds stays usable."""
        take_noted_sequences(error)
        ops, seq.ops = list(seq.ops), deque()
        if ops and all(isinstance(op, Extend) for op in ops):
            seq.deferred_error = _anew(error)  # no caller holds the future of an extend: the next operation raises it
        try:
            self._set_aside(seq)
        finally:
            self._fail_ops([op for op in ops if not isinstance(op, Close)], error)
        for op in ops:
            if isinstance(op, Close):
                self.enqueue(seq, op)

    def _set_aside(self, seq: SequenceState) -> None:
        """It has nothing to compute any more."""
        seq.ahead, seq.draft = 0, None
        self.rewind(seq, len(seq))
        if seq.status not in (SequenceStatus.CHILD_PENDING, SequenceStatus.CLOSED):
            self.scheduler.suspend(seq)

    def _fail_ops(self, ops: Iterable[SequenceOp], error: BaseException) -> None:
        """Fail operations, and all of those who will not be born for it."""
        failing = deque(ops)
        while failing:
            op = failing.popleft()
            op.fail(error)
            for child in op.children if isinstance(op, Fork) else ():
                failing += self._disown(child, error)

    def _disown(self, child: SequenceState, error: BaseException) -> list[SequenceOp]:
        """It takes no operations any more: those that it had, but for its end."""
        child.error = _anew(error)
        ops, child.ops = list(child.ops), deque()
        if child.status is not SequenceStatus.CHILD_PENDING:  # the fork failed after it
            self.scheduler.remove(child)
        self._forget(child)
        self._leave_adapter(child)
        for op in ops:
            if isinstance(op, Close):
                op.resolve()
        return [op for op in ops if not isinstance(op, Close)]

    def fail_work(self, error: BaseException) -> None:
        """Fail every operation there is, whatever state things are in; what the sequences hold stays usable."""
        self._due.clear()
        self.scheduler.clear()
        for seq in list(self.live):
            if seq.ops:
                self.fail(seq, error)

    def abort(self, seq: SequenceState) -> None:
        if seq.ops:
            self.stats.aborts += 1
            self.fail(seq, RequestAborted("aborted by its owner"))

    def expire(self) -> None:
        """Fail what was not done in time."""
        for seq in self.deadlines.over():
            if seq.ops:
                self.stats.timeouts += 1
                self.fail(seq, too_late(seq))

    def renew_pins(self) -> None:
        """Compute the pinned prefixes anew: their pages were taken."""
        for seq in self.scheduler.pinned:
            self.enqueue(seq, Pin())

    def retire(self, seq: SequenceState) -> None:
        self.recordings.over(seq)
        self.scheduler.remove(seq)
        self._forget(seq)
        self._leave_adapter(seq)

    def _forget(self, seq: SequenceState) -> None:
        self.live.pop(seq, None)
        self.deadlines.forget(seq)

    def _leave_adapter(self, seq: SequenceState) -> None:
        """It ends: its adapter may be unloaded, for what it is concerned."""
        if seq.terms.adapter and self.adapters is not None:
            self.adapters.leave(seq.terms.adapter)

    def rewind(self, seq: SequenceState, length: int) -> None:
        if seq.computed > length or not self.cache.stands(seq):
            self.cache.cut(seq, length)

    def truncate(self, seq: SequenceState, length: int) -> None:
        """Cut tokens and pages together."""
        self.rewind(seq, length)
        seq.tokens.truncate(length)
        self.recordings.cut(seq, length)
        seq.charged_tokens = min(seq.charged_tokens, length)

    @property
    def may_jump(self) -> bool:
        """Whether it pays to append what a grammar forces: not where many sequences share the price of a step."""
        return len(self.scheduler.running) <= self.jump_limit

    def seed(self) -> int:
        """Of a generation that brings none."""
        return self._random.getrandbits(63)

    def check_tokens(self, tokens: Ints) -> None:
        size = self.vocab_size
        if len(tokens) and not (int(tokens.min()) >= 0 and int(tokens.max()) < size):
            raise ConfigError(f"token ids must be in 0..{size - 1}, got {int(tokens.min())}..{int(tokens.max())}")

    def check_length(self, seq: SequenceState, more: int = 0) -> None:
        if len(seq) + more > self.context:
            raise ContextLengthError(
                f"{len(seq)} tokens"
                + (f" and at least {more} more" if more else "")
                + f" do not fit the context of {self.context} tokens; shorten the prompt, or raise the engine's "
                "`context` if the model allows it"
            )

    def advance_grammar(self, seq: SequenceState, work: PendingGrammar) -> None:
        """Have done on another thread what the generation at the head of the queue waits for."""
        self.stats.late_masks += 1
        self.pending_grammars += 1
        done = partial(self._grammar_advanced, seq, _generation(seq))
        work.start(self.grammar_workers, lambda: self.soon(done))

    def _grammar_advanced(self, seq: SequenceState, op: Generate) -> None:
        self.pending_grammars -= 1
        if seq.ops and seq.ops[0] is op:
            self.attempt(seq, self._catch_up, seq, op)

    def _catch_up(self, seq: SequenceState, op: Generate) -> None:
        assert op.decoding is not None
        if op.decoding.catch_up(seq):
            self.conclude(seq)
            self.advance(seq)

    def collect(
        self, seq: SequenceState, op: SequenceOp, pairs: list[TokenLogprobs], tops: list[TokenLogprobs]
    ) -> None:
        """Give an operation what was found at its rows, and go on when it is done."""
        done = self.attempt(seq, op.collect, seq, self, pairs, tops)
        if not seq.ops or seq.ops[0] is not op:
            return  # it failed just now, or meanwhile, as its probe came too late
        if done:
            seq.ops.popleft()
        if done or op.blocked:
            self.advance(seq)

    def conclude(self, seq: SequenceState) -> None:
        """The generation at the head of the queue has its result; `deliver` hands it over."""
        op = _generation(seq)
        decoding = op.decoding
        assert decoding is not None
        self.scheduler.estimate.finished(len(decoding.output), decoding.limit, op.params.max_tokens is not None)
        self.stats.generated(decoding)
        self.recordings.answered(seq, decoding.prompt_tokens)
        self.cache.publish(seq)
        if self.speculation is not None:
            self.speculation.learn(seq, decoding)
        seq.ops.popleft()
        self._finished.append(op)
        if isinstance(decoding.result, BaseException):  # what is queued behind it fails too, but after it
            self.deliver()
            self.fail(seq, decoding.result)

    def close(self) -> None:
        """Hold no drafters, as one may hold a model, nor adapters; nothing is worked out any more."""
        self.grammar_workers.close()
        if self.adapters is not None:
            self.adapters.close()
            self.adapters = self.scheduler.adapters = None
        if self.speculation is not None:
            self.speculation.close()
        self.speculation = self.scheduler.drafting = None

    def deliver(self) -> None:
        """Hand over finished generations. Those who wake up run while the model computes, not between steps."""
        while self._finished:
            op = self._finished.popleft()
            assert op.decoding is not None
            op.decoding.deliver()
            op.decoding = None  # no cycle: what the caller's callbacks hold is freed with the operation


def _generation(seq: SequenceState) -> Generate:
    """The generation at the head of the queue."""
    op = seq.ops[0]
    assert isinstance(op, Generate)
    return op


def _anew(error: BaseException) -> BaseException:
    """A copy that is never raised: a traceback would keep its frames, and their handles, as long as the sequence."""
    try:
        copied = copy.copy(error)
    except BaseException:  # a class that cannot be copied
        return error
    return copied if isinstance(copied, BaseException) else error
