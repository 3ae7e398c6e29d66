"""Values that are made of values which are still to come, and the text of a state at some moment of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from ..backend import Generated
from ..errors import ProgramError
from ..interpreter.state_transcript import PendingText
from ..nodes.ir import SglExpr
from ..nodes.traced_nodes import SglVariable

Binding = Any  # Pending | Span | Thought | Later: what has done, error, get(), when_done()


class KnownValue:
    """Gives a value that is there."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


class DeferredValue:
    """A value that `make` gives once all `parts` are there. `node`: what made them, if that is known."""

    __slots__ = ("_make", "_parts", "node")

    meta_info: Any = None

    def __init__(self, parts: list[Binding], make: Callable[[], Any], node: SglExpr | None = None) -> None:
        self._parts = parts
        self._make = make
        self.node = node

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has the value, or the error, known so far."""
        try:
            return DeferredValue, ([], KnownValue(self.get()), self.node)
        except ProgramError as error:
            failed = PendingText(SglVariable("", None), error.where)
            failed.fail(error)
            return DeferredValue, ([failed], failed.get, self.node)

    @property
    def done(self) -> bool:
        return all(part.done for part in self._parts)

    @property
    def error(self) -> ProgramError | None:
        return next((part.error for part in self._parts if part.error), None)

    @property
    def value(self) -> Any:
        return self.get()

    def get(self) -> Any:
        self.wait()
        return self._make()

    def wait(self) -> None:
        for part in self._parts:
            part.wait()

    def when_done(self, call: Callable[[], object]) -> None:
        pending = next((part for part in self._parts if not part.done), None)
        if pending is None:
            call()
        else:
            pending.when_done(lambda: self.when_done(call))

    async def settled(self) -> None:
        for part in self._parts:
            await part.settled()

    def chunks(self) -> Iterator[Generated]:
        yield Generated(str(self.get()))

    async def chunks_async(self) -> AsyncIterator[Generated]:
        await self.settled()
        yield Generated(str(self.get()))
