"""What a traced program does, step by step, in the order of its body. States are numbered, the root is 0.

`needs` are the keys of what must have been started before a step, `values` those of what must be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..nodes.description_nodes import SglFields
from ..nodes.ir import SglConstantText, SglExpr, SglPastCalls, SglRoleBegin, SglRoleEnd, SglTools
from ..nodes.traced_nodes import SglArgument
from ..places.source_location import SourceLocation
from .trace_placeholders import Key, TracedVariable, placeholders

Makes = tuple[tuple[Key, str | None], ...]


def keys_in(value: Any) -> tuple[Key, ...]:
    return tuple(part.key for part in placeholders(value) if isinstance(part, TracedVariable))


@dataclass(frozen=True, slots=True, eq=False)
class GraphStep:
    """`scope`: the variables of which `s.call` the step sees, 0 for the state's own."""

    state: int
    where: SourceLocation | None
    scope: int

    @property
    def needs(self) -> tuple[Key, ...]:
        return ()

    @property
    def values(self) -> tuple[Key, ...]:
        return ()

    @property
    def texts(self) -> tuple[int, ...]:
        """States whose own text must be there."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class AppendStep(GraphStep):
    """A node is appended. `makes`: the keys of its variables' values, with their names."""

    node: SglExpr
    makes: Makes = ()

    @property
    def values(self) -> tuple[Key, ...]:
        return keys_in(self.node)

    @property
    def is_text(self) -> bool:
        """Text that is known when the run begins."""
        return isinstance(self.node, SglConstantText | SglArgument)

    @property
    def is_fixed(self) -> bool:
        """The same in every run at a backend."""
        return isinstance(self.node, SglConstantText | SglRoleBegin | SglRoleEnd | SglFields | SglTools | SglPastCalls)


@dataclass(frozen=True, slots=True, eq=False)
class JoinedTextStep(GraphStep):
    """Pieces of text that go to the backend as one."""

    parts: tuple[AppendStep, ...]

    @property
    def values(self) -> tuple[Key, ...]:
        return tuple(key for part in self.parts for key in part.values)


@dataclass(frozen=True, slots=True, eq=False)
class ForkStep(GraphStep):
    """The state forks into `children`. `adapter`: as given to `s.fork`."""

    children: tuple[int, ...]
    adapter: Any = ...

    @property
    def needs(self) -> tuple[Key, ...]:
        return keys_in(self.adapter)


@dataclass(frozen=True, slots=True, eq=False)
class CallStep(GraphStep):
    """The program of state `parent` calls another one, on a separate text."""

    parent: int
    program: Any
    options: dict[str, Any]
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class CloseStep(GraphStep):
    """Nothing more is appended to the state."""

    key: Key


@dataclass(frozen=True, slots=True, eq=False)
class GatherStep(GraphStep):
    """The new variables of the children become lists in the state. `closed`: the keys of their ends."""

    children: tuple[int, ...]
    closed: tuple[Key, ...]

    @property
    def needs(self) -> tuple[Key, ...]:
        return self.closed


@dataclass(frozen=True, slots=True, eq=False)
class ConcatenateStep(GatherStep):
    """What the children have added is appended to the state."""

    @property
    def texts(self) -> tuple[int, ...]:
        return self.children


@dataclass(frozen=True, slots=True, eq=False)
class AssignStep(GraphStep):
    """`s[name] = value`."""

    name: str
    value: Any

    @property
    def needs(self) -> tuple[Key, ...]:
        return keys_in(self.value)


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotStep(GraphStep):
    """The text or the messages of the state, as they are here, become the value of `key`."""

    key: Key
    messages: bool


@dataclass(frozen=True, slots=True, eq=False)
class WaitStep(GraphStep):
    """The body waits for values, or for all that was appended to some states."""

    on: tuple[Key, ...] = ()
    states: tuple[int, ...] = ()

    @property
    def values(self) -> tuple[Key, ...]:
        return self.on

    @property
    def texts(self) -> tuple[int, ...]:
        return self.states
