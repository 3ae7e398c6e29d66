"""One file under check: what its names mean, which functions are programs, and what was found."""

from __future__ import annotations

import ast
from dataclasses import replace

from . import assignment_checks, expression_checks, program_call_checks, role_checks, statement_checks
from .abstract_values import (
    ANY,
    GENERATED,
    PLAIN,
    AbstractValue,
    CallArguments,
    ConstantValue,
    ForkGroup,
    FunctionValue,
    PublicName,
    StateRef,
    is_generated,
    is_plain,
    leaves,
    one_of,
    states_in,
)
from .check_context import CallFrame, CheckContext
from .check_environment import (
    ANY_ROLE,
    SOMETIMES,
    UNDECIDED,
    CheckEnvironment,
    StateFacts,
    VariableBinding,
    escape,
    merge,
)
from .check_problem import Problem
from .module_bindings import ModuleNames

MOST_NESTED_CALLS = 6  # calls inside calls


class ProgramChecker(CheckContext):
    """Walks a file: the context of all visitors, which calls them."""

    def __init__(self, tree: ast.Module, names: ModuleNames, remote: bool = False) -> None:
        super().__init__(names, remote)
        self.tree = tree
        self._globals: dict[str, AbstractValue | None] = {}
        self._queue: list[FunctionValue] = []
        self._summaries: dict[int, StateFacts | None] = {}

    def run(self) -> list[Problem]:
        """Check the whole file."""
        self.calls.append(CallFrame(self.tree))
        statement_checks.walk(self, self.tree.body, CheckEnvironment())
        self.calls.pop()
        done: set[int] = set()
        while self._queue:
            function = self._queue.pop()
            if id(function.node) not in done:
                done.add(id(function.node))
                self._check_function(function)
        return sorted(self.problems.values(), key=lambda p: (p.line, p.column, p.rule))

    # --- values ------------------------------------------------------------------------------------------

    def value(self, node: ast.expr, env: CheckEnvironment) -> AbstractValue:
        return expression_checks.evaluate(self, node, env)

    def bind(self, target: ast.AST, value: AbstractValue, env: CheckEnvironment) -> None:
        assignment_checks.bind(self, target, value, env)

    def global_value(self, name: str) -> AbstractValue | None:
        if name not in self._globals:
            self._globals[name] = None  # while it is being found
            with self.silence():
                self._globals[name] = self.names.value(name, self._evaluate_global)
        return self._globals[name]

    def _evaluate_global(self, node: ast.AST) -> AbstractValue:
        env = CheckEnvironment()
        if isinstance(node, program_call_checks.AnyFunctionDef):
            return self.function_of(node, env)
        value = expression_checks.evaluate(self, node, env)
        return ANY if any(isinstance(leaf, StateRef | ForkGroup) for leaf in leaves(value)) else value

    def finished_state(self, program: FunctionValue, env: CheckEnvironment) -> StateRef:
        facts = self.summary(program).copy()
        facts.names = {name: _finished_binding(bound, env) for name, bound in facts.names.items()}
        facts.role = ANY_ROLE
        return StateRef((self.new_state(env, facts),))

    # --- functions ---------------------------------------------------------------------------------------

    def function_of(self, node: program_call_checks.AnyFunctionDef, env: CheckEnvironment) -> AbstractValue:
        with self.silence():
            decorators = [expression_checks.evaluate(self, item, env) for item in node.decorator_list]
        if any(
            _is_function_decorator(item, value) for item, value in zip(node.decorator_list, decorators, strict=True)
        ):
            return FunctionValue(node, frozenset(), env.names)
        made = FunctionValue(node, None, env.names)
        if not decorators:
            return made
        self.check_later(made)
        return ANY

    def check_later(self, function: FunctionValue) -> None:
        if not self.silent:
            self._queue.append(function)

    def _check_function(self, function: FunctionValue) -> None:
        if function.is_program:
            assert isinstance(function.node, program_call_checks.AnyFunctionDef)
            program_call_checks.check_declaration(self, function.node)
            self.summary(function)
        else:
            self._walk_function(function)

    def summary(self, program: FunctionValue) -> StateFacts:
        """What is known of the program's state at its end."""
        key = id(program.node)
        if key not in self._summaries:
            self._summaries[key] = None
            self._summaries[key] = self._walk_function(program)
        return self._summaries[key] or StateFacts(unknown=True, role=ANY_ROLE)

    def _walk_function(self, function: FunctionValue) -> StateFacts:
        node = function.node
        env = CheckEnvironment(self._outer_names(function))
        spec = node.args
        ordered = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
        for item in [*ordered, *(extra for extra in (spec.vararg, spec.kwarg) if extra)]:
            env.names[item.arg] = ANY if item.arg in ("self", "cls") else PLAIN
        for item, default in zip(reversed([*spec.posonlyargs, *spec.args]), reversed(spec.defaults), strict=False):
            if not is_plain(self.value_silently(default, CheckEnvironment(dict(function.closure)))):
                env.names[item.arg] = ANY
        here = CallFrame(node)
        if function.is_program and isinstance(node, program_call_checks.AnyFunctionDef):
            ordered = [*program_call_checks.from_state(node), *spec.kwonlyargs]
        if ordered and (
            function.is_program or (ordered[0].arg == "s" and function.name in self.names.language_functions)
        ):
            number = self.new_state(
                env, StateFacts() if function.is_program else StateFacts(unknown=True, role=ANY_ROLE)
            )
            if not function.is_program:
                self.assumed_states.add(number)
            env.names[ordered[0].arg] = StateRef((number,))
            if function.is_program:
                here.state = number
                here.parameters = frozenset(item.arg for item in ordered[1:]) - _assigned_names(node)
        elif "s" in env.names:
            env.names["s"] = ANY
        self._open_states(env)
        ends = self._walk_body(function, here, env)
        return self._facts_at_end(here, ends) if here.state is not None else StateFacts(unknown=True)

    def _outer_names(self, function: FunctionValue) -> dict[str, AbstractValue]:
        return dict(function.closure)

    def _open_states(self, env: CheckEnvironment) -> None:
        """States of the function around: anything may have been done to them."""
        for name, value in env.names.items():
            numbers = [n for v in leaves(value) if isinstance(v, StateRef) for n in v.numbers if n not in env.facts]
            numbers += [
                n
                for v in leaves(value)
                if isinstance(v, ForkGroup)
                for n in (*v.children, *v.parents)
                if n not in env.facts
            ]
            for number in numbers:
                env.facts[number] = StateFacts(unknown=True, role=ANY_ROLE)
            env.names[name] = value

    def _walk_body(
        self, function: FunctionValue, here: CallFrame, env: CheckEnvironment
    ) -> list[tuple[CheckEnvironment, AbstractValue]]:
        """Every (place, value) where the function returns."""
        saved = self.loops, self.in_async_program, self.silent, self.missing_expected
        if here.state is not None:
            self.in_async_program, self.silent, self.missing_expected = (
                isinstance(here.node, ast.AsyncFunctionDef),
                0,
                0,
            )
        self.loops = []
        self.calls.append(here)
        if isinstance(function.node, ast.Lambda):
            here.returns.append((env, expression_checks.evaluate(self, function.node.body, env)))
        else:
            end = statement_checks.walk(self, function.node.body, env)
            if end is not None:
                here.returns.append((end, ConstantValue(None)))
        self.calls.pop()
        self.loops, self.in_async_program, self.silent, self.missing_expected = saved
        return here.returns

    def _facts_at_end(self, here: CallFrame, ends: list[tuple[CheckEnvironment, AbstractValue]]) -> StateFacts:
        assert here.state is not None
        found = [end.facts[here.state] for end, _ in ends]
        for facts in found:
            role_checks.check_closed(self, facts)
        if not found:
            return StateFacts(unknown=True)
        merged = found[0]
        for facts in found[1:]:
            merged = merged.merged(facts, ())
        return merged

    # --- calls of functions of the file ------------------------------------------------------------------

    def inline(self, function: FunctionValue, arguments: CallArguments, env: CheckEnvironment) -> AbstractValue:
        values = arguments.all()
        if not self._worth_following(function, values):
            return GENERATED if any(map(is_generated, values)) else PLAIN
        if not self._can_follow(function):
            escape([*values, function], env)
            return ANY
        return self._follow(function, _bind_parameters(function, arguments), env)

    def inline_with(self, function: FunctionValue, values: list[AbstractValue], env: CheckEnvironment) -> AbstractValue:
        if not self._can_follow(function):
            escape([*values, function], env)
            return ANY
        spec = function.node.args
        names = [item.arg for item in [*spec.posonlyargs, *spec.args]]
        return self._follow(function, dict(zip(names, values, strict=False)), env)

    def _worth_following(self, function: FunctionValue, values: list[AbstractValue]) -> bool:
        if isinstance(function.node, ast.Lambda) or function.name in self.names.language_functions:
            return True
        return not all(map(is_plain, values)) or any(True for _ in states_in(function))

    def _can_follow(self, function: FunctionValue) -> bool:
        if self.is_over_budget or len(self.calls) > MOST_NESTED_CALLS:
            return False
        if any(here.node is function.node for here in self.calls):
            return False
        return not any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(function.node))

    def _follow(self, function: FunctionValue, bound: dict[str, AbstractValue], env: CheckEnvironment) -> AbstractValue:
        inner = CheckEnvironment({**function.closure, **bound})
        inner.facts, inner.conditions = env.facts, env.conditions
        self._open_states(inner)
        ends = self._walk_body(function, CallFrame(function.node), inner)
        if not ends:
            return PLAIN
        env.facts = merge([end for end, _ in ends], env.conditions).facts
        return one_of(value for _, value in ends)


