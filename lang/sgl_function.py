"""A program: a Python function that appends to its state."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from .backends.default_backend import resolve_backend
from .errors import reject_unknown
from .graph.trace_program import current_tracer, extract_prefix, trace_nested, trace_program
from .graph.tracer import TracerProgramState
from .program.async_program_state import AsyncProgramState
from .program.batchable_program import BatchableProgram
from .program.program import ProgramCall
from .program.program_method import ProgramMethod, is_method
from .program.program_run import RunSettings, new_executor, run_body_async, run_program, split_options
from .program.program_state import ProgramState
from .program.run_options import RunOptions
from .program.type_parameters import Parameters, Returned_co

if TYPE_CHECKING:
    from .graph.compiled_program import CompiledProgram

Own = ParamSpec("Own")  # parameters of a function after the state
Result = TypeVar("Result")
A = TypeVar("A")  # A to D: arguments by their places
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
MIN_PREFIX = 64  # characters; a shorter prefix is not worth an entry in the cache


class SglFunction(BatchableProgram[Parameters, Returned_co]):
    """A program: the result of `@sgl.function` on a function whose first parameter is `s`.

    For type checkers it is generic in the parameters after `s` and in what the body returns. `run` and `arun` take
    the arguments alone, or up to four by place and then options; other arguments with options are
    `program.with_options(...).run(...)`.
    """

    pin_prefix_rid: str | None = None

    def bind(self, **kwargs: Any) -> SglFunction[..., Returned_co]:
        """Return the same program with some of its arguments fixed. Raises ArgumentsError for other names."""
        return super().bind(**kwargs)  # type: ignore[return-value]

    # --- running -----------------------------------------------------------------------------------------

    @overload
    def run(self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> ProgramState[Returned_co]: ...
    @overload
    def run(self: Callable[[], ProgramState[Result]], /, **options: Unpack[RunOptions]) -> ProgramState[Result]: ...
    @overload
    def run(
        self: Callable[[A], ProgramState[Result]], a: A, /, **options: Unpack[RunOptions]
    ) -> ProgramState[Result]: ...
    @overload
    def run(
        self: Callable[[A, B], ProgramState[Result]], a: A, b: B, /, **options: Unpack[RunOptions]
    ) -> ProgramState[Result]: ...
    @overload
    def run(
        self: Callable[[A, B, C], ProgramState[Result]], a: A, b: B, c: C, /, **options: Unpack[RunOptions]
    ) -> ProgramState[Result]: ...
    @overload
    def run(
        self: Callable[[A, B, C, D], ProgramState[Result]], a: A, b: B, c: C, d: D, /, **options: Unpack[RunOptions]
    ) -> ProgramState[Result]: ...
    def run(self, /, *args: Any, **kwargs: Any) -> ProgramState[Any]:
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
    async def arun(self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> ProgramState[Returned_co]: ...
    @overload
    async def arun(
        self: Callable[[], ProgramState[Result]], /, **options: Unpack[RunOptions]
    ) -> ProgramState[Result]: ...
    @overload
    async def arun(
        self: Callable[[A], ProgramState[Result]], a: A, /, **options: Unpack[RunOptions]
    ) -> ProgramState[Result]: ...
    @overload
    async def arun(
        self: Callable[[A, B], ProgramState[Result]], a: A, b: B, /, **options: Unpack[RunOptions]
    ) -> ProgramState[Result]: ...
    @overload
    async def arun(
        self: Callable[[A, B, C], ProgramState[Result]], a: A, b: B, c: C, /, **options: Unpack[RunOptions]
    ) -> ProgramState[Result]: ...
    @overload
    async def arun(
        self: Callable[[A, B, C, D], ProgramState[Result]], a: A, b: B, c: C, d: D, /, **options: Unpack[RunOptions]
    ) -> ProgramState[Result]: ...
    async def arun(self, /, *args: Any, **kwargs: Any) -> ProgramState[Any]:
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

    def __call__(self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> ProgramState[Returned_co]:
        """Run the program; inside a trace, trace it."""
        return self.run(*args, **kwargs)

    # --- tracing, caching ------------------------------------------------------------------------------------

    def trace(self, *, backend: Any = None, **kwargs: Any) -> TracerProgramState:
        """Return the graph of the program's nodes. Arguments you leave out become placeholders."""
        return trace_program(self, kwargs, backend)

    def compile(self, backend: Any = None, **bound: Any) -> CompiledProgram[Returned_co]:
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


class ProgramDecorator(Protocol):
    """What `@sgl.function(...)` with options puts above a function."""

    @overload
    def __call__(
        self, func: Callable[Concatenate[AsyncProgramState, Own], Coroutine[Any, Any, Result]], /
    ) -> SglFunction[Own, Result]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[ProgramState, Own], Result], /) -> SglFunction[Own, Result]: ...
    @overload
    def __call__(
        self,
        func: Callable[Concatenate[Any, AsyncProgramState, Own], Coroutine[Any, Any, Result]]
        | classmethod[Any, Concatenate[AsyncProgramState, Own], Coroutine[Any, Any, Result]],
        /,
    ) -> ProgramMethod[SglFunction[Own, Result]]: ...
    @overload
    def __call__(
        self,
        func: Callable[Concatenate[Any, ProgramState, Own], Result]
        | classmethod[Any, Concatenate[ProgramState, Own], Result],
        /,
    ) -> ProgramMethod[SglFunction[Own, Result]]: ...


@overload
def function(func: None = None, num_api_spec_tokens: int | None = None, **older: int | None) -> ProgramDecorator: ...
@overload
def function(
    func: Callable[Concatenate[AsyncProgramState, Own], Coroutine[Any, Any, Result]],
    num_api_spec_tokens: int | None = None,
) -> SglFunction[Own, Result]: ...
@overload
def function(
    func: Callable[Concatenate[ProgramState, Own], Result], num_api_spec_tokens: int | None = None
) -> SglFunction[Own, Result]: ...
@overload
def function(
    func: Callable[Concatenate[Any, AsyncProgramState, Own], Coroutine[Any, Any, Result]]
    | classmethod[Any, Concatenate[AsyncProgramState, Own], Coroutine[Any, Any, Result]],
    num_api_spec_tokens: int | None = None,
) -> ProgramMethod[SglFunction[Own, Result]]: ...
@overload
def function(
    func: Callable[Concatenate[Any, ProgramState, Own], Result]
    | classmethod[Any, Concatenate[ProgramState, Own], Result],
    num_api_spec_tokens: int | None = None,
) -> ProgramMethod[SglFunction[Own, Result]]: ...
def function(func: Any = None, num_api_spec_tokens: int | None = None, **older: int | None) -> Any:
    """Turn a function into a program. Its first parameter, `s`, is the state. Works with or without parentheses.

    In a class, `self` comes before `s`: `judge.score` is then a program. Above @classmethod and @staticmethod too.

    `num_api_spec_tokens`: with a remote API, one call writes up to this many tokens ahead and the following gens
    take their text from them, which saves calls. Local engines ignore it. Raises UnknownOptionError for other options.
    """
    reject_unknown("function", older.keys() - {"api_num_spec_tokens"}, {"num_api_spec_tokens"})
    ahead = num_api_spec_tokens if num_api_spec_tokens is not None else older.get("api_num_spec_tokens")
    return (lambda inner: _made(inner, ahead)) if func is None else _made(func, ahead)


def _made(func: Any, ahead: int | None) -> Any:
    if isinstance(func, classmethod) or is_method(func):
        return ProgramMethod(func, lambda method: SglFunction(method, ahead))
    return SglFunction(func.__func__ if isinstance(func, staticmethod) else func, ahead)
