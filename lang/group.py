"""The states of a fork."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

from .errors import BadValueError, ProgramError
from .ir import SglExpr
from .transcript import again, text_of

if TYPE_CHECKING:
    from .state import ProgramState


class ProgramStateGroup:
    """Forked states, in order. They run at the same time; `join` brings their results to the parent."""

    def __init__(self, states: list[ProgramState], src_state: ProgramState) -> None:
        self.states = states
        self.src_state = src_state

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> list[ProgramState]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | list[ProgramState]:
        return self.states[index]

    def __setitem__(self, index: int, value: ProgramState) -> None:
        if self.states[index] is not value:
            raise BadValueError(f"state {index} of a fork cannot be replaced; append to it with +=")

    def __iadd__(
        self, other: Callable[[int], Any] | SglExpr | str | list[Any] | tuple[Any, ...]
    ) -> ProgramStateGroup:
        """Append to every state: the same node or text, element i of a list, or what a function of i gives."""
        for state, part in zip(self.states, self._parts(other), strict=False):
            state += part
        return self

    def _parts(self, other: Any) -> list[Any]:
        count = len(self.states)
        if isinstance(other, SglExpr | str):
            return [other] * count
        if callable(other):
            return [other(index) for index in range(count)]
        if not isinstance(other, list | tuple):
            raise BadValueError(
                f"{other!r} cannot be appended to a group; give text, a node, a list or a function"
            )
        if len(other) < count:
            raise IndexError(f"a list of {len(other)} elements for a group of {count} states")
        return list(other)

    def join(self, mode: str = "gather_variable") -> None:
        """Wait for the states and end them; they stay readable.

        "gather_variable": each variable that the parent does not have becomes a list there, with the values
        of the states that have it, in order. If a state failed to make it, reading the list raises its error.
        "concate_and_append": the parent's text goes on with what each state added, in order.
        """
        if mode == "gather_variable":
            self._gather()
        elif mode == "concate_and_append":
            self._concatenate()
        else:
            raise ValueError(f"Invalid join mode: {mode!r}; give 'gather_variable' or 'concate_and_append'")
        for state in self.states:
            state.end()

    def _gather(self) -> None:
        parent = self.src_state.stream_executor
        known = set(parent.vars.declared())
        gathered: dict[Any, list[Any]] = {}
        errors: dict[Any, ProgramError] = {}
        for state in self.states:
            child = state.stream_executor
            child.sync()
            for name in child.vars.declared():
                if name in known:
                    continue
                values = gathered.setdefault(name, [])
                try:
                    values.append(child.get_var(name))
                except ProgramError as error:
                    errors.setdefault(name, error)
        for name, values in gathered.items():
            if name in errors:
                parent.vars.bind_error(name, errors[name])
            else:
                parent.set_var(name, values)

    def _concatenate(self) -> None:
        for state in self.states:
            child = state.stream_executor
            child.sync()
            if child.failure:
                raise again(child.failure)
            self.src_state += text_of(child.pieces.items[child.fork_start :])
