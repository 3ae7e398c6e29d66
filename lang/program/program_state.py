"""What a program sees of itself: `s`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, overload

from ..backend import Generated
from ..concurrency.timeout_alarms import deadlines
from ..errors import LanguageError, ProgramCancelled, TextOfNodeError
from ..interpreter.state_transcript import LiteralText, with_text
from ..interpreter.state_variables import Binding, StateVariables
from ..interpreter.stream_executor import StreamExecutor
from ..interpreter.token_usage import Usage
from ..nodes.append_error_hints import attribute_meant
from ..nodes.ir import (
    SglAdapterBegin,
    SglAdapterEnd,
    SglExpr,
    SglGen,
    SglRoleBegin,
    SglRoleEnd,
    SglSelect,
    SglSubmitted,
    SglVarScopeBegin,
    SglVarScopeEnd,
)
from ..nodes.primitives import role_turn
from ..sampling.adapter_selection import Change, checked, of_forks
from .program import Program, ProgramCall, check_program
from .report_and_journal_hooks import PictureHandle, ReportHandle, reports
from .select_probabilities import probabilities
from .state_group import ProgramStateGroup
from .type_parameters import Returned_co
from .variable_parsing import typed_value

if TYPE_CHECKING:
    from typing_extensions import TypeForm


class _Nothing:
    """No value; one object also after pickling."""

    def __reduce__(self) -> str:
        return "_NOTHING"


_NOTHING: Any = _Nothing()
Value = TypeVar("Value")
Theirs = ParamSpec("Theirs")  # parameters of a program that a state calls
Result = TypeVar("Result")  # what its body returns
Self = TypeVar("Self", bound="StateBase[Any]")


class StateBase(Generic[Returned_co]):
    """What states of plain and of `async def` programs have in common: appending, and what does not wait."""

    def __init__(self, stream_executor: StreamExecutor, variables: StateVariables | None = None) -> None:
        self.stream_executor = stream_executor
        self._variables = variables or stream_executor.vars
        self._abandoned = False
        self._returned: Any = _NOTHING

    if not TYPE_CHECKING:  # for type checkers, what is not there is not there

        def __getattr__(self, name: str) -> Any:
            """Only for what is not there: raises AttributeError, which says how a variable of the name is read."""
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and name != "stream_executor" and name in self._variables.declared():
                message += f"; the text of the variable is state[{name!r}], its value state.get({name!r})"
            message += attribute_meant(name)
            raise AttributeError(message, name=name, obj=self)

        def __add__(self, other: object) -> NoReturn:
            raise TextOfNodeError("s + ... makes no text and appends nothing; append with s += ...")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy.deepcopy: once the program has ended, all that can be read; not the engine."""
        return {"stream_executor": self.stream_executor, "_variables": self._variables, "_returned": self._returned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _abandoned=False)

    # --- appending ---------------------------------------------------------------------------------------

    def __iadd__(self: Self, other: SglExpr | str) -> Self:
        self.stream_executor.submit(other, self._variables)
        return self

    def system(self, expr: SglExpr | str | EllipsisType = ...) -> Any:
        """Append a system turn; without an expression, return a context manager for the turn."""
        return self._turn("system", expr)

    def user(self, expr: SglExpr | str | EllipsisType = ...) -> Any:
        """Append a user turn; without an expression, return a context manager for the turn."""
        return self._turn("user", expr)

    def assistant(self, expr: SglExpr | str | EllipsisType = ...) -> Any:
        """Append an assistant turn; without an expression, return a context manager for the turn."""
        return self._turn("assistant", expr)

    def tool(self, expr: Any = ...) -> Any:
        """Append a turn with a tool's result; without an expression, return a context manager for the turn."""
        return self._turn("tool", expr)

    def _turn(self, role: str, expr: Any) -> Any:
        if expr is ...:
            return self._bracket(SglRoleBegin(role), SglRoleEnd(role))
        turn = role_turn(role, expr)
        self.stream_executor.submit(turn, self._variables)
        return SglSubmitted(turn, self.stream_executor)

    def var_scope(self, name: str) -> Any:
        """Return a context manager that binds the text appended inside it to `name`."""
        return self._bracket(SglVarScopeBegin(name), SglVarScopeEnd(name))

    @contextmanager
    def adapter(self, name: str | None) -> Iterator[None]:
        """Return a context manager: an adapter (LoRA) of that name computes what is appended inside it, None: the base.

        It recomputes the text so far. After the block the previous adapter recomputes the text, with what the block
        has added. `usage().reread_tokens` counts both.
        """
        self.stream_executor.submit(SglAdapterBegin(checked(name)), self._variables)
        try:
            yield
        except BaseException:
            with suppress(LanguageError):  # the program may continue after what it catches
                self.stream_executor.submit(SglAdapterEnd(), self._variables)
            raise
        self.stream_executor.submit(SglAdapterEnd(), self._variables)

    @contextmanager
    def _bracket(self, begin: SglExpr, end: SglExpr) -> Iterator[None]:
        self.stream_executor.submit(begin, self._variables)
        yield
        self.stream_executor.submit(end, self._variables)

    def _scope(self: Self) -> Self:
        """The same text with separate variables, for a program that is called on it."""
        return type(self)(self.stream_executor, self.stream_executor.called())

    def end(self) -> None:
        """End the state: it stays readable, but nothing more can be appended."""
        self.stream_executor.end()

    def cancel(self, reason: str = "the run was cancelled") -> None:
        """Stop at once: abandon running and waiting operations and free their pages. Any thread may call it.

        The state of a whole run stops all its forks and the programs it started; a fork stops itself and its
        own forks. Reading a value that was not finished raises ProgramCancelled.
        """
        _cancel(self.stream_executor, reason)

    # --- what does not wait --------------------------------------------------------------------------------

    @property
    def ret_value(self) -> Returned_co:
        """The return value of the body."""
        return self.stream_executor.ret_value if self._returned is _NOTHING else self._returned

    @ret_value.setter
    def ret_value(self, value: Any) -> None:
        self._returned = value

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def set_var(self, name: str, value: Any) -> None:
        self.stream_executor.set_var(name, value, self._variables)

    def __contains__(self, name: str) -> bool:
        return name in self._variables.ready()

    # --- reading on an event loop --------------------------------------------------------------------------

    async def aget(self, name: str) -> Any:
        """`s[name]` without blocking the event loop."""
        await self._settled(name)
        return self.stream_executor.get_var(name, self._variables)

    async def atext(self) -> str:
        """`text()` without blocking the event loop."""
        await self._synced()
        return self.stream_executor.text()

    async def _synced(self) -> None:
        executor = self.stream_executor
        if executor.body_still_runs():
            await executor.pieces.closing()
        for piece in executor.pieces.items:
            await piece.settled()

    async def _settled(self, name: str) -> Binding | None:
        binding = await self._find_async(name)
        if binding is not None:
            await binding.settled()
        return binding

    async def _find_async(self, name: str) -> Binding | None:
        executor = self.stream_executor
        if executor.body_still_runs() and not self._variables.knows(name):
            async for declared in self._variables.names:
                if declared == name:
                    break
        return executor.find(name, self._variables)

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """Yield the text, or one variable, piece by piece; with `return_meta_data` as (piece, meta_info).

        Each call starts from the beginning. Leaving the loop early and dropping the state cancels the run.
        """
        try:
            if return_meta_data:
                async for chunk in with_text(self._chunks_async(var_name)):
                    yield chunk.text, chunk.meta_info
                return
            async for chunk in self._chunks_async(var_name):
                if chunk.text:
                    yield chunk.text
        except GeneratorExit:
            self._abandoned = True
            raise

    async def _chunks_async(self, name: str | None) -> AsyncIterator[Generated]:
        executor = self.stream_executor
        if name is not None:
            binding = await self._find_async(name)
            value = binding or LiteralText(str(executor.get_var(name, self._variables)))
            async for chunk in value.chunks_async():
                yield chunk
        elif executor.streaming:
            async for piece in executor.pieces:
                async for chunk in piece.chunks_async():
                    yield chunk
        else:
            yield Generated(await self.atext())
            self._raise()

    def _raise(self) -> None:
        if error := self.stream_executor.error():
            raise error

    def __del__(self) -> None:
        if getattr(self, "_abandoned", False) and not self.stream_executor.is_finished:
            # in a separate thread: this one may hold any lock
            deadlines.after(0, partial(_cancel, self.stream_executor, "the stream is no longer read"))


