"""What a program sees of itself: `s`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from .backend import Generated
from .group import ProgramStateGroup
from .interpreter import StreamExecutor
from .ir import SglExpr, SglRoleBegin, SglRoleEnd, SglSubmitted, SglVarScopeBegin, SglVarScopeEnd
from .primitives import role_turn
from .transcript import Literal
from .variables import Binding


class ProgramState:
    """The state of a running program: append to it with `+=`, read variables with `s["name"]`.

    Appending never waits; reading waits for the value. After a node failed, what follows it has no effect:
    `text()` gives the text up to there, `error()` the error, and reading a variable that has no value raises
    ProgramError with the original error as its cause.
    """

    ret_value: Any = None

    def __init__(self, stream_executor: StreamExecutor) -> None:
        self.stream_executor = stream_executor

    # --- appending ---------------------------------------------------------------------------------------

    def __iadd__(self, other: SglExpr | str) -> ProgramState:
        self.stream_executor.submit(other)
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
        self.stream_executor.submit(turn)
        return SglSubmitted(turn, self.stream_executor)

    def var_scope(self, name: str) -> Any:
        """A context manager: afterwards `s[name]` is the text that was appended inside."""
        return self._bracket(SglVarScopeBegin(name), SglVarScopeEnd(name))

    @contextmanager
    def _bracket(self, begin: SglExpr, end: SglExpr) -> Iterator[None]:
        self.stream_executor.submit(begin)
        yield
        self.stream_executor.submit(end)

    # --- forks -------------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> ProgramStateGroup:
        """`size` states that go on from here, at the same time. Returns at once.

        `position_ids_offset` is accepted for old programs and has no effect.
        """
        children = self.stream_executor.fork(size)
        return ProgramStateGroup([ProgramState(child) for child in children], self)

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """One forked state; at the end of the block its new variables are gathered, as lists of one."""
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            group.join()

    def end(self) -> None:
        """Nothing more will be appended; the state stays readable."""
        self.stream_executor.end()

    # --- reading -----------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def __contains__(self, name: str) -> bool:
        return name in self.stream_executor.variables

    def get_var(self, name: str) -> Any:
        """The value of a variable, waiting for it. KeyError if there is none, ProgramError if it failed."""
        return self.stream_executor.get_var(name)

    def set_var(self, name: str, value: Any) -> None:
        self.stream_executor.set_var(name, value)

    def get_meta_info(self, name: str) -> Any:
        """meta_info of the gen or select that made a variable (a list if n > 1), None for unknown names."""
        try:
            binding = self.stream_executor.find(name)
        except KeyError:
            return None
        if binding is None:
            return None
        binding.get()
        return binding.meta_info

    def text(self) -> str:
        """The complete text, template marks included, waiting for all that was appended."""
        return self.stream_executor.text()

    def messages(self) -> list[dict[str, str]]:
        """The finished turns as {"role", "content"}."""
        return self.stream_executor.messages()

    def sync(self) -> None:
        self.stream_executor.sync()

    def error(self) -> BaseException | None:
        """The first error of this state, or None. Waits."""
        return self.stream_executor.error()

    def __repr__(self) -> str:
        return f"ProgramState({self.text()})"

    # --- async reading -----------------------------------------------------------------------------------

    async def aget(self, name: str) -> Any:
        """`s[name]` for async programs: waits without blocking the event loop."""
        binding = await self._find_async(name)
        if binding is not None:
            await binding.settled()
        return self.get_var(name)

    async def atext(self) -> str:
        """`text()` for async programs."""
        executor = self.stream_executor
        if executor.body_runs_elsewhere():
            await executor.pieces.closing()
        for piece in executor.pieces.items:
            await piece.settled()
        return self.text()

    async def _find_async(self, name: str) -> Binding | None:
        executor = self.stream_executor
        if executor.body_runs_elsewhere() and not executor.vars.knows(name):
            async for declared in executor.vars.names:
                if declared == name:
                    break
        return executor.find(name)

    # --- streaming ---------------------------------------------------------------------------------------

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Deltas of the state's text, or of one variable. Replayable: each call starts from the beginning.

        A state that was not run with stream=True gives everything at once. Raises ProgramError where the
        text ends because a node failed.
        """
        for chunk in self._chunks(var_name):
            if chunk.text:
                yield chunk.text

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """As `text_iter`, for async callers; with `return_meta_data` items are (delta, meta_info)."""
        async for chunk in self._chunks_async(var_name):
            if return_meta_data:
                yield chunk.text, chunk.meta_info
            elif chunk.text:
                yield chunk.text

    def _chunks(self, name: str | None) -> Iterator[Generated]:
        executor = self.stream_executor
        if name is not None:
            binding = executor.find(name)
            yield from [Generated(str(self[name]))] if binding is None else binding.chunks()
        elif executor.streaming:
            for piece in executor.pieces:
                yield from piece.chunks()
        else:
            yield Generated(executor.text())
            self._raise()

    async def _chunks_async(self, name: str | None) -> AsyncIterator[Generated]:
        executor = self.stream_executor
        if name is not None:
            binding = await self._find_async(name) or Literal(str(executor.get_var(name)))
            async for chunk in binding.chunks_async():
                yield chunk
        elif executor.streaming:
            async for piece in executor.pieces:
                async for chunk in piece.chunks_async():
                    yield chunk
        else:
            yield Generated(await self.atext())
            self._raise()

    def _raise(self) -> None:
        if error := self.error():
            raise error
