"""Walks statements along all paths of a function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from . import state_operation_checks, unbounded_loop_check
from .abstract_values import (
    ANY,
    PLAIN,
    AbstractValue,
    AppendableExpression,
    ConstantValue,
    CopyBlock,
    ExpressionNodeValue,
    FunctionValue,
    StateBlock,
    StateRef,
    any_element,
    is_plain,
    known_items,
)
from .assignment_checks import augmented, bind
from .check_context import CheckContext
from .check_environment import ALWAYS, ANY_ROLE, UNDECIDED, CheckEnvironment, VariableBinding, merge_reachable
from .expression_checks import evaluate

Visitor = Callable[[CheckContext, Any, CheckEnvironment], CheckEnvironment | None]
_EXPECTED = ("KeyError", "LookupError", "Exception", "BaseException")


def walk(c: CheckContext, body: Iterable[ast.stmt], env: CheckEnvironment) -> CheckEnvironment | None:
    """The place after the statements; None if no path reaches it."""
    here: CheckEnvironment | None = env
    for statement in body:
        if here is None:
            return None
        here = _statement(c, statement, here)
    return here


def _statement(c: CheckContext, node: ast.stmt, env: CheckEnvironment) -> CheckEnvironment | None:
    c.count_step()
    visitor = _VISITORS.get(type(node))
    if visitor is not None:
        return visitor(c, node, env)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            evaluate(c, child, env)
    return env


def _expression(c: CheckContext, node: ast.Expr, env: CheckEnvironment) -> CheckEnvironment:
    value = evaluate(c, node.value, env)
    c.check_awaited(value, node)
    if c.in_program and isinstance(value, AppendableExpression) and _is_made_here(node.value, value):
        c.report("SGL303", node, "this expression is not appended, so it generates nothing; write s += ...")
    return env


def _is_made_here(source: ast.expr, value: AppendableExpression) -> bool:
    return isinstance(source, ast.BinOp) or any(
        isinstance(part, ExpressionNodeValue) and part.place is source for part in value.nodes
    )


def _assign(c: CheckContext, node: ast.Assign, env: CheckEnvironment) -> CheckEnvironment:
    value = evaluate(c, node.value, env)
    for target in node.targets:
        bind(c, target, value, env)
    return env


def _annotated(c: CheckContext, node: ast.AnnAssign, env: CheckEnvironment) -> CheckEnvironment:
    if node.value is not None:
        bind(c, node.target, evaluate(c, node.value, env), env)
    return env


# --- branches ----------------------------------------------------------------------------------------------


def _if(c: CheckContext, node: ast.If, env: CheckEnvironment) -> CheckEnvironment | None:
    value = evaluate(c, node.test, env)
    decided = value.value if isinstance(value, ConstantValue) and isinstance(node.test, ast.Compare) else None
    before = env.conditions
    other = env.copy()
    test, always = ast.dump(node.test), _truth(node.test)
    env.conditions, other.conditions = (*before, test), (*before, f"not {test}")
    then = _branch(c, node.body, env, f"not {test}", decided is False) if always is not False else None
    otherwise = _branch(c, node.orelse, other, test, decided is True) if always is not True else None
    return merge_reachable([then, otherwise], before)


def _branch(
    c: CheckContext, body: list[ast.stmt], env: CheckEnvironment, opposite: str, dead: bool
) -> CheckEnvironment | None:
    """One branch; nothing is reported if it is dead, or where a condition around it says the opposite."""
    contradicted = dead or opposite in env.conditions
    c.silent += contradicted
    end = walk(c, body, env)
    c.silent -= contradicted
    return None if dead else end


def _truth(test: ast.expr) -> bool | None:
    return bool(test.value) if isinstance(test, ast.Constant) else None


def _match(c: CheckContext, node: ast.Match, env: CheckEnvironment) -> CheckEnvironment | None:
    value = evaluate(c, node.subject, env)
    before = env.conditions
    paths: list[CheckEnvironment | None] = []
    whole = False
    for case in node.cases:
        path = env.copy()
        path.conditions = (*before, ast.dump(case.pattern))
        for part in ast.walk(case.pattern):
            name = getattr(part, "name", None) or getattr(part, "rest", None)
            if isinstance(name, str):
                path.names[name] = PLAIN if is_plain(value) else ANY
        if case.guard is not None:
            evaluate(c, case.guard, path)
        paths.append(walk(c, case.body, path))
        whole |= case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
    return merge_reachable([*paths, None if whole else env], before)


# --- loops -------------------------------------------------------------------------------------------------


def _for(c: CheckContext, node: ast.For | ast.AsyncFor, env: CheckEnvironment) -> CheckEnvironment | None:
    source = evaluate(c, node.iter, env)
    items = known_items(source)
    if items is not None and not c.is_over_budget:
        return _unrolled(c, node, items, env)
    return _repeated(c, node, any_element(source), env)


def _unrolled(
    c: CheckContext, node: ast.For | ast.AsyncFor, items: list[AbstractValue], env: CheckEnvironment
) -> CheckEnvironment | None:
    """The items are known: one after another."""
    before = env.conditions
    here: CheckEnvironment | None = env
    frame = c.enter_loop(env)
    for item in items:
        if here is None:
            break
        bind(c, node.target, item, here)
        here = merge_reachable([walk(c, node.body, here), *frame.take_continues()], before)
    c.leave_loop(here)
    if here is not None:
        here = walk(c, node.orelse, here)
    return merge_reachable([here, *frame.breaks], before)


def _repeated(
    c: CheckContext, node: ast.For | ast.AsyncFor, item: AbstractValue, env: CheckEnvironment
) -> CheckEnvironment | None:
    """Twice: what the first pass leaves is there in the second; what a pass makes counts as made."""
    before = env.conditions
    frame = c.enter_loop(env)
    start = env.copy()
    here: CheckEnvironment | None = env
    for _ in range(c.loop_passes):
        if here is None:
            break
        bind(c, node.target, item, here)
        here = merge_reachable([walk(c, node.body, here), *frame.take_continues()], before)
    c.leave_loop(here)
    ended = _after_loop(c, start, here, before)
    if ended is not None:
        ended = walk(c, node.orelse, ended)
    return merge_reachable([ended, *(_undecided_after(start, path) for path in frame.breaks)], before)


def _while(c: CheckContext, node: ast.While, env: CheckEnvironment) -> CheckEnvironment | None:
    before = env.conditions
    endless = _truth(node.test) is True
    frame = c.enter_loop(env)
    start = env.copy()
    here: CheckEnvironment | None = env
    for _ in range(c.loop_passes):
        if here is None:
            break
        evaluate(c, node.test, here)
        here = merge_reachable([walk(c, node.body, here), *frame.take_continues()], before)
    if here is not None:
        unbounded_loop_check.check_loop(c, node, here)
    c.leave_loop(here)
    ended = None if endless else _after_loop(c, start, here, before)
    return merge_reachable([ended, *(_undecided_after(start, path) for path in frame.breaks)], before)


def _after_loop(
    c: CheckContext, start: CheckEnvironment, end: CheckEnvironment | None, conditions: tuple[str, ...]
) -> CheckEnvironment | None:
    """A loop may have had no pass, but what it makes is taken as made: only surely missing names are reported."""
    if end is None:
        return start
    return merge_reachable([_undecided_after(start, end), _skipped_loop(start, end)], conditions)


def _undecided_after(start: CheckEnvironment, end: CheckEnvironment) -> CheckEnvironment:
    for number, facts in end.facts.items():
        before = start.facts.get(number)
        for name, bound in facts.names.items():
            old = before.names.get(name) if before else None
            if old is None and bound.defined == ALWAYS:
                facts.names[name] = _undecided(bound)
    return end


def _undecided(bound: VariableBinding) -> VariableBinding:
    return replace(bound, defined=UNDECIDED)


def _skipped_loop(start: CheckEnvironment, end: CheckEnvironment) -> CheckEnvironment:
    """The path that skips the loop, with the names of the loop's variables."""
    for number, facts in end.facts.items():
        if number in start.facts:
            for name, bound in facts.names.items():
                start.facts[number].names.setdefault(name, bound)
    start.names = {**end.names, **start.names}
    return start


