"""States and paths: what is known of every state, where paths part and meet."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .facts import ANY_ROLE, Env, Facts
from .names import Names
from .reports import Loop, Reports
from .values import Choice, Copy, Function, Group, Many, State, Turn, Value, either

TIRED = 40_000  # statements walked; from then on calls and loops are not followed any more


class Paths(Reports):
    """Bookkeeping of states and paths."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.repeated = False  # in a comprehension over what is not known
        self._steps = 0
        self._states = 0

    def new_state(self, env: Env, facts: Facts) -> int:
        """The number of a new state."""
        self._states += 1
        if self.repeated:
            facts.role, facts.many = ANY_ROLE, True
        env.facts[self._states] = facts
        return self._states

    def escape(self, values: Iterable[Value], env: Env) -> None:
        """Code that is not seen may do anything to these states."""
        for value in values:
            if isinstance(value, State):
                self._forget(value.numbers, env)
            elif isinstance(value, Group):
                self._forget((*value.children, *value.parents), env)
            elif isinstance(value, Many):
                self.escape(value.items, env)
            elif isinstance(value, Choice):
                self.escape(value.options, env)
            elif isinstance(value, Turn):
                self.escape([value.state], env)
            elif isinstance(value, Copy):
                self.escape([value.group], env)
            elif isinstance(value, Function) and not value.is_program:
                self.escape(states_in(value), env)

    def _forget(self, numbers: Iterable[int], env: Env) -> None:
        for number in numbers:
            if number in env.facts:
                env.facts[number].forget()

    def met(self, paths: Iterable[Env | None], conditions: tuple[str, ...]) -> Env | None:
        """Where paths meet; None if none comes through."""
        open_paths = [path for path in paths if path is not None]
        return self.merged(open_paths, conditions) if open_paths else None

    def merged(self, paths: list[Env], conditions: tuple[str, ...]) -> Env:
        first, *others = paths
        for other in others:
            first.names = _merged_names(first.names, other.names)
            for number, facts in other.facts.items():
                mine = first.facts.get(number)
                first.facts[number] = facts if mine is None else mine.merged(facts, conditions)
        first.conditions = conditions
        return first

    def enter_loop(self, env: Env) -> Loop:
        self.loops.append(Loop(len(env.conditions)))
        return self.loops[-1]

    def leave_loop(self, env: Env | None) -> None:
        """What was missing in a turn and is still missing at its end was never made."""
        loop = self.loops.pop()
        ends = [path for path in (env, *loop.breaks) if path is not None]
        for missing, message in loop.missing:
            if any(missing.found_in(end) for end in ends):
                continue
            if self.loops:
                self.loops[-1].missing.append((missing, message))
            else:
                self.report_missing(missing, message)

    @property
    def turns(self) -> int:
        """How often the body of a loop is walked."""
        return 1 if self.is_tired else 2

    def spend(self) -> None:
        self._steps += 1

    @property
    def is_tired(self) -> bool:
        return self._steps > TIRED


def _merged_names(left: dict[str, Value], right: dict[str, Value]) -> dict[str, Value]:
    merged = {**right, **left}
    for name, value in right.items():
        mine = left.get(name)
        if mine is not None and mine is not value:
            merged[name] = mine if mine == value else either([mine, value])
    return merged


def leaves(value: Value) -> Iterator[Value]:
    if isinstance(value, Many | Choice):
        for item in value.items if isinstance(value, Many) else value.options:
            yield from leaves(item)
    else:
        yield value


def states_in(function: Function) -> Iterator[Value]:
    """States of the functions around that the function mentions."""
    used = {node.id for node in ast.walk(function.node) if isinstance(node, ast.Name)}
    for name in used & set(function.closure):
        for leaf in leaves(function.closure[name]):
            if isinstance(leaf, State | Group):
                yield leaf
