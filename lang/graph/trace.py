"""Runs a program's body with placeholders for what is not known, and keeps the graph of its nodes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..backend import Backend
from ..chat import ChatTemplate, get_chat_template
from ..config import as_backend
from ..errors import Place, TraceError
from ..ir import (
    SglConstantText,
    SglExpr,
    SglExprList,
    SglFork,
    SglGen,
    SglGetForkItem,
    SglRoleBegin,
    SglRoleEnd,
    SglSelect,
    SglSeparateReasoning,
    SglSubmitted,
    SglVarScopeBegin,
    SglVarScopeEnd,
    flatten,
)
from ..place import caller_place
from ..primitives import as_node, role_turn
from .placeholders import Key, Traced, filled
from .recording import PrefixEnded, Recording, TracedState
from .steps import Append, Assign, Close, Makes, Open, Snapshot, Split, Wait, keys_in

if TYPE_CHECKING:
    from ..function import SglFunction
    from .joins import TracerGroup

_current: ContextVar[TracerProgramState | None] = ContextVar("sgl_tracer", default=None)


def current_tracer() -> TracerProgramState | None:
    """The innermost trace that is running in this context."""
    return _current.get()


def trace_program(
    program: SglFunction, arguments: dict[str, Any], backend: Any = None, strict: bool = False
) -> TracerProgramState:
    """The traced state of a whole program; missing arguments are placeholders.

    `strict`: whatever would depend on a value that only a run has raises TraceError.
    """
    template = get_chat_template("default") if backend is None else as_backend(backend).get_chat_template()
    tracer = TracerProgramState.root(program, template, Recording(strict=strict))
    tracer.run(program, (), tracer.with_placeholders(program, arguments))
    return tracer


def extract_prefix(program: SglFunction, backend: Backend) -> str:
    """The constant text that every run of the program starts with, whatever its unbound arguments."""
    tracer = TracerProgramState.root(program, backend.get_chat_template(), Recording(only_prefix=True))
    try:
        tracer.run(program, (), tracer.with_placeholders(program, {}))
    except Exception:
        pass  # the body needed a value or came to its first node that is not constant: the prefix ends there
    return tracer.constant_prefix()


class TracerProgramState:
    """The `s` of a trace. Variables are placeholders, nodes get a place in a graph (`last_node` is the end).

    `traced` is the text, which the programs of `s.call` share; `variables` are those of this program.
    """

    def __init__(self, traced: TracedState, variables: dict[str, Any] | None = None, scope: int = 0) -> None:
        self.traced = traced
        self.recording = traced.recording
        self.variables: dict[str, Any] = variables or {}
        self.scope = scope
        self.child_states: list[TracerProgramState] = []
        self.ret_value: Any = None

    @classmethod
    def root(cls, program: SglFunction, template: ChatTemplate, recording: Recording) -> TracerProgramState:
        return cls(TracedState(recording, template, "program", program.__name__))

    def with_placeholders(self, program: SglFunction, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments, with placeholders for the parameters that are not given."""
        parameters = inspect.signature(program.func).parameters
        given = {**arguments, **program.bind_arguments}
        for name in program.parameter_names - set(given):
            default = parameters[name].default
            known = {} if default is inspect.Parameter.empty else {"value": default}
            arguments = {**arguments, name: self.recording.argument(name, **known)}
        return arguments

    def run(self, program: SglFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the body on this state, inside the scope of this trace."""
        from ..run import Call, run_coroutine

        token = _current.set(self)
        try:
            if inspect.iscoroutinefunction(program.func):
                from .async_trace import AsyncTracerProgramState

                state = AsyncTracerProgramState(self)
                self.ret_value = run_coroutine(program.call(state, Call(args, kwargs)))
            else:
                self.ret_value = program.call(self, Call(args, kwargs))
        finally:
            _current.reset(token)

    def trace_nested(
        self, program: SglFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TracerProgramState:
        """Trace a program that this one calls: a state of its own."""
        from ..run import split_options

        if self.recording.only_prefix:
            raise PrefixEnded
        arguments, options = split_options(program, kwargs)
        traced = TracedState(self.recording, self.chat_template, "call", program.__name__, self.traced)
        self.recording.steps.append(Open(traced.index, caller_place(), 0, program, options, arguments))
        nested = TracerProgramState(traced)
        self.child_states.append(nested)
        nested.run(program, args, arguments)
        nested.end()
        return nested

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

    @property
    def messages_(self) -> list[dict[str, Any]]:
        return self.messages()

    def __repr__(self) -> str:
        return f"TracerProgramState({self.nodes})"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{caller_place()}: a traced state has no {name!r}, which only a run has; use run() instead"
        )

    # --- appending ---------------------------------------------------------------------------------------

    def __iadd__(self, other: Any) -> TracerProgramState:
        where = caller_place()
        for node in flatten(as_node(other), self.traced):
            self._append(node, where)
        return self

    def _append(self, node: SglExpr, where: Place | None) -> None:
        if isinstance(node, SglRoleBegin):
            self._begin(node.role, where)
        elif isinstance(node, SglRoleEnd):
            self._end_role(node.role, where)
        elif isinstance(node, SglSeparateReasoning):
            parts = SglExprList(list(flatten(node.expr, self.traced)))
            node = SglSeparateReasoning(node.model_type, parts)
            makes = tuple(made for part in parts.expr_list for made in self._think(part, where))
            self._record(node, where, makes)
        else:
            self._record(node, where, self._place(node, where))

    def _place(self, node: SglExpr, where: Place | None) -> Makes:
        """Put the node into the graph; the variable that it makes, if it makes one."""
        placed = self.traced.place(node, where)
        if isinstance(node, SglConstantText):
            return ()
        if not isinstance(node, SglVarScopeBegin | SglVarScopeEnd):
            self.traced.lose_text()
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
        if isinstance(node, SglSelect):
            return value
        value.reading = node.reading
        count = node.sampling_params.n or 1
        return value if count == 1 else [value.sample(index) for index in range(count)]

    def _think(self, node: SglExpr, where: Place | None) -> Makes:
        """A node inside `separate_reasoning`: the names of its answer and of its thought."""
        if not isinstance(node, SglGen | SglSelect):
            return self._place(node, where)
        answers = self._place(node, where)
        thought = self.traced.place(SglSeparateReasoning("", SglExprList([node])), where)
        name = f"{node.name}_reasoning_content"
        self.variables[name] = self.recording.variable(name, thought, thought.node_id)
        return (*answers, (thought.node_id, name))

    def _record(self, node: SglExpr, where: Place | None, makes: Makes = ()) -> None:
        self.recording.steps.append(Append(self.traced.index, where, self.scope, node, makes))

    def _begin(self, role: str, where: Place | None) -> None:
        conversation = self.traced.conversation
        if conversation.wants_default_system(role) and conversation.role is None:
            self.recording.uses_template = True
            self._show_begin("system", where)
            self.traced.place(SglConstantText(conversation.template.default_system_prompt or ""), where)
            self._show_end("system", where)
        self._show_begin(role, where)
        self._record(SglRoleBegin(role), where)

    def _show_begin(self, role: str, where: Place | None) -> None:
        conversation = self.traced.conversation
        self.traced.place(SglConstantText(conversation.prefix(role)), where)
        self.traced.has_turns = True
        conversation.begin(role, len(self.nodes))

    def _end_role(self, role: str, where: Place | None) -> None:
        self._show_end(role, where)
        self._record(SglRoleEnd(role), where)

    def _show_end(self, role: str, where: Place | None) -> None:
        suffix, end = self.traced.conversation.suffix(role), len(self.nodes)
        self.traced.place(SglConstantText(suffix), where)
        self.traced.conversation.end(end)

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
        return SglSubmitted(turn, self.traced)

    @contextmanager
    def _bracket(self, begin: SglExpr, end: SglExpr) -> Iterator[None]:
        self += begin
        yield
        self += end

    def var_scope(self, name: str) -> Any:
        return self._bracket(SglVarScopeBegin(name), SglVarScopeEnd(name))

    # --- forks and calls ---------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> TracerGroup:
        from .joins import TracerGroup

        return TracerGroup(self._fork(size, position_ids_offset), self)

    def _fork(self, size: int, position_ids_offset: list[int] | None) -> list[Any]:
        fork = self.traced.note(SglFork(size, position_ids_offset))
        children = [self._child(fork, index) for index in range(size)]
        self.child_states += children
        states = tuple(child.traced.index for child in children)
        self.recording.steps.append(Split(self.traced.index, caller_place(), self.scope, states))
        return children

    def _child(self, fork: SglExpr, index: int) -> TracerProgramState:
        child = TracerProgramState(self.traced.branch(fork, index), dict(self.variables))
        child.traced.place(SglGetForkItem(index))
        return child

    @contextmanager
    def copy(self) -> Iterator[TracerProgramState]:
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            group.join()

    def call(self, program: SglFunction, /, *args: Any, **kwargs: Any) -> TracerProgramState:
        """Trace another program's body here: the same text, variables of its own."""
        from ..run import Call

        inner = self._scoped()
        inner.ret_value = program.call(inner, Call(args, kwargs))
        return inner

    def _scoped(self) -> TracerProgramState:
        inner = TracerProgramState(self.traced, scope=self.recording.fresh_scope())
        inner.child_states = self.child_states
        return inner

    def end(self) -> Key:
        """Nothing more follows on this text. The key under which that is known."""
        if not self.traced.ended:
            key = self.traced.end()
            self.recording.steps.append(Close(self.traced.index, caller_place(), self.scope, key))
        return self.traced.end()

    # --- reading -----------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        value = self.variables[name]
        self._wait(on=keys_in(value))
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self.variables[name] = value
        self.recording.steps.append(Assign(self.traced.index, caller_place(), self.scope, name, value))

    def __contains__(self, name: str) -> bool:
        return name in self.variables

    get_var, set_var = __getitem__, __setitem__

    def get(self, name: Any, type: Any = None) -> Any:
        """The variable as what its gen was asked for, or as `type`."""
        from ..typed import reading_of

        value = self[name.name if isinstance(name, SglGen) else name]
        reading = None if type is None else reading_of(type)
        return filled(value, lambda part: part.read_as(reading) if isinstance(part, Traced) else part)

    async def aget(self, name: str) -> Any:
        return self[name]

    def text(self) -> Any:
        """The text if it is constant, else a placeholder."""
        traced = self.traced
        self._wait(states=(traced.index,))
        if traced.constant is not None:
            self.recording.uses_template |= traced.has_turns
            return "".join(traced.constant)
        return self._snapshot("text()", messages=False)

    async def atext(self) -> Any:
        return self.text()

    def messages(self) -> list[dict[str, Any]]:
        """The finished turns; contents that are not constant are lists of nodes, or placeholders if strict."""
        self._wait(states=(self.traced.index,))
        turns = self.traced.conversation.finished
        contents = [self._content(turn.start, turn.end) for turn in turns]
        if self.recording.strict and not all(isinstance(content, str) for content in contents):
            kept = self._snapshot("messages()", messages=True)
            contents = [c if isinstance(c, str) else kept.sample(i) for i, c in enumerate(contents)]
        return [{"role": turn.role, "content": part} for turn, part in zip(turns, contents, strict=True)]

    def _content(self, start: int, end: int | None) -> Any:
        nodes = self.nodes[start:end]
        if all(isinstance(node, SglConstantText) for node in nodes):
            return "".join(node.value for node in nodes if isinstance(node, SglConstantText)).lstrip()
        return nodes

    def _snapshot(self, name: str, messages: bool) -> Traced:
        key = self.recording.fresh_id()
        self.recording.steps.append(Snapshot(self.traced.index, caller_place(), self.scope, key, messages))
        return self.recording.variable(name, self.last_node, key)

    def sync(self) -> None:
        """Nothing is pending."""
        self._wait(states=(self.traced.index,))

    def error(self) -> None:
        self.sync()

    def get_meta_info(self, name: str) -> Any:
        raise TraceError(
            f"{caller_place()}: the trace needs the meta_info of {name!r}, which only a run can give; use run()"
        )

    def _wait(self, on: tuple[Key, ...] = (), states: tuple[int, ...] = ()) -> None:
        if on or states:
            self.recording.steps.append(
                Wait(self.traced.index, caller_place(), self.scope, on=on, states=states)
            )


