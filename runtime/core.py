"""The engine's loop: one thread drains the inbox, plans a step, runs it and hands out what came of it."""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

from sgl.grammars.batch import fill_masks

from .errors import EngineClosed, RuntimeFailure
from .executor.runner import Runner
from .lifecycle import Lifecycle
from .metrics import Stats
from .ops import Close, Generate, Op, TokenLogprobs
from .sampling import Sampler, Samples, SamplingBatch, top_logprobs
from .scheduler import Work
from .sequence import SequenceState

log = logging.getLogger("sgl.runtime")

SWITCH_INTERVAL = 0.0005  # seconds; with Python's 5 ms a busy host thread slows every step


class EngineCore:
    """Owned by Engine. `submit`, `abort`, `call` and `stop` are thread-safe; the rest is the loop's own."""

    def __init__(self, runner: Runner, life: Lifecycle) -> None:
        self.runner, self.life = runner, life
        self.cache, self.scheduler, self.stats = life.cache, life.scheduler, life.stats
        self.sampler = Sampler(life.text.tokenizer.vocab_size)
        self.after_step: Callable[[], None] | None = None  # tests check every invariant here
        self._inbox: deque[tuple[SequenceState, Op | None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._usual_interval: float | None = None
        self._sampling: tuple[list[Generate], SamplingBatch] | None = None
        self._thread = threading.Thread(target=self._run, name="sgl-scheduler", daemon=True)

    # what other threads call

    def start(self) -> None:
        self._thread.start()

    def submit(self, seq: SequenceState, op: Op) -> Future[Any]:
        self._post(seq, op)
        return op.future

    def abort(self, seq: SequenceState) -> None:
        self._post(seq, None)

    def call(self, task: Any) -> Any:
        """Run `task()` on the scheduler thread between two steps and return its result."""
        if threading.current_thread() is self._thread:
            return task()
        return self.submit(self.life.new_state(), _Call(task)).result()

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
        self.cache.tree.check(self.cache.pages(seq) for seq in self.life.live)

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
        try:
            self._loop()
            error: RuntimeFailure = EngineClosed("the engine was closed while this waited")
        except Exception as cause:  # our own invariants broke: nobody may be left waiting
            log.exception("the engine failed")
            error = RuntimeFailure(f"the engine failed: {cause!r}; open a new one")
        finally:
            self._relax()
        with self._wake:
            self._stopping = True
        self.life.deliver()
        self._fail_all(error)
        del self.runner, self.sampler, self._sampling  # handles may outlive the model's memory

    def _loop(self) -> None:
        while self._drain():
            self._hurry()
            started = time.perf_counter()
            if self._step(self.scheduler.plan()):
                self.stats.step_seconds += time.perf_counter() - started
                self.stats.steps += 1
            if self.after_step is not None:
                self.after_step()
            if self._idle:
                self._relax()
                self._sampling = None

    def _hurry(self) -> None:
        """Have Python switch threads often while there is work; what it was is put back by `_relax`."""
        if sys.getswitchinterval() > SWITCH_INTERVAL:
            self._usual_interval = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_INTERVAL)

    def _relax(self) -> None:
        if self._usual_interval is not None:
            sys.setswitchinterval(self._usual_interval)
            self._usual_interval = None

    @property
    def _idle(self) -> bool:
        return not self.scheduler.running and not self.scheduler.waiting and not self._inbox

    def _drain(self) -> bool:
        """Take what has come in; sleep while there is nothing to do. False: stop."""
        if self._idle:
            self.life.deliver()
            with self._wake:
                while not self._inbox and not self._stopping:
                    self._wake.wait()
        while self._inbox:
            seq, op = self._inbox.popleft()
            if op is None:
                self.life.abort(seq)
            else:
                self.life.enqueue(seq, op)
        return not self._stopping

    def _step(self, work: list[Work]) -> bool:
        """Compute the plan and hand out what came of it. False: there was nothing to compute."""
        self._refuse()
        self.life.deliver()
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
        ids = [wanted for seq, op, rows in scored for wanted in op.wanted(seq, len(rows))]
        pairs: list[TokenLogprobs] = []
        tops: list[TokenLogprobs] = []
        if rows and logits is not None:
            chosen = logits if len(rows) == len(logits) else logits[rows]
            top = max(op.top for _, op, _ in scored)
            pairs, tops = top_logprobs(chosen, ids, top, self.life.text.tokenizer.vocab_size)
        start = 0
        for seq, op, own in scored:
            part = slice(start, start := start + len(own))
            self.life.collect(seq, op, pairs[part], tops[part])

    def _sample(self, sampled: list[tuple[SequenceState, Generate, int]], logits: torch.Tensor) -> None:
        sampled, masks = self._masked(sampled)
        if not sampled:
            return
        rows = [row for *_, row in sampled]
        if len(rows) != len(logits):
            logits = logits[rows]
        batch = self._sampling_batch([op for _, op, _ in sampled])
        try:
            samples = self.sampler.sample(logits, batch, [len(seq) for seq, *_ in sampled], masks)
        except Exception as error:
            log.exception("sampling failed")
            for seq, *_ in sampled:
                self.life.fail(seq, RuntimeFailure(f"sampling failed: {error!r}"))
            return
        for index, (seq, op, _) in enumerate(sampled):
            self._take(seq, op, samples, index)

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

    def _sampling_batch(self, ops: list[Generate]) -> SamplingBatch:
        if self._sampling is None or self._sampling[0] != ops:
            self._sampling = (ops, SamplingBatch([op.decoding.row for op in ops if op.decoding]))
        return self._sampling[1]

    def _refuse(self) -> None:
        refused, self.scheduler.refused = self.scheduler.refused, []
        for seq, error in refused:
            self.life.fail(seq, error)

    def _fail_step(self, work: list[Work], error: Exception) -> None:
        """What a failed step wrote lies behind `computed`: nobody reads it, it is written again."""
        wrapped = error if isinstance(error, RuntimeFailure) else RuntimeFailure(f"a step of the engine failed: {error!r}")
        for seq, *_ in work:
            self.life.fail(seq, wrapped)

    def _fail_all(self, error: BaseException) -> None:
        """The end: nobody is left waiting, whatever state things are in."""
        for seq, op in self._inbox:
            if op is not None:
                seq.ops.append(op)
                self.life.live[seq] = None
        self._inbox.clear()
        for seq in self.life.live:
            while seq.ops:
                seq.ops.popleft().fail(error)
            seq.error = error
        self.life.live.clear()


class _Call(Op):
    """A question put to the scheduler thread."""

    __slots__ = ("task",)

    def __init__(self, task: Any) -> None:
        super().__init__()
        self.task = task

    def begin(self, seq: SequenceState, life: Lifecycle) -> bool:
        self.resolve(self.task())
        return True
