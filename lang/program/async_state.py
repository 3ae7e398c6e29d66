"""`s` in `async def` programs: whatever waits is awaited."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, overload

from ..errors import WouldBlockError
from ..interpreter.usage import Usage
from ..nodes.ir import SglGen
from .above import Picture, Report, reports
from .group import AsyncProgramStateGroup
from .probabilities import probabilities
from .program import Call, Program
from .state import StateBase
from .values import typed_value

Value = TypeVar("Value")


class AsyncProgramState(StateBase):
    """The state of a running `async def` program.

    Append with `+=` as everywhere; read with `await s.get("name")`, `await s.text()`. Forks are joined with
    `await forks.join()`. `s["name"]` is for values that are there already: it never blocks the event loop.
    """

    # --- forks and calls -----------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> AsyncProgramStateGroup:
        """`size` states that go on from here, at the same time. Returns at once."""
        children = self.stream_executor.fork(size, self._variables)
        return AsyncProgramStateGroup([type(self)(child) for child in children], self)

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[AsyncProgramState]:
        """Another way to write `fork()`: a fork of one that is joined at the end of the block."""
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            await group.join()

    async def call(self, program: Program, /, *args: Any, **kwargs: Any) -> AsyncProgramState:
        """Run another `async def` program's body here, with variables of its own. Returns a state to read them."""
        inner = self._scope()
        result = program.call(inner, Call(args, kwargs))
        inner.ret_value = await result if inspect.isawaitable(result) else result
        return inner

    # --- reading -------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        binding = self.stream_executor.find(name, self._variables)
        if binding is not None and not binding.done:
            raise WouldBlockError(
                f"s[{name!r}] would block the event loop, its value is not there yet: use await s.get({name!r})"
            )
        return self.stream_executor.get_var(name, self._variables)

    async def variables(self) -> list[str]:
        """The names of the variables, in the order in which they were first made."""
        return self.stream_executor.variable_names(self._variables)

    @overload
    async def get(self, name: SglGen[Value]) -> Value: ...
    @overload
    async def get(self, name: str, type: type[Value]) -> Value: ...
    @overload
    async def get(self, name: str, type: None = None) -> Any: ...
    async def get(self, name: Any, type: Any = None) -> Any:
        """The value of a variable as what its gen was asked for (text if nothing was said), once it is there.

        KeyError if there is no such variable, ProgramError if its node failed or its text has no such value.
        """
        name = name.name if isinstance(name, SglGen) else name
        value = await self.aget(name)
        return typed_value(self.stream_executor, self._variables, name, value, type)

    async def get_meta_info(self, name: str) -> Any:
        """meta_info of the gen or select that made a variable, None for unknown names."""
        try:
            binding = await self._settled(name)
        except KeyError:
            return None
        if binding is None:
            return None
        binding.get()
        return binding.meta_info

    async def probs(self, name: str) -> dict[str, float]:
        """P(choice | it is one of them) for each choice of a select or gen(choices=), most likely first."""
        return probabilities(name, await self._settled(name))

    async def text(self) -> str:
        """The complete text, template marks included."""
        return await self.atext()

    async def messages(self) -> list[dict[str, Any]]:
        """The finished turns as {"role", "content"}."""
        await self._synced()
        return self.stream_executor.messages()

    async def sync(self) -> None:
        """Wait until everything that was appended is done."""
        await self._synced()

    async def error(self) -> BaseException | None:
        """The first error of this state, or None."""
        await self._synced()
        return self.stream_executor.error()

    async def usage(self) -> Usage:
        """What this state and its forks have used."""
        await self._synced()
        return self.stream_executor.branch.usage()

    async def report(self, path: str | Path | None = None, *, title: str | None = None) -> Report:
        """The whole run as one HTML page, with what was appended here done; see ProgramState.report."""
        await self._synced()
        return reports().report(self, path, title=title, wait=False)

    async def picture(self, path: str | Path | None = None, *, lanes: int = 40) -> Picture:
        """The branches of the whole run over time, with what was appended here done; see ProgramState.picture."""
        await self._synced()
        return reports().picture(self, path, lanes=lanes, wait=False)

    def text_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        """Deltas of the text, or of one variable: `async for part in s.text_iter("x")`."""
        return self.text_async_iter(var_name)

    def __repr__(self) -> str:
        return f"AsyncProgramState({self.stream_executor.text_!r})"
