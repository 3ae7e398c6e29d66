"""One file under check: what its names mean, which functions are programs, and what was found."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from . import expressions, programs, roles, statements
from .facts import ANY_ROLE, LOOP, MAYBE, Bound, Env, Facts
from .names import Names
from .paths import Paths, leaves, states_in
from .problem import Problem
from .reports import Activation
from .values import (
    ANY,
    GENERATED,
    PLAIN,
    Const,
    Function,
    Group,
    State,
    Value,
    Word,
    either,
    is_generated,
    is_plain,
)

if TYPE_CHECKING:
    from .calls import Arguments

DEEPEST = 6  # calls inside calls


class Checker(Paths):
    """Walks a file. `problems` is what it found, in no order."""

    def __init__(self, tree: ast.Module, names: Names, remote: bool = False) -> None:
        super().__init__(names)
        self.tree = tree
        self.remote = remote
        self.globals = _Globals(self)
        self.assigned = names.assigned
        self.stars = names.stars
        self._waiting: list[Function] = []
        self._summaries: dict[int, Facts | None] = {}

    def run(self) -> list[Problem]:
        """Check the whole file."""
        self.calls.append(Activation(self.tree))
        statements.walk(self, self.tree.body, Env())
        self.calls.pop()
        done: set[int] = set()
        while self._waiting:
            function = self._waiting.pop()
            if id(function.node) not in done:
                done.add(id(function.node))
                self._check_alone(function)
        return sorted(self.problems.values(), key=lambda p: (p.line, p.column, p.rule))

    # --- values ------------------------------------------------------------------------------------------

    def value(self, node: ast.expr, env: Env) -> Value:
        """What the expression may be at this place; reports what is wrong in it."""
        return expressions.evaluate(self, node, env)

    def quietly(self, node: ast.expr, env: Env) -> Value:
        """Only the value."""
        with self.silence():
            return expressions.evaluate(self, node, env.copy())

    def under(self, test: ast.expr, node: ast.expr, env: Env) -> Value:
        """The value of a part that is evaluated only under a condition."""
        before = env.conditions
        env.conditions = (*before, ast.dump(test))
        value = expressions.evaluate(self, node, env)
        env.conditions = before
        return value

    def bind(self, target: ast.AST, value: Value, env: Env) -> None:
        statements.bind(self, target, value, env)

    def is_awaited(self, node: ast.AST) -> bool:
        return id(node) in self.names.awaited

    def imported(self, node: ast.Import | ast.ImportFrom) -> dict[str, Value]:
        return self.names.imported(node)

    def finished_state(self, program: Function, env: Env) -> State:
        """The state that a run of the program gives."""
        facts = self.summary(program).copy()
        facts.names = {name: _finished(bound, env) for name, bound in facts.names.items()}
        facts.role = ANY_ROLE
        return State((self.new_state(env, facts),))

    # --- functions ---------------------------------------------------------------------------------------

    def function_of(self, node: programs.Def, env: Env) -> Value:
        """What a `def` makes: a program, a function, or with other decorators anything."""
        with self.silence():
            decorators = [expressions.evaluate(self, item, env) for item in node.decorator_list]
        if any(
            _is_function_word(item, value)
            for item, value in zip(node.decorator_list, decorators, strict=True)
        ):
            return Function(node, frozenset(), env.names)
        made = Function(node, None, env.names)
        if not decorators:
            return made
        self.later(made)
        return ANY

    def later(self, function: Function) -> None:
        """Check the function by itself when the rest has been seen; not where an error is expected."""
        if not self.silent:
            self._waiting.append(function)

    def _check_alone(self, function: Function) -> None:
        if function.is_program:
            assert isinstance(function.node, programs.Def)
            programs.check_declaration(self, function.node)
            self.summary(function)
        else:
            self._walk_alone(function)

    def summary(self, program: Function) -> Facts:
        """What is known of the program's state at its end."""
        key = id(program.node)
        if key not in self._summaries:
            self._summaries[key] = None
            self._summaries[key] = self._walk_alone(program)
        return self._summaries[key] or Facts(unknown=True, role=ANY_ROLE)

    def _walk_alone(self, function: Function) -> Facts:
        node = function.node
        env = Env(self._outer_names(function))
        spec = node.args
        ordered = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
        for item in [*ordered, *(extra for extra in (spec.vararg, spec.kwarg) if extra)]:
            env.names[item.arg] = ANY if item.arg in ("self", "cls") else PLAIN
        for item, default in zip(
            reversed([*spec.posonlyargs, *spec.args]), reversed(spec.defaults), strict=False
        ):
            if not is_plain(self.quietly(default, Env(dict(function.closure)))):
                env.names[item.arg] = ANY
        here = Activation(node)
        if ordered and (
            function.is_program or (ordered[0].arg == "s" and function.name in self.names.speaking)
        ):
            number = self.new_state(
                env, Facts() if function.is_program else Facts(unknown=True, role=ANY_ROLE)
            )
            if not function.is_program:
                self.guessed.add(number)
            env.names[ordered[0].arg] = State((number,))
            if function.is_program:
                here.state = number
                here.parameters = frozenset(item.arg for item in ordered[1:]) - _stored(node)
        elif "s" in env.names:
            env.names["s"] = ANY
        self._open_states(env)
        ends = self._walk_body(function, here, env)
        return self._ended(here, ends) if here.state is not None else Facts(unknown=True)

    def _outer_names(self, function: Function) -> dict[str, Value]:
        return dict(function.closure)

    def _open_states(self, env: Env) -> None:
        """States of the function around: anything may have been done to them."""
        for name, value in env.names.items():
            numbers = [
                n for v in leaves(value) if isinstance(v, State) for n in v.numbers if n not in env.facts
            ]
            numbers += [
                n for v in leaves(value) if isinstance(v, Group) for n in (*v.children, *v.parents)
                if n not in env.facts
            ]  # fmt: skip
            for number in numbers:
                env.facts[number] = Facts(unknown=True, role=ANY_ROLE)
            env.names[name] = value

    def _walk_body(self, function: Function, here: Activation, env: Env) -> list[tuple[Env, Value]]:
        """Every (place, value) where the function returns."""
        saved = self.loops, self.in_async_program, self.silent, self.forgiving
        if here.state is not None:
            self.in_async_program, self.silent, self.forgiving = (
                isinstance(here.node, ast.AsyncFunctionDef),
                0,
                0,
            )
        self.loops = []
        self.calls.append(here)
        if isinstance(function.node, ast.Lambda):
            here.returns.append((env, expressions.evaluate(self, function.node.body, env)))
        else:
            end = statements.walk(self, function.node.body, env)
            if end is not None:
                here.returns.append((end, Const(None)))
        self.calls.pop()
        self.loops, self.in_async_program, self.silent, self.forgiving = saved
        return here.returns

    def _ended(self, here: Activation, ends: list[tuple[Env, Value]]) -> Facts:
        assert here.state is not None
        found = [end.facts[here.state] for end, _ in ends]
        for facts in found:
            roles.check_closed(self, facts)
        if not found:
            return Facts(unknown=True)
        merged = found[0]
        for facts in found[1:]:
            merged = merged.merged(facts, ())
        return merged

    # --- calls of functions of the file ------------------------------------------------------------------

    def inline(self, function: Function, arguments: Arguments, env: Env) -> Value:
        """Follow a call with these arguments."""
        values = arguments.all()
        if not self._matters(function, values):
            return GENERATED if any(map(is_generated, values)) else PLAIN
        if not self._can_follow(function):
            self.escape([*values, function], env)
            return ANY
        return self._follow(function, _bound(function, arguments), env)

    def inline_with(self, function: Function, values: list[Value], env: Env) -> Value:
        """Follow a call with positional arguments."""
        if not self._can_follow(function):
            self.escape([*values, function], env)
            return ANY
        spec = function.node.args
        names = [item.arg for item in [*spec.posonlyargs, *spec.args]]
        return self._follow(function, dict(zip(names, values, strict=False)), env)

    def _matters(self, function: Function, values: list[Value]) -> bool:
        if isinstance(function.node, ast.Lambda) or function.name in self.names.speaking:
            return True
        return not all(map(is_plain, values)) or any(True for _ in states_in(function))

    def _can_follow(self, function: Function) -> bool:
        if self.is_tired or len(self.calls) > DEEPEST:
            return False
        if any(here.node is function.node for here in self.calls):
            return False
        return not any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(function.node))

    def _follow(self, function: Function, bound: dict[str, Value], env: Env) -> Value:
        inner = Env({**function.closure, **bound})
        inner.facts, inner.conditions = env.facts, env.conditions
        self._open_states(inner)
        ends = self._walk_body(function, Activation(function.node), inner)
        if not ends:
            return PLAIN
        env.facts = self.merged([end for end, _ in ends], env.conditions).facts
        return either(value for _, value in ends)


