"""Executes a plan: every step whose inputs are there is done at once, completions continue the others.

No thread waits for a value. A lane that has to is taken up again by the callback of what it waits for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sgl.runtime.text.chat_templates.quoted_text import joined

from ..backend import Generated
from ..errors import ProgramError
from ..interpreter.state_transcript import LiteralText, PendingText, TextSpan, again, messages_of, passage_of, text_of
from ..interpreter.state_variables import StateVariables
from ..interpreter.stream_executor import StreamExecutor
from ..nodes.ir import SglConstantText, SglExpr
from ..nodes.special_token_text import in_turn
from ..nodes.traced_nodes import SglVariable
from ..places.source_location import SourceLocation
from ..program.program import ProgramCall
from ..program.program_run import NO_THREAD, RunSettings, new_executor
from ..sampling.adapter_selection import of_forks
from .graph_plan import GraphPlan, Lane
from .plan_passes.prefix_pass import SilentStream
from .trace_placeholders import Key, TracedVariable, filled
from .trace_steps import (
    AppendStep,
    AssignStep,
    CallStep,
    CloseStep,
    ConcatenateStep,
    ForkStep,
    GatherStep,
    GraphStep,
    JoinedTextStep,
    SnapshotStep,
    WaitStep,
    keys_in,
)

Hop = Callable[[Callable[[], object]], object]
Opens = Callable[[CallStep, StreamExecutor], StreamExecutor]
THERE = LiteralText("")  # what is known under the key of something that has no value
Binding = Any  # Pending | Span | Thought | Later: what has done, error, get(), when_done()


class PlanLaneProgress:
    """A lane and the step that is next in it."""

    __slots__ = ("position", "steps")

    def __init__(self, steps: Lane) -> None:
        self.steps = steps
        self.position = 0


def open_nested(step: CallStep, caller: StreamExecutor) -> StreamExecutor:
    """The state of a program that another one calls: a separate run, which is stopped with the caller's."""
    given = {name: value for name, value in step.arguments.items() if not isinstance(value, SglExpr)}
    with caller.control.scope():
        return new_executor(step.program, ProgramCall((), given), RunSettings.of(step.options))


