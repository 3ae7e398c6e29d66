"""What is known at one place of a program: its names, and of each state its variables and its open role."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .abstract_values import (
    AbstractValue,
    CopyBlock,
    ForkGroup,
    FunctionValue,
    ListValue,
    StateBlock,
    StateRef,
    UnionValue,
    one_of,
    states_in,
)

NEVER, SOMETIMES, UNDECIDED, ALWAYS = range(4)
ANY_ROLE = "*"


@dataclass(frozen=True)
class VariableBinding:
    """A variable. `defined`: on every path (ALWAYS), on some (SOMETIMES), or the source does not decide it (UNDECIDED).

    `kind` is gen, select, list, scope or set; `conditions` are those that held where paths met.
    """

    kind: str
    place: ast.AST
    defined: int = ALWAYS
    conditions: tuple[str, ...] = ()
    read: bool = False
    ready: bool = False
    single: bool = True
    from_one_fork: bool = False  # after a join: only one of several forks made it


@dataclass
class StateFacts:
    """Of one state. `unknown`: it may have variables that the source does not show; `is_summary`: of several states."""

    names: dict[str, VariableBinding] = field(default_factory=dict)
    patterns: set[str] = field(default_factory=set)
    unknown: bool = False
    role: str | None = None
    role_place: ast.AST | None = None
    is_summary: bool = False
    ends_with_turn: bool = False  # the text so far ends with a turn

    def copy(self) -> StateFacts:
        return replace(self, names=dict(self.names), patterns=set(self.patterns))

    def forget(self) -> None:
        """Something was done to the state that the source does not show."""
        self.unknown, self.role, self.ends_with_turn = True, ANY_ROLE, False

    def find(self, name: str) -> VariableBinding | None:
        return self.names.get(name)

    def may_define(self, name: str) -> bool:
        return self.unknown or any(re.fullmatch(p, name, re.DOTALL) for p in self.patterns)

    def merged(self, other: StateFacts, conditions: tuple[str, ...]) -> StateFacts:
        """Where two paths meet."""
        names: dict[str, VariableBinding] = {}
        for name in {**self.names, **other.names}:
            names[name] = _merged_binding(self.names.get(name), other.names.get(name), conditions)
        return StateFacts(
            names,
            self.patterns | other.patterns,
            self.unknown or other.unknown,
            self.role if self.role == other.role else ANY_ROLE,
            self.role_place,
            self.is_summary or other.is_summary,
            self.ends_with_turn and other.ends_with_turn,
        )


def _merged_binding(
    left: VariableBinding | None, right: VariableBinding | None, conditions: tuple[str, ...]
) -> VariableBinding:
    if left is None or right is None:
        one = left or right
        assert one is not None
        return (
            replace(one, defined=min(one.defined, SOMETIMES), conditions=conditions) if one.defined == ALWAYS else one
        )
    weaker = left if left.defined <= right.defined else right
    kind = left.kind if left.kind == right.kind else "set"
    return replace(
        weaker,
        kind=kind,
        read=left.read or right.read,
        ready=left.ready and right.ready,
        single=left.single and right.single,
    )


class CheckEnvironment:
    """The environment: names and states at one place. Each path of a program has one; where paths meet, theirs are
    merged.
    """

    def __init__(self, names: dict[str, AbstractValue] | None = None) -> None:
        self.names: dict[str, AbstractValue] = names or {}
        self.facts: dict[int, StateFacts] = {}
        self.conditions: tuple[str, ...] = ()

    def copy(self) -> CheckEnvironment:
        other = CheckEnvironment(dict(self.names))
        other.facts = {number: facts.copy() for number, facts in self.facts.items()}
        other.conditions = self.conditions
        return other

    def become(self, other: CheckEnvironment) -> None:
        """Take over what the other path found."""
        self.names, self.facts, self.conditions = other.names, other.facts, other.conditions


@dataclass(frozen=True)
class MissingRead:
    """A read of a variable that nothing has made before. A later part of a loop may have made it."""

    state: StateRef
    name: str
    place: ast.AST
    needed: bool  # else None is read

    def found_in(self, env: CheckEnvironment) -> bool:
        facts = [env.facts[number] for number in self.state.numbers if number in env.facts]
        return any(fact.may_define(self.name) or self.name in fact.names for fact in facts)


# --- paths ---------------------------------------------------------------------------------------------------


def merge_reachable(paths: Iterable[CheckEnvironment | None], conditions: tuple[str, ...]) -> CheckEnvironment | None:
    """Where paths meet; None if none comes through."""
    open_paths = [path for path in paths if path is not None]
    return merge(open_paths, conditions) if open_paths else None


def merge(paths: list[CheckEnvironment], conditions: tuple[str, ...]) -> CheckEnvironment:
    """Where paths meet. Changes and returns the first one."""
    first, *others = paths
    for other in others:
        first.names = _merged_names(first.names, other.names)
        for number, facts in other.facts.items():
            mine = first.facts.get(number)
            first.facts[number] = facts if mine is None else mine.merged(facts, conditions)
    first.conditions = conditions
    return first


def _merged_names(left: dict[str, AbstractValue], right: dict[str, AbstractValue]) -> dict[str, AbstractValue]:
    merged = {**right, **left}
    for name, value in right.items():
        mine = left.get(name)
        if mine is not None and mine is not value:
            merged[name] = mine if mine == value else one_of([mine, value])
    return merged


def escape(values: Iterable[AbstractValue], env: CheckEnvironment) -> None:
    """Code that is not seen may do anything to these states."""
    for value in values:
        if isinstance(value, StateRef):
            _forget(value.numbers, env)
        elif isinstance(value, ForkGroup):
            _forget((*value.children, *value.parents), env)
        elif isinstance(value, ListValue):
            escape(value.items, env)
        elif isinstance(value, UnionValue):
            escape(value.options, env)
        elif isinstance(value, StateBlock):
            escape([value.state], env)
        elif isinstance(value, CopyBlock):
            escape([value.group], env)
        elif isinstance(value, FunctionValue) and not value.is_program:
            escape(states_in(value), env)


def _forget(numbers: Iterable[int], env: CheckEnvironment) -> None:
    for number in numbers:
        if number in env.facts:
            env.facts[number].forget()