class _Globals:
    """Names of the module, seen from inside functions."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        self._values: dict[str, Value | None] = {}

    def get(self, name: str) -> Value | None:
        if name not in self._values:
            self._values[name] = None  # while it is being found
            with self._checker.silence():
                self._values[name] = self._checker.names.value(name, self._evaluate)
        return self._values[name]

    def _evaluate(self, node: ast.AST) -> Value:
        env = Env()
        if isinstance(node, programs.Def):
            return self._checker.function_of(node, env)
        value = expressions.evaluate(self._checker, node, env)
        return ANY if any(isinstance(leaf, State | Group) for leaf in leaves(value)) else value


def _is_function_word(item: ast.expr, value: Value) -> bool:
    """`@sgl.function`, or `@sgl.function(...)`."""
    if isinstance(value, Word):
        return value.name == "function"
    called = item.func if isinstance(item, ast.Call) else None
    name = (
        called.attr
        if isinstance(called, ast.Attribute)
        else called.id
        if isinstance(called, ast.Name)
        else ""
    )
    return name == "function"


def _stored(node: ast.AST) -> set[str]:
    return {
        part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def _finished(bound: Bound, env: Env) -> Bound:
    sure = LOOP if bound.sure == MAYBE else bound.sure
    return replace(bound, sure=sure, conditions=env.conditions, read=True, waited=True)


def _bound(function: Function, arguments: Arguments) -> dict[str, Value]:
    """The parameters of a function and what a call gives them."""
    spec = function.node.args
    ordered = [*spec.posonlyargs, *spec.args]
    names = [item.arg for item in ordered]
    missing: Value = PLAIN if arguments.whole and all(map(is_plain, arguments.all())) else ANY
    bound: dict[str, Value] = {item.arg: missing for item in [*ordered, *spec.kwonlyargs]}
    for item, default in zip(reversed(ordered), reversed(spec.defaults), strict=False):
        bound[item.arg] = Const(default.value) if isinstance(default, ast.Constant) else missing
    for extra in (spec.vararg, spec.kwarg):
        if extra is not None:
            bound[extra.arg] = missing
    bound.update(zip(names, arguments.positional, strict=False))
    bound.update((name, value) for name, value in arguments.named.items() if name in bound)
    return bound
