"""What a call does: a primitive of the language, a method of a state, a program, a function of the file, or
anything."""

from __future__ import annotations

import ast
import json
from typing import Any

from ..nodes.primitives import ROLES
from . import primitive_call_checks, program_call_checks, state_operation_checks
from .abstract_values import (
    ANY,
    GENERATED,
    PLAIN,
    AbstractValue,
    AppendableExpression,
    AppendedTurn,
    BoundMethod,
    CallArguments,
    ConstantValue,
    CopyBlock,
    CoroutineValue,
    ExpressionNodeValue,
    ForkGroup,
    FunctionValue,
    GeneratedText,
    ImportedModule,
    ListValue,
    PublicName,
    StateBlock,
    StateRef,
    TextPattern,
    UnionValue,
    UnknownValue,
    any_element,
    is_generated,
    is_plain,
    known_items,
    one_of,
    options_of,
)
from .check_context import CheckContext
from .check_environment import CheckEnvironment, escape
from .module_bindings import is_stdlib
from .operator_checks import parts_of
from .role_checks import check_turn_content

_TO_TEXT = ("str", "format", "print")
_PURE = {
    "len",
    "int",
    "float",
    "bool",
    "abs",
    "min",
    "max",
    "sum",
    "round",
    "any",
    "all",
    "isinstance",
    "hasattr",
    "type",
    "id",
    "open",
    "input",
    "hash",
    "ord",
    "chr",
    "repr",
    "print",
    "range",
    "str",
    "format",
    "divmod",
    "pow",
}
_ADDERS = {"append", "insert", "extend", "appendleft", "add"}
_CHANGERS = {*_ADDERS, "pop", "remove", "clear", "reverse", "sort", "update", "popleft"}


def arguments_of(c: CheckContext, node: ast.Call, env: CheckEnvironment) -> CallArguments:
    """The arguments of a call, evaluated in their order."""
    found = CallArguments()
    for item in node.args:
        if isinstance(item, ast.Starred):
            found.rest.append(c.value(item.value, env))
        else:
            value = c.value(item, env)
            (found.rest if found.rest else found.positional).append(value)
    for keyword in node.keywords:
        value = c.value(keyword.value, env)
        if keyword.arg is None:
            found.rest.append(value)
        else:
            found.named[keyword.arg] = value
    return found


def call(c: CheckContext, node: ast.Call, env: CheckEnvironment) -> AbstractValue:
    """The value of a call."""
    callee = c.value(node.func, env)
    arguments = arguments_of(c, node, env)
    values = [_call_one(c, option, node, arguments, env) for option in options_of(callee)]
    return one_of(values)


