"""The value of an expression, and what is wrong with it."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import calls, states
from .facts import Env
from .items import any_item, element, iterated
from .operators import check_equal, check_number, combine, is_number
from .values import (
    ANY,
    GENERATED,
    PLAIN,
    Choice,
    Const,
    Coroutine,
    Dict,
    Function,
    Group,
    Many,
    Method,
    Module,
    State,
    Text,
    Unknown,
    Value,
    Word,
    either,
    is_generated,
    is_plain,
    options_of,
)

if TYPE_CHECKING:
    from .checker import Checker

Rule = Callable[["Checker", Any, Env], Value]
_TYPES = {
    name: getattr(builtins, name) for name in ("int", "float", "str", "bool", "list", "dict", "tuple", "set")
}


def evaluate(c: Checker, node: ast.AST | None, env: Env) -> Value:
    """What the expression may be at this place; reports what is wrong in it."""
    if node is None:
        return Const(None)
    rule = _RULES.get(type(node))
    if rule is not None:
        return rule(c, node, env)
    values = [evaluate(c, child, env) for child in ast.iter_child_nodes(node)]
    return GENERATED if any(map(is_generated, values)) else PLAIN


def _constant(c: Checker, node: ast.Constant, env: Env) -> Value:
    return Const(node.value)


def _name(c: Checker, node: ast.Name, env: Env) -> Value:
    if node.id in env.names:
        c.note_parameter(node, env)
        value = env.names[node.id]
        return value if node.id not in c.names.shared else PLAIN if is_plain(value) else ANY
    if (found := c.globals.get(node.id)) is not None:
        return found
    if node.id in _TYPES and node.id not in c.assigned:
        return Const(_TYPES[node.id])
    return ANY if node.id in c.assigned or c.stars else PLAIN


def _attribute(c: Checker, node: ast.Attribute, env: Env) -> Value:
    owner = evaluate(c, node.value, env)
    if isinstance(owner, Module):
        return _member(owner, node.attr)
    if isinstance(owner, State):
        return states.attribute(c, owner, node, env)
    if isinstance(owner, Function):
        c.note_undecorated(owner, node)
    if isinstance(owner, Function | Group | Many | Choice | Const | Text):
        return Method(owner, node.attr)
    if is_generated(owner):
        return GENERATED
    return owner if isinstance(owner, Unknown) and node.attr != "call" else ANY  # a toolbox's call


def _member(module: Module, name: str) -> Value:
    if module.is_sgl:
        return Word(name)
    return Module(f"{module.name}.{name}")


def _subscript(c: Checker, node: ast.Subscript, env: Env) -> Value:
    owner, key = evaluate(c, node.value, env), evaluate(c, node.slice, env)
    if isinstance(owner, State):
        return states.read(c, owner, key, node, env, blocking=True)
    return either(_item(option, key, node) for option in options_of(owner))


def _item(owner: Value, key: Value, node: ast.Subscript) -> Value:
    if isinstance(owner, Group):
        return _child(owner, key, node)
    if isinstance(owner, Many):
        return _element(owner, key, node)
    if isinstance(owner, Const) and isinstance(key, Const):
        try:
            return Const(owner.value[key.value])
        except Exception:
            return PLAIN
    if isinstance(owner, Unknown):
        return owner
    if is_generated(owner):
        return GENERATED
    return PLAIN if is_plain(owner) else ANY


def _child(group: Group, key: Value, node: ast.Subscript) -> Value:
    if isinstance(node.slice, ast.Slice):
        return Many(tuple(State((number,)) for number in group.children), complete=False)
    if (
        isinstance(key, Const)
        and isinstance(key.value, int)
        and -len(group.children) <= key.value < len(group.children)
    ):
        return State((group.children[key.value],))
    return State(group.children)


def _element(many: Many, key: Value, node: ast.Subscript) -> Value:
    if isinstance(node.slice, ast.Slice):
        return Many(many.items, complete=False)
    if (
        many.complete
        and isinstance(key, Const)
        and isinstance(key.value, int)
        and -len(many.items) <= key.value < len(many.items)
    ):
        return many.items[key.value]
    return any_item(many)


def _joined_text(c: Checker, node: ast.JoinedStr, env: Env) -> Value:
    patterns, text = "", ""
    whole = True
    generated = False
    for part in node.values:
        value = evaluate(c, part, env)
        generated |= is_generated(value)
        if isinstance(value, Const) and isinstance(value.value, str):
            text, patterns = text + value.value, patterns + re.escape(value.value)
        else:
            whole = False
            patterns += value.pattern if isinstance(value, Text) else ".*"
    if whole:
        return Const(text)
    return GENERATED if generated else Text(patterns)


def _formatted(c: Checker, node: ast.FormattedValue, env: Env) -> Value:
    value = evaluate(c, node.value, env)
    if node.format_spec is not None:
        evaluate(c, node.format_spec, env)
    c.check_text_of(value, node.value, "an f-string")
    c.check_awaited(value, node.value)
    if (
        isinstance(value, Const)
        and isinstance(value.value, str | int)
        and node.conversion == -1
        and not node.format_spec
    ):
        return Const(str(value.value))
    return value if isinstance(value, Text) or is_generated(value) else PLAIN


def _binary(c: Checker, node: ast.BinOp, env: Env) -> Value:
    left, right = evaluate(c, node.left, env), evaluate(c, node.right, env)
    return combine(c, node, node.op, left, right)


def _compare(c: Checker, node: ast.Compare, env: Env) -> Value:
    left = evaluate(c, node.left, env)
    generated = is_generated(left)
    for op, item in zip(node.ops, node.comparators, strict=True):
        right = evaluate(c, item, env)
        generated |= is_generated(right)
        for side in (left, right):
            c.check_awaited(side, node)
        if isinstance(op, ast.In | ast.NotIn) and isinstance(right, State):
            states.allow(right, left, node, env)
        if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            check_number(c, node, left, right)
        elif isinstance(op, ast.Eq | ast.NotEq):
            check_equal(c, node, left, right)
        folded = _decided(op, left, right) if len(node.ops) == 1 else None
        left = right
    return Const(folded) if folded is not None else GENERATED if generated else PLAIN


def _decided(op: ast.cmpop, left: Value, right: Value) -> bool | None:
    """Whether two constants are equal, if that is asked."""
    if not isinstance(left, Const) or not isinstance(right, Const):
        return None
    if isinstance(op, ast.Eq | ast.NotEq):
        return bool(left.value == right.value) is isinstance(op, ast.Eq)
    return None


def _boolean(c: Checker, node: ast.BoolOp, env: Env) -> Value:
    first, *rest = node.values
    values = [evaluate(c, first, env)]
    for item in rest:
        values.append(c.under(first, item, env))
    return either(values)


def _unary(c: Checker, node: ast.UnaryOp, env: Env) -> Value:
    value = evaluate(c, node.operand, env)
    if isinstance(node.op, ast.USub) and is_number(value):
        assert isinstance(value, Const)
        return Const(-value.value)
    return GENERATED if is_generated(value) else PLAIN


def _conditional(c: Checker, node: ast.IfExp, env: Env) -> Value:
    evaluate(c, node.test, env)
    return either([c.under(node.test, node.body, env), c.under(node.test, node.orelse, env)])


def _sequence(c: Checker, node: ast.List | ast.Tuple, env: Env) -> Value:
    values: list[Value] = []
    complete = True
    for item in node.elts:
        if isinstance(item, ast.Starred):
            complete = False
            values += _starred(evaluate(c, item.value, env))
        else:
            values.append(evaluate(c, item, env))
    is_tuple = isinstance(node, ast.Tuple)
    constants = [value.value for value in values if isinstance(value, Const)]
    if complete and len(constants) == len(values):
        return Const(tuple(constants) if is_tuple else constants)
    return Many(tuple(values), complete, is_tuple)


def _starred(value: Value) -> list[Value]:
    return list(value.items) if isinstance(value, Many) else [value if isinstance(value, Unknown) else PLAIN]


def _dict(c: Checker, node: ast.Dict, env: Env) -> Value:
    keys = [None if key is None else evaluate(c, key, env) for key in node.keys]
    values = [evaluate(c, value, env) for value in node.values]
    if not all(map(is_plain, values)):
        c.escape(values, env)
    if not all(isinstance(key, Const) and _hashable(key.value) for key in keys):
        return PLAIN if all(map(is_plain, values)) else ANY
    names = [key.value for key in keys if isinstance(key, Const)]
    if all(isinstance(value, Const) for value in values):
        return Const(dict(zip(names, (v.value for v in values if isinstance(v, Const)), strict=True)))
    return Dict(tuple(names)) if all(map(is_plain, values)) else ANY


def _hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _comprehension(c: Checker, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, env: Env) -> Value:
    inner = env.copy()
    values, complete = _generated_items(c, node.generators, node.elt, inner)
    names = env.names
    env.become(inner)
    env.names = names
    constants = [value.value for value in values if isinstance(value, Const)]
    if complete and len(constants) == len(values):
        return Const(constants)
    return Many(tuple(values), complete)


def _generated_items(
    c: Checker, generators: list[ast.comprehension], elt: ast.expr, env: Env
) -> tuple[list[Value], bool]:
    if not generators:
        return [evaluate(c, elt, env)], True
    first, *rest = generators
    source = evaluate(c, first.iter, env)
    items = iterated(source)
    complete = items is not None and not first.ifs
    values: list[Value] = []
    for item in items if items is not None else [element(source)]:
        c.bind(first.target, item, env)
        for test in first.ifs:
            evaluate(c, test, env)
        before = c.repeated
        c.repeated = before or items is None
        found, whole = _generated_items(c, rest, elt, env)
        c.repeated = before
        values += found
        complete = complete and whole
    return values, complete


def _dict_comprehension(c: Checker, node: ast.DictComp, env: Env) -> Value:
    pair = ast.copy_location(ast.Tuple([node.key, node.value], ast.Load()), node)
    values, _ = _generated_items(c, node.generators, pair, env.copy())
    c.escape(values, env)
    return PLAIN if all(map(is_plain, values)) else ANY


def _lambda(c: Checker, node: ast.Lambda, env: Env) -> Value:
    return Function(node, closure=env.names)


def _await(c: Checker, node: ast.Await, env: Env) -> Value:
    value = evaluate(c, node.value, env)
    return value.inner if isinstance(value, Coroutine) else value


def _walrus(c: Checker, node: ast.NamedExpr, env: Env) -> Value:
    value = evaluate(c, node.value, env)
    c.bind(node.target, value, env)
    return value


def _yield(c: Checker, node: ast.Yield | ast.YieldFrom, env: Env) -> Value:
    value = evaluate(c, node.value, env)
    c.escape([value], env)
    return ANY


def _call(c: Checker, node: ast.Call, env: Env) -> Value:
    return calls.call(c, node, env)


def _slice(c: Checker, node: ast.Slice, env: Env) -> Value:
    for part in (node.lower, node.upper, node.step):
        if part is not None:
            evaluate(c, part, env)
    return PLAIN


def evaluate_all(c: Checker, nodes: Iterable[ast.AST], env: Env) -> list[Value]:
    return [evaluate(c, node, env) for node in nodes]


_RULES: dict[type[ast.AST], Rule] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.JoinedStr: _joined_text,
    ast.FormattedValue: _formatted,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.IfExp: _conditional,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Dict: _dict,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _dict_comprehension,
    ast.Lambda: _lambda,
    ast.Await: _await,
    ast.NamedExpr: _walrus,
    ast.Yield: _yield,
    ast.YieldFrom: _yield,
    ast.Call: _call,
    ast.Slice: _slice,
}
