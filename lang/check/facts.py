"""What is known of a state at one place of a program: its variables and its open role."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace

from .values import Value

NEVER, MAYBE, LOOP, SURE = range(4)
ANY_ROLE = "*"


@dataclass(frozen=True)
class Bound:
    """A variable. `sure`: on every path (SURE), on some (MAYBE), or in a way that cannot be told (LOOP).

    `kind` is gen, select, list, scope or set; `conditions` are those that held where paths met.
    """

    kind: str
    place: ast.AST
    sure: int = SURE
    conditions: tuple[str, ...] = ()
    read: bool = False
    waited: bool = False
    single: bool = True
    lone: bool = False  # after a join: only one of several forks made it


@dataclass
class Facts:
    """Of one state. `unknown`: it may have variables that the source does not show; `many`: it stands for several."""

    names: dict[str, Bound] = field(default_factory=dict)
    patterns: set[str] = field(default_factory=set)
    unknown: bool = False
    role: str | None = None
    role_place: ast.AST | None = None
    waited: bool = False
    many: bool = False
    turns: bool = False  # the text so far ends with a turn

    def copy(self) -> Facts:
        return replace(self, names=dict(self.names), patterns=set(self.patterns))

    def forget(self) -> None:
        """Something was done to the state that the source does not show."""
        self.unknown, self.role, self.turns = True, ANY_ROLE, False

    def find(self, name: str) -> Bound | None:
        return self.names.get(name)

    def may_have(self, name: str) -> bool:
        return self.unknown or any(re.fullmatch(p, name, re.DOTALL) for p in self.patterns)

    def merged(self, other: Facts, conditions: tuple[str, ...]) -> Facts:
        """Where two paths meet."""
        names: dict[str, Bound] = {}
        for name in {**self.names, **other.names}:
            names[name] = _met(self.names.get(name), other.names.get(name), conditions)
        return Facts(
            names,
            self.patterns | other.patterns,
            self.unknown or other.unknown,
            self.role if self.role == other.role else ANY_ROLE,
            self.role_place,
            self.waited and other.waited,
            self.many or other.many,
            self.turns and other.turns,
        )


def _met(left: Bound | None, right: Bound | None, conditions: tuple[str, ...]) -> Bound:
    if left is None or right is None:
        one = left or right
        assert one is not None
        return replace(one, sure=min(one.sure, MAYBE), conditions=conditions) if one.sure == SURE else one
    weaker = left if left.sure <= right.sure else right
    kind = left.kind if left.kind == right.kind else "set"
    return replace(
        weaker,
        kind=kind,
        read=left.read or right.read,
        waited=left.waited and right.waited,
        single=left.single and right.single,
    )


class Env:
    """Names and states at one place. A path of a program has one; paths that meet merge theirs."""

    def __init__(self, names: dict[str, Value] | None = None) -> None:
        self.names: dict[str, Value] = names or {}
        self.facts: dict[int, Facts] = {}
        self.conditions: tuple[str, ...] = ()

    def copy(self) -> Env:
        other = Env(dict(self.names))
        other.facts = {number: facts.copy() for number, facts in self.facts.items()}
        other.conditions = self.conditions
        return other

    def become(self, other: Env) -> None:
        """Take over what the other path found."""
        self.names, self.facts, self.conditions = other.names, other.facts, other.conditions
