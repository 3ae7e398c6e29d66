"""Assignments, and `+=`: what a name, a state or a group of states is afterwards."""

from __future__ import annotations

import ast

from . import state_operation_checks
from .abstract_values import (
    ANY,
    PLAIN,
    AbstractValue,
    ConstantValue,
    ForkGroup,
    FunctionValue,
    ListValue,
    StateRef,
    any_element,
    is_expression,
    is_plain,
    known_items,
    options_of,
)
from .check_context import CheckContext
from .check_environment import CheckEnvironment, escape
from .expression_checks import evaluate
from .operator_checks import combine


def bind(c: CheckContext, target: ast.AST, value: AbstractValue, env: CheckEnvironment) -> None:
    """`target = value`."""
    if isinstance(target, ast.Name):
        env.names[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        _unpack(c, target, value, env)
    elif isinstance(target, ast.Starred):
        bind(c, target.value, PLAIN if is_plain(value) else ANY, env)
    elif isinstance(target, ast.Subscript):
        _store(c, target, value, env)
    elif isinstance(target, ast.Attribute):
        evaluate(c, target.value, env)
        escape([value], env)


def _unpack(c: CheckContext, target: ast.Tuple | ast.List, value: AbstractValue, env: CheckEnvironment) -> None:
    items = known_items(value)
    starred = any(isinstance(item, ast.Starred) for item in target.elts)
    if items is None or len(items) != len(target.elts) or starred:
        items = [any_element(value)] * len(target.elts)
    for item, part in zip(target.elts, items, strict=True):
        bind(c, item, part, env)


def _store(c: CheckContext, target: ast.Subscript, value: AbstractValue, env: CheckEnvironment) -> None:
    owner, key = evaluate(c, target.value, env), evaluate(c, target.slice, env)
    if isinstance(owner, StateRef):
        state_operation_checks.set_variable(owner, key, target, env)
    elif isinstance(owner, ForkGroup):
        return
    elif isinstance(target.value, ast.Name) and target.value.id in env.names and isinstance(owner, ListValue):
        env.names[target.value.id] = ListValue((*owner.items, value), complete=False)
    else:
        escape([value], env)
        if isinstance(target.value, ast.Name) and target.value.id in env.names:
            env.names[target.value.id] = PLAIN if is_plain(owner) and is_plain(value) else ANY


def _target(c: CheckContext, target: ast.expr, env: CheckEnvironment) -> AbstractValue:
    if isinstance(target, ast.Name):
        found = env.names.get(target.id)
        return found if found is not None else c.global_value(target.id) or PLAIN
    if isinstance(target, ast.Subscript):
        owner = evaluate(c, target.value, env)
        if isinstance(owner, StateRef):
            return PLAIN  # s["x"] += ...: text on text
    return evaluate(c, target, env)


def append_to_group(
    c: CheckContext, group: ForkGroup, value: AbstractValue, place: ast.AST, env: CheckEnvironment
) -> None:
    """`forks += value`."""
    items = known_items(value) if isinstance(value, ListValue | ConstantValue) and not _is_text(value) else None
    for index, number in enumerate(group.children):
        part = value
        if isinstance(value, FunctionValue):
            part = c.inline_with(value, [ConstantValue(index) if len(group.children) > 1 else PLAIN], env)
        elif items is not None and len(items) >= len(group.children) > 1:
            part = items[index]
        elif isinstance(value, ListValue):
            part = any_element(value)
        elif items is not None:
            part = PLAIN
        state_operation_checks.append(c, StateRef((number,)), part, place, env)


def _is_text(value: AbstractValue) -> bool:
    return isinstance(value, ConstantValue) and isinstance(value.value, str)


def augmented(c: CheckContext, node: ast.AugAssign, env: CheckEnvironment) -> CheckEnvironment:
    owner = _target(c, node.target, env)
    c.append_depth += 1
    value = evaluate(c, node.value, env)
    c.append_depth -= 1
    if isinstance(node.op, ast.Add) and any(isinstance(o, StateRef | ForkGroup) for o in options_of(owner)):
        for option in options_of(owner):
            if isinstance(option, StateRef):
                state_operation_checks.append(c, option, value, node.value, env)
            elif isinstance(option, ForkGroup):
                append_to_group(c, option, value, node.value, env)
        return env
    if isinstance(node.target, ast.Name):
        total = combine(c, node, node.op, owner, value)
        env.names[node.target.id] = total
    elif isinstance(node.target, ast.Subscript):
        _store(c, node.target, ANY if is_expression(value) else PLAIN, env)
    return env