def _break(c: CheckContext, node: ast.Break, env: CheckEnvironment) -> None:
    if c.loops:
        c.loops[-1].breaks.append(env)


def _continue(c: CheckContext, node: ast.Continue, env: CheckEnvironment) -> None:
    if c.loops:
        c.loops[-1].continues.append(env)


def _return(c: CheckContext, node: ast.Return, env: CheckEnvironment) -> None:
    value = evaluate(c, node.value, env) if node.value is not None else ConstantValue(None)
    c.calls[-1].returns.append((env, value))


def _raise(c: CheckContext, node: ast.Raise, env: CheckEnvironment) -> None:
    for part in (node.exc, node.cause):
        if part is not None:
            evaluate(c, part, env)


# --- blocks ------------------------------------------------------------------------------------------------


def _with(c: CheckContext, node: ast.With | ast.AsyncWith, env: CheckEnvironment) -> CheckEnvironment | None:
    opened: list[AbstractValue] = []
    expects_error = False
    for item in node.items:
        value = evaluate(c, item.context_expr, env)
        opened.append(value)
        expects_error |= _expects_error(item.context_expr)
        entered = _enter(c, value, item.context_expr, env)
        if item.optional_vars is not None:
            bind(c, item.optional_vars, entered, env)
    c.silent += expects_error
    start = env.copy() if expects_error else None
    here = walk(c, node.body, env)
    c.silent -= expects_error
    if start is not None:
        return merge_reachable([here, start], env.conditions)
    if here is not None:
        for value in reversed(opened):
            _leave(c, value, node, here)
    return here


