"""`s` in `async def` programs: whatever waits is awaited."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from ..errors import WouldBlockError
from ..interpreter.token_usage import Usage
from ..nodes.ir import SglGen, SglSelect
from ..sampling.adapter_selection import Change, of_forks
from .program import Program, ProgramCall, check_program
from .program_state import StateBase
from .report_and_journal_hooks import PictureHandle, ReportHandle, reports
from .select_probabilities import probabilities_async
from .state_group import ProgramStateGroup
from .type_parameters import Returned_co
from .variable_parsing import typed_value

if TYPE_CHECKING:
    from typing_extensions import TypeForm

Value = TypeVar("Value")
Theirs = ParamSpec("Theirs")  # parameters of a program that a state calls
Result = TypeVar("Result")  # what its body returns


class AsyncProgramState(StateBase[Returned_co]):
    """The state of a running `async def` program; `sgl.AsyncState` is its short name, for annotations.

    Append with `+=`; read with `await s.get("name")` and `await s.text()`; join forks with `await forks.join()`.
    `s["name"]` never blocks the event loop: it returns a text that is ready and raises WouldBlockError otherwise.
    """

    # --- forks and calls -----------------------------------------------------------------------------------

    def fork(
        self, size: int = 1, position_ids_offset: list[int] | None = None, *, adapter: Change = ...
    ) -> AsyncProgramStateGroup:
        """Return `size` states that continue from here, in parallel. Does not wait. adapter: see ProgramState.fork."""
        children = self.stream_executor.fork(size, self._variables, of_forks(adapter, size))
        return AsyncProgramStateGroup([type(self)(child) for child in children], self)

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[AsyncProgramState]:
        """`fork()` as a context manager: one fork, which is joined at the end of the block."""
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            await group.join()

    async def call(
        self, program: Program[Theirs, Result], /, *args: Theirs.args, **kwargs: Theirs.kwargs
    ) -> AsyncProgramState[Result]:
        """Run another `async def` program's body here. Returns a state that holds its variables."""
        check_program(program)
        inner: AsyncProgramState[Any] = self._scope()
        result: Any = program.call(inner, ProgramCall(args, kwargs))
        inner.ret_value = await result if inspect.isawaitable(result) else result
        return inner

    # --- reading -------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        binding = self.stream_executor.find(name, self._variables)
        if binding is not None and not binding.done:
            raise WouldBlockError(
                f"s[{name!r}] would block the event loop because its value is not ready: use await s.get({name!r})"
            )
        return self.stream_executor.get_var(name, self._variables)

    async def variables(self) -> list[str]:
        """Return the names of the variables in order of creation."""
        return self.stream_executor.variable_names(self._variables)

    @overload
    async def get(self, name: SglGen[Value] | SglSelect[Value]) -> Value: ...
    @overload
    async def get(self, name: str, type: type[Value]) -> Value: ...
    @overload
    async def get(self, name: str, type: TypeForm[Value]) -> Value: ...
    @overload
    async def get(self, name: str, type: None = None) -> Any: ...
    async def get(self, name: Any, type: Any = None) -> Any:
        """Wait for a variable and return its value in the type of its gen (its text if the gen has no type).

        Raises KeyError if there is no such variable, ProgramError if its node failed or its text is not of the type.
        """
        name = name.name if isinstance(name, SglGen | SglSelect) else name
        value = await self.aget(name)
        return typed_value(self.stream_executor, self._variables, name, value, type)

    async def get_meta_info(self, name: str) -> Any:
        """Return the meta_info of the gen or select that made a variable; None for unknown names."""
        try:
            binding = await self._settled(name)
        except KeyError:
            return None
        if binding is None:
            return None
        binding.get()
        return binding.meta_info

    async def probs(self, name: str) -> dict[str, float]:
        """Return the probability of each choice of a select, or of a gen of a Literal, an Enum or bool, most likely
        first.
        """
        return await probabilities_async(self.stream_executor, name, await self._settled(name))

    async def text(self) -> str:
        """Return the complete text, with the template's marks."""
        return await self.atext()

    async def messages(self) -> list[dict[str, Any]]:
        """Return the finished turns as {"role", "content"} dicts."""
        await self._synced()
        return self.stream_executor.messages()

    async def sync(self) -> None:
        """Wait until everything appended is done."""
        await self._synced()

    async def error(self) -> BaseException | None:
        """Return the first error of this state, or None."""
        await self._synced()
        return self.stream_executor.error()

    async def usage(self) -> Usage:
        """Return the tokens and time that this state and its forks used."""
        await self._synced()
        return self.stream_executor.branch.usage()

    async def report(self, path: str | Path | None = None, *, title: str | None = None) -> ReportHandle:
        """Finish what was appended here and return the whole run as an HTML page; see ProgramState.report."""
        await self._synced()
        return reports().report(self, path, title=title, wait=False)

    async def picture(self, path: str | Path | None = None, *, lanes: int = 40) -> PictureHandle:
        """Finish what was appended here and return a timeline of the run; see ProgramState.picture."""
        await self._synced()
        return reports().picture(self, path, lanes=lanes, wait=False)

    def text_iter(self, var_name: str | None = None) -> AsyncIterator[str]:
        """Yield the text, or one variable, piece by piece: `async for part in s.text_iter("x")`."""
        return self.text_async_iter(var_name)

    def __repr__(self) -> str:
        return f"AsyncProgramState({self.stream_executor.text_!r})"


class AsyncProgramStateGroup(ProgramStateGroup[AsyncProgramState]):
    """The states of a fork in an `async def` program: `await forks.join()`."""

    async def join(self, mode: str = "gather_variable") -> None:
        await self.ajoin(mode)


AsyncState = AsyncProgramState  # the short name, for annotations
