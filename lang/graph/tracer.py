"""The `s` of a trace: variables are placeholders, nodes get a place in a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ..errors import TraceError
from ..nodes.ir import SglConstantText, SglExpr, SglGen
from ..nodes.traced_nodes import SglFork, SglGetForkItem
from ..places.source_location import caller_place
from ..program.program import Program, ProgramCall, check_program
from ..sampling.adapter_selection import Change
from ..typed import reading_of
from .trace_placeholders import Key, TracedVariable, filled
from .trace_steps import AssignStep, CloseStep, ForkStep, SnapshotStep, WaitStep, keys_in
from .traced_forks import TracerGroup
from .traced_text import TracedText


class TracerProgramState(TracedText):
    """The `s` of a trace. Variables are placeholders, nodes get a place in a graph (`last_node` is the end).

    `traced` is the text, which the programs of `s.call` share; `variables` are those of this program.
    """

    # --- forks and calls ---------------------------------------------------------------------------------

    def fork(
        self, size: int = 1, position_ids_offset: list[int] | None = None, *, adapter: Change = ...
    ) -> TracerGroup:
        return TracerGroup(self._fork(size, position_ids_offset, adapter), self)

    def _fork(self, size: int, position_ids_offset: list[int] | None, adapter: Any) -> list[Any]:
        fork = self.traced.note(SglFork(size, position_ids_offset, adapter))
        children = [self._child(fork, index) for index in range(size)]
        self.child_states += children
        states = tuple(child.traced.index for child in children)
        self.recording.steps.append(ForkStep(self.traced.index, caller_place(), self.scope, states, adapter))
        return children

    def _child(self, fork: SglExpr, index: int) -> TracerProgramState:
        child = TracerProgramState(self.traced.branch(fork), dict(self.variables))
        child.traced.place(SglGetForkItem(index))
        return child

    @contextmanager
    def copy(self) -> Iterator[TracerProgramState]:
        group = self.fork(1)
        try:
            yield group[0]
        finally:
            group.join()

    def call(self, program: Program, /, *args: Any, **kwargs: Any) -> TracerProgramState:
        """Trace another program's body here: the same text, separate variables."""
        check_program(program)
        inner = self._scoped()
        inner.ret_value = program.call(inner, ProgramCall(args, kwargs))
        return inner

    def _scoped(self) -> TracerProgramState:
        inner = TracerProgramState(self.traced, scope=self.recording.fresh_scope())
        inner.child_states = self.child_states
        return inner

    def end(self) -> Key:
        """Nothing more follows on this text. The key under which that is known."""
        if not self.traced.ended:
            key = self.traced.end()
            self.recording.steps.append(CloseStep(self.traced.index, caller_place(), self.scope, key))
        return self.traced.end()

    # --- reading -----------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        value = self.variables[name]
        self._wait(on=keys_in(value))
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self.variables[name] = value
        self.recording.steps.append(AssignStep(self.traced.index, caller_place(), self.scope, name, value))

    def __contains__(self, name: str) -> bool:
        return name in self.variables

    get_var, set_var = __getitem__, __setitem__

    def get(self, name: Any, type: Any = None) -> Any:
        """The variable as what its gen was asked for, or as `type`."""
        title: Any = name.name if isinstance(name, SglGen) else name
        value = self[title]
        reading = None if type is None else reading_of(type)
        return filled(value, lambda part: part.read_as(reading) if isinstance(part, TracedVariable) else part)

    async def aget(self, name: str) -> Any:
        return self[name]

    @property
    def messages_(self) -> list[dict[str, Any]]:
        return self.messages()

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
            if self.traced.free_turns:
                return kept  # type: ignore[return-value]
            contents = [c if isinstance(c, str) else kept.part(i).part("content") for i, c in enumerate(contents)]
        return [{"role": turn.role, "content": part} for turn, part in zip(turns, contents, strict=True)]

    def _content(self, start: int, end: int | None) -> Any:
        nodes = [node for node in self.nodes[start:end] if not node.stands_alone]
        if all(isinstance(node, SglConstantText) for node in nodes):
            return "".join(node.value for node in nodes if isinstance(node, SglConstantText)).lstrip()
        return nodes

    def _snapshot(self, name: str, messages: bool) -> TracedVariable:
        key = self.recording.fresh_id()
        self.recording.steps.append(SnapshotStep(self.traced.index, caller_place(), self.scope, key, messages))
        return self.recording.variable(name, self.last_node, key)

    def sync(self) -> None:
        """Nothing is pending."""
        self._wait(states=(self.traced.index,))

    def error(self) -> None:
        self.sync()

    def get_meta_info(self, name: str) -> Any:
        self._only_a_run_has(f"the meta_info of {name!r}")

    def probs(self, name: str) -> Any:
        self._only_a_run_has(f"the probabilities of {name!r}")

    def _only_a_run_has(self, what: str) -> NoReturn:
        raise TraceError(f"{caller_place()}: the trace needs {what}, which only a run has; use run()")

    def _wait(self, on: tuple[Key, ...] = (), states: tuple[int, ...] = ()) -> None:
        if on or states:
            self.recording.steps.append(WaitStep(self.traced.index, caller_place(), self.scope, on=on, states=states))
