"""What a program sees of itself: `s`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ..backend import Generated
from ..concurrency.deadlines import deadlines
from ..errors import LanguageError, ProgramCancelled
from ..interpreter.executor import StreamExecutor
from ..interpreter.transcript import Literal, with_text
from ..interpreter.usage import Usage
from ..interpreter.variables import Binding, Variables
from ..nodes.ir import (
    SglExpr,
    SglGen,
    SglRoleBegin,
    SglRoleEnd,
    SglSubmitted,
    SglVarScopeBegin,
    SglVarScopeEnd,
)
from ..nodes.primitives import role_turn
from .above import Picture, Report, reports
from .group import ProgramStateGroup
from .probabilities import probabilities
from .program import Call, Program
from .values import typed_value


class _Nothing:
    """No value; one object also after pickling."""

    def __reduce__(self) -> str:
        return "_NOTHING"


_NOTHING: Any = _Nothing()
Value = TypeVar("Value")
Self = TypeVar("Self", bound="StateBase")


class StateBase:
    """What states of plain and of `async def` programs have in common: appending, and what does not wait."""

    def __init__(self, stream_executor: StreamExecutor, variables: Variables | None = None) -> None:
        self.stream_executor = stream_executor
        self._variables = variables or stream_executor.vars
        self._abandoned = False
        self._returned: Any = _NOTHING

    if not TYPE_CHECKING:  # for type checkers, what is not there is not there

        def __getattr__(self, name: str) -> Any:
            """Only for what is not there: raises AttributeError, which says how a variable of the name is read."""
            told = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and name != "stream_executor" and name in self._variables.declared():
                told += f"; the text of the variable is state[{name!r}], its value state.get({name!r})"
            raise AttributeError(told, name=name, obj=self)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy.deepcopy: once the program has ended, all that can be read; not the engine."""
        return {"stream_executor": self.stream_executor, "_variables": self._variables, "_returned": self._returned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _abandoned=False)

    # --- appending ---------------------------------------------------------------------------------------

    def __iadd__(self: Self, other: SglExpr | str) -> Self:
        self.stream_executor.submit(other, self._variables)
        return self

    def system(self, expr: SglExpr | str | None = None) -> Any:
        """Append a system turn; without an expression, a context manager around the turn."""
        return self._turn("system", expr)

    def user(self, expr: SglExpr | str | None = None) -> Any:
        """Append a user turn; without an expression, a context manager around the turn."""
        return self._turn("user", expr)

    def assistant(self, expr: SglExpr | str | None = None) -> Any:
        """Append an assistant turn; without an expression, a context manager around the turn."""
        return self._turn("assistant", expr)

    def tool(self, expr: SglExpr | str | None = None) -> Any:
        """Append a turn with a tool's answer; without an expression, a context manager around the turn."""
        return self._turn("tool", expr)

    def _turn(self, role: str, expr: SglExpr | str | None) -> Any:
        if expr is None:
            return self._bracket(SglRoleBegin(role), SglRoleEnd(role))
        turn = role_turn(role, expr)
        self.stream_executor.submit(turn, self._variables)
        return SglSubmitted(turn, self.stream_executor)

    def var_scope(self, name: str) -> Any:
        """A context manager: afterwards `s[name]` is the text that was appended inside."""
        return self._bracket(SglVarScopeBegin(name), SglVarScopeEnd(name))

    @contextmanager
    def _bracket(self, begin: SglExpr, end: SglExpr) -> Iterator[None]:
        self.stream_executor.submit(begin, self._variables)
        yield
        self.stream_executor.submit(end, self._variables)

    def _scope(self: Self) -> Self:
        """The same text with variables of its own, for a program that is called on it."""
        return type(self)(self.stream_executor, self.stream_executor.called())

    def end(self) -> None:
        """Nothing more will be appended; the state stays readable."""
        self.stream_executor.end()

    def cancel(self, reason: str = "the run was cancelled") -> None:
        """Stop at once: what runs and waits is given up and its pages are freed. Any thread may call it.

        On the state of a whole run all its states stop, and programs that it started; on a fork, that fork
        and its own forks. Whoever reads what is missing gets ProgramCancelled.
        """
        _cancel(self.stream_executor, reason)

    # --- what does not wait --------------------------------------------------------------------------------

    @property
    def ret_value(self) -> Any:
        """What the body returned."""
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
        if executor.body_runs_elsewhere():
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
        if executor.body_runs_elsewhere() and not self._variables.knows(name):
            async for declared in self._variables.names:
                if declared == name:
                    break
        return executor.find(name, self._variables)

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """Deltas of the text, or of one variable; with `return_meta_data` items are (delta, meta_info).

        Replayable: each call starts from the beginning. Leaving the loop early and letting go of the state
        cancels the run.
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
            value = binding or Literal(str(executor.get_var(name, self._variables)))
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
            # in a thread of its own: this one may hold any lock
            deadlines.after(0, partial(_cancel, self.stream_executor, "nobody reads the stream any more"))


def _cancel(executor: StreamExecutor, reason: str) -> None:
    if executor.branch is executor.control.root:
        executor.control.stop(ProgramCancelled(reason))
    else:
        executor.cancel(ProgramCancelled(reason))


class ProgramState(StateBase):
    """The state of a running program: append to it with `+=`, read variables with `s["name"]`.

    Appending never waits; reading waits for the value. After a node failed, what follows it has no effect:
    `text()` gives the text up to there, `error()` the error, and reading a variable that has no value raises
    ProgramError with the original error as its cause.
    """

    # --- forks and calls -----------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> ProgramStateGroup[ProgramState]:
        """`size` states that go on from here, at the same time. Returns at once.

        `join()` of the group brings them back. A fork that is not joined, `s.fork()[0]`, keeps its variables to itself.
        `position_ids_offset` is accepted for old programs and has no effect.
        """
        children = self.stream_executor.fork(size, self._variables)
        return ProgramStateGroup([type(self)(child) for child in children], self)

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """Another way to write `fork()`: `with s.copy() as side:` is a fork of one that is joined at the end of the block."""
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            group.join()

    def call(self, program: Program, /, *args: Any, **kwargs: Any) -> ProgramState:
        """Run another program's body here: its text goes on from this one, its variables are its own.

        Returns a state to read them from: `s.call(ask, "Why?")["answer"]`; `ret_value` is what it returned.
        """
        inner = self._scope()
        inner.ret_value = program.call(inner, Call(args, kwargs))
        return inner

    # --- reading -----------------------------------------------------------------------------------------

    def get_var(self, name: str) -> Any:
        """The value of a variable, waiting for it. KeyError if there is none, ProgramError if it failed."""
        try:
            return self.stream_executor.get_var(name, self._variables)
        except LanguageError as error:  # where in sgl it was found out is of no use to who reads the traceback
            raise error.with_traceback(None) from error.__cause__

    __getitem__ = get_var

    def variables(self) -> list[str]:
        """The names of the variables, in the order in which they were first made; their values may still be to come.

        All values at once: `{name: state[name] for name in state.variables()}`. Waits for a streaming run's body.
        """
        return self.stream_executor.variable_names(self._variables)

    @overload
    def get(self, name: SglGen[Value]) -> Value: ...
    @overload
    def get(self, name: str, type: type[Value]) -> Value: ...
    @overload
    def get(self, name: str, type: None = None) -> Any: ...
    def get(self, name: Any, type: Any = None) -> Any:
        """The value of a variable as what its gen was asked for: `gen("x", int)` gives an int. Waits.

        `name` may be the gen itself; `type` reads a text as that type, whatever the gen said. Raises
        ProgramError if the text has no such value.
        """
        name = name.name if isinstance(name, SglGen) else name
        executor = self.stream_executor
        try:
            value = executor.get_var(name, self._variables)
            return typed_value(executor, self._variables, name, value, type)
        except LanguageError as error:
            raise error.with_traceback(None) from error.__cause__

    def get_meta_info(self, name: str) -> Any:
        """meta_info of the gen or select that made a variable (a list if n > 1), None for unknown names."""
        try:
            binding = self.stream_executor.find(name, self._variables)
        except KeyError:
            return None
        if binding is None:
            return None
        binding.get()
        return binding.meta_info

    def probs(self, name: str) -> dict[str, float]:
        """P(choice | it is one of them) for each choice of a select or gen(choices=), most likely first. Waits.

        KeyError if there is no such variable, BadValueError if no select of this state made it.
        """
        return probabilities(name, self.stream_executor.find(name, self._variables))

    def text(self) -> str:
        """The complete text, template marks included, waiting for all that was appended; where a node failed, up to there.

        Raises ProgramError if the engine's process died under it: nothing says then how far the text had come.
        """
        return self.stream_executor.text()

    def messages(self) -> list[dict[str, Any]]:
        """The finished turns as {"role", "content"}."""
        return self.stream_executor.messages()

    def sync(self) -> None:
        self.stream_executor.sync()

    def error(self) -> BaseException | None:
        """The first error of this state, or None. Waits."""
        return self.stream_executor.error()

    def usage(self) -> Usage:
        """What this state and its forks have used. Waits for this state."""
        self.sync()
        return self.stream_executor.branch.usage()

    def report(self, path: str | Path | None = None, *, title: str | None = None, wait: bool = True) -> Report:
        """The whole run as one HTML page, saved at `path` if that is given; notebooks show it.

        `wait=False` shows what is there by now. `sgl.report(states, path)` does the same for a batch.
        """
        return reports().report(self, path, title=title, wait=wait)

    def picture(self, path: str | Path | None = None, *, lanes: int = 40, wait: bool = True) -> Picture:
        """The branches of the whole run over time as a still drawing (SVG), saved at `path` if that is given.

        Notebooks show it. `lanes`: how many branches are drawn at most. `wait=False` shows what is there by now.
        """
        return reports().picture(self, path, lanes=lanes, wait=wait)

    def _repr_html_(self) -> str:
        return reports().brief(self)

    def __repr__(self) -> str:
        return f"ProgramState({self.stream_executor.readable_text()})"

    # --- streaming ---------------------------------------------------------------------------------------

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Deltas of the state's text, or of one variable. Replayable: each call starts from the beginning.

        A state that was not run with stream=True gives everything at once. Raises ProgramError where the
        text ends because a node failed. Leaving the loop early and letting go of the state cancels the run.
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
