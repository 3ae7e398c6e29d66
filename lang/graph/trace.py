"""Runs a program's body with placeholders for what is not known, and keeps the graph of its nodes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..backend import Backend
from ..chat import ChatTemplate, Conversation, get_chat_template
from ..config import as_backend
from ..errors import TraceError
from ..group import ProgramStateGroup
from ..ir import (
    SglArgument,
    SglConcateAndAppend,
    SglConstantText,
    SglExpr,
    SglFork,
    SglGen,
    SglGetForkItem,
    SglRoleBegin,
    SglRoleEnd,
    SglSelect,
    SglSubmitted,
    SglVariable,
    SglVarScopeBegin,
    SglVarScopeEnd,
    flatten,
)
from ..primitives import as_node, role_turn
from ..run import Call, run_coroutine, split_options

if TYPE_CHECKING:
    from ..function import SglFunction

MAX_NODES = 100_000

_current: ContextVar[TracerProgramState | None] = ContextVar("sgl_tracer", default=None)


def current_tracer() -> TracerProgramState | None:
    """The innermost trace that is running in this context."""
    return _current.get()


def trace_program(program: SglFunction, arguments: dict[str, Any], backend: Any = None) -> TracerProgramState:
    """The traced state of a whole program; missing arguments are placeholders."""
    template = get_chat_template("default") if backend is None else as_backend(backend).get_chat_template()
    tracer = TracerProgramState(template)
    tracer.run(program, (), arguments)
    return tracer


def extract_prefix(program: SglFunction, backend: Backend) -> str:
    """The constant text that every run of the program starts with, whatever its unbound arguments."""
    tracer = TracerProgramState(backend.get_chat_template(), only_prefix=True)
    try:
        tracer.run(program, (), {})
    except Exception:
        pass  # the body needed a value or came to its first node that is not constant: the prefix ends there
    return tracer.constant_prefix()


class _PrefixEnded(Exception):
    """The trace has come to the first node that is not constant text."""


class TracerProgramState:
    """The `s` of a trace. Variables are placeholders, nodes get a place in a graph (`last_node` is the end)."""

    def __init__(
        self, template: ChatTemplate, parent: TracerProgramState | None = None, only_prefix: bool = False
    ) -> None:
        self.chat_template = template
        self.only_prefix = only_prefix
        self.nodes: list[SglExpr] = []
        self.last_node: SglExpr | None = None
        self.variables: dict[str, Any] = {}
        self.child_states: list[TracerProgramState] = []
        self.ret_value: Any = None
        self._ids: Iterator[int] = parent._ids if parent else itertools.count()
        self._conversation = Conversation(template, quiet=True)
        self._unnamed = {"gen": 0, "select": 0}
        self._scope_starts: dict[str, int] = {}

    def run(self, program: SglFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the body on this state, inside the scope of this trace."""
        positional = dict(zip(program.arg_names, args, strict=False))
        missing = program.parameter_names - set(positional)
        arguments = {**{name: SglArgument(name) for name in missing}, **kwargs}
        token = _current.set(self)
        try:
            result = program.call(self, Call(args, arguments))
            self.ret_value = run_coroutine(program, result) if inspect.iscoroutine(result) else result
        finally:
            _current.reset(token)

    def trace_nested(
        self, program: SglFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TracerProgramState:
        """Trace a program that this one calls: a state of its own."""
        nested = TracerProgramState(self.chat_template, self)
        self.child_states.append(nested)
        nested.run(program, args, split_options(program, kwargs)[0])
        return nested

    def flatten_nodes(self) -> list[SglExpr]:
        """The nodes of this state, then those of its children."""
        return [
            *self.nodes,
            *itertools.chain.from_iterable(child.flatten_nodes() for child in self.child_states),
        ]

    def constant_prefix(self) -> str:
        """The constant text at the start."""
        constants = itertools.takewhile(lambda node: isinstance(node, SglConstantText), self.nodes)
        return "".join(node.value for node in constants if isinstance(node, SglConstantText))

    @property
    def messages_(self) -> list[dict[str, Any]]:
        return self.messages()

    def __repr__(self) -> str:
        return f"TracerProgramState({self.nodes})"

    # --- appending ---------------------------------------------------------------------------------------

    def __iadd__(self, other: Any) -> TracerProgramState:
        for node in flatten(as_node(other), self):
            self._append(node)
        return self

    def _append(self, node: SglExpr) -> None:
        if isinstance(node, SglRoleBegin):
            self._begin(node.role)
        elif isinstance(node, SglRoleEnd):
            self._end_role(node.role)
        elif isinstance(node, SglGen | SglSelect):
            name = node.name or self._name("gen" if isinstance(node, SglGen) else "select")
            self.variables[name] = SglVariable(name, self._place(node))
        else:
            self._place(node)

    def _place(self, node: SglExpr) -> SglExpr:
        if self.only_prefix and not isinstance(node, SglConstantText):
            raise _PrefixEnded
        if len(self.nodes) >= MAX_NODES:
            raise TraceError(
                f"more than {MAX_NODES} nodes: a loop of the program waits for a value, which a trace has not"
            )
        placed = node.placed(next(self._ids), self.last_node)
        self.nodes.append(placed)
        self.last_node = placed
        return placed

    def _name(self, kind: str) -> str:
        self._unnamed[kind] += 1
        return f"{kind}_{self._unnamed[kind] - 1}"

    def _begin(self, role: str) -> None:
        conversation = self._conversation
        if conversation.wants_default_system(role) and conversation.role is None:
            self += role_turn("system", conversation.template.default_system_prompt)
        self._place(SglConstantText(conversation.prefix(role)))
        conversation.begin(role, len(self.nodes))

    def _end_role(self, role: str) -> None:
        suffix, end = self._conversation.suffix(role), len(self.nodes)
        self._place(SglConstantText(suffix))
        self._conversation.end(end)

    def system(self, expr: Any = None) -> Any:
        return self._turn("system", expr)

    def user(self, expr: Any = None) -> Any:
        return self._turn("user", expr)

    def assistant(self, expr: Any = None) -> Any:
        return self._turn("assistant", expr)

    def tool(self, expr: Any = None) -> Any:
        return self._turn("tool", expr)

    def _turn(self, role: str, expr: Any) -> Any:
        if expr is None:
            return self._bracket(SglRoleBegin(role), SglRoleEnd(role))
        turn = role_turn(role, expr)
        self += turn
        return SglSubmitted(turn, self)

    @contextmanager
    def _bracket(self, begin: SglExpr, end: SglExpr) -> Iterator[None]:
        self += begin
        yield
        self += end

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        self += SglVarScopeBegin(name)
        yield
        self += SglVarScopeEnd(name)
        self.variables[name] = SglVariable(name, self.last_node)

    # --- forks -------------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> TracerGroup:
        if self.only_prefix:
            raise _PrefixEnded
        fork = SglFork(size, position_ids_offset).placed(next(self._ids), self.last_node)
        self.nodes.append(fork)
        children = [self._child(fork, index) for index in range(size)]
        self.child_states += children
        return TracerGroup(children, self)  # type: ignore[arg-type]

    def _child(self, fork: SglExpr, index: int) -> TracerProgramState:
        child = TracerProgramState(self.chat_template, self)
        child.last_node = fork
        child._place(SglGetForkItem(index))
        child.variables = dict(self.variables)
        child._conversation = self._conversation.copy()
        return child

    @contextmanager
    def copy(self) -> Iterator[TracerProgramState]:
        group = self.fork(1)
        yield group[0]  # type: ignore[misc]
        group.join()

    def end(self) -> None:
        """Nothing to give back."""

    # --- reading -----------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self.variables[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.variables[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self.variables

    get_var, set_var = __getitem__, __setitem__

    async def aget(self, name: str) -> Any:
        return self[name]

    def text(self) -> Any:
        """The text if it is constant, else a placeholder."""
        if all(isinstance(node, SglConstantText) for node in self.nodes):
            return self.constant_prefix()
        return SglVariable("text()", self.last_node)

    async def atext(self) -> Any:
        return self.text()

    def messages(self) -> list[dict[str, Any]]:
        """The finished turns; contents that are not constant are lists of nodes."""
        return [
            {"role": turn.role, "content": self._content(turn.start, turn.end)}
            for turn in self._conversation.finished
        ]

    def _content(self, start: int, end: int | None) -> Any:
        nodes = self.nodes[start:end]
        if all(isinstance(node, SglConstantText) for node in nodes):
            return "".join(node.value for node in nodes if isinstance(node, SglConstantText)).lstrip()
        return nodes

    def sync(self) -> None:
        """Nothing is pending."""

    def error(self) -> None:
        return None

    def get_meta_info(self, name: str) -> Any:
        raise TraceError(f"the trace needs the meta_info of {name!r}, which only a run can give")


class TracerGroup(ProgramStateGroup):
    """The branches of a traced fork."""

    def _gather(self) -> None:
        parent: Any = self.src_state
        known = set(parent.variables)
        for child in self.states:
            for name, value in child.variables.items():  # type: ignore[attr-defined]
                if name not in known:
                    parent.variables.setdefault(name, []).append(value)

    def _concatenate(self) -> None:
        self.src_state += SglConcateAndAppend([child.last_node for child in self.states])  # type: ignore[attr-defined]