def _expects_error(node: ast.expr) -> bool:
    """`with pytest.raises(...)` and the like."""
    name = node.func if isinstance(node, ast.Call) else node
    text = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
    return text in ("raises", "warns", "suppress") or text.startswith("assertRaises")


def _enter(c: CheckContext, value: AbstractValue, place: ast.AST, env: CheckEnvironment) -> AbstractValue:
    if isinstance(value, StateBlock) and value.role is not None:
        state_operation_checks.append(
            c, value.state, AppendableExpression((ExpressionNodeValue("begin", place, role=value.role),)), place, env
        )
    if isinstance(value, CopyBlock):
        return StateRef(value.group.children)
    return ANY if not is_plain(value) else value


def _leave(c: CheckContext, value: AbstractValue, place: ast.AST, env: CheckEnvironment) -> None:
    if isinstance(value, StateBlock) and value.role is not None:
        end = ExpressionNodeValue("end", place, role=value.role)
        state_operation_checks.append(c, value.state, AppendableExpression((end,)), place, env)
    elif isinstance(value, StateBlock) and value.name is not None:
        for number in value.state.numbers:
            made = ExpressionNodeValue("scope", place, name=value.name)
            state_operation_checks.define_variable(
                c, env.facts[number], value.name, made, env, len(value.state.numbers) == 1
            )
    elif isinstance(value, CopyBlock):
        state_operation_checks.join(value.group.parents, value.group.children, ConstantValue("gather_variable"), env)


def _try(c: CheckContext, node: Any, env: CheckEnvironment) -> CheckEnvironment | None:
    """An error may come anywhere in the body: what it makes may be there or not."""
    before = env.conditions
    start = env.copy()
    expected = any(_catches(handler) for handler in node.handlers)
    c.missing_expected += expected
    here = walk(c, node.body, env)
    c.missing_expected -= expected
    if here is not None and node.orelse:
        here = walk(c, node.orelse, here)
    paths = [here]
    for handler in node.handlers:
        caught = _partly_executed(start.copy(), here)
        if handler.type is not None:
            evaluate(c, handler.type, caught)
        if handler.name:
            caught.names[handler.name] = PLAIN
        paths.append(walk(c, handler.body, caught))
    ended = merge_reachable(paths, before)
    if not node.finalbody:
        return ended
    if ended is None:
        walk(c, node.finalbody, _partly_executed(start, here))
        return None
    return walk(c, node.finalbody, ended)


def _partly_executed(start: CheckEnvironment, end: CheckEnvironment | None) -> CheckEnvironment:
    for number, facts in start.facts.items():
        later = end.facts.get(number) if end is not None else None
        if later is None:
            facts.forget()
            continue
        for name, bound in later.names.items():
            facts.names.setdefault(name, _undecided(bound))
        facts.role = ANY_ROLE
        facts.unknown |= later.unknown
        facts.patterns |= later.patterns
    return start


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether it expects that a variable is missing."""
    return handler.type is None or any(
        isinstance(part, ast.Name) and part.id in _EXPECTED for part in ast.walk(handler.type)
    )


# --- definitions -------------------------------------------------------------------------------------------


def _define(c: CheckContext, node: ast.FunctionDef | ast.AsyncFunctionDef, env: CheckEnvironment) -> CheckEnvironment:
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            evaluate(c, default, env)
    made = c.function_of(node, env)
    env.names[node.name] = made
    if isinstance(made, FunctionValue):
        c.check_later(made)
    return env


def _class(c: CheckContext, node: ast.ClassDef, env: CheckEnvironment) -> CheckEnvironment:
    inner = env.copy()
    walk(c, node.body, inner)
    env.names[node.name] = ANY
    return env


def _import(c: CheckContext, node: ast.Import | ast.ImportFrom, env: CheckEnvironment) -> CheckEnvironment:
    env.names.update(c.names.imported(node))
    return env


def _delete(c: CheckContext, node: ast.Delete, env: CheckEnvironment) -> CheckEnvironment:
    return env


_VISITORS: dict[type[ast.AST], Visitor] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: augmented,
    ast.If: _if,
    ast.Match: _match,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.Break: _break,
    ast.Continue: _continue,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.FunctionDef: _define,
    ast.AsyncFunctionDef: _define,
    ast.ClassDef: _class,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Delete: _delete,
}