def _call_one(
    c: CheckContext, callee: AbstractValue, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    if isinstance(callee, PublicName):
        return _call_primitive(c, callee.name, node, arguments, env)
    if isinstance(callee, BoundMethod):
        return _call_method(c, callee, node, arguments, env)
    if isinstance(callee, FunctionValue):
        if callee.is_program:
            return program_call_checks.run(c, callee, node, arguments, env)
        return c.inline(callee, arguments, env)
    return _call_other(c, callee, node, arguments, env)


# --- primitives of the language ----------------------------------------------------------------------------


def _call_primitive(
    c: CheckContext, name: str, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    if name in primitive_call_checks.GEN_PRIMITIVES:
        return primitive_call_checks.make_gen(c, name, node, arguments.positional, arguments.named, arguments.whole)
    role, _, edge = name.rpartition("_")
    if edge in ("begin", "end") and role in ROLES:
        return AppendableExpression((ExpressionNodeValue(edge, node, role=role),))
    if name in ROLES:
        inside = arguments.get(0, "expr")
        check_turn_content(c, name, inside, node)
        return AppendableExpression(whole_turn(name, inside, node))
    if name in ("image", "video", "tools", "fields", "labels"):
        return AppendableExpression((ExpressionNodeValue("any" if name == "tools" else "text", node),))
    if name == "messages":
        return primitive_call_checks.make_messages(c, node, arguments.get(0, "messages"))
    if name == "separate_reasoning":
        return _reasoning(arguments.get(0, "expr"), node)
    if name == "function":
        return _declared(arguments.get(0, "func"))
    if name in ("set_default_backend", "flush_cache"):
        return PLAIN
    primitive_call_checks.check_primitive(c, name, node)
    escape(arguments.all(), env)
    return ANY


def _declared(func: AbstractValue | None) -> AbstractValue:
    """`sgl.function(f)`."""
    if isinstance(func, FunctionValue) and isinstance(func.node, program_call_checks.AnyFunctionDef):
        return FunctionValue(func.node, frozenset(), func.closure)
    return ANY


def whole_turn(role: str, inside: AbstractValue | None, node: ast.AST) -> tuple[ExpressionNodeValue | UnionValue, ...]:
    """The nodes of a whole turn."""
    middle = () if inside is None else parts_of(inside, node)
    return (ExpressionNodeValue("begin", node, role=role), *middle, ExpressionNodeValue("end", node, role=role))


def _reasoning(inside: AbstractValue | None, node: ast.AST) -> AbstractValue:
    if not isinstance(inside, AppendableExpression):
        return AppendableExpression((ExpressionNodeValue("any", node),))
    extra = []
    for part in inside.nodes:
        if isinstance(part, ExpressionNodeValue) and part.kind in ("gen", "select"):
            name = part.name
            spelt = isinstance(name, ConstantValue) and isinstance(name.value, str)
            thought = (
                ConstantValue(f"{name.value}_reasoning_content") if spelt and isinstance(name, ConstantValue) else ANY
            )
            extra.append(ExpressionNodeValue("scope", node, name=thought))
        elif isinstance(part, UnionValue):
            extra.append(ExpressionNodeValue("any", node))
    return AppendableExpression((*inside.nodes, *extra))


# --- methods -----------------------------------------------------------------------------------------------


def _call_method(
    c: CheckContext, method: BoundMethod, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    owner = method.owner
    if isinstance(owner, UnionValue):
        each = [_call_method(c, BoundMethod(option, method.name), node, arguments, env) for option in options_of(owner)]
        return one_of(each)
    if isinstance(owner, StateRef):
        return _state_method(c, owner, method.name, node, arguments, env)
    if isinstance(owner, ForkGroup):
        return _group_method(c, owner, method.name, arguments, env)
    if isinstance(owner, FunctionValue):
        return program_call_checks.method(c, owner, method.name, node, arguments, env)
    return _data_method(c, owner, method.name, node, arguments, env)


def _state_method(
    c: CheckContext, state: StateRef, name: str, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    if name in ROLES:
        return _state_turn(c, state, name, node, arguments, env)
    if name in ("get", "aget", "get_var", "get_meta_info", "probs"):
        return _read(c, state, name, node, arguments, env)
    if name in ("text_iter", "text_async_iter"):
        key = arguments.get(0, "var_name")
        if key is not None and key != ConstantValue(None):
            state_operation_checks.read(c, state, key, node, env)
        return GENERATED
    if name == "var_scope":
        return StateBlock(state, None, arguments.get(0, "name") or ANY)
    if name == "set_var":
        state_operation_checks.set_variable(state, arguments.get(0, "name") or ANY, node, env)
        return PLAIN
    if name == "fork":
        children = state_operation_checks.fork(c, state, arguments.get(0, "size") or ConstantValue(1), env)
        return ForkGroup(children, state.numbers)
    if name == "copy":
        return CopyBlock(ForkGroup(state_operation_checks.fork(c, state, ConstantValue(1), env), state.numbers))
    return _other_state_method(c, state, name, node, arguments, env)


def _other_state_method(
    c: CheckContext, state: StateRef, name: str, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    if name in ("text", "messages", "error", "sync", "atext"):
        if not c.in_async_program or c.is_awaited(node):
            state_operation_checks.mark_all_ready(state, env)
        return _maybe_awaited(c, name, GENERATED)
    if name == "call":
        for number in state.numbers:
            env.facts[number].forget()
    escape(arguments.all(), env)
    return _maybe_awaited(c, name, ANY)


def _state_turn(
    c: CheckContext, state: StateRef, role: str, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    inside = arguments.get(0, "expr")
    if inside is None:
        return StateBlock(state, role)
    check_turn_content(c, role, inside, node)
    state_operation_checks.append(c, state, AppendableExpression(whole_turn(role, inside, node)), node, env)
    return AppendedTurn(role)


def _read(
    c: CheckContext, state: StateRef, name: str, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    key = _named(arguments.get(0, "name") or ANY)
    awaited = c.is_awaited(node)
    found = state_operation_checks.read(c, state, key, node, env, name == "get_var", needed=name != "get_meta_info")
    if awaited:
        state_operation_checks.mark_ready(state, key, env)
    if name == "get" and isinstance(found, GeneratedText):
        found = GENERATED
    if name in ("get_meta_info", "probs"):
        found = GENERATED
    return _maybe_awaited(c, name, found)


def _named(key: AbstractValue) -> AbstractValue:
    """`s.get(node)` reads what the gen is called."""
    if isinstance(key, AppendableExpression):
        [*names] = (
            node.name for node in key.nodes if isinstance(node, ExpressionNodeValue) and node.kind in ("gen", "select")
        )
        return names[0] if len(names) == 1 else ANY
    return key


def _maybe_awaited(c: CheckContext, name: str, value: AbstractValue) -> AbstractValue:
    """Async programs must await their reads; `aget` and `atext` must be awaited anywhere."""
    return CoroutineValue(name, value) if name in state_operation_checks.awaited_names(c.in_async_program) else value


def _group_method(
    c: CheckContext, group: ForkGroup, name: str, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    if name == "join":
        state_operation_checks.join(
            group.parents, group.children, arguments.get(0, "mode") or ConstantValue("gather_variable"), env
        )
        return PLAIN
    escape([group], env)
    return ANY


def _data_method(
    c: CheckContext, owner: AbstractValue, name: str, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    values = arguments.all()
    is_list = isinstance(owner, ListValue) or (isinstance(owner, ConstantValue) and isinstance(owner.value, list))
    if is_list and name in _CHANGERS:
        _change(c, owner, name, node, values, env)
        return ANY if not is_plain(owner) else PLAIN
    if isinstance(owner, ConstantValue) and isinstance(owner.value, str) and name in ("format", "join"):
        for value in values:
            for item in value.items if isinstance(value, ListValue) else (value,):
                c.check_text_of(item, node, f"str.{name}")
        return _folded(owner.value, name, arguments)
    escape(values, env)
    if is_generated(owner) or any(map(is_generated, values)):
        return GENERATED
    return PLAIN if is_plain(owner) else ANY


def _folded(text: str, name: str, arguments: CallArguments) -> AbstractValue:
    """`text.format(...)` or `text.join(...)` of constants."""
    constants = [value for value in arguments.all() if isinstance(value, ConstantValue)]
    if arguments.whole and len(constants) == len(arguments.all()):
        named = {key: value.value for key, value in arguments.named.items() if isinstance(value, ConstantValue)}
        try:
            made: Any = getattr(text, name)(
                *(v.value for v in arguments.positional if isinstance(v, ConstantValue)), **named
            )
        except Exception:
            return PLAIN
        return ConstantValue(made) if len(made) < 100_000 else PLAIN
    return GENERATED if any(map(is_generated, arguments.all())) else TextPattern(".*")


def _change(
    c: CheckContext, owner: AbstractValue, name: str, node: ast.Call, values: list[AbstractValue], env: CheckEnvironment
) -> None:
    """A list is changed: from now on it may hold what it held and what was added."""
    items = (
        owner.items
        if isinstance(owner, ListValue)
        else tuple(map(ConstantValue, owner.value))
        if isinstance(owner, ConstantValue)
        else ()
    )
    added: tuple[AbstractValue, ...] = ()
    if name in _ADDERS and values:
        last = values[-1]
        added = (last,) if name != "extend" else last.items if isinstance(last, ListValue) else (ANY,)
    assert isinstance(node.func, ast.Attribute)
    target = node.func.value
    if isinstance(target, ast.Name) and target.id in env.names:
        kept = [item for item in added if item not in items]
        env.names[target.id] = ListValue((*items, *kept), complete=False)
    else:
        escape(list(added), env)


# --- anything else -----------------------------------------------------------------------------------------


def _call_other(
    c: CheckContext, callee: AbstractValue, node: ast.Call, arguments: CallArguments, env: CheckEnvironment
) -> AbstractValue:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    values = arguments.all()
    for value in values:
        if name in (*_TO_TEXT, "int", "float", "len"):
            c.check_awaited(value, node)
    if name in _TO_TEXT and name not in c.assigned:
        for value in values:
            c.check_text_of(value, node, f"{name}()")
    if name in ("list", "tuple", "reversed", "sorted") and len(values) == 1:
        items = known_items(values[0])
        return ListValue(
            tuple(items) if items is not None else (any_element(values[0]),), items is not None and name != "sorted"
        )
    if name == "enumerate" and values:
        return _pairs(values[:1], counted=True)
    if name == "zip" and values and arguments.whole:
        return _pairs(values)
    if name == "range" and 0 < len(values) < 4:
        return _range(values)
    if (
        isinstance(callee, ImportedModule)
        and callee.name == "json.dumps"
        and len(values) == 1
        and isinstance(values[0], ConstantValue)
    ):
        return _dumped(values[0])
    if (name in _PURE and name not in c.assigned) or (isinstance(callee, ImportedModule) and _is_pure_module(callee)):
        generated = any(map(is_generated, values)) and name not in ("print", "input", "open")
        return GENERATED if generated else PLAIN
    escape(values, env)
    if isinstance(callee, ImportedModule) and is_stdlib(callee.name):
        return GENERATED if any(map(is_generated, values)) else PLAIN if all(map(is_plain, values)) else ANY
    if isinstance(callee, UnknownValue) and callee.plain and isinstance(node.func, ast.Name):
        return ANY
    return GENERATED if is_generated(callee) else callee if isinstance(callee, UnknownValue) else ANY


def _is_pure_module(module: ImportedModule) -> bool:
    return module.name.partition(".")[0] in ("json", "re", "time", "os", "math", "random", "textwrap")


def _dumped(value: ConstantValue) -> AbstractValue:
    try:
        return ConstantValue(json.dumps(value.value))
    except (TypeError, ValueError):
        return PLAIN


def _range(values: list[AbstractValue]) -> AbstractValue:
    numbers = [value.value for value in values if isinstance(value, ConstantValue) and isinstance(value.value, int)]
    if len(numbers) != len(values):
        return PLAIN
    try:
        return ConstantValue(range(*numbers))
    except ValueError:
        return PLAIN


def _pairs(columns: list[AbstractValue], counted: bool = False) -> AbstractValue:
    """The tuples that zip gives; `counted`: those that enumerate gives."""
    seen = [items for column in columns if (items := known_items(column)) is not None]
    if len(seen) == len(columns):
        rows = [tuple(row) for row in zip(*seen, strict=False)]
        if counted:
            rows = [(ConstantValue(index), *row) for index, row in enumerate(rows)]
        return ListValue(tuple(ListValue(row, is_tuple=True) for row in rows))
    any_row = tuple(any_element(column) for column in columns)
    return ListValue((ListValue((PLAIN, *any_row) if counted else any_row, is_tuple=True),), complete=False)
