"""The engine's loop: one thread drains the inbox, plans a step, runs it and hands out what came of it."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch

from sgl.grammars import Vocabulary

from .cache import Ints, PrefixCache
from .decoding import Decoding
from .errors import ConfigError, ContextLengthError, EngineClosed, RequestAborted, RuntimeFailure
from .executor.runner import Runner
from .jump import JumpForward
from .metrics import Stats
from .ops import Close, Extend, Fork, Generate, Op, TokenLogprobs
from .sampling import Sampler, SamplingBatch, top_logprobs
from .scheduler import Scheduler, Work
from .sequence import SequenceState, Status
from .tokenizer import Tokenizer

log = logging.getLogger("sgl.runtime")

SWITCH_INTERVAL = 0.0005  # seconds; with Python's 5 ms a busy host thread slows every step


class TextSide(NamedTuple):
    """What the loop needs to turn tokens into text."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    jumps: JumpForward | None


class EngineCore:
    """Owned by Engine. `submit`, `abort`, `new_state` and `stop` are thread-safe; the rest is the loop's own."""

    def __init__(
        self,
        runner: Runner,
        cache: PrefixCache,
        scheduler: Scheduler,
        text: TextSide,
        context: int,
        seed: int | None = None,
    ) -> None:
        self.runner, self.cache, self.scheduler = runner, cache, scheduler
        self.text, self.context = text, context
        self.sampler = Sampler(text.tokenizer.vocab_size)
        self._seed = seed
        self.stats = Stats()
        self.after_step: Callable[[], None] | None = None  # tests check every invariant here
        self._ids = itertools.count(1)
        self._inbox: deque[tuple[SequenceState, Op | None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._live: dict[SequenceState, None] = {}
        self._sampling: tuple[list[Generate], SamplingBatch] | None = None
        self._thread = threading.Thread(target=self._run, name="sgl-scheduler", daemon=True)

    # what other threads call

    def start(self) -> None:
        self._thread.start()

    def new_state(self, priority: int = 0, status: Status = Status.IDLE) -> SequenceState:
        return SequenceState(next(self._ids), priority, status)

    def submit(self, seq: SequenceState, op: Op) -> Future[Any]:
        self._post(seq, op)
        return op.future

    def abort(self, seq: SequenceState) -> None:
        self._post(seq, None)

    def call(self, task: Any) -> Any:
        """Run `task()` on the scheduler thread between two steps and return its result."""
        if threading.current_thread() is self._thread:
            return task()
        return self.submit(self.new_state(), _Call(task)).result()

    def stop(self) -> None:
        """Fail everything that waits and end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    # on the scheduler thread, between two steps

    def flush(self) -> int:
        return self.cache.tree.clear()

    def check(self) -> None:
        self.cache.tree.check(self.cache.pages(seq) for seq in self._live)

    def snapshot(self) -> Stats:
        pool, scheduler = self.cache.pool, self.scheduler
        return dataclasses.replace(
            self.stats,
            cached_tokens=scheduler.reused_tokens,
            preemptions=scheduler.preemptions,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pages_total=pool.total,
            pages_free=pool.free,
            pages_cached=self.cache.tree.evictable,
        )

    def _post(self, seq: SequenceState, op: Op | None) -> None:
        with self._wake:
            if not self._stopping:
                self._inbox.append((seq, op))
                self._wake.notify()
                return
        if isinstance(op, Close):
            op.resolve()
        elif op is not None:
            op.fail(EngineClosed("the engine is closed; open a new one"))

    # the loop

    def _run(self) -> None:
        interval = sys.getswitchinterval()
        try:
            self._loop(interval)
            error: RuntimeFailure = EngineClosed("the engine was closed while this waited")
        except Exception as cause:  # our own invariants broke: nobody may be left waiting
            log.exception("the engine failed")
            error = RuntimeFailure(f"the engine failed: {cause!r}; open a new one")
        finally:
            sys.setswitchinterval(interval)
        with self._wake:
            self._stopping = True
        self._fail_all(error)
        del self.runner, self.cache, self.scheduler, self.sampler, self._sampling  # handles may outlive the memory

    def _loop(self, interval: float) -> None:
        while self._drain():
            sys.setswitchinterval(min(interval, SWITCH_INTERVAL))
            started = time.perf_counter()
            if self._step(self.scheduler.plan()):
                self.stats.step_seconds += time.perf_counter() - started
                self.stats.steps += 1
            if self.after_step is not None:
                self.after_step()
            if self._idle:
                sys.setswitchinterval(interval)
                self._sampling = None

    @property
    def _idle(self) -> bool:
        return not self.scheduler.running and not self.scheduler.waiting and not self._inbox

    def _drain(self) -> bool:
        """Take what has come in; sleep while there is nothing to do. False: stop."""
        if self._idle:
            with self._wake:
                while not self._inbox and not self._stopping:
                    self._wake.wait()
        while self._inbox:
            seq, op = self._inbox.popleft()
            if op is None:
                self._abort(seq)
            else:
                self.enqueue(seq, op)
        return not self._stopping

    def _step(self, work: list[Work]) -> bool:
        """Compute the plan and hand out what came of it. False: there was nothing to compute."""
        self._refuse()
        started = time.perf_counter()
        try:
            logits = self.runner.forward([w for w in work if w.hi > w.lo])
        except Exception as error:
            log.exception("a step failed")
            self._fail_step(work, error)
            return False
        self.stats.model_seconds += time.perf_counter() - started
        for seq, _, hi in work:
            seq.computed = hi
        computed = sum(hi - lo for _, lo, hi in work)
        self.stats.computed_tokens += computed
        self._collect(work, logits)
        return computed > 0

    def _collect(self, work: list[Work], logits: torch.Tensor | None) -> None:
        """Hand each operation the logits of its rows: sampled together, scored together."""
        row = 0
        sampled: list[tuple[SequenceState, Generate, int]] = []
        scored: list[tuple[SequenceState, Op, range]] = []
        for seq, lo, hi in work:
            if seq.prefilling and seq.computed >= seq.target:
                seq.prefilling = False
                self.cache.publish(seq)
            op = seq.ops[0]
            rows = len(op.rows(seq, lo, hi)) if hi > lo else 0
            if isinstance(op, Generate):
                sampled += [(seq, op, row)] * rows
            else:
                scored.append((seq, op, range(row, row + rows)))
            row += rows
        if sampled:
            assert logits is not None
            self._sample(sampled, logits)
        if scored:
            self._score(scored, logits)

    def _score(self, scored: list[tuple[SequenceState, Op, range]], logits: torch.Tensor | None) -> None:
        rows = [row for *_, rows in scored for row in rows]
        ids = [token for seq, op, rows in scored for token in op.wanted(seq, len(rows))]
        pairs: TokenLogprobs = []
        tops: list[TokenLogprobs] = []
        if rows and logits is not None:
            chosen = logits if len(rows) == len(logits) else logits[rows]
            top = max(op.top for _, op, _ in scored)
            pairs, tops = top_logprobs(chosen, ids, top, self.text.tokenizer.vocab_size)
        start = 0
        for seq, op, own in scored:
            part = slice(start, start := start + len(own))
            self._finish_if(seq, op, pairs[part], tops[part])

    def _finish_if(self, seq: SequenceState, op: Op, pairs: TokenLogprobs, tops: list[TokenLogprobs]) -> None:
        try:
            done = op.collect(seq, self, pairs, tops)
        except Exception as error:
            self.fail(seq, error)
            return
        if done:
            seq.ops.popleft()
        if done or op.blocked:
            self._advance(seq)

    def _sample(self, sampled: list[tuple[SequenceState, Generate, int]], logits: torch.Tensor) -> None:
        decodings = [op.decoding for _, op, _ in sampled]
        rows = [row for *_, row in sampled]
        if len(rows) != len(logits):
            logits = logits[rows]
        batch = self._sampling_batch([op for _, op, _ in sampled])
        positions = [len(seq) for seq, *_ in sampled]
        samples = self.sampler.sample(logits, batch, positions, [d.mask() for d in decodings if d])
        for index, (seq, op, _) in enumerate(sampled):
            decoding = op.decoding
            assert decoding is not None
            try:
                done = decoding.take(seq, samples, index)
            except Exception as error:
                self.fail(seq, error)
                continue
            if done:
                seq.ops.popleft()
                self.conclude(seq, decoding)
                self._advance(seq)

    def conclude(self, seq: SequenceState, decoding: Decoding) -> None:
        """A generation has its result."""
        self.scheduler.estimate.finished(len(decoding.output), decoding.limit)
        self.stats.generated(decoding)
        self.cache.publish(seq)
        decoding.deliver()
        decoding.op.decoding = None  # no cycle: what the caller's callbacks hold is freed with the operation

    def _sampling_batch(self, ops: list[Generate]) -> SamplingBatch:
        if self._sampling is None or self._sampling[0] != ops:
            self._sampling = (ops, SamplingBatch([op.decoding.row for op in ops if op.decoding]))
        return self._sampling[1]

    # the life of a sequence and its operations; scheduler thread only

    def enqueue(self, seq: SequenceState, *ops: Op) -> None:
        if seq.status is Status.CLOSED or seq.error is not None:
            for op in ops:
                self._refuse_op(seq, op)
            return
        if seq.owed is not None and not isinstance(ops[0], Close):
            error, seq.owed = seq.owed, None
            for op in ops:
                self._fail_op(op, error)
            return
        self._live[seq] = None
        was_empty = not seq.ops
        seq.ops.extend(ops)
        if was_empty and seq.status is not Status.UNBORN:
            self._advance(seq)

    def _refuse_op(self, seq: SequenceState, op: Op) -> None:
        if isinstance(op, Close):
            op.resolve()
        else:
            self._fail_op(op, seq.error or EngineClosed("the sequence is closed; open or fork a new one"))

    def _advance(self, seq: SequenceState) -> None:
        """Begin the next operations until one has something to compute."""
        while seq.ops:
            op = seq.ops[0]
            if op.blocked:
                break
            try:
                if not op.begin(seq, self):
                    break
            except Exception as error:
                self.fail(seq, error)
                return
            if seq.ops and seq.ops[0] is op:
                seq.ops.popleft()
        if not seq.ops or seq.ops[0].blocked:
            if seq.status is not Status.CLOSED:
                self.scheduler.suspend(seq)
            if not seq.ops and not len(seq):
                self._live.pop(seq, None)
            return
        if len(seq.slots):
            seq.ops[0].admitted(seq, seq.computed)
        self.scheduler.wait(seq)

    def proceed(self, seq: SequenceState) -> None:
        """The blocked operation of `seq` got what it waited for."""
        self._finish_if(seq, seq.ops[0], [], [])

    def give_birth(self, parent: SequenceState, child: SequenceState) -> int:
        """Let `child` begin where `parent` stands; returns the computed tokens that it shares."""
        child.tokens.extend(parent.tokens.array)
        shared = self.cache.share(parent, child)
        child.status = Status.IDLE
        self._live[child] = None
        self._advance(child)
        return shared

    def fail(self, seq: SequenceState, error: BaseException) -> None:
        """Fail the operations of one sequence; what it holds stays usable."""
        ops, seq.ops = list(seq.ops), deque()
        if all(isinstance(op, Extend) for op in ops):
            seq.owed = error  # nobody holds the future of an extend: the next operation tells
        if seq.status not in (Status.UNBORN, Status.CLOSED):
            self.scheduler.suspend(seq)
        for op in ops:
            if isinstance(op, Close):
                self.enqueue(seq, op)
            else:
                self._fail_op(op, error)

    def _fail_op(self, op: Op, error: BaseException) -> None:
        op.fail(error)
        for child in op.children if isinstance(op, Fork) else ():
            child.error = error  # it will never be born
            self.fail(child, error)
            self._live.pop(child, None)

    def _abort(self, seq: SequenceState) -> None:
        if seq.ops:
            self.stats.aborts += 1
            self.fail(seq, RequestAborted("aborted by its owner"))

    def retire(self, seq: SequenceState) -> None:
        self.scheduler.remove(seq)
        self._live.pop(seq, None)

    def rewind(self, seq: SequenceState, length: int) -> None:
        if seq.computed > length:
            self.cache.cut(seq, length)

    def truncate(self, seq: SequenceState, length: int) -> None:
        """Cut tokens and pages together."""
        self.rewind(seq, length)
        seq.tokens.truncate(length)

    def seed(self) -> int:
        """Of a generation that brings none."""
        return random.getrandbits(63) if self._seed is None else self._seed

    def check_tokens(self, tokens: Ints) -> None:
        size = self.runner.vocab_size
        if len(tokens) and not (int(tokens.min()) >= 0 and int(tokens.max()) < size):
            raise ConfigError(f"token ids must lie in 0..{size - 1}, got {int(tokens.min())}..{int(tokens.max())}")

    def check_length(self, seq: SequenceState, more: int = 0) -> None:
        if len(seq) + more > self.context:
            raise ContextLengthError(
                f"{len(seq)} tokens" + (f" and at least {more} more" if more else "")
                + f" do not fit the context of {self.context} tokens; shorten the prompt or open the engine with a larger context"
            )  # fmt: skip

    def start_decoding(self, seq: SequenceState, op: Generate) -> Decoding:
        return Decoding(self, seq, op)

    def _refuse(self) -> None:
        refused, self.scheduler.refused = self.scheduler.refused, []
        for seq, error in refused:
            self.fail(seq, error)

    def _fail_step(self, work: list[Work], error: Exception) -> None:
        """What a failed step wrote cannot be trusted: drop the pages of its sequences."""
        wrapped = error if isinstance(error, RuntimeFailure) else RuntimeFailure(f"a step of the engine failed: {error!r}")
        for seq, *_ in work:
            self.fail(seq, wrapped)
            self.scheduler.suspend(seq)
            self.cache.release(seq, publish=False)
            self.scheduler.resident.pop(seq, None)

    def _fail_all(self, error: BaseException) -> None:
        """The end: nobody is left waiting, whatever state things are in."""
        for seq, op in self._inbox:
            if op is not None:
                seq.ops.append(op)
                self._live[seq] = None
        self._inbox.clear()
        for seq in self._live:
            while seq.ops:
                seq.ops.popleft().fail(error)
            seq.error = error
        self._live.clear()


class _Call(Op):
    """A question put to the scheduler thread."""

    __slots__ = ("task",)

    def __init__(self, task: Any) -> None:
        super().__init__()
        self.task = task

    def begin(self, seq: SequenceState, core: EngineCore) -> bool:
        self.resolve(self.task())
        return True