def _is_function_decorator(item: ast.expr, value: AbstractValue) -> bool:
    """`@sgl.function`, or `@sgl.function(...)`."""
    if isinstance(value, PublicName):
        return value.name == "function"
    called = item.func if isinstance(item, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name == "function"


def _assigned_names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def _finished_binding(bound: VariableBinding, env: CheckEnvironment) -> VariableBinding:
    defined = UNDECIDED if bound.defined == SOMETIMES else bound.defined
    return replace(bound, defined=defined, conditions=env.conditions, read=True, ready=True)


def _bind_parameters(function: FunctionValue, arguments: CallArguments) -> dict[str, AbstractValue]:
    """The parameters of a function and what a call gives them."""
    spec = function.node.args
    ordered = [*spec.posonlyargs, *spec.args]
    names = [item.arg for item in ordered]
    missing: AbstractValue = PLAIN if arguments.whole and all(map(is_plain, arguments.all())) else ANY
    bound: dict[str, AbstractValue] = {item.arg: missing for item in [*ordered, *spec.kwonlyargs]}
    for item, default in zip(reversed(ordered), reversed(spec.defaults), strict=False):
        bound[item.arg] = ConstantValue(default.value) if isinstance(default, ast.Constant) else missing
    for extra in (spec.vararg, spec.kwarg):
        if extra is not None:
            bound[extra.arg] = missing
    bound.update(zip(names, arguments.positional, strict=False))
    bound.update((name, value) for name, value in arguments.named.items() if name in bound)
    return bound
