"""The nodes that only traces have: where states split and come back, and what stands for values that are not known."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import TraceError
from .ir import SglExpr

__all__ = ["SglArgument", "SglConcateAndAppend", "SglFork", "SglGetForkItem", "SglJoin", "SglTracedText", "SglVariable"]


class SglTracedText(SglExpr):
    """In a trace: text with a known origin, whose content only a run knows. `quoted`: from outside the program."""

    def __init__(self, text: SglExpr, quoted: bool) -> None:
        self.text = text
        self.quoted = quoted

    def __repr__(self) -> str:
        return f"{'Plain' if self.quoted else 'Special'}({self.text!r})"


class SglFork(SglExpr):
    """In a trace: the place where a state splits. `adapter`: as given to `s.fork`, ... for that of the state."""

    stands_alone = True

    def __init__(self, number: int, position_ids_offset: list[int] | None = None, adapter: Any = ...) -> None:
        self.number = number
        self.adapter = adapter
        self.position_ids_offset = position_ids_offset

    def __repr__(self) -> str:
        return (
            f"Fork(%{_id(self.prev_node)}, number={self.number}, "
            f"position_ids_offset={self.position_ids_offset}{'' if self.adapter is ... else f', adapter={self.adapter!r}'})"  # noqa: E501
        )


class SglGetForkItem(SglExpr):
    """In a trace: the start of one branch of a fork."""

    stands_alone = True

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"GetForkItem(%{_id(self.prev_node)}, index={self.index})"


class SglJoin(SglExpr):
    """In a trace: branches of a fork come back to their parent. `states` are their last nodes."""

    word = "Join"

    def __init__(self, states: list[SglExpr]) -> None:
        self.states = states

    @property
    def predecessors(self) -> list[SglExpr]:
        return [*super().predecessors, *self.states]

    def __repr__(self) -> str:
        return f"{self.word}({', '.join(f'%{node.node_id}' for node in self.states)})"


class SglConcateAndAppend(SglJoin):
    """In a trace: the text of the branches is appended to their parent."""

    word = "ConcatenateAndAppend"


class SglVariable(SglExpr):
    """In a trace: the value of a variable, made at the node `source`."""

    def __init__(self, name: str, source: SglExpr | None) -> None:
        self.name = name
        self.source = source

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, source=%{_id(self.source)})"


class SglArgument(SglExpr):
    """In a trace: a parameter of the program whose value is not known."""

    def __init__(self, name: str, value: object = None) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"Argument(name={self.name}, value={self.value!r})"

    def __format__(self, spec: str) -> str:
        self._no_value()

    def _no_value(self, *_: object) -> NoReturn:
        raise TraceError(
            f"the trace needs the value of the argument {self.name!r}: give it to trace(), bind() it, or join "
            f"it with + instead of formatting it"
        )

    __len__ = __getitem__ = __int__ = __float__ = __index__ = __iter__ = _no_value
    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __call__ = __contains__ = _no_value


def _id(node: SglExpr | None) -> int | None:
    return None if node is None else node.node_id
