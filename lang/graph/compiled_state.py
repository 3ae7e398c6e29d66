"""The state of a compiled run: read like any other. `ret_value` is what the body returned in the trace, with values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..interpreter.state_variables import StateVariables
from ..interpreter.stream_executor import StreamExecutor
from ..nodes.ir import SglConstantText
from ..nodes.traced_nodes import SglArgument
from ..program.program_state import ProgramState
from ..program.state_group import ProgramStateGroup
from .trace_placeholders import ConcatenatedText, TracedVariable
from .traced_forks import TracerGroup
from .tracer import TracerProgramState

if TYPE_CHECKING:
    from .plan_executor import PlanExecution


class CompiledState(ProgramState):
    """A ProgramState whose program runs on by itself: readers wait for what is still to be appended."""

    def __init__(
        self, executor: StreamExecutor, walk: PlanExecution, returned: Any, variables: StateVariables | None = None
    ) -> None:
        super().__init__(executor, variables)
        self._walk = walk if _depends_on_run(returned) else None
        self._traced_return = returned

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_traced_return": self.ret_value}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._walk = None

    @property
    def ret_value(self) -> Any:
        """What the body returned. Waits, if that is or has a value of the run."""
        if self._walk is None:
            return self._traced_return
        root = self._walk.root
        root.pieces.wait_closed()
        if root.body_error is not None:
            raise root.body_error
        return _real(self._traced_return, self._walk)

    @ret_value.setter
    def ret_value(self, value: Any) -> None:
        self._walk, self._traced_return = None, value


def _depends_on_run(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_depends_on_run, value))
    if isinstance(value, dict):
        return any(map(_depends_on_run, value.values()))
    return isinstance(value, TracedVariable | SglArgument | ConcatenatedText | TracerProgramState | TracerGroup)


def _real(value: Any, walk: PlanExecution) -> Any:
    """What a value of the trace is in the run."""
    if isinstance(value, TracedVariable | SglArgument):
        return walk.value_of(value)
    if isinstance(value, TracerProgramState):
        return _real_state(value, walk)
    if isinstance(value, TracerGroup):
        parent = _real_state(value.src_state, walk)
        return ProgramStateGroup([_real_state(state, walk) for state in value.states], parent)
    if isinstance(value, ConcatenatedText):
        return "".join(str(_real(part, walk)) for part in value.parts)
    if isinstance(value, SglConstantText):
        return value.value
    if isinstance(value, dict):
        return {name: _real(part, walk) for name, part in value.items()}
    return type(value)(_real(part, walk) for part in value) if type(value) in (list, tuple) else value


def _real_state(state: TracerProgramState, walk: PlanExecution) -> ProgramState:
    index = state.traced.index
    variables = walk.variables(index, state.scope)
    return CompiledState(walk.executors[index], walk, state.ret_value, variables)
