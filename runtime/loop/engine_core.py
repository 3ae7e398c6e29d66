"""The engine's loop: one thread drains the inbox, plans a step, runs it and hands out what came of it."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torch import Tensor

from sgl.grammars.automaton.automaton_work_budget import WorkBudget, metered

from ..adapters.adapter_manager import AdapterManager
from ..cache.view.cache_snapshot import CacheSnapshot, snapshot
from ..calibration.calibration_texts import RecordedText
from ..common.argument_checks import shown
from ..common.garbage_collection import LONG_QUIET, QUIET, GarbageCollector
from ..common.thread_priority import take_priority
from ..errors import ConfigError, EngineClosed, EngineFailed, RuntimeFailure
from ..executor.runner_protocol import Runner
from ..sequences.op_future import note
from ..sequences.ops.generate_op import Generate
from ..sequences.ops.sequence_ops import Close
from ..sequences.sequence_options import SequenceOptions
from ..sequences.sequence_state import ScheduledWork, SequenceOp, SequenceState, SequenceStatus
from ..watch.engine_stats import Stats
from ..watch.gather_stats import gather_stats
from ..watch.step_trace import StepRecord, StepTraces
from .failing_sequence import bare, failing_sequence
from .scheduler_call import SchedulerCall
from .sequence_lifecycle import SequenceLifecycle
from .step_execution import RunningStep, StepExecutor

if TYPE_CHECKING:
    from sgl.grammars import Vocabulary

    from .expert_rebalancing import ExpertRebalancer

NOBODY = 0  # the number of what is no sequence; those have 1, 2 ...
LINGER = 0.002  # seconds until it is looked again for an adapter that is read from its files
SETTLED = 0.2  # seconds without work before what grammars need is started and made
PATIENCE = 0.05  # seconds between looks whether another grammar may have a turn, while nothing can be computed
STEP_WORK = (
    600_000  # of a step's grammars, in steps of `grammars/automaton/automaton_work_budget.py`: some milliseconds
)
SWITCH_INTERVAL = 0.0001  # seconds; with Python's 5 ms a busy host thread slows every step


Result = TypeVar("Result")
Origin = str | Path | Mapping[str, Tensor]  # a model directory, or tensors by the names that the checkpoint gave them


class SleepsEngine(Protocol):
    """What puts the engine to sleep: `engine_sleep.EngineSleeper`."""

    @property
    def asleep(self) -> bool: ...
    @property
    def experts(self) -> dict[str, Any] | None:
        """The statistics of experts while the engine sleeps."""
        ...

    def touched(self) -> int:
        """Bytes of keys, values and states that the system has given by now."""
        ...

    def sleep(self) -> int: ...
    def wake(self) -> None: ...
    def forget(self) -> None: ...


class UpdatesWeights(Protocol):
    """What loads other weights: `weight_update.WeightUpdater`."""

    def update(self, origin: Origin) -> tuple[int, dict[str, Any]]: ...
    def forget(self) -> None: ...


class EngineCore:
    """Owned by Engine. The methods above `stop`, and `stop`, are thread-safe; the rest belongs to the loop."""

    def __init__(self, runner: Runner, life: SequenceLifecycle, run_ahead: bool = False) -> None:
        self.runner, self.life, self.run_ahead = runner, life, run_ahead
        self.cache, self.scheduler, self.stats = life.cache, life.scheduler, life.stats
        self.stepper = StepExecutor(runner, life)
        self.traces = StepTraces(life.scheduler)
        self.collector = GarbageCollector(keeps=runner.device.type == "cpu")
        self.sleeper: SleepsEngine | None = None
        self.updater: UpdatesWeights | None = None
        self.rebalancer: ExpertRebalancer | None = None  # where experts lie whole on ranks
        self.adapters: AdapterManager | str = "none were set up"  # or why it takes none
        self.halted = False  # the model has no weights that belong together
        self.told: Callable[[], None] | None = None  # called when receivers of chunks have got those of a step
        self.after_step: Callable[[], None] | None = None  # tests check every invariant here
        self._inbox: deque[tuple[SequenceState, SequenceOp | None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self.cause: BaseException | None = None  # the error in the loop itself that ended it
        self._broken = False  # the last step broke off
        self._since: float | None = None  # when this turn of the loop began; None: it waits for something to do
        self._usual_interval: float | None = None
        self._meter = WorkBudget(STEP_WORK, hasty=True)
        self._unprepared = True  # nothing was made yet for grammars
        self._stuck_late = False  # nothing can be computed until a grammar is worked out
        life.soon = self.soon
        self._flying: RunningStep | None = None  # decided, not finished: the device may be computing it
        self._waited = False  # for a step, since the plan of this turn
        self._thread = threading.Thread(target=self._run, name="sgl-scheduler", daemon=True)

    # what other threads call

    def start(self) -> None:
        self.collector.stand()
        self._thread.start()

    def new_state(self, terms: SequenceOptions, status: SequenceStatus = SequenceStatus.IDLE) -> SequenceState:
        return self.life.new_state(terms, status)

    def submit(self, seq: SequenceState, op: SequenceOp) -> Future[Any]:
        op.future.keeper = self._thread
        if isinstance(op, Generate) and op.cuts:
            # what that needs is made here, once, not in the loop
            self.life.text.tokenizer.encode("", parse_special=False)
        self._post(seq, op)
        return op.future

    def abort(self, seq: SequenceState) -> None:
        self._post(seq, None)

    def call(self, task: Callable[[], Result]) -> Result:
        """Run `task()` on the scheduler thread between two steps and return its result."""
        if threading.current_thread() is self._thread:
            return task()
        return self.soon(task).result()

    def soon(self, task: Callable[[], Result]) -> Future[Result]:
        """The same for those who do not wait."""
        return self.submit(SequenceState(NOBODY), SchedulerCall(task))

    def ask(self, name: str, *args: Any) -> Any:
        """`answer` on the scheduler thread between two steps."""
        return self.call(partial(self.answer, name, *args))

    def ask_soon(self, name: str, *args: Any) -> Future[Any]:
        """The same for those who do not wait."""
        return self.soon(partial(self.answer, name, *args))

    @property
    def up(self) -> bool:
        """Whether it takes operations: it was neither stopped, nor has it failed."""
        return not self._stopping

    @property
    def failed(self) -> bool:
        """Whether the loop ended by an error in itself, the `cause`."""
        return self.cause is not None

    @property
    def stuck(self) -> float:
        """Seconds that the loop has not come around; 0 while it waits for something to do."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def asleep(self) -> bool:
        return self.sleeper is not None and self.sleeper.asleep

    def wait(self) -> None:
        """Until the loop has ended, because of `stop` or as it `failed`."""
        self._thread.join()

    def stop(self) -> None:
        """Fail everything that waits and end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def forget(self) -> None:
        """Once stopped: hold nothing that handles, which may outlive the engine, would keep in memory."""
        for holder in (self.sleeper, self.updater):
            if holder is not None:
                holder.forget()

    def adapt(self, name: str, *args: Any) -> Any:
        """A method of `adapters.room.AdapterManager` by its name, on the caller's thread.

        Raises ConfigError where the engine takes none.
        """
        if isinstance(self.adapters, str):
            raise ConfigError(f"no adapters here: {self.adapters}")
        if name == "unload" and self.up:
            self.call(int)  # sequences that were closed before have left by then
        return getattr(self.adapters, name)(*args)

    def adapter_digest(self, name: str) -> str:
        """What an adapter's name means now. Raises ConfigError for one that is not loaded."""
        return self.adapt("digest_of", name)

    # on the scheduler thread, between two steps

    def answer(self, name: str, *args: Any) -> Any:
        """The result of a method of that name.

        Such as flush, check, snapshot, tree, sleep, wake, update, rebalance, begin_ or end_trace, begin_ or
        end_recording.
        """
        asked = {"sleep": self.sleeper, "wake": self.sleeper, "update": self.updater, "rebalance": self.rebalancer}.get(
            name, self
        )
        return getattr(asked, name)(*args)

    def flush(self) -> int:
        if self.life.speculation is not None:
            self.life.speculation.forget()
        return self.cache.flush()

    def pause(self) -> None:
        """Finish what runs, take every page back and compute nothing until `resume`."""
        if self._flying is not None:
            self._finish()
        if self.rebalancer is not None:
            self.rebalancer.settle()
        self.scheduler.pause()
        self.cache.move_out()

    def resume(self) -> None:
        self.scheduler.paused = False
        self.life.renew_pins()

    def check(self) -> None:
        self.cache.check((self.cache.pages(seq) for seq in self.life.live), self.life.live)
        self.scheduler.check()

    def snapshot(self) -> Stats:
        experts = None if self.sleeper is None else self.sleeper.experts
        return gather_stats(
            self.stats, self.cache, self.scheduler, vars(self).get("runner"), self.life.adapters, experts
        )  # no runner after the end

    def touched(self) -> int:
        """See `ServingCore`."""
        return 0 if self.sleeper is None else self.sleeper.touched()

    def tree(self) -> CacheSnapshot:
        """Of the prefix cache and the sequences that hold pages."""
        pinned = self.scheduler.pinned
        return snapshot(
            self.cache,
            [
                (
                    seq.node,
                    seq.namespace,
                    seq.number,
                    "pinned" if seq in pinned else seq.status.value,
                    seq.tokens.array[: seq.computed],
                )
                for seq in self.life.live
                if len(seq.slots)
            ],
        )

    def begin_trace(self) -> int:
        return self.traces.begin()

    def end_trace(self, number: int) -> list[StepRecord]:
        return self.traces.end(number)

    def begin_recording(self) -> int:
        return self.life.recordings.begin()

    def end_recording(self, number: int) -> list[RecordedText]:
        return self.life.recordings.end(number, self.life.live)

    def _post(self, seq: SequenceState, op: SequenceOp | None) -> None:
        with self._wake:
            if not self._stopping:
                self._inbox.append((seq, op))
                self._wake.notify()
                return
        if isinstance(op, Close):
            op.resolve()
        elif op is not None:
            op.fail(self._ended("the engine is closed; open a new one"))

    def _ended(self, words: str) -> RuntimeFailure:
        """Why nothing is computed any more; `words` say it where the engine was closed."""
        if self.cause is None:
            return EngineClosed(words)
        error = EngineFailed(f"the engine failed: {shown(self.cause)}; open a new one")
        error.__cause__ = self.cause
        return error

    # the loop

    def _run(self) -> None:
        try:
            if self.runner.device.type == "cpu":
                take_priority()
            with self.runner.on_device(), metered(self._meter):
                self._loop()
        except BaseException as error:  # our own invariants broke
            note("the engine failed", error)
            self.cause = bare(error)
        with self._wake:
            self._stopping = True
        self._since = None
        tell = partial(self._fail_all, self._ended("the engine was closed while this waited"))
        for last in (
            self._relax,
            self.life.deliver,
            tell,
            self._tell,
            self.runner.close,
            self.life.close,
            self.cache.close,
            self.collector.close,
        ):
            try:
                last()
            except BaseException as error:  # no caller may be left waiting
                note("an engine that ends", error)
        self.adapters = "the engine is closed"
        del last, self.runner, self.stepper, self._flying  # handles may outlive the model's memory

    def _loop(self) -> None:
        while self._drain():
            self._meter.left = STEP_WORK
            self._hurry()
            self.collector.work()
            started = time.perf_counter()
            if self._try_step():
                self.stats.stepped(time.perf_counter() - started)
                if self.rebalancer is not None:
                    self.rebalancer.stepped()
            self._tell()
            self.traces.stepped()
            if self.scheduler.lingers and not self.scheduler.running:
                self._comes_in(LINGER)
            elif self._stuck_late:
                self._comes_in(PATIENCE)
            if self.life.speculation is not None:
                self.life.speculation.stepped(self._waited)
            if self.after_step is not None:
                self.after_step()
            if self._idle:
                self._relax()
                self.collector.rest()
                self.stepper.forget()
                if self.life.speculation is not None:
                    self.life.speculation.rest()

    def _try_step(self) -> bool:
        """A step; where it breaks off and no sequence can be blamed for it, all that was under way fails.

        Raises where that does not help: where what is left is not whole, or the step after it breaks off too.
        """
        try:
            worked = self._step()
        except BaseException as error:
            if self._broken:
                raise
            note("a step of the engine failed", error)
            self._broken, self._flying = True, None
            self.life.fail_work(RuntimeFailure(f"a step of the engine failed: {shown(error)}"))
            self.check()
            return False
        self._broken = False
        return worked

    def _step(self) -> bool:
        """Plan and launch a step, finish the one before.

        Finish this one instead where nothing runs ahead, or where draft tokens wait to be verified.
        """
        self.life.grammar_workers.give_turn()
        self._ready_for_drafts()
        work = self._plan()
        self._refuse()
        if not self.run_ahead:
            self.life.deliver()
        computed, started = self.stats.computed_tokens, time.perf_counter()
        step = self.stepper.launch(work)
        self.stats.model_seconds += time.perf_counter() - started
        if ahead := self.stats.computed_tokens - computed:
            self.scheduler.pace.launched(ahead, started)
        self.stats.compile_seconds, self.stats.capture_seconds = self.runner.waited()
        if self._flying is not None:
            self._finish(ahead)
        if step is None and len(self.stepper.late):
            step = RunningStep([], None)
        if step is not None:
            self.stepper.decide(step)
            self._flying = step
        drafted = any(seq.draft is not None for seq, *_ in work)
        self._stuck_late = bool(self.life.pending_grammars) and not ahead and (step is None or not step.waits)
        if self.run_ahead:
            self.life.deliver()
        if step is not None and (drafted or not self.run_ahead):
            self._finish()
        return self.stats.computed_tokens > computed

    def _ready_for_drafts(self) -> None:
        """Before a plan: drafts go on from known tokens only, so where some are wanted the running step is finished."""
        speculation = self.life.speculation
        if speculation is None:
            return
        speculation.begin()
        if self._flying is not None and speculation.turns.waits:
            self._finish()
        speculation.known = self._flying is None
        self._waited = False

    def _plan(self) -> list[ScheduledWork]:
        """Without those whom it cannot be made with: they fail."""
        while True:
            try:
                return self.traces.plan()
            except BaseException as error:
                seq = failing_sequence(error, self.life.live)
                if seq is None:
                    raise
                note("a sequence could not be planned", error)
                self.life.fail(seq, RuntimeFailure(f"it could not be planned: {shown(error)}"))

    def _finish(self, ahead: int = 0) -> None:
        """ahead: tokens of the step that was launched after it."""
        step, self._flying = self._flying, None
        assert step is not None
        self.stepper.finish(step)
        self._waited = step.waits
        if step.waits:
            self.scheduler.pace.finished(ahead)
        self._tell()

    def _tell(self) -> None:
        if self.told is not None:
            self.told()

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
        return not (self.scheduler.busy or self._inbox or self._flying)

    def _drain(self) -> bool:
        """Take what has come in; sleep while there is nothing to do. False: stop."""
        if self._idle:
            self._rest()
        self._since = time.monotonic()
        while self._inbox:
            seq, op = self._inbox.popleft()
            if op is None:
                self.life.attempt(seq, self.life.abort, seq)
            else:
                self._enqueue(seq, op)
        self.life.expire()
        return not self._stopping

    def _enqueue(self, seq: SequenceState, op: SequenceOp) -> None:
        try:
            self.life.enqueue(seq, op)
        except BaseException as error:
            self.life.fail(seq, error)
            op.fail(error)

    def _rest(self) -> None:
        """Until something comes in. First what makes later work faster, as long as no request waits for it."""
        self.life.deliver()
        self._tell()
        self._since = None
        while not (self._inbox or self._stopping) and self.runner.warm_up():
            pass
        if self._unprepared and not self._comes_in(SETTLED):
            self._unprepared = False
            self.life.grammar_workers.add(0, partial(_prepare, self.life.text.vocabulary))
        if self.collector.due and not self._comes_in(QUIET):
            self.collector.collect()
        if self.collector.needs_full_collection and not self._comes_in(LONG_QUIET):
            self.collector.collect_all_generations()
        self._comes_in()

    def _comes_in(self, most: float | None = None) -> bool:
        """Whether there is something to do; sleeps until there is, or a deadline passes, or for `most` seconds."""
        until = None if most is None else time.monotonic() + most
        with self._wake:
            while not (self._inbox or self._stopping) and (left := _sooner(self.life.deadlines.left(), until)) != 0:
                self._wake.wait(left)
        return bool(self._inbox or self._stopping or self.life.deadlines.left() == 0)

    def _refuse(self) -> None:
        refused, self.scheduler.refused = self.scheduler.refused, []
        for seq, error in refused:
            self.life.fail(seq, error)

    def _fail_all(self, error: BaseException) -> None:
        """The end: no caller is left waiting, whatever state things are in."""
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


def _sooner(left: float | None, until: float | None) -> float | None:
    """Seconds of the two that are left, 0.0 for none; None: for ever."""
    if until is None:
        return left
    rest = max(0.0, until - time.monotonic())
    return rest if left is None else min(left, rest)


def _prepare(vocabulary: Vocabulary) -> None:
    """Start and make what grammars need. What does so is imported here, not before the engine is ready."""
    from sgl.grammars.automaton.automaton_core_selection import prepare_vocabulary
    from sgl.grammars.compile_client import grammar_compile_policy

    grammar_compile_policy.start_early()
    prepare_vocabulary(vocabulary)
