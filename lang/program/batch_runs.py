"""Many runs of one program: bodies in a bounded pool of threads, results in the order of the items."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import reprlib
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentsError, BadValueError, BatchError, ProgramError, nearest
from ..sampling.options import RUN_NAMES
from .program import Program, ProgramCall
from .program_run import RunSettings, new_executor, run_body, run_body_async
from .program_state import ProgramState

SWITCH_NAMES = ("num_threads", "progress_bar", "generator_style", "return_exceptions")
OPTION_NAMES = RUN_NAMES | {"backend", "timeout", "budget", "journal", "adapter"}
BODIES = 48  # how many bodies run at once by default; they only wait, the engine works
_INTERRUPTED = "the batch was interrupted"
_LONG = reprlib.Repr()  # what callers gave, as errors show it
_LONG.maxstring = _LONG.maxother = 60
WINDOW = 256  # items that a generator-style batch runs ahead of its reader, at least
ALLOCATIONS = 20_000  # between two collections of young objects; Python's own number is 700 or 2,000
_lock = threading.Lock()
_usual: list[tuple[int, int, int]] = []  # what to put back, once for each batch that is running


def meant(options: Iterable[str]) -> dict[str, str]:
    """What names other than options may mean, among all that a batch takes."""
    found = {name: nearest(name, [*OPTION_NAMES, *SWITCH_NAMES]) for name in options if name not in OPTION_NAMES}
    return {**found, "stream": "generator_style=True gives the states one after another, as they are finished"}


@dataclass(frozen=True)
class BatchRunSettings:
    num_threads: int | str = "auto"
    progress_bar: bool = False
    return_exceptions: bool = False

    def threads(self, items: int) -> int:
        """How many bodies run at once."""
        if self.num_threads == "auto":
            return max(1, min(items, BODIES))
        if isinstance(self.num_threads, bool) or not isinstance(self.num_threads, int) or self.num_threads < 1:
            raise BadValueError(f"num_threads is {self.num_threads!r}; give 'auto' or a whole number from 1")
        return min(items, self.num_threads) or 1


@dataclass(slots=True)
class RunOutcome:
    """A state whose body has run, and what the body raised. None: its backend opened no stream for it."""

    state: ProgramState | None
    raised: BaseException | None = None


def make_calls(program: Program, items: Any) -> list[ProgramCall]:
    """The arguments of each item. Raises ArgumentsError for what does not fit the program."""
    if not isinstance(items, list | tuple):
        meant = (
            "; put it into a list"
            if isinstance(items, dict)
            else "; make it a list: list(...)"
            if isinstance(items, Iterable) and not isinstance(items, str)
            else ""
        )
        raise ArgumentsError(
            f"run_batch takes a list of dicts or tuples, one for each run, not {_LONG.repr(items)}{meant}"
        )
    if not items:
        return []
    read = _keywords if isinstance(items[0], dict) else _called if isinstance(items[0], ProgramCall) else _positional
    return [ProgramCall((), read(program, item)) for item in items]


def run_all(program: Program, calls: list[ProgramCall], settings: RunSettings, plan: BatchRunSettings) -> list[Any]:
    """Run every call to its end; results in order. Raises BatchError for the first item whose body failed."""
    bar = _Progress(len(calls), plan.progress_bar)
    try:
        with collect_less_often():
            if plan.threads(len(calls)) > 1:
                outcomes = _run_pooled(program, calls, settings, plan, bar)
            else:
                items = enumerate(calls)
                outcomes = [_finish(_run_one(program, c, settings.for_item(i), bar)) for i, c in items]
    finally:
        bar.close()
    return _results(program, calls, outcomes, plan)


def iterate(program: Program, calls: list[ProgramCall], settings: RunSettings, plan: BatchRunSettings) -> Iterator[Any]:
    """Results in order, while later items are running. Leaving the iteration drops what has not begun.

    Raises BatchError at an item whose body failed, once those that are running have ended.
    """
    threads = plan.threads(len(calls))
    ahead: deque[Future[RunOutcome]] = deque()
    begun = 0
    bar = _Progress(len(calls), plan.progress_bar)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="sgl-batch")
    try:
        for place in range(len(calls)):
            while begun < len(calls) and len(ahead) < max(WINDOW, 2 * threads):
                ahead.append(_submit(pool, program, calls[begun], settings.for_item(begun), bar))
                begun += 1
            outcome = _finish(ahead.popleft().result())
            if _body_failed(outcome) and not plan.return_exceptions:
                others = [*[None] * place, outcome, *(_finish(other.result()) for other in ahead)]
                raise _failed(program, calls, [*others, *[None] * (len(calls) - begun)])
            yield _result(outcome, plan)
    except KeyboardInterrupt:
        bar.cancel()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        bar.close()


async def run_all_async(
    program: Program, calls: list[ProgramCall], settings: RunSettings, plan: BatchRunSettings
) -> list[Any]:
    """As `run_all`, on the event loop."""
    limit = asyncio.Semaphore(max(1, len(calls)) if program.is_async else plan.threads(len(calls)))

    async def one(index: int, call: ProgramCall) -> RunOutcome:
        async with limit:
            return await _run_one_async(program, call, settings.for_item(index))

    return _results(program, calls, list(await asyncio.gather(*map(one, range(len(calls)), calls))), plan)


async def _run_one_async(program: Program, call: ProgramCall, settings: RunSettings) -> RunOutcome:
    state: ProgramState | None = None
    try:
        state = ProgramState(new_executor(program, call, settings))
        await run_body_async(program, call, state)
    except Exception as error:
        return RunOutcome(state, error)
    return RunOutcome(state)


def _run_pooled(
    program: Program, calls: list[ProgramCall], settings: RunSettings, plan: BatchRunSettings, bar: _Progress
) -> list[RunOutcome]:
    pool = ThreadPoolExecutor(plan.threads(len(calls)), thread_name_prefix="sgl-batch")
    try:
        futures = [_submit(pool, program, call, settings.for_item(i), bar) for i, call in enumerate(calls)]
        return [_finish(future.result()) for future in futures]
    except BaseException:
        bar.cancel()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a body that sleeps must not hold up Ctrl-C


def _submit(
    pool: ThreadPoolExecutor, program: Program, call: ProgramCall, settings: RunSettings, bar: _Progress
) -> Future[RunOutcome]:
    return pool.submit(contextvars.copy_context().run, _run_one, program, call, settings, bar)


def _run_one(program: Program, call: ProgramCall, settings: RunSettings, bar: _Progress) -> RunOutcome:
    state: ProgramState | None = None
    try:
        state = ProgramState(new_executor(program, call, settings))
        bar.begin(state)
        run_body(program, call, state)
    except Exception as error:
        return RunOutcome(state, error)
    return RunOutcome(state)


def _finish(outcome: RunOutcome) -> RunOutcome:
    if outcome.state is not None:
        outcome.state.sync()
    return outcome


def _results(
    program: Program, calls: list[ProgramCall], outcomes: list[RunOutcome], plan: BatchRunSettings
) -> list[Any]:
    if not plan.return_exceptions and any(map(_body_failed, outcomes)):
        raise _failed(program, calls, outcomes)
    return [_result(outcome, plan) for outcome in outcomes]


def _result(outcome: RunOutcome, plan: BatchRunSettings) -> Any:
    return _error_or_state(outcome) if plan.return_exceptions else outcome.state


def _body_failed(outcome: RunOutcome | None) -> bool:
    """Whether the item has no state to say what happened: its body, or the opening of its stream, raised."""
    if outcome is None or outcome.raised is None:
        return False
    return outcome.state is None or not isinstance(outcome.raised, ProgramError)


def _failed(program: Program, calls: list[ProgramCall], outcomes: Sequence[RunOutcome | None]) -> BatchError:
    """The error of the first item that failed, with the results of all."""
    failed = {index: outcome.raised for index, outcome in enumerate(outcomes) if outcome and _body_failed(outcome)}
    results = [outcome and _error_or_state(outcome) for outcome in outcomes]
    return batch_error(program.__name__, [call.kwargs for call in calls], failed, results)


def batch_error(
    name: str,
    arguments: Sequence[Mapping[str, Any]],
    failed: Mapping[int, BaseException | None],
    results: Sequence[Any],
) -> BatchError:
    """The error of the first item that failed, chained to what it raised, with the results of all.

    `arguments`: of each item of the batch; `failed`: what those raised that failed, by their index.
    """
    index, cause = next(iter(failed.items()))
    given = ", ".join(f"{key}={reprlib.repr(value)}" for key, value in arguments[index].items())
    more = f"; {len(failed) - 1} more failed" if len(failed) > 1 else ""
    error = BatchError(
        f"item {index} of {len(arguments)}, {name}({given}), raised {type(cause).__name__}: {cause}{more}. "
        "The other results are in this error's `results`; with return_exceptions=True errors are returned, not raised",
        None,
        index,
        arguments[index],
        results,
    )
    error.__cause__ = cause
    return error


def _error_or_state(outcome: RunOutcome) -> BaseException | ProgramState | None:
    if outcome.raised is not None or outcome.state is None:
        return outcome.raised
    return outcome.state.error() or outcome.state


def _keywords(program: Program, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ArgumentsError(f"the first item of the batch is a dict, but there is also {_LONG.repr(item)}")
    for name in item:
        if name not in program.parameter_names and not program.takes_any_keyword:
            known = ", ".join(sorted(program.parameter_names))
            raise ArgumentsError(
                f"{program.__name__} has no parameter {name!r} (item {_LONG.repr(item)}); it has: {known}"
            )
    return item


def _called(program: Program, item: Any) -> dict[str, Any]:
    """The arguments that `program.item(...)` was given, by their names."""
    if not isinstance(item, ProgramCall):
        raise ArgumentsError(
            f"the first item of the batch is made by {program.__name__}.item, but there is also {_LONG.repr(item)}"
        )
    names = program.arg_names
    if len(item.args) > len(names):
        raise ArgumentsError(
            f"{program.__name__}.item{_LONG.repr(item.args)}: an item of a batch has no arguments without names, "
            f"only: {', '.join(names)}"
        )
    return _keywords(program, {**dict(zip(names, item.args, strict=False)), **item.kwargs})


def _positional(program: Program, item: Any) -> dict[str, Any]:
    names = program.arg_names
    required = len(names) - len(program.arg_defaults)
    if not isinstance(item, Sequence) or isinstance(item, str) or not required <= len(item) <= len(names):
        raise ArgumentsError(
            f"Given arguments mismatch the SGL function signature: {_LONG.repr(item)} for "
            f"{program.__name__}({', '.join(names)})"
            f"{_as_item(item, names)}"
        )
    return dict(zip(names, item, strict=False))


def _as_item(item: Any, names: Sequence[str]) -> str:
    """How a single argument is written as an item."""
    if isinstance(item, list | tuple) or not names:
        return ""
    shown = reprlib.repr(item)
    return f"; an item is a tuple or a dict of arguments: give ({shown},) or {{{names[0]!r}: {shown}}}"


class _Progress:
    """The programs that have begun, with a bar that counts the finished ones, or none."""

    def __init__(self, total: int, shown: bool) -> None:
        self._lock = threading.Lock()
        self._begun: weakref.WeakSet[ProgramState] = weakref.WeakSet()
        self._cancelled = False
        self._bar: Any = None
        if shown:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # in a notebook without ipywidgets it draws with letters
                from tqdm.auto import tqdm

            self._bar = tqdm(total=total)

    def begin(self, state: ProgramState) -> None:
        with self._lock:
            self._begun.add(state)
        if self._cancelled:
            state.cancel(_INTERRUPTED)
        state.stream_executor.when_finished(self.step)

    def cancel(self) -> None:
        """Stop all that run: their results are no longer wanted."""
        with self._lock:
            self._cancelled = True
            states = list(self._begun)
        for state in states:
            state.cancel(_INTERRUPTED)

    def step(self) -> None:
        if self._bar is not None:
            with self._lock:
                self._bar.update(1)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


@contextmanager
def collect_less_often() -> Iterator[None]:
    """Inside, the cycle collector runs rarely; afterwards as the host program has set it. Leaves gc.disable() alone.

    States form no cycles: they are freed when the last reference goes. A collector that counts their objects, made by
    the million, walks through all of them again and again.
    """
    with _lock:
        usual = _usual[0] if _usual else gc.get_threshold()
        _usual.append(usual)
        if 0 < usual[0] < ALLOCATIONS:
            gc.set_threshold(ALLOCATIONS, *usual[1:])
    try:
        yield
    finally:
        with _lock:
            _usual.pop()
            if not _usual:
                gc.set_threshold(*usual)
