"""The states of a fork."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from ..errors import ArgumentsError, BadValueError, LanguageError, ProgramError
from ..interpreter.state_transcript import again, passage_of
from ..interpreter.state_variables import StateVariables
from ..interpreter.stream_executor import StreamExecutor
from ..nodes.ir import SglConstantText, SglExpr


class ForkState(Protocol):
    """What a group asks of its states."""

    stream_executor: StreamExecutor
    _variables: StateVariables

    def __iadd__(self, other: Any) -> Self: ...
    async def _synced(self) -> None: ...
    def end(self) -> None: ...


State = TypeVar("State", bound=ForkState)


class ForkIndexError(LanguageError, IndexError):
    """A group of forks has no state of that number."""


class ProgramStateGroup(Generic[State]):
    """Forked states, in order. They run in parallel; `join` brings their results to the parent."""

    def __init__(self, states: list[State], src_state: State) -> None:
        self.states = states
        self.src_state = src_state

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[State]:
        return iter(self.states)

    @overload
    def __getitem__(self, index: int) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> list[State]: ...
    def __getitem__(self, index: int | slice) -> State | list[State]:
        if not isinstance(index, slice) and not hasattr(index, "__index__"):
            raise ArgumentsError(
                f"forks[{index!r}]: a group of forks has no variables, each fork has its own: forks[0][{index!r}]; "
                "after forks.join() the "
                f"parent has them all: s[{index!r}] is a list"
            )
        try:
            return self.states[index]
        except IndexError:
            raise ForkIndexError(f"forks[{index}]: the group has {len(self.states)} states, from 0") from None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Only for what is not there: states have it."""
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and name not in self.__dict__ and "states" in self.__dict__:
                message += (
                    "; append to all forks with +="
                    if name in ("append", "add", "extend")
                    else f"; each fork is a separate state: forks[0].{name}"
                )
            raise AttributeError(message, name=name, obj=self)

    def __setitem__(self, index: int, value: State) -> None:
        if self.states[index] is not value:
            raise BadValueError(f"state {index} of a fork cannot be replaced; append to it with +=")

    def __iadd__(self, other: Callable[[int], Any] | SglExpr | str | list[Any] | tuple[Any, ...]) -> Self:
        """Append to every state: the same node or text, element i of a list, or the result of a function of i."""
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
            raise BadValueError(f"{other!r} cannot be appended to a group; give text, a node, a list or a function")
        if len(other) < count:
            raise IndexError(
                f"a list of {len(other)} elements cannot be appended to a group of {count} states; give one element "
                "for each"
            )
        return list(other)

    def join(self, mode: str = "gather_variable") -> Any:
        """Wait for the states and end them; they stay readable.

        "gather_variable": each variable that the parent does not have becomes a list in the parent, with one value
        per state that has it, in order. If a state failed to make it, reading the list raises that error.
        Use the same name in all states: a name that only one state uses becomes a list of one value.
        "concate_and_append": append the text that each state added to the parent's text, in order.
        """
        self._check_mode(mode)
        known = self._known()
        for state in self.states:
            state.stream_executor.sync()
        self._collect(mode, known)

    async def ajoin(self, mode: str = "gather_variable") -> None:
        """`join` without blocking the event loop."""
        self._check_mode(mode)
        known = self._known()
        for state in self.states:
            await state._synced()
        self._collect(mode, known)

    def _check_mode(self, mode: str) -> None:
        if mode not in ("gather_variable", "concate_and_append"):
            raise BadValueError(f"Invalid join mode: {mode!r}; give 'gather_variable' or 'concate_and_append'")

    def _known(self) -> set[Any]:
        """The variables that the parent has when the join begins: they are not gathered."""
        return set(self.src_state._variables.declared())

    def _collect(self, mode: str, known: set[Any]) -> None:
        if mode == "gather_variable":
            self._gather(known)
        else:
            self._concatenate()
        for state in self.states:
            state.end()

    def _gather(self, known: set[Any]) -> None:
        parent = self.src_state._variables
        gathered: dict[Any, list[Any]] = {}
        nodes: dict[Any, Any] = {}
        errors: dict[Any, ProgramError] = {}
        for state in self.states:
            child = state._variables
            for name in child.declared():
                if name in known:
                    continue
                values = gathered.setdefault(name, [])
                nodes.setdefault(name, child.node_of(name))
                try:
                    values.append(child.get(name, False))
                except ProgramError as error:
                    errors.setdefault(name, error)
        for name, values in gathered.items():
            if name in errors:
                parent.bind_error(name, errors[name])
            else:
                parent.set(name, values, nodes[name])

    def _concatenate(self) -> None:
        for state in self.states:
            child = state.stream_executor
            if child.failure:
                raise again(child.failure)
            self.src_state.__iadd__(SglConstantText(passage_of(child.pieces.items[child.fork_start :])))
