"""The value of an expression, and what is wrong with it."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable
from typing import Any

from . import call_checks, program_call_checks, state_operation_checks
from .abstract_values import (
    ANY,
    GENERATED,
    PLAIN,
    AbstractValue,
    BoundMethod,
    ConstantValue,
    CoroutineValue,
    DictValue,
    ForkGroup,
    FunctionValue,
    ImportedModule,
    ListValue,
    PublicName,
    StateRef,
    TextPattern,
    UnionValue,
    UnknownValue,
    any_element,
    any_item,
    is_generated,
    is_plain,
    known_items,
    one_of,
    options_of,
)
from .check_context import CheckContext
from .check_environment import CheckEnvironment, escape
from .operator_checks import check_equal, check_number, combine, is_number

Visitor = Callable[[CheckContext, Any, CheckEnvironment], AbstractValue]
_TYPES = {name: getattr(builtins, name) for name in ("int", "float", "str", "bool", "list", "dict", "tuple", "set")}


def evaluate(c: CheckContext, node: ast.AST | None, env: CheckEnvironment) -> AbstractValue:
    """What the expression may be at this place; reports what is wrong in it."""
    if node is None:
        return ConstantValue(None)
    visitor = _VISITORS.get(type(node))
    if visitor is not None:
        return visitor(c, node, env)
    values = [evaluate(c, child, env) for child in ast.iter_child_nodes(node)]
    return GENERATED if any(map(is_generated, values)) else PLAIN


def _constant(c: CheckContext, node: ast.Constant, env: CheckEnvironment) -> AbstractValue:
    return ConstantValue(node.value)


def _name(c: CheckContext, node: ast.Name, env: CheckEnvironment) -> AbstractValue:
    if node.id in env.names:
        _check_parameter(c, node, env)
        value = env.names[node.id]
        return value if node.id not in c.names.shared else PLAIN if is_plain(value) else ANY
    if (found := c.global_value(node.id)) is not None:
        return found
    if node.id in _TYPES and node.id not in c.assigned:
        return ConstantValue(_TYPES[node.id])
    return ANY if node.id in c.assigned or c.has_star_import else PLAIN


def _check_parameter(c: CheckContext, node: ast.Name, env: CheckEnvironment) -> None:
    """A parameter is read whose name a gen has taken."""
    here = c.calls[-1] if c.calls else None
    if here is None or here.state is None or not c.append_depth or node.id not in here.parameters:
        return
    bound = env.facts[here.state].find(node.id) if here.state in env.facts else None
    if bound is not None and bound.kind in ("gen", "select"):
        line = getattr(bound.place, "lineno", 0)
        c.report(
            "SGL104",
            node,
            f"{node.id!r} is the parameter here, not the text of the gen in line {line}; write s[{node.id!r}] if you "
            "mean that text, otherwise rename one of them",
        )


def _attribute(c: CheckContext, node: ast.Attribute, env: CheckEnvironment) -> AbstractValue:
    owner = evaluate(c, node.value, env)
    if isinstance(owner, ImportedModule):
        return _member(owner, node.attr)
    if isinstance(owner, StateRef):
        return state_operation_checks.attribute(c, owner, node, env)
    if isinstance(owner, FunctionValue):
        program_call_checks.check_decorated(c, owner, node)
    if isinstance(owner, FunctionValue | ForkGroup | ListValue | UnionValue | ConstantValue | TextPattern):
        return BoundMethod(owner, node.attr)
    if is_generated(owner):
        return GENERATED
    return owner if isinstance(owner, UnknownValue) and node.attr != "call" else ANY  # a toolbox's call


def _member(module: ImportedModule, name: str) -> AbstractValue:
    if module.is_sgl:
        return PublicName(name)
    return ImportedModule(f"{module.name}.{name}")


def _subscript(c: CheckContext, node: ast.Subscript, env: CheckEnvironment) -> AbstractValue:
    owner, key = evaluate(c, node.value, env), evaluate(c, node.slice, env)
    if isinstance(owner, StateRef):
        return state_operation_checks.read(c, owner, key, node, env, blocking=True)
    return one_of(_item(option, key, node) for option in options_of(owner))


def _item(owner: AbstractValue, key: AbstractValue, node: ast.Subscript) -> AbstractValue:
    if isinstance(owner, ForkGroup):
        return _child(owner, key, node)
    if isinstance(owner, ListValue):
        return _element(owner, key, node)
    if isinstance(owner, ConstantValue) and isinstance(key, ConstantValue):
        try:
            return ConstantValue(owner.value[key.value])
        except Exception:
            return PLAIN
    if isinstance(owner, UnknownValue):
        return owner
    if is_generated(owner):
        return GENERATED
    return PLAIN if is_plain(owner) else ANY


def _child(group: ForkGroup, key: AbstractValue, node: ast.Subscript) -> AbstractValue:
    if isinstance(node.slice, ast.Slice):
        return ListValue(tuple(StateRef((number,)) for number in group.children), complete=False)
    if (
        isinstance(key, ConstantValue)
        and isinstance(key.value, int)
        and -len(group.children) <= key.value < len(group.children)
    ):
        return StateRef((group.children[key.value],))
    return StateRef(group.children)


def _element(many: ListValue, key: AbstractValue, node: ast.Subscript) -> AbstractValue:
    if isinstance(node.slice, ast.Slice):
        return ListValue(many.items, complete=False)
    if (
        many.complete
        and isinstance(key, ConstantValue)
        and isinstance(key.value, int)
        and -len(many.items) <= key.value < len(many.items)
    ):
        return many.items[key.value]
    return any_item(many)


def _joined_text(c: CheckContext, node: ast.JoinedStr, env: CheckEnvironment) -> AbstractValue:
    patterns, text = "", ""
    whole = True
    generated = False
    for part in node.values:
        value = evaluate(c, part, env)
        generated |= is_generated(value)
        if isinstance(value, ConstantValue) and isinstance(value.value, str):
            text, patterns = text + value.value, patterns + re.escape(value.value)
        else:
            whole = False
            patterns += value.pattern if isinstance(value, TextPattern) else ".*"
    if whole:
        return ConstantValue(text)
    return GENERATED if generated else TextPattern(patterns)


def _formatted(c: CheckContext, node: ast.FormattedValue, env: CheckEnvironment) -> AbstractValue:
    value = evaluate(c, node.value, env)
    if node.format_spec is not None:
        evaluate(c, node.format_spec, env)
    c.check_text_of(value, node.value, "an f-string")
    c.check_awaited(value, node.value)
    if (
        isinstance(value, ConstantValue)
        and isinstance(value.value, str | int)
        and node.conversion == -1
        and not node.format_spec
    ):
        return ConstantValue(str(value.value))
    return value if isinstance(value, TextPattern) or is_generated(value) else PLAIN


def _binary(c: CheckContext, node: ast.BinOp, env: CheckEnvironment) -> AbstractValue:
    left, right = evaluate(c, node.left, env), evaluate(c, node.right, env)
    return combine(c, node, node.op, left, right)


def _compare(c: CheckContext, node: ast.Compare, env: CheckEnvironment) -> AbstractValue:
    left = evaluate(c, node.left, env)
    generated = is_generated(left)
    for op, item in zip(node.ops, node.comparators, strict=True):
        right = evaluate(c, item, env)
        generated |= is_generated(right)
        for side in (left, right):
            c.check_awaited(side, node)
        if isinstance(op, ast.In | ast.NotIn) and isinstance(right, StateRef):
            state_operation_checks.allow_missing(right, left, node, env)
        if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            check_number(c, node, left, right)
        elif isinstance(op, ast.Eq | ast.NotEq):
            check_equal(c, node, left, right)
        folded = _decided(op, left, right) if len(node.ops) == 1 else None
        left = right
    return ConstantValue(folded) if folded is not None else GENERATED if generated else PLAIN


def _decided(op: ast.cmpop, left: AbstractValue, right: AbstractValue) -> bool | None:
    """Whether two constants are equal, if that is asked."""
    if not isinstance(left, ConstantValue) or not isinstance(right, ConstantValue):
        return None
    if isinstance(op, ast.Eq | ast.NotEq):
        return bool(left.value == right.value) is isinstance(op, ast.Eq)
    return None


def _boolean(c: CheckContext, node: ast.BoolOp, env: CheckEnvironment) -> AbstractValue:
    first, *rest = node.values
    values = [evaluate(c, first, env)]
    for item in rest:
        values.append(c.value_under(first, item, env))
    return one_of(values)


def _unary(c: CheckContext, node: ast.UnaryOp, env: CheckEnvironment) -> AbstractValue:
    value = evaluate(c, node.operand, env)
    if isinstance(node.op, ast.USub) and is_number(value):
        assert isinstance(value, ConstantValue)
        return ConstantValue(-value.value)
    return GENERATED if is_generated(value) else PLAIN


def _conditional(c: CheckContext, node: ast.IfExp, env: CheckEnvironment) -> AbstractValue:
    evaluate(c, node.test, env)
    return one_of([c.value_under(node.test, node.body, env), c.value_under(node.test, node.orelse, env)])


def _sequence(c: CheckContext, node: ast.List | ast.Tuple, env: CheckEnvironment) -> AbstractValue:
    values: list[AbstractValue] = []
    complete = True
    for item in node.elts:
        if isinstance(item, ast.Starred):
            complete = False
            values += _starred(evaluate(c, item.value, env))
        else:
            values.append(evaluate(c, item, env))
    is_tuple = isinstance(node, ast.Tuple)
    constants = [value.value for value in values if isinstance(value, ConstantValue)]
    if complete and len(constants) == len(values):
        return ConstantValue(tuple(constants) if is_tuple else constants)
    return ListValue(tuple(values), complete, is_tuple)


def _starred(value: AbstractValue) -> list[AbstractValue]:
    return list(value.items) if isinstance(value, ListValue) else [value if isinstance(value, UnknownValue) else PLAIN]


def _dict(c: CheckContext, node: ast.Dict, env: CheckEnvironment) -> AbstractValue:
    keys = [None if key is None else evaluate(c, key, env) for key in node.keys]
    values = [evaluate(c, value, env) for value in node.values]
    if not all(map(is_plain, values)):
        escape(values, env)
    if not all(isinstance(key, ConstantValue) and _hashable(key.value) for key in keys):
        return PLAIN if all(map(is_plain, values)) else ANY
    names = [key.value for key in keys if isinstance(key, ConstantValue)]
    if all(isinstance(value, ConstantValue) for value in values):
        return ConstantValue(dict(zip(names, (v.value for v in values if isinstance(v, ConstantValue)), strict=True)))
    return DictValue(tuple(names)) if all(map(is_plain, values)) else ANY


def _hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _comprehension(
    c: CheckContext, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, env: CheckEnvironment
) -> AbstractValue:
    inner = env.copy()
    values, complete = _generated_items(c, node.generators, node.elt, inner)
    names = env.names
    env.become(inner)
    env.names = names
    constants = [value.value for value in values if isinstance(value, ConstantValue)]
    if complete and len(constants) == len(values):
        return ConstantValue(constants)
    return ListValue(tuple(values), complete)


def _generated_items(
    c: CheckContext, generators: list[ast.comprehension], elt: ast.expr, env: CheckEnvironment
) -> tuple[list[AbstractValue], bool]:
    if not generators:
        return [evaluate(c, elt, env)], True
    first, *rest = generators
    source = evaluate(c, first.iter, env)
    items = known_items(source)
    complete = items is not None and not first.ifs
    values: list[AbstractValue] = []
    for item in items if items is not None else [any_element(source)]:
        c.bind(first.target, item, env)
        for test in first.ifs:
            evaluate(c, test, env)
        before = c.in_repetition
        c.in_repetition = before or items is None
        found, whole = _generated_items(c, rest, elt, env)
        c.in_repetition = before
        values += found
        complete = complete and whole
    return values, complete


def _dict_comprehension(c: CheckContext, node: ast.DictComp, env: CheckEnvironment) -> AbstractValue:
    pair = ast.copy_location(ast.Tuple([node.key, node.value], ast.Load()), node)
    values, _ = _generated_items(c, node.generators, pair, env.copy())
    escape(values, env)
    return PLAIN if all(map(is_plain, values)) else ANY


def _lambda(c: CheckContext, node: ast.Lambda, env: CheckEnvironment) -> AbstractValue:
    return FunctionValue(node, closure=env.names)


def _await(c: CheckContext, node: ast.Await, env: CheckEnvironment) -> AbstractValue:
    value = evaluate(c, node.value, env)
    return value.inner if isinstance(value, CoroutineValue) else value


def _walrus(c: CheckContext, node: ast.NamedExpr, env: CheckEnvironment) -> AbstractValue:
    value = evaluate(c, node.value, env)
    c.bind(node.target, value, env)
    return value


def _yield(c: CheckContext, node: ast.Yield | ast.YieldFrom, env: CheckEnvironment) -> AbstractValue:
    value = evaluate(c, node.value, env)
    escape([value], env)
    return ANY


def _call(c: CheckContext, node: ast.Call, env: CheckEnvironment) -> AbstractValue:
    return call_checks.call(c, node, env)


def _slice(c: CheckContext, node: ast.Slice, env: CheckEnvironment) -> AbstractValue:
    for part in (node.lower, node.upper, node.step):
        if part is not None:
            evaluate(c, part, env)
    return PLAIN


_VISITORS: dict[type[ast.AST], Visitor] = {
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