def _cancel(executor: StreamExecutor, reason: str) -> None:
    if executor.branch is executor.control.root:
        executor.control.stop(ProgramCancelled(reason))
    else:
        executor.cancel(ProgramCancelled(reason))


class ProgramState(StateBase[Returned_co]):
    """The state of a running program. Append with `+=`, read text with `s["name"]` and values with `s.get("name")`.

    `sgl.State` is its short name, for annotations: `def reply(s: sgl.State, question: str) -> int:`. A run of that
    program returns a `ProgramState[int]`, whose `ret_value` is an int.

    Appending never waits; reading waits for the value. When a node fails, later nodes have no effect: `text()`
    returns the text up to the failure and `error()` the error. Reading a variable that was never made raises
    ProgramError, with the original error as its cause.
    """

    # --- forks and calls -----------------------------------------------------------------------------------

    def fork(
        self, size: int = 1, position_ids_offset: list[int] | None = None, *, adapter: Change = ...
    ) -> ProgramStateGroup[ProgramState]:
        """Return `size` states that continue from here, in parallel. Does not wait.

        They share the tokens computed so far. `join()` of the group brings their variables back; a fork that is not
        joined, `s.fork()[0]`, keeps its variables to itself. `position_ids_offset` is accepted for old programs and has
        no effect.

        adapter: the name of another adapter (LoRA), or None for the base; a list has one for each fork. Such a fork
        shares the text alone, which is computed again: `usage().reread_tokens` counts it.
        """
        children = self.stream_executor.fork(size, self._variables, of_forks(adapter, size))
        return ProgramStateGroup([type(self)(child) for child in children], self)

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """`fork()` as a context manager: `with s.copy() as side:` makes one fork, joined at the end of the block."""
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            group.join()

    def call(
        self, program: Program[Theirs, Result], /, *args: Theirs.args, **kwargs: Theirs.kwargs
    ) -> ProgramState[Result]:
        """Run another program's body here. Its text continues this state's text; its variables are separate.

        Returns a state that holds them: `s.call(ask, "Why?")["answer"]`. `ret_value` is its return value.
        """
        check_program(program)
        inner: ProgramState[Any] = self._scope()
        inner.ret_value = program.call(inner, ProgramCall(args, kwargs))
        return inner

    # --- reading -----------------------------------------------------------------------------------------

    def get_var(self, name: str) -> Any:
        """Wait for a variable and return its text, or what the program assigned. The same as `s[name]`.

        Raises KeyError if there is no such variable, ProgramError if its node failed.
        """
        try:
            return self.stream_executor.get_var(name, self._variables)
        except LanguageError as error:  # where in sgl it was found does not help a reader of the traceback
            raise error.with_traceback(None) from error.__cause__

    __getitem__ = get_var

    def variables(self) -> list[str]:
        """Return the names of the variables in order of creation; some values may not be ready yet.

        For a dict of all of them: `{name: state[name] for name in state.variables()}`. In a streaming run it waits
        for the body.
        """
        return self.stream_executor.variable_names(self._variables)

    @overload
    def get(self, name: SglGen[Value] | SglSelect[Value]) -> Value: ...
    @overload
    def get(self, name: str, type: type[Value]) -> Value: ...
    @overload
    def get(self, name: str, type: TypeForm[Value]) -> Value: ...
    @overload
    def get(self, name: str, type: None = None) -> Any: ...
    def get(self, name: Any, type: Any = None) -> Any:
        """Wait for a variable and return its value in the type of its gen: an int for `gen("x", int)`.

        `name` may be the gen or select itself. `type` reads the text as another type. An untyped variable gives its
        text. Raises KeyError if there is no such variable, ProgramError if its node failed or its text is not of the
        type.
        """
        name = name.name if isinstance(name, SglGen | SglSelect) else name
        executor = self.stream_executor
        try:
            value = executor.get_var(name, self._variables)
            return typed_value(executor, self._variables, name, value, type)
        except LanguageError as error:
            raise error.with_traceback(None) from error.__cause__

    def get_meta_info(self, name: str) -> Any:
        """Return the meta_info of the gen or select that made a variable (a list if n > 1); None for unknown names."""
        try:
            binding = self.stream_executor.find(name, self._variables)
        except KeyError:
            return None
        if binding is None:
            return None
        binding.get()
        return binding.meta_info

    def probs(self, name: str) -> dict[str, float]:
        """Wait for a select or gen(choices=) and return the probability of each choice, most likely first.

        The probabilities sum to 1 over the choices. For a gen of a Literal, an Enum or bool they are those that a
        select would have found in its place: they are computed when you ask, by one more call of the backend, which
        `usage()` does not count. Such a gen draws token by token, so it may write a choice that is not the most likely
        one. Raises KeyError if there is no such variable, BadValueError if nothing of the kind made it in this state.
        """
        executor = self.stream_executor
        return probabilities(executor, name, executor.find(name, self._variables))

    def text(self) -> str:
        """Wait for everything appended and return the complete text, with the template's marks.

        If a node failed, the text ends there. Raises ProgramError if the engine's process died: the text is then
        unknown.
        """
        return self.stream_executor.text()

    def messages(self) -> list[dict[str, Any]]:
        """Return the finished turns as {"role", "content"} dicts."""
        return self.stream_executor.messages()

    def sync(self) -> None:
        """Wait until everything appended is done."""
        self.stream_executor.sync()

    def error(self) -> BaseException | None:
        """Wait for everything appended and return the first error of this state, or None."""
        return self.stream_executor.error()

    def usage(self) -> Usage:
        """Wait for this state and return the tokens and time that it and its forks used."""
        self.sync()
        return self.stream_executor.branch.usage()

    def report(self, path: str | Path | None = None, *, title: str | None = None, wait: bool = True) -> ReportHandle:
        """Return the whole run as one HTML page and save it at `path` if given. Notebooks display it.

        `wait=False` shows a run in progress. For a batch, use `sgl.report(states, path)`.
        """
        return reports().report(self, path, title=title, wait=wait)

    def picture(self, path: str | Path | None = None, *, lanes: int = 40, wait: bool = True) -> PictureHandle:
        """Return a timeline of the run's branches as an SVG drawing and save it at `path` if given.

        Notebooks display it. `lanes`: the most branches to draw. `wait=False` shows a run in progress.
        """
        return reports().picture(self, path, lanes=lanes, wait=wait)

    def _repr_html_(self) -> str:
        return reports().brief(self)

    def __repr__(self) -> str:
        return f"ProgramState({self.stream_executor.readable_text()})"

    # --- streaming ---------------------------------------------------------------------------------------

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Yield the state's text, or one variable, piece by piece. Each call starts from the beginning.

        Without stream=True everything comes in one piece. Raises ProgramError at the point where a node failed.
        Leaving the loop early and dropping the state cancels the run.
        """
        try:
            for chunk in self._chunks(var_name):
                if chunk.text:
                    yield chunk.text
        except GeneratorExit:
            self._abandoned = True
            raise

    def _chunks(self, name: str | None) -> Iterator[Generated]:
        executor = self.stream_executor
        if name is not None:
            binding = executor.find(name, self._variables)
            yield from [Generated(str(self[name]))] if binding is None else binding.chunks()
        elif executor.streaming:
            for piece in executor.pieces:
                yield from piece.chunks()
        else:
            yield Generated(executor.text())
            self._raise()


State = ProgramState  # the short name, for annotations
