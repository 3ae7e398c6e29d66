"""What all visitors of a file share: where the walk is, what it has found, and the evaluator that calls them."""

from __future__ import annotations

import ast
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from .abstract_values import AbstractValue, CallArguments, CoroutineValue, FunctionValue, StateRef, is_expression
from .check_environment import ANY_ROLE, CheckEnvironment, MissingRead, StateFacts
from .check_problem import RULES, Problem, Severity
from .module_bindings import ModuleNames

STEP_BUDGET = 40_000  # statements walked; from then on calls and loops are not followed any more


@dataclass
class LoopFrame:
    """A loop that is being walked: the paths that leave it, and reads that a later part of it may explain."""

    depth: int
    breaks: list[CheckEnvironment] = field(default_factory=list)
    continues: list[CheckEnvironment] = field(default_factory=list)
    missing: list[tuple[MissingRead, str]] = field(default_factory=list)

    def take_continues(self) -> list[CheckEnvironment]:
        taken, self.continues = self.continues, []
        return taken


@dataclass
class CallFrame:
    """A function that is being walked: where it returns, and what."""

    node: ast.AST
    returns: list[tuple[CheckEnvironment, AbstractValue]] = field(default_factory=list)
    state: int | None = None
    parameters: frozenset[str] = frozenset()


class CheckContext(ABC):
    """The position of the walk, and its report. `problems` are in no order.

    Visitors are functions of a context in the files above this one; they call each other through its abstract methods,
    which the checker implements.
    """

    def __init__(self, names: ModuleNames, remote: bool = False) -> None:
        self.names = names
        self.assigned = names.assigned
        self.has_star_import = names.has_star_import
        self.remote = remote
        self.problems: dict[tuple[str, int, int], Problem] = {}
        self.loops: list[LoopFrame] = []
        self.calls: list[CallFrame] = []
        self.silent = 0  # inside `with pytest.raises(...)`, or when only a value is wanted
        self.missing_expected = 0  # inside a try that expects missing variables
        self.append_depth = 0
        self.in_repetition = False  # in a comprehension over what is not known
        self.assumed_states: set[int] = set()  # states that are parameters named s and may be anything
        self.in_async_program = False
        self.forks: dict[int, list[int]] = {}  # the states that were forked off a state
        self._steps = 0
        self._states = 0

    # --- the report --------------------------------------------------------------------------------------

    def report(self, rule: str, place: ast.AST, message: str, severity: Severity | None = None) -> None:
        """Note a problem, once at each place."""
        if self.silent:
            return
        line, column = getattr(place, "lineno", 1), getattr(place, "col_offset", 0) + 1
        problem = Problem("", line, column, rule, severity or RULES[rule].severity, message)
        self.problems.setdefault((rule, line, column), problem)

    def report_undefined(self, missing: MissingRead, message: str, env: CheckEnvironment) -> None:
        """At once; or at the end of the loop, where the read depends on a condition inside one."""
        if self.loops and len(env.conditions) > self.loops[-1].depth:
            if not self.silent:
                self.loops[-1].missing.append((missing, message))
        else:
            self.report_missing(missing, message)

    def report_missing(self, missing: MissingRead, message: str) -> None:
        self.report("SGL101", missing.place, message, severity=None if missing.needed else "warning")

    def check_text_of(self, value: AbstractValue, place: ast.AST, how: str) -> None:
        if is_expression(value):
            self.report(
                "SGL301",
                place,
                f"{how} turns an expression into text, but it has no text before the program runs; append it with +: "
                's += "..." + expression + "..."',
            )

    def check_awaited(self, value: AbstractValue, place: ast.AST) -> None:
        if isinstance(value, CoroutineValue):
            self.report(
                "SGL801",
                place,
                f"s.{value.call}(...) must be awaited here: write `await s.{value.call}(...)`",
            )

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        self.silent += 1
        try:
            yield
        finally:
            self.silent -= 1

    # --- where the walk is -------------------------------------------------------------------------------

    @property
    def in_program(self) -> bool:
        return any(here.state is not None for here in self.calls)

    @property
    def loop_depth(self) -> int:
        return len(self.loops)

    def new_state(self, env: CheckEnvironment, facts: StateFacts) -> int:
        """The number of a new state."""
        self._states += 1
        if self.in_repetition:
            facts.role, facts.is_summary = ANY_ROLE, True
        env.facts[self._states] = facts
        return self._states

    def enter_loop(self, env: CheckEnvironment) -> LoopFrame:
        self.loops.append(LoopFrame(len(env.conditions)))
        return self.loops[-1]

    def leave_loop(self, env: CheckEnvironment | None) -> None:
        """What was missing in a pass and is still missing at its end was never made."""
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
    def loop_passes(self) -> int:
        """How often the body of a loop is walked."""
        return 1 if self.is_over_budget else 2

    def count_step(self) -> None:
        self._steps += 1

    @property
    def is_over_budget(self) -> bool:
        return self._steps > STEP_BUDGET

    def is_awaited(self, node: ast.AST) -> bool:
        return id(node) in self.names.awaited

    # --- values ------------------------------------------------------------------------------------------

    @abstractmethod
    def value(self, node: ast.expr, env: CheckEnvironment) -> AbstractValue:
        """What the expression may be at this place; reports what is wrong in it."""

    def value_silently(self, node: ast.expr, env: CheckEnvironment) -> AbstractValue:
        """Only the value."""
        with self.silence():
            return self.value(node, env.copy())

    def value_under(self, test: ast.expr, node: ast.expr, env: CheckEnvironment) -> AbstractValue:
        """The value of a part that is evaluated only under a condition."""
        before = env.conditions
        env.conditions = (*before, ast.dump(test))
        value = self.value(node, env)
        env.conditions = before
        return value

    @abstractmethod
    def global_value(self, name: str) -> AbstractValue | None:
        """What a name of the module is, seen from inside functions. None: the module does not bind it."""

    @abstractmethod
    def bind(self, target: ast.AST, value: AbstractValue, env: CheckEnvironment) -> None:
        """`target = value`."""

    # --- functions of the file ---------------------------------------------------------------------------

    @abstractmethod
    def function_of(self, node: ast.FunctionDef | ast.AsyncFunctionDef, env: CheckEnvironment) -> AbstractValue:
        """What a `def` makes: a program, a function, or with other decorators anything."""

    @abstractmethod
    def check_later(self, function: FunctionValue) -> None:
        """Check the function by itself when the rest has been seen; not where an error is expected."""

    @abstractmethod
    def inline(self, function: FunctionValue, arguments: CallArguments, env: CheckEnvironment) -> AbstractValue:
        """Follow a call with these arguments."""

    @abstractmethod
    def inline_with(self, function: FunctionValue, values: list[AbstractValue], env: CheckEnvironment) -> AbstractValue:
        """Follow a call with positional arguments."""

    @abstractmethod
    def finished_state(self, program: FunctionValue, env: CheckEnvironment) -> StateRef:
        """The state that a run of the program gives."""
