"""The `s` of a traced `async def` program: what a run awaits is awaited, and is there at once."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ..program.program import Program, ProgramCall
from ..sampling.adapter_selection import Change
from .traced_forks import TracerGroup
from .tracer import TracerProgramState


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
