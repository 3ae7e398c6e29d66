"""Runs a program's body with placeholders for what is not known, and keeps the graph of its nodes."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from ..backend import Backend
from ..backends.default_backend import as_backend
from ..chat import ChatTemplate, get_chat_template
from ..places.source_location import caller_place
from ..program.program import Program, ProgramCall, check_program
from ..program.program_run import run_coroutine, split_options
from ..sampling.adapter_selection import Change
from .trace_recording import PrefixEnded, TracedState, TraceRecording
from .trace_steps import CallStep
from .traced_forks import TracerGroup
from .tracer import TracerProgramState

_current: ContextVar[TracerProgramState | None] = ContextVar("sgl_tracer", default=None)


def current_tracer() -> TracerProgramState | None:
    """The innermost trace that is running in this context."""
    return _current.get()


def trace_program(
    program: Program, arguments: dict[str, Any], backend: Any = None, strict: bool = False
) -> TracerProgramState:
    """The traced state of a whole program; missing arguments are placeholders.

    `strict`: whatever would depend on a value that only a run has raises TraceError.
    """
    template = get_chat_template("default") if backend is None else as_backend(backend).get_chat_template()
    tracer = _root(program, template, TraceRecording(strict=strict))
    _run(tracer, program, ProgramCall((), _with_placeholders(tracer, program, arguments)))
    return tracer


def extract_prefix(program: Program, backend: Backend) -> str:
    """The constant text that every run of the program starts with, whatever its unbound arguments."""
    tracer = _root(program, backend.get_chat_template(), TraceRecording(only_prefix=True))
    try:
        _run(tracer, program, ProgramCall((), _with_placeholders(tracer, program, {})))
    except Exception:
        pass  # the body needed a value or came to its first node that is not constant: the prefix ends there
    return tracer.constant_prefix()


def trace_nested(
    tracer: TracerProgramState, program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TracerProgramState:
    """Trace a program that the one of `tracer` calls, in a separate state."""
    recording = tracer.recording
    if recording.only_prefix:
        raise PrefixEnded
    arguments, options = split_options(program, kwargs)
    traced = TracedState(recording, tracer.chat_template, "call", program.__name__, tracer.traced)
    parent = tracer.traced.index
    recording.steps.append(CallStep(traced.index, caller_place(), 0, parent, program, options, arguments))
    nested = TracerProgramState(traced)
    tracer.child_states.append(nested)
    _run(nested, program, ProgramCall(args, arguments))
    nested.end()
    return nested


def _root(program: Program, template: ChatTemplate, recording: TraceRecording) -> TracerProgramState:
    return TracerProgramState(TracedState(recording, template, "program", program.__name__))


def _with_placeholders(tracer: TracerProgramState, program: Program, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with placeholders for the parameters that are not given."""
    parameters = inspect.signature(program.func).parameters
    given = {**arguments, **program.bind_arguments}
    for name in program.parameter_names - set(given):
        default = parameters[name].default
        known = {} if default is inspect.Parameter.empty else {"value": default}
        arguments = {**arguments, name: tracer.recording.argument(name, **known)}
    return arguments


def _run(tracer: TracerProgramState, program: Program, call: ProgramCall) -> None:
    """Run the body on the tracer, inside the scope of its trace."""
    token = _current.set(tracer)
    try:
        if program.is_async:
            tracer.ret_value = run_coroutine(program.call(AsyncTracerProgramState(tracer), call))
        else:
            tracer.ret_value = program.call(tracer, call)
    finally:
        _current.reset(token)


class AsyncTracerProgramState(TracerProgramState):
    """The same text and variables as `state`, with awaitable reads."""

    def __init__(self, state: TracerProgramState) -> None:
        super().__init__(state.traced, scope=state.scope)
        self.variables = state.variables
        self.child_states = state.child_states

    def fork(
        self, size: int = 1, position_ids_offset: list[int] | None = None, *, adapter: Change = ...
    ) -> AsyncTracerGroup:
        children = self._fork(size, position_ids_offset, adapter)
        return AsyncTracerGroup([AsyncTracerProgramState(child) for child in children], self)

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[AsyncTracerProgramState]:  # type: ignore[override]
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            await group.join()

    async def call(  # type: ignore[override]
        self, program: Program, /, *args: Any, **kwargs: Any
    ) -> AsyncTracerProgramState:
        check_program(program)
        inner = AsyncTracerProgramState(self._scoped())
        result = program.call(inner, ProgramCall(args, kwargs))
        inner.ret_value = await result if inspect.isawaitable(result) else result
        return inner

    async def get(self, name: Any, type: Any = None) -> Any:
        return super().get(name, type)

    async def text(self) -> Any:
        return super().text()

    async def messages(self) -> Any:  # type: ignore[override]
        return super().messages()

    async def sync(self) -> None:  # type: ignore[override]
        super().sync()

    async def error(self) -> None:  # type: ignore[override]
        super().sync()

    async def get_meta_info(self, name: str) -> Any:
        return super().get_meta_info(name)

    async def probs(self, name: str) -> Any:
        return super().probs(name)


class AsyncTracerGroup(TracerGroup):
    """The branches of a fork in a traced `async def` program."""

    src_state: AsyncTracerProgramState

    async def join(self, mode: str = "gather_variable") -> None:  # type: ignore[override]
        super().join(mode)

    ajoin = join
