"""Noting problems: once a place, and not where an error is expected."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import programs
from .facts import Env
from .names import Names
from .problem import RULES, Problem, Severity
from .states import Missing
from .values import Coroutine, Function, Value, holds_nodes


@dataclass
class Loop:
    """A loop that is being walked: the paths that leave it, and reads that a later part of it may explain."""

    depth: int
    breaks: list[Env] = field(default_factory=list)
    continues: list[Env] = field(default_factory=list)
    missing: list[tuple[Missing, str]] = field(default_factory=list)

    def take_continues(self) -> list[Env]:
        taken, self.continues = self.continues, []
        return taken


@dataclass
class Activation:
    """A function that is being walked: where it returns, and what."""

    node: ast.AST
    returns: list[tuple[Env, Value]] = field(default_factory=list)
    state: int | None = None
    parameters: frozenset[str] = frozenset()


class Reports:
    """What was found, and where the walk stands. `problems` are in no order."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.problems: dict[tuple[str, int, int], Problem] = {}
        self.loops: list[Loop] = []
        self.calls: list[Activation] = []
        self.silent = 0  # inside `with pytest.raises(...)`, or when only a value is wanted
        self.forgiving = 0  # inside a try that expects missing variables
        self.appending = 0
        self.guessed: set[int] = set()  # states that are parameters named s and may be anything
        self.in_async_program = False
        self.forks: dict[int, list[int]] = {}  # the states that were forked off a state

    def report(self, rule: str, place: ast.AST, message: str, severity: Severity | None = None) -> None:
        """Note a problem, once a place."""
        if self.silent:
            return
        line, column = getattr(place, "lineno", 1), getattr(place, "col_offset", 0) + 1
        problem = Problem("", line, column, rule, severity or RULES[rule].severity, message)
        self.problems.setdefault((rule, line, column), problem)

    def report_undefined(self, missing: Missing, message: str, env: Env) -> None:
        """At once; or at the end of the loop, where the read stands under a condition inside one."""
        if self.loops and len(env.conditions) > self.loops[-1].depth:
            if not self.silent:
                self.loops[-1].missing.append((missing, message))
        else:
            self.report_missing(missing, message)

    def report_missing(self, missing: Missing, message: str) -> None:
        self.report("SGL101", missing.place, message, severity=None if missing.needed else "warning")

    def check_text_of(self, value: Value, place: ast.AST, how: str) -> None:
        if holds_nodes(value):
            self.report(
                "SGL301", place,
                f"{how} turns an expression into text, but it has no text before the program runs; append it with +: "
                's += "..." + expression + "..."',
            )  # fmt: skip

    def check_awaited(self, value: Value, place: ast.AST) -> None:
        if isinstance(value, Coroutine):
            self.report(
                "SGL801",
                place,
                f"s.{value.call}(...) must be awaited here: write `await s.{value.call}(...)`",
            )

    def note_parameter(self, node: ast.Name, env: Env) -> None:
        """A parameter is read whose name a gen has taken."""
        here = self.calls[-1] if self.calls else None
        if here is None or here.state is None or not self.appending or node.id not in here.parameters:
            return
        bound = env.facts[here.state].find(node.id) if here.state in env.facts else None
        if bound is not None and bound.kind in ("gen", "select"):
            line = getattr(bound.place, "lineno", 0)
            self.report(
                "SGL104", node,
                f"{node.id!r} is the parameter here, not the text of the gen in line {line}; write s[{node.id!r}] if you "
                "mean that text, otherwise rename one of them",
            )  # fmt: skip

    def note_undecorated(self, function: Function, node: ast.Attribute) -> None:
        if function.is_program or node.attr not in programs.RUNNERS or isinstance(function.node, ast.Lambda):
            return
        spec = function.node.args
        if spec.args and spec.args[0].arg == "s" and function.name in self.names.speaking:
            self.report(
                "SGL604", node,
                f"{function.name} is not a program: put @sgl.function above its def in line {function.node.lineno}",
            )  # fmt: skip

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        self.silent += 1
        try:
            yield
        finally:
            self.silent -= 1

    @property
    def in_program(self) -> bool:
        return any(here.state is not None for here in self.calls)

    @property
    def loop_depth(self) -> int:
        return len(self.loops)
