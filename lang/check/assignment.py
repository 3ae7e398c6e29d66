"""Assignments, and `+=`: what a name, a state or a group of states is afterwards."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from . import states
from .expressions import evaluate
from .facts import Env
from .items import element, iterated
from .operators import combine
from .values import ANY, PLAIN, Const, Function, Group, Many, State, Value, holds_nodes, is_plain, options_of

if TYPE_CHECKING:
    from .checker import Checker


def bind(c: Checker, target: ast.AST, value: Value, env: Env) -> None:
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
        c.escape([value], env)


def _unpack(c: Checker, target: ast.Tuple | ast.List, value: Value, env: Env) -> None:
    items = iterated(value)
    starred = any(isinstance(item, ast.Starred) for item in target.elts)
    if items is None or len(items) != len(target.elts) or starred:
        items = [element(value)] * len(target.elts)
    for item, part in zip(target.elts, items, strict=True):
        bind(c, item, part, env)


def _store(c: Checker, target: ast.Subscript, value: Value, env: Env) -> None:
    owner, key = evaluate(c, target.value, env), evaluate(c, target.slice, env)
    if isinstance(owner, State):
        states.set_variable(owner, key, target, env)
    elif isinstance(owner, Group):
        return
    elif isinstance(target.value, ast.Name) and target.value.id in env.names and isinstance(owner, Many):
        env.names[target.value.id] = Many((*owner.items, value), complete=False)
    else:
        c.escape([value], env)
        if isinstance(target.value, ast.Name) and target.value.id in env.names:
            env.names[target.value.id] = PLAIN if is_plain(owner) and is_plain(value) else ANY


def _target(c: Checker, target: ast.expr, env: Env) -> Value:
    if isinstance(target, ast.Name):
        found = env.names.get(target.id)
        return found if found is not None else c.globals.get(target.id) or PLAIN
    if isinstance(target, ast.Subscript):
        owner = evaluate(c, target.value, env)
        if isinstance(owner, State):
            return PLAIN  # s["x"] += ...: text on text
    return evaluate(c, target, env)


def append_to_group(c: Checker, group: Group, value: Value, place: ast.AST, env: Env) -> None:
    """`forks += value`."""
    items = iterated(value) if isinstance(value, Many | Const) and not _is_text(value) else None
    for index, number in enumerate(group.children):
        part = value
        if isinstance(value, Function):
            part = c.inline_with(value, [Const(index) if len(group.children) > 1 else PLAIN], env)
        elif items is not None and len(items) >= len(group.children) > 1:
            part = items[index]
        elif isinstance(value, Many):
            part = element(value)
        elif items is not None:
            part = PLAIN
        states.append(c, State((number,)), part, place, env)


def _is_text(value: Value) -> bool:
    return isinstance(value, Const) and isinstance(value.value, str)


def augmented(c: Checker, node: ast.AugAssign, env: Env) -> Env:
    owner = _target(c, node.target, env)
    c.appending += 1
    value = evaluate(c, node.value, env)
    c.appending -= 1
    if isinstance(node.op, ast.Add) and any(isinstance(o, State | Group) for o in options_of(owner)):
        for option in options_of(owner):
            if isinstance(option, State):
                states.append(c, option, value, node.value, env)
            elif isinstance(option, Group):
                append_to_group(c, option, value, node.value, env)
        return env
    if isinstance(node.target, ast.Name):
        total = combine(c, node, node.op, owner, value)
        env.names[node.target.id] = total
    elif isinstance(node.target, ast.Subscript):
        _store(c, node.target, ANY if holds_nodes(value) else PLAIN, env)
    return env
