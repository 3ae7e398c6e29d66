"""`sglang.lang.interpreter`, `.tracer`, `.compiler`: functions whose parameters differ from ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends.default_backend import as_backend, resolve_backend
from ..graph.trace_program import current_tracer, extract_prefix
from ..graph.tracer import TracerProgramState
from ..program.program import ProgramCall
from ..program.program_run import RunSettings
from ..program.program_run import run_program as run_here
from ..program.program_state import ProgramState
from ..sampling.options import SamplingOptions
from ..sgl_function import SglFunction


def run_program(
    program: SglFunction,
    backend: Any,
    func_args: Sequence[Any],
    func_kwargs: dict[str, Any],
    default_sampling_para: SamplingOptions,
    stream: bool,
    sync: bool = False,
    use_thread: bool = True,
) -> ProgramState:
    """Run a program once; with `sync` all of it is done when this returns."""
    settings = RunSettings.of({"backend": backend, "stream": stream, "use_thread": use_thread})
    options = default_sampling_para.over(settings.options)
    settings = RunSettings(settings.backend, options, stream, use_thread)
    state = run_here(program, ProgramCall(tuple(func_args), func_kwargs), settings)
    if sync:
        state.sync()
    return state


def cache_program(program: SglFunction, backend: Any) -> None:
    """See SglFunction.cache."""
    program.cache(backend)


def extract_prefix_by_tracing(program: SglFunction, backend: Any) -> str:
    """The constant text that every run of the program begins with."""
    return extract_prefix(program, resolve_backend(backend))


def compile_func(function: SglFunction, backend: Any) -> Any:
    """See SglFunction.compile."""
    return function.compile(backend=as_backend(backend))


class TracingScope:
    """Programs ask it whether they are being traced."""

    @staticmethod
    def get_current_scope() -> TracerProgramState | None:
        return current_tracer()
