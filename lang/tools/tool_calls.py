"""What the model asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sgl.runtime.dialects import DialectToolCall


@dataclass(frozen=True)
class ToolCall:
    """One call: the tool's name, its arguments by name, and the id that results refer to."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True)
class ToolCalls:
    """The value of a `toolbox.call`: the text outside the calls, and the calls. True if there are calls."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.calls)

    def __iter__(self) -> Iterator[ToolCall]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)


def numbered(text: str, found: Iterable[DialectToolCall]) -> ToolCalls:
    """The calls that were read; those without an id get `call_0`, `call_1` ... by their places."""
    return ToolCalls(text, [ToolCall(c.name, c.arguments, c.id or f"call_{i}") for i, c in enumerate(found)])
