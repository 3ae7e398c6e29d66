"""Runs the body of a program on a fresh state: in this thread, in another one, or on an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, partial
from typing import Any

from ..backend import Backend, Stream
from ..backends.default_backend import resolve_backend
from ..errors import BadValueError, UnknownOptionError, nearest
from ..global_config import global_config
from ..interpreter.run_control import RunControl
from ..interpreter.stream_executor import StreamExecutor
from ..interpreter.token_usage import Budget
from ..sampling.adapter_selection import Adapter, checked, one_each
from ..sampling.options import RUN_DEFAULTS, RUN_NAMES, SamplingOptions, derive_seed, make_options
from .async_program_state import AsyncProgramState
from .program import Program, ProgramCall
from .program_state import ProgramState
from .report_and_journal_hooks import journals

NO_THREAD = 0
_SWITCHES = frozenset({"stream", "backend", "use_thread", "timeout", "budget", "journal", "adapter"})


@dataclass(frozen=True)
class RunSettings:
    """How to run: where, with which sampling options (no gaps but max_new_tokens), streaming or not, and for how long
    at most.

    `adapters`: of a batch, one for each item; else all run under `adapter`.
    """

    backend: Backend
    options: SamplingOptions
    stream: bool = False
    use_thread: bool = True
    timeout: float | None = None
    budget: Budget | None = None
    returns_errors: bool = False  # the caller gets them as results
    adapter: Adapter = None
    adapters: tuple[Adapter, ...] = ()
    warned: set[Hashable] = field(default_factory=set)  # of all items together: what was warned about

    @classmethod
    def of(cls, options: Mapping[str, Any], returns_errors: bool = False, items: int | None = None) -> RunSettings:
        """From the keyword options of `run`, or of a batch of so many items.

        Raises UnknownOptionError, BadValueError.
        """
        sampling = sampling_options(options)
        budget = _budget(options.get("budget"))
        backend, journal, adapter = (
            resolve_backend(options.get("backend")),
            options.get("journal"),
            options.get("adapter"),
        )
        if budget and budget.cost is not None and backend.prices is None:
            raise BadValueError(
                f"budget={budget!r}: {type(backend).__name__} has no prices; give it prices=sgl.Prices(...)"
            )
        many = items is not None and isinstance(adapter, list | tuple)
        return cls(
            backend if journal is None else journals().journalled(backend, journal),
            sampling.over(RUN_DEFAULTS),
            bool(options.get("stream", False)),
            bool(options.get("use_thread", True)),
            make_options(timeout=options.get("timeout")).timeout,
            budget,
            returns_errors,
            None if many else checked(adapter),
            tuple(one_each(adapter, items or 0, "items")) if many else (),
        )

    @property
    def adapted(self) -> bool:
        """Whether an adapter computes any of the runs."""
        return self.adapter is not None or any(self.adapters)

    def for_item(self, index: int) -> RunSettings:
        """The settings of item `index` of a batch: item 0 runs as a single run would."""
        seed, adapter = self.options.seed, self.adapters[index] if self.adapters else self.adapter
        if index == 0:
            return replace(self, adapter=adapter)
        options = self.options if seed is None else replace(self.options, seed=derive_seed(seed, -1, index))
        return replace(self, options=options, backend=self.backend.for_item(index), adapter=adapter)


def sampling_options(options: Mapping[str, Any]) -> SamplingOptions:
    """Those of the options of a run that gens inherit. Raises UnknownOptionError, BadValueError."""
    for name in options:
        if name not in RUN_NAMES and name not in _SWITCHES:
            raise UnknownOptionError(f"run has no option {name!r}; {nearest(name, RUN_NAMES | _SWITCHES)}")
    return make_options(**{name: value for name, value in options.items() if name in RUN_NAMES})


def _budget(value: Any) -> Budget | None:
    if value is None or isinstance(value, Budget):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Budget(tokens=value)
    raise BadValueError(f"budget is {value!r}; give an sgl.Budget, or a number of tokens")


def split_options(program: Program, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keyword arguments of `run`, as those of the program and options of the run.

    A name that the program declares as a parameter belongs to the program only. What `with_options` has fixed are
    options too; those in `kwargs` win. Raises UnknownOptionError.
    """
    arguments: dict[str, Any] = {}
    options: dict[str, Any] = dict(program.run_options)
    for name, value in kwargs.items():
        if name in program.parameter_names:
            arguments[name] = value
        elif name in RUN_NAMES or name in _SWITCHES:
            options[name] = value
        elif program.takes_any_keyword:
            arguments[name] = value
        else:
            raise UnknownOptionError(
                f"{program.__name__} has no parameter or option {name!r}; {_meant(program, name, kwargs)}"
            )
    return arguments, options


