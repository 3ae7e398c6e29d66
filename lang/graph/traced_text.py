"""The writing half of a traced state: what is appended becomes nodes of the graph and steps of the recording."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from ..chat import ChatTemplate
from ..nodes.ir import (
    SglAdapterBegin,
    SglAdapterEnd,
    SglConstantText,
    SglExpr,
    SglExprList,
    SglGen,
    SglPastCalls,
    SglRoleBegin,
    SglRoleEnd,
    SglSelect,
    SglSeparateReasoning,
    SglSubmitted,
    SglTools,
    SglVarScopeBegin,
    SglVarScopeEnd,
    flatten,
)
from ..nodes.primitives import as_node, role_turn
from ..places.source_location import SourceLocation, caller_place
from .trace_placeholders import ConcatenatedText
from .trace_recording import TracedState
from .trace_steps import AppendStep, JoinedTextStep, Makes


class TracedText:
    """Appends to the text `traced`, which the programs of `s.call` share; `variables` are those of this program."""

    def __init__(self, traced: TracedState, variables: dict[str, Any] | None = None, scope: int = 0) -> None:
        self.traced = traced
        self.recording = traced.recording
        self.variables: dict[str, Any] = variables or {}
        self.scope = scope
        self.child_states: list[Any] = []
        self.ret_value: Any = None

    # --- the graph ---------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[SglExpr]:
        return self.traced.nodes

    @property
    def last_node(self) -> SglExpr | None:
        return self.traced.last_node

    @property
    def chat_template(self) -> ChatTemplate:
        return self.traced.conversation.template

    def flatten_nodes(self) -> list[SglExpr]:
        """The nodes of this state, then those of its children."""
        children = (child.flatten_nodes() for child in self.child_states)
        return [*self.nodes, *itertools.chain.from_iterable(children)]

    def constant_prefix(self) -> str:
        """The constant text at the start."""
        constants = itertools.takewhile(lambda node: isinstance(node, SglConstantText), self.nodes)
        return "".join(node.value for node in constants if isinstance(node, SglConstantText))

    def __repr__(self) -> str:
        return f"TracerProgramState({self.nodes})"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{caller_place()}: a traced state has no {name!r}; use run() instead")

    # --- appending ---------------------------------------------------------------------------------------

    def __iadd__(self, other: Any) -> Self:
        where = caller_place()
        for node in flatten(as_node(other), self.traced):
            self._append(node, where)
        return self

    def _append(self, node: SglExpr, where: SourceLocation | None) -> None:
        if isinstance(node, ConcatenatedText):
            self._append_sum(node, where)
        elif isinstance(node, SglRoleBegin):
            self._begin(node.role, where)
        elif isinstance(node, SglRoleEnd):
            self._end_role(node.role, where)
        elif isinstance(node, SglTools):
            self._describe_tools(node, where)
        elif isinstance(node, SglSeparateReasoning):
            parts = SglExprList(list(flatten(node.expr, self.traced)))
            node = SglSeparateReasoning(node.model_type, parts)
            makes = tuple(made for part in parts.expr_list for made in self._think(part, where))
            self._record(node, where, makes)
        else:
            self._record(node, where, self._place(node, where))

    def _describe_tools(self, node: SglTools, where: SourceLocation | None) -> None:
        """Outside of a turn, the descriptions are a separate system turn."""
        alone = self.traced.conversation.role is None
        if alone:
            self._show_begin("system", where)
        self._record(node, where, self._place(node, where))
        if alone:
            self._show_end("system", where)

    def _append_sum(self, node: ConcatenatedText, where: SourceLocation | None) -> None:
        """In a run this is one piece of text."""
        self._place(node, where)
        state, scope = self.traced.index, self.scope
        parts = tuple(AppendStep(state, where, scope, part) for part in node.parts)
        self.recording.steps.append(JoinedTextStep(state, where, scope, parts))

    def _place(self, node: SglExpr, where: SourceLocation | None) -> Makes:
        """Put the node into the graph; the variable that it makes, if it makes one."""
        if isinstance(node, ConcatenatedText):
            for part in node.parts:
                self._place(part, where)
            return ()
        placed = self.traced.place(node, where)
        if isinstance(node, SglConstantText):
            return ()
        if not isinstance(node, SglAdapterBegin | SglAdapterEnd | SglVarScopeBegin | SglVarScopeEnd):
            self.traced.forget_constant_text()
        self.traced.free_turns |= isinstance(node, SglPastCalls)
        if isinstance(node, SglGen | SglSelect):
            name = node.name or self.traced.unnamed("gen" if isinstance(node, SglGen) else "select")
            self.variables[name] = self._made(node, name, placed)
            return ((placed.node_id, node.name),)
        if isinstance(node, SglVarScopeEnd):
            self.variables[node.name] = self.recording.variable(node.name, placed, placed.node_id)
            return ((placed.node_id, node.name),)
        return ()

    def _made(self, node: SglGen[Any] | SglSelect, name: str, placed: SglExpr) -> Any:
        """The value of a gen or select: with n > 1, a list."""
        value = self.recording.variable(name, placed, placed.node_id)
        value.reading = node.reading
        if isinstance(node, SglSelect):
            return value
        self.traced.free_turns |= node.free_turns
        count = node.sampling_params.n or 1
        return value if count == 1 else [value.part(index) for index in range(count)]

    def _think(self, node: SglExpr, where: SourceLocation | None) -> Makes:
        """A node inside `separate_reasoning`: the names of its answer and of its thought."""
        if not isinstance(node, SglGen | SglSelect):
            return self._place(node, where)
        answers = self._place(node, where)
        thought = self.traced.place(SglSeparateReasoning("", SglExprList([node])), where)
        name = f"{node.name}_reasoning_content"
        self.variables[name] = self.recording.variable(name, thought, thought.node_id)
        return (*answers, (thought.node_id, name))

    def _record(self, node: SglExpr, where: SourceLocation | None, makes: Makes = ()) -> None:
        self.recording.steps.append(AppendStep(self.traced.index, where, self.scope, node, makes))

    def _begin(self, role: str, where: SourceLocation | None) -> None:
        conversation = self.traced.conversation
        if conversation.wants_default_system(role) and conversation.role is None:
            self.recording.uses_template = True
            self._show_begin("system", where)
            self.traced.place(SglConstantText(conversation.template.default_system_prompt or ""), where)
            self._show_end("system", where)
        self._show_begin(role, where)
        self._record(SglRoleBegin(role), where)

    def _show_begin(self, role: str, where: SourceLocation | None) -> None:
        conversation = self.traced.conversation
        self.traced.place(SglConstantText(conversation.prefix(role)), where)
        self.traced.has_turns = True
        conversation.begin(role, len(self.nodes))

    def _end_role(self, role: str, where: SourceLocation | None) -> None:
        self._show_end(role, where)
        self._record(SglRoleEnd(role), where)

    def _show_end(self, role: str, where: SourceLocation | None) -> None:
        suffix, end = self.traced.conversation.suffix(role), len(self.nodes)
        self.traced.place(SglConstantText(suffix), where)
        self.traced.conversation.end(end)

    def system(self, expr: Any = ...) -> Any:
        return self._turn("system", expr)

    def user(self, expr: Any = ...) -> Any:
        return self._turn("user", expr)

    def assistant(self, expr: Any = ...) -> Any:
        return self._turn("assistant", expr)

    def tool(self, expr: Any = ...) -> Any:
        return self._turn("tool", expr)

    def _turn(self, role: str, expr: Any) -> Any:
        if expr is ...:
            return self._bracket(SglRoleBegin(role), SglRoleEnd(role))
        turn = role_turn(role, expr)
        self += turn
        return SglSubmitted(turn, self.traced)

    @contextmanager
    def _bracket(self, begin: SglExpr, end: SglExpr) -> Iterator[None]:
        self += begin
        yield
        self += end

    def adapter(self, name: Any) -> Any:
        return self._bracket(SglAdapterBegin(name), SglAdapterEnd())

    def var_scope(self, name: str) -> Any:
        return self._bracket(SglVarScopeBegin(name), SglVarScopeEnd(name))
