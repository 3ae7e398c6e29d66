"""A program: a Python function that appends to its state."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, overload

from .backends.default_backend import resolve_backend
from .errors import reject_unknown
from .graph.trace_program import current_tracer, extract_prefix, trace_nested, trace_program
from .graph.tracer import TracerProgramState
from .program import batch_runs
from .program.batch_options import BatchDisplayOptions, BatchOptions
from .program.program import Program, ProgramCall
from .program.program_run import RunSettings, new_executor, run_body_async, run_program, split_options
from .program.program_state import ProgramState

if TYPE_CHECKING:
    from .graph.compiled_program import CompiledProgram

Items: TypeAlias = Sequence[
    dict[str, Any] | Sequence[Any]
]  # of a batch: dicts of arguments, or tuples of them in their order
MIN_PREFIX = 64  # characters; a shorter prefix is not worth an entry in the cache


class SglFunction(Program):
    """A program: the result of `@sgl.function` on a function whose first parameter is `s`."""

    pin_prefix_rid: str | None = None

    def __reduce__(self) -> Any:
        """By name, as functions are pickled, with the bound arguments."""
        if not self.bind_arguments:
            return self.func.__qualname__
        return _bound, (self.func.__module__, self.func.__qualname__, self.bind_arguments)

    # --- running -----------------------------------------------------------------------------------------

    def run(self, /, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the program. Returns when the body has ended; reading the state waits for the rest.

        Pass the program's own arguments and, as keywords, any of these options (a parameter of the program with the
        same name takes precedence):

        backend    where to run; by default the default backend, which is the bundled model unless you set another
        stream     True: return at once, read the state while it grows (False)
        use_thread False: wait for each node where it is appended (True)
        timeout    seconds for the whole run
        budget     an sgl.Budget, or a number of tokens
        journal    a file to record the run in and to resume it from
        adapter    the name of an adapter (LoRA) that the engine has loaded and that computes the run; forks inherit it

        The sampling options are defaults for the program's gens: max_tokens (128; none for gens with a type or a
        constraint), temperature (1.0), top_p (1.0), top_k (-1), min_p (0.0), top_n_sigma (0.0), frequency_penalty
        (0.0), presence_penalty (0.0), repetition_penalty (1.0), logit_bias, stop, stop_token_ids, stop_regex,
        keep_stop, ignore_eos, seed, return_logprob, top_logprobs_num (0), masked_logprobs, close_at_limit,
        error_on_truncation, speculation, n (1), logprob_start_len, return_text_in_logprobs.

        Raises any error of the body; UnknownOptionError and BadValueError for options.
        """
        if tracer := current_tracer():
            return trace_nested(tracer, self, args, kwargs)  # type: ignore[return-value]
        arguments, options = split_options(self, kwargs)
        return run_program(self, self.check(ProgramCall(args, arguments)), RunSettings.of(options))

    @overload
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        generator_style: Literal[False] = ...,
        return_exceptions: Literal[False] = ...,
        **options: Unpack[BatchDisplayOptions],
    ) -> list[ProgramState]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        generator_style: Literal[True],
        return_exceptions: Literal[False] = ...,
        **options: Unpack[BatchDisplayOptions],
    ) -> Iterator[ProgramState]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        generator_style: Literal[False] = ...,
        return_exceptions: bool,
        **options: Unpack[BatchDisplayOptions],
    ) -> list[ProgramState | Exception]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        generator_style: Literal[True],
        return_exceptions: bool,
        **options: Unpack[BatchDisplayOptions],
    ) -> Iterator[ProgramState | Exception]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        generator_style: bool,
        return_exceptions: bool = ...,
        **options: Unpack[BatchDisplayOptions],
    ) -> Iterable[Any]: ...
    def run_batch(
        self,
        batch_kwargs: Items,
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        return_exceptions: bool = False,
        **options: Any,
    ) -> Iterable[Any]:
        """Run the program once for each item. An item is a dict of arguments, or a tuple of positional ones.

        Returns the finished states in the order of the items; with `generator_style`, an iterator that runs a
        limited number of items ahead. `num_threads` limits how many bodies run at once (1: one item after another
        in this thread). A body that reads no values occupies its thread only for a moment.

        If a node fails, the result is the item's state, and its `error()` is set. If a body itself raises, the
        other items still finish, then the error is raised. With `return_exceptions`, nothing is raised: either
        kind of error replaces the state in the result list.

        `options` are those of `run`, except stream and use_thread; `adapter` may be a list with one for each item.
        """
        reject_unknown("run_batch", options, batch_runs.OPTION_NAMES, batch_runs.meant(options))
        calls = batch_runs.make_calls(self, batch_kwargs)
        plan = batch_runs.BatchRunSettings(num_threads, progress_bar, return_exceptions)
        settings = RunSettings.of(options, return_exceptions, len(calls))
        if generator_style:
            return batch_runs.iterate(self, calls, settings, plan)
        return batch_runs.run_all(self, calls, settings, plan) if calls else []

    async def arun(self, /, *args: Any, **kwargs: Any) -> ProgramState:
        """`run` for event loops, for `def` and `async def` programs. Returns the finished state.

        An `async def` body reads values with `await s.get("name")`; a plain body runs in a thread. With
        stream=True the state is returned at once; read it with `async for`. Cancelling the task cancels the run.
        """
        if tracer := current_tracer():
            return trace_nested(tracer, self, args, kwargs)  # type: ignore[return-value]
        arguments, options = split_options(self, kwargs)
        call, settings = self.check(ProgramCall(args, arguments)), RunSettings.of(options)
        if settings.stream:
            return run_program(self, call, settings)
        state = ProgramState(new_executor(self, call, settings))
        await run_body_async(self, call, state)
        return state

    @overload
    async def arun_batch(
        self, batch_kwargs: Items, *, return_exceptions: Literal[False] = ..., **options: Unpack[BatchOptions]
    ) -> list[ProgramState]: ...
    @overload
    async def arun_batch(
        self, batch_kwargs: Items, *, return_exceptions: bool, **options: Unpack[BatchOptions]
    ) -> list[ProgramState | Exception]: ...
    async def arun_batch(
        self, batch_kwargs: Items, *, num_threads: int | str = "auto", return_exceptions: bool = False, **options: Any
    ) -> list[Any]:
        """`run_batch` for event loops. All `async def` bodies run at once; plain bodies run in threads."""
        reject_unknown("arun_batch", options, batch_runs.OPTION_NAMES, batch_runs.meant(options))
        calls = batch_runs.make_calls(self, batch_kwargs)
        plan = batch_runs.BatchRunSettings(num_threads, False, return_exceptions)
        return await batch_runs.run_all_async(self, calls, RunSettings.of(options, return_exceptions, len(calls)), plan)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; inside a trace, trace it."""
        return self.run(*args, **kwargs)

    # --- tracing, caching ------------------------------------------------------------------------------------

    def trace(self, *, backend: Any = None, **kwargs: Any) -> TracerProgramState:
        """Return the graph of the program's nodes. Arguments you leave out become placeholders."""
        return trace_program(self, kwargs, backend)

    def compile(self, backend: Any = None, **bound: Any) -> CompiledProgram:
        """Return the program as a graph that runs without its Python body. `bound` fixes some arguments.

        The body runs once, now, with placeholders for the other arguments. Raises TraceError with the line
        if its control flow depends on generated values.
        """
        from .graph.compiled_program import compile_program

        return compile_program(self, backend, bound)

    def cache(self, backend: Any = None) -> None:
        """Compute and cache the constant start of the program's text, if it is longer than 64 characters."""
        resolved = resolve_backend(backend)
        prefix = extract_prefix(self, resolved)
        if len(prefix) > MIN_PREFIX:
            resolved.cache_prefix(prefix)


def _bound(module: str, name: str, arguments: dict[str, Any]) -> SglFunction:
    program: SglFunction = attrgetter(name)(importlib.import_module(module))
    return program.bind(**arguments)


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: int | None = None) -> SglFunction: ...
@overload
def function(
    func: None = None, num_api_spec_tokens: int | None = None, **older: int | None
) -> Callable[[Callable[..., Any]], SglFunction]: ...
def function(
    func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None, **older: int | None
) -> Any:
    """Turn a function into a program. Its first parameter, `s`, is the state. Works with or without parentheses.

    `num_api_spec_tokens`: with a remote API, one call writes up to this many tokens ahead and the following gens
    take their text from them, which saves calls. Local engines ignore it. Raises UnknownOptionError for other options.
    """
    reject_unknown("function", older.keys() - {"api_num_spec_tokens"}, {"num_api_spec_tokens"})
    ahead = num_api_spec_tokens if num_api_spec_tokens is not None else older.get("api_num_spec_tokens")
    if func is None:
        return lambda inner: SglFunction(inner, ahead)
    return SglFunction(func, ahead)
