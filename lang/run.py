"""Runs the body of a program on a fresh state: in this thread, in another one, or on an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .backend import Backend
from .config import global_config, resolve_backend
from .errors import LanguageError, UnknownOptionError, nearest
from .interpreter import StreamExecutor
from .options import DEFAULTS, RUN_NAMES, SamplingOptions, derive_seed, make_options
from .state import ProgramState

if TYPE_CHECKING:
    from .function import SglFunction

NO_THREAD = 0
_SWITCHES = frozenset({"stream", "backend", "use_thread"})


@dataclass(frozen=True)
class Call:
    """The arguments of one execution of a program."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunSettings:
    """How to run: where, with which sampling options (no gaps), streaming or not."""

    backend: Backend
    options: SamplingOptions
    stream: bool = False
    use_thread: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RunSettings:
        """From the keyword options of `run`. Raises UnknownOptionError, BadValueError."""
        for name in options:
            if name not in RUN_NAMES and name not in _SWITCHES:
                raise UnknownOptionError(
                    f"run has no option {name!r}; {nearest(name, RUN_NAMES | _SWITCHES)}"
                )
        sampling = make_options(**{name: value for name, value in options.items() if name in RUN_NAMES})
        return cls(
            resolve_backend(options.get("backend")),
            sampling.over(DEFAULTS),
            bool(options.get("stream", False)),
            bool(options.get("use_thread", True)),
        )

    def for_item(self, index: int) -> RunSettings:
        """The settings of item `index` of a batch: item 0 runs as a single run would."""
        seed = self.options.seed
        if index == 0 or seed is None:
            return self
        return replace(self, options=replace(self.options, seed=derive_seed(seed, -1, index)))


def split_options(program: SglFunction, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keyword arguments of `run`, as those of the program and options of the run.

    A name that the program declares as a parameter belongs to the program only. Raises UnknownOptionError.
    """
    arguments: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in program.parameter_names:
            arguments[name] = value
        elif name in RUN_NAMES or name in _SWITCHES:
            options[name] = value
        elif program.takes_any_keyword:
            arguments[name] = value
        else:
            known = RUN_NAMES | _SWITCHES | program.parameter_names
            raise UnknownOptionError(
                f"{program.__name__} has no parameter or option {name!r}; {nearest(name, known)}"
            )
    return arguments, options


def new_state(settings: RunSettings, call: Call) -> ProgramState:
    executor = StreamExecutor(
        settings.backend,
        settings.options,
        dict(call.kwargs),
        streaming=settings.stream,
        inline=not settings.use_thread,
    )
    return ProgramState(executor)


def run_program(program: SglFunction, call: Call, settings: RunSettings) -> ProgramState:
    """Run the body. Returns when it has ended (at once if streaming); generation may still go on."""
    state = new_state(settings, call)
    if settings.stream:
        state.stream_executor.body_thread = NO_THREAD  # readers wait for the body from now on
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run,
            args=(_body_for_readers, program, call, state),
            name="sgl-program",
            daemon=True,
        )
        thread.start()
    else:
        run_body(program, call, state)
    return state


def run_body(program: SglFunction, call: Call, state: ProgramState) -> None:
    """Run the body on `state` and end the state, whatever happens."""
    executor = state.stream_executor
    try:
        result = program.call(state, call)
        state.ret_value = run_coroutine(program, result) if inspect.iscoroutine(result) else result
    except BaseException as error:
        executor.end(error)
        raise
    executor.end()
    _report(state)


async def run_body_async(program: SglFunction, call: Call, state: ProgramState) -> None:
    """The body on the event loop if it is `async def`, else in a thread; then wait for all its operations."""
    if inspect.iscoroutinefunction(program.func):
        await _await_body(program, call, state)
    else:
        await asyncio.to_thread(run_body, program, call, state)
    await _finished(state)


async def _await_body(program: SglFunction, call: Call, state: ProgramState) -> None:
    executor = state.stream_executor
    try:
        state.ret_value = await program.call(state, call)
    except BaseException as error:
        executor.end(error)
        raise
    executor.end()


async def _finished(state: ProgramState) -> None:
    loop = asyncio.get_running_loop()
    finished = asyncio.Event()
    state.stream_executor.when_finished(lambda: loop.call_soon_threadsafe(finished.set))
    await finished.wait()


def _body_for_readers(program: SglFunction, call: Call, state: ProgramState) -> None:
    """The body of a streaming run: its error reaches those who read the state."""
    state.stream_executor.body_thread = threading.get_ident()
    try:
        run_body(program, call, state)
    except Exception:
        pass  # state.error(), the iterators and reads of variables raise it


def run_coroutine(program: SglFunction, coroutine: Any) -> Any:
    """The result of an `async def` body, where no event loop is running yet."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise LanguageError(
        f"{program.__name__} is async and an event loop is running: use `await {program.__name__}.arun()`"
    )


def _report(state: ProgramState) -> None:
    if global_config.verbosity >= 2:
        print(state.text())
