"""What a trace writes down: its states with their nodes, and the steps of the body in their order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ..chat import ChatTemplate, ConversationTurns
from ..errors import StateEndedError, TraceError
from ..nodes.ir import SglConstantText, SglExpr
from ..nodes.traced_nodes import SglArgument, SglJoin
from ..places.source_location import SourceLocation, caller_place
from .trace_placeholders import Key, TracedVariable, UnboundArgument, VariablePlaceholder
from .trace_steps import GraphStep

MAX_NODES = 20_000


class TraceRecording:
    """What all states of one trace share. `strict`: the trace is to be compiled, nothing may depend on values.

    `fixed` are the arguments whose defaults the body has used as values; `uses_template` says that it has
    read text that the chat template wrote.
    """

    def __init__(self, strict: bool = False, only_prefix: bool = False) -> None:
        self.strict = strict
        self.only_prefix = only_prefix
        self.states: list[TracedState] = []
        self.steps: list[GraphStep] = []
        self.fixed: dict[str, Any] = {}
        self.uses_template = False
        self._ids: Iterator[int] = itertools.count()
        self._scopes: Iterator[int] = itertools.count(1)

    def fresh_id(self) -> int:
        """A number for a node or value. Raises TraceError if the trace does not end."""
        number = next(self._ids)
        if number >= MAX_NODES:
            raise TraceError(
                f"{caller_place()}: more than {MAX_NODES} nodes: a loop of the program waits for a value, which "
                f"does not exist in a trace"
            )
        return number

    def fresh_scope(self) -> int:
        return next(self._scopes)

    def argument(self, name: str, **default: Any) -> SglArgument:
        return UnboundArgument(name, self.fixed, **default) if self.strict else SglArgument(name)

    def variable(self, name: str, source: SglExpr | None, key: Key) -> TracedVariable:
        return (VariablePlaceholder if self.strict else TracedVariable)(name, source, key)


class SglGather(SglJoin):
    """In a trace: the variables of branches become lists in their parent."""

    stands_alone = True
    word = "Gather"


class PrefixEnded(Exception):
    """The trace has come to the first node that is not constant text."""


class TracedState:
    """One state of a traced program: the whole program, a branch of a fork, or a program that it calls.

    `nodes` are those of the graph, `last_node` the end of their chain; `constant` is the text, None as soon as
    only a run knows it.
    """

    def __init__(
        self,
        recording: TraceRecording,
        template: ChatTemplate,
        kind: str,
        label: str,
        parent: TracedState | None = None,
    ) -> None:
        self.recording = recording
        self.kind = kind
        self.label = label
        self.parent = parent
        self.called_at = parent.last_node if parent else None
        self.index = len(recording.states)
        self.nodes: list[SglExpr] = []
        self.last_node: SglExpr | None = None
        self.conversation = ConversationTurns(template, quiet=True)
        self.constant: list[str] | None = []
        self.has_turns = False
        self.free_turns = False  # only a run knows which turns a step with tools has
        self._ended: Key = None
        self._branches = 0
        self._unnamed = {"gen": 0, "select": 0}
        recording.states.append(self)

    def place(self, node: SglExpr, where: SourceLocation | None = None) -> SglExpr:
        """Put a copy of the node at the end of the graph's chain."""
        self.last_node = self.note(node, where)
        return self.last_node

    def note(self, node: SglExpr, where: SourceLocation | None = None) -> SglExpr:
        """Put a copy of the node into the graph, outside of the chain."""
        if self.recording.only_prefix and not isinstance(node, SglConstantText):
            raise PrefixEnded
        if self._ended is not None:
            raise StateEndedError(f"{node!r} was appended after the program ended", caller_place())
        plain = node.shown() if isinstance(node, TracedVariable | UnboundArgument) else node
        placed = plain.placed(self.recording.fresh_id(), self.last_node)
        placed.where = where or caller_place()
        self.nodes.append(placed)
        self._extend_text(placed)
        return placed

    def branch(self, fork: SglExpr) -> TracedState:
        """A state that continues from here."""
        self._branches += 1
        label = f"{self.label}.{self._branches}"
        child = TracedState(self.recording, self.conversation.template, "fork", label, self)
        child.last_node = fork
        child.conversation = self.conversation.copy()
        child.constant = None if self.constant is None else list(self.constant)
        child.has_turns, child.free_turns = self.has_turns, self.free_turns
        return child

    def end(self) -> Key:
        """Nothing more follows. The key under which that is known."""
        if self._ended is None:
            self._ended = ("end", self.index)
        return self._ended

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def unnamed(self, kind: str) -> str:
        self._unnamed[kind] += 1
        return f"{kind}_{self._unnamed[kind] - 1}"

    def forget_constant_text(self) -> None:
        """From here on only a run knows the text."""
        self.constant = None

    def _extend_text(self, node: SglExpr) -> None:
        if self.constant is not None and isinstance(node, SglConstantText):
            self.constant.append(node.value)