def _meant(program: Program, name: str, given: Mapping[str, Any]) -> str:
    """What a name that does not exist may stand for: a parameter that is not given, else an option of the run."""
    free = sorted(program.parameter_names - given.keys() - program.bind_arguments.keys())
    begun = [own for own in free if own.startswith(name) or name.startswith(own)]
    options = sorted(RUN_NAMES | _SWITCHES)
    near = get_close_matches(name, free, 1) or get_close_matches(name, options, 1, 0.75) or begun
    if near:
        return f"did you mean {near[0]!r}?"
    return f"its parameters: {', '.join(program.arg_names) or 'none'}; help(sgl.SglFunction.run) has the options"


def new_executor(
    program: Program, call: ProgramCall, settings: RunSettings, stream: Stream | None = None
) -> StreamExecutor:
    """A fresh state of a fresh run."""
    backend = settings.backend
    control = RunControl(backend, program.__name__, settings.timeout, settings.budget)
    control.root.adapter = settings.adapter
    control.warned = settings.warned
    executor = StreamExecutor(
        backend,
        settings.options,
        dict(call.kwargs),
        streaming=settings.stream,
        inline=not settings.use_thread,
        stream=_opened(program, settings) or stream,
        control=control,
    )
    executor.failure_is_returned = settings.returns_errors
    executor.when_finished(partial(_over, control, weakref.ref(executor)))
    return executor


def _over(control: RunControl, reference: weakref.ref[StreamExecutor]) -> None:
    executor = reference()
    control.finished((executor.body_error or executor.failure) if executor is not None else None)


def _opened(program: Program, settings: RunSettings) -> Stream | None:
    """None: as every stream of the backend is opened."""
    if settings.adapter is not None:
        return settings.backend.open_adapted(settings.adapter)
    speculating = program.num_api_spec_tokens
    return settings.backend.open_speculating(speculating) if speculating else None


def run_program(program: Program, call: ProgramCall, settings: RunSettings) -> ProgramState:
    """Run the body. Returns when it has ended (at once if streaming); generation may still continue."""
    executor = new_executor(program, call, settings)
    state = ProgramState(executor)
    if settings.stream:
        executor.body_thread = NO_THREAD  # readers wait for the body from now on
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(_body_for_readers, program, call, executor), name="sgl-program", daemon=True
        )
        thread.start()
    else:
        run_body(program, call, state)
    return state


def run_body(program: Program, call: ProgramCall, state: ProgramState) -> None:
    """Run the body on `state` and end the state, whatever happens."""
    executor = state.stream_executor
    try:
        with executor.control.scope():
            if program.is_async:
                executor.ret_value = run_coroutine(program.call(AsyncProgramState(executor), call))
            else:
                executor.ret_value = program.call(state, call)
    except BaseException as error:
        executor.end(error)
        raise
    executor.end()
    _report(state)


async def run_body_async(program: Program, call: ProgramCall, state: ProgramState) -> None:
    """The body on the event loop if it is `async def`, else in a thread; then wait for all its operations.

    When the task is cancelled, so is the run.
    """
    try:
        if program.is_async:
            await _await_body(program, call, state.stream_executor)
        else:
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(bodies(), context.run, run_body, program, call, state)
        await _finished(state.stream_executor)
    except asyncio.CancelledError:
        state.cancel("the task that ran the program was cancelled")
        raise


async def _await_body(program: Program, call: ProgramCall, executor: StreamExecutor) -> None:
    try:
        with executor.control.scope():
            executor.ret_value = await program.call(AsyncProgramState(executor), call)
    except BaseException as error:
        executor.end(error)
        raise
    executor.end()


async def _finished(executor: StreamExecutor) -> None:
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()

    def tell() -> None:
        try:
            loop.call_soon_threadsafe(finished.set)
        except RuntimeError:
            pass  # the loop is gone: its waiters were cancelled

    executor.when_finished(tell)
    await finished.wait()


@cache
def bodies() -> ThreadPoolExecutor:
    """Threads for plain bodies that event loops wait for."""
    return ThreadPoolExecutor(48, thread_name_prefix="sgl-body")


def _body_for_readers(program: Program, call: ProgramCall, executor: StreamExecutor) -> None:
    """The body of a streaming run: its error reaches those who read the state.

    It writes to a separate state, so that the caller's can be released.
    """
    executor.body_thread = threading.get_ident()
    try:
        run_body(program, call, ProgramState(executor))
    except Exception:
        pass  # state.error(), the iterators and reads of variables raise it


def run_coroutine(coroutine: Any) -> Any:
    """The result of an `async def` body: on a separate loop, in another thread if this one has a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    context = contextvars.copy_context()
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(context.run(asyncio.run, coroutine))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="sgl-program", daemon=True).start()
    return result.result()


def _report(state: ProgramState) -> None:
    if global_config.verbosity >= 2:
        print(state.text())