class PlanExecution:
    """One run of a plan on the state `root`. `hop` moves the work after a completion to another thread."""

    def __init__(
        self, plan: GraphPlan, root: StreamExecutor, arguments: Mapping[str, Any], hop: Hop, opens: Opens = open_nested
    ) -> None:
        self.root = root
        self.executors = {0: root}
        self.found: dict[Key, Binding] = {("state", 0): THERE}
        self._arguments = arguments
        self._hop = hop
        self._opens = opens
        self._head = plan.head
        self._variables: dict[tuple[int, int], StateVariables] = {}
        self._waiting: dict[Key, list[PlanLaneProgress]] = {}
        self._ready = deque(PlanLaneProgress(lane) for lane in plan.lanes)
        self._unfinished = len(self._ready)
        self._lock = threading.RLock()
        self._going = False

    def start(self) -> None:
        """Do what can be done now. Errors are raised to the readers of the states."""
        with self._lock:
            if self._head:
                self._pass_over_head()
            self._go()

    def _pass_over_head(self) -> None:
        pinned, self.root.stream = self.root.stream, SilentStream()
        for step in self._head:
            self._append(step)
        self.root.stream = pinned

    def _resume(self, lane: PlanLaneProgress) -> None:
        with self._lock:
            self._ready.append(lane)
            if not self._going:
                self._go()

    def _go(self) -> None:
        self._going = True
        self._body_runs_in(threading.get_ident())
        try:
            while self._ready:
                self._advance(self._ready.popleft())
        except Exception as error:
            self._end(error)
        else:
            if not self._unfinished:
                self._end(None)
        finally:
            self._body_runs_in(NO_THREAD)  # readers wait for what is still to be appended
            self._going = False

    def _body_runs_in(self, thread: int) -> None:
        for executor in self.executors.values():
            executor.body_thread = thread

    def _end(self, error: Exception | None) -> None:
        """All steps are done, or one has failed, as if the body had raised."""
        self._ready.clear()
        self._waiting.clear()
        for index in reversed(self.executors):
            self.executors[index].end(error)

    # --- lanes -------------------------------------------------------------------------------------------

    def _advance(self, lane: PlanLaneProgress) -> None:
        while lane.position < len(lane.steps):
            step = lane.steps[lane.position]
            if self._has_to_wait(lane, step):
                return
            _RULES[type(step)](self, step)
            lane.position += 1
        self._unfinished -= 1

    def _has_to_wait(self, lane: PlanLaneProgress, step: GraphStep) -> bool:
        missing = next((key for key in self._needs(step) if key not in self.found), None)
        if missing is not None:
            self._waiting.setdefault(missing, []).append(lane)
            return True
        pending = next((binding for binding in self._values(step) if not binding.done), None)
        if pending is not None:
            pending.when_done(partial(self._hop, partial(self._resume, lane)))
            return True
        return False

    def _needs(self, step: GraphStep) -> list[Key]:
        state = step.parent if isinstance(step, CallStep) else step.state
        return [("state", state), *(("state", other) for other in step.texts), *step.needs, *step.values]

    def _values(self, step: GraphStep) -> list[Binding]:
        branches = [self.executors[state].branch for state in step.texts]
        whole = isinstance(step, WaitStep)  # a body that waits for a state waits for what it shares, too
        texts = [TextSpan(branch.pieces.items if whole else branch.own) for branch in branches]
        return [*(self.found[key] for key in step.values), *texts]

    def _tell(self, key: Key, binding: Binding = THERE) -> None:
        self.found[key] = binding
        self._ready.extend(self._waiting.pop(key, ()))

    def _adopt(self, state: int, executor: StreamExecutor) -> None:
        executor.body_thread = threading.get_ident()
        executor.conversation.quiet = executor.conversation.quiet or self.root.conversation.quiet
        self.executors[state] = executor
        self._tell(("state", state))

    def variables(self, state: int, scope: int) -> StateVariables:
        """What a state's program, or the program of an `s.call` on it, has as variables."""
        if not scope:
            return self.executors[state].vars
        return self._variables.setdefault((state, scope), StateVariables())

    def value_of(self, part: Any, state: int = 0) -> Any:
        """The value of a placeholder."""
        if not isinstance(part, TracedVariable):
            return self._arguments[part.name]
        return part.value(self.found[part.key].get(), self.executors[state].backend)

    # --- steps -------------------------------------------------------------------------------------------

    def _append(self, step: AppendStep) -> None:
        executor, variables = self.executors[step.state], self.variables(step.state, step.scope)
        node = filled(step.node, lambda part: self.value_of(part, step.state))
        executor.submit(node, variables, step.where)
        for key, name in step.makes:
            self._tell(key, executor.find(name, variables))

    def _append_joined(self, step: JoinedTextStep) -> None:
        texts = [filled(part.node, lambda at: self.value_of(at, step.state)) for part in step.parts]
        texts = [getattr(text, "value", text) for text in texts]
        if not all(isinstance(text, str) for text in texts):
            for part in step.parts:
                self._append(part)
            return
        executor = self.executors[step.state]
        said = [in_turn(text, executor.conversation.role) for text in texts]
        for index, (part, text) in enumerate(zip(step.parts, said, strict=True)):
            send = _nothing if index else partial(_send, executor, joined(said))
            executor.write(text, send, part.where)

    def _split(self, step: ForkStep) -> None:
        variables = self.variables(step.state, step.scope)
        adapter = filled(step.adapter, lambda part: self.value_of(part, step.state))
        children = self.executors[step.state].fork(len(step.children), variables, of_forks(adapter, len(step.children)))
        for state, child in zip(step.children, children, strict=True):
            self._adopt(state, child)

    def _open(self, step: CallStep) -> None:
        self._adopt(step.state, self._opens(step, self.executors[step.parent]))

    def _close(self, step: CloseStep) -> None:
        self.executors[step.state].end()
        self._tell(step.key)

    def _gather(self, step: GatherStep) -> None:
        parent = self.variables(step.state, step.scope)
        known = set(parent.declared())
        parts: dict[str | None, list[tuple[StateVariables, Binding | None]]] = {}
        for state in step.children:
            child = self.executors[state].vars
            for name in child.declared():
                if name not in known:
                    parts.setdefault(name, []).append((child, child.find(name, False)))
        for name, found in parts.items():
            parent.bind(name, _together(name, found))

    def _concatenate(self, step: ConcatenateStep) -> None:
        for state in step.children:
            child = self.executors[state]
            if child.failure:
                raise again(child.failure)
            self._write(step.state, step.scope, passage_of(child.branch.own), step.where)

    def _write(self, state: int, scope: int, text: str, where: SourceLocation | None) -> None:
        self.executors[state].submit(SglConstantText(text), self.variables(state, scope), where)

    def _assign(self, step: AssignStep) -> None:
        variables = self.variables(step.state, step.scope)
        make = partial(filled, step.value, lambda part: self.value_of(part, step.state))
        parts = [self.found[key] for key in keys_in(step.value)]
        if parts:
            later: Binding = DeferredValue(parts, make)
            variables.bind(step.name, later)
        else:
            self.executors[step.state].set_var(step.name, make(), variables)

    def _snapshot(self, step: SnapshotStep) -> None:
        executor = self.executors[step.state]
        pieces, turns = executor.pieces.items, list(executor.conversation.finished)
        parts = [TextSpan([piece]) for piece in pieces]
        make: Callable[[], Any] = partial(text_of, pieces)
        if step.messages:
            make = partial(messages_of, turns, pieces)
        self._tell(step.key, DeferredValue(parts, make))

    def _wait(self, step: WaitStep) -> None:
        """What it waits for is there. What the body reads and what has failed is raised, as in the body."""
        for key in step.on:
            self.found[key].get()


def _send(executor: StreamExecutor, whole: str) -> None:
    executor.stream.append(whole)


def _nothing() -> None:
    """The text went with that of the first piece."""


def _together(name: str | None, found: list[tuple[StateVariables, Binding | None]]) -> Binding:
    """The list of what branches bound to a name."""
    bindings = [binding for _, binding in found if binding is not None]
    values = [child.get(name, False) if binding is None else None for child, binding in found]

    def make() -> list[Any]:
        return [value if binding is None else binding.get() for (_, binding), value in zip(found, values, strict=True)]

    return DeferredValue(bindings, make, found[0][0].node_of(name))


_RULES: dict[type[GraphStep], Callable[[PlanExecution, Any], None]] = {
    AppendStep: PlanExecution._append,
    JoinedTextStep: PlanExecution._append_joined,
    ForkStep: PlanExecution._split,
    CallStep: PlanExecution._open,
    CloseStep: PlanExecution._close,
    GatherStep: PlanExecution._gather,
    ConcatenateStep: PlanExecution._concatenate,
    AssignStep: PlanExecution._assign,
    SnapshotStep: PlanExecution._snapshot,
    WaitStep: PlanExecution._wait,
}


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
