"""What a call does: a word of the language, a method of a state, a program, a function of the file, or anything."""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any

from ..nodes.primitives import ROLES
from . import programs, states, words
from .facts import Env
from .items import element, iterated
from .names import is_stdlib
from .operators import parts_of
from .roles import check_content
from .values import (
    ANY,
    GENERATED,
    PLAIN,
    Choice,
    Const,
    Copy,
    Coroutine,
    Function,
    GenText,
    Group,
    Many,
    Method,
    Module,
    Node,
    Nodes,
    State,
    Submitted,
    Text,
    Turn,
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

_TO_TEXT = ("str", "format", "print")
_PURE = {
    "len", "int", "float", "bool", "abs", "min", "max", "sum", "round", "any", "all", "isinstance", "hasattr", "type",
    "id", "open", "input", "hash", "ord", "chr", "repr", "print", "range", "str", "format", "divmod", "pow",
}  # fmt: skip
_ADDERS = {"append", "insert", "extend", "appendleft", "add"}
_CHANGERS = {*_ADDERS, "pop", "remove", "clear", "reverse", "sort", "update", "popleft"}


class Arguments:
    """The values of a call's arguments. Not `whole` if it has * or **."""

    def __init__(self, c: Checker, node: ast.Call, env: Env) -> None:
        self.node = node
        self.positional: list[Value] = []
        self.named: dict[str, Value] = {}
        self.rest: list[Value] = []
        for item in node.args:
            if isinstance(item, ast.Starred):
                self.rest.append(c.value(item.value, env))
            else:
                value = c.value(item, env)
                (self.rest if self.rest else self.positional).append(value)
        for keyword in node.keywords:
            value = c.value(keyword.value, env)
            if keyword.arg is None:
                self.rest.append(value)
            else:
                self.named[keyword.arg] = value
        self.whole = not self.rest

    def get(self, index: int, name: str) -> Value | None:
        if len(self.positional) > index:
            return self.positional[index]
        return self.named.get(name, None if self.whole else ANY)

    def all(self) -> list[Value]:
        return [*self.positional, *self.named.values(), *self.rest]


def call(c: Checker, node: ast.Call, env: Env) -> Value:
    """The value of a call."""
    callee = c.value(node.func, env)
    arguments = Arguments(c, node, env)
    values = [_call_one(c, option, node, arguments, env) for option in options_of(callee)]
    return either(values)


def _call_one(c: Checker, callee: Value, node: ast.Call, arguments: Arguments, env: Env) -> Value:
    if isinstance(callee, Word):
        return _word(c, callee.name, node, arguments, env)
    if isinstance(callee, Method):
        return _method(c, callee, node, arguments, env)
    if isinstance(callee, Function):
        if callee.is_program:
            return programs.run(c, callee, node, arguments, env)
        return c.inline(callee, arguments, env)
    return _other(c, callee, node, arguments, env)


# --- words of the language ---------------------------------------------------------------------------------


def _word(c: Checker, name: str, node: ast.Call, arguments: Arguments, env: Env) -> Value:
    if name in words.GENS:
        return words.make_gen(c, name, node, arguments.positional, arguments.named, arguments.whole)
    role, _, edge = name.rpartition("_")
    if edge in ("begin", "end") and role in ROLES:
        return Nodes((Node(edge, node, role=role),))
    if name in ROLES:
        inside = arguments.get(0, "expr")
        check_content(c, name, inside, node)
        return Nodes(turn(name, inside, node))
    if name in ("image", "video", "tools", "fields", "labels"):
        return Nodes((Node("any" if name == "tools" else "text", node),))
    if name == "messages":
        return words.make_messages(c, node, arguments.get(0, "messages"))
    if name == "separate_reasoning":
        return _reasoning(arguments.get(0, "expr"), node)
    if name == "function":
        return _declared(arguments.get(0, "func"))
    if name in ("set_default_backend", "flush_cache"):
        return PLAIN
    words.check_word(c, name, node)
    c.escape(arguments.all(), env)
    return ANY


def _declared(func: Value | None) -> Value:
    """`sgl.function(f)`."""
    if isinstance(func, Function) and isinstance(func.node, programs.Def):
        return Function(func.node, frozenset(), func.closure)
    return ANY


def turn(role: str, inside: Value | None, node: ast.AST) -> tuple[Node | Choice, ...]:
    """The nodes of a whole turn."""
    middle = () if inside is None else parts_of(inside, node)
    return (Node("begin", node, role=role), *middle, Node("end", node, role=role))


def _reasoning(inside: Value | None, node: ast.AST) -> Value:
    if not isinstance(inside, Nodes):
        return Nodes((Node("any", node),))
    extra = []
    for part in inside.nodes:
        if isinstance(part, Node) and part.kind in ("gen", "select"):
            name = part.name
            spelt = isinstance(name, Const) and isinstance(name.value, str)
            thought = Const(f"{name.value}_reasoning_content") if spelt and isinstance(name, Const) else ANY
            extra.append(Node("scope", node, name=thought))
        elif isinstance(part, Choice):
            extra.append(Node("any", node))
    return Nodes((*inside.nodes, *extra))


# --- methods -----------------------------------------------------------------------------------------------


def _method(c: Checker, method: Method, node: ast.Call, arguments: Arguments, env: Env) -> Value:
    owner = method.owner
    if isinstance(owner, Choice):
        each = [_method(c, Method(option, method.name), node, arguments, env) for option in options_of(owner)]
        return either(each)
    if isinstance(owner, State):
        return _state_method(c, owner, method.name, node, arguments, env)
    if isinstance(owner, Group):
        return _group_method(c, owner, method.name, arguments, env)
    if isinstance(owner, Function):
        return programs.method(c, owner, method.name, node, arguments, env)
    return _data_method(c, owner, method.name, node, arguments, env)


def _state_method(
    c: Checker, state: State, name: str, node: ast.Call, arguments: Arguments, env: Env
) -> Value:
    if name in ROLES:
        return _state_turn(c, state, name, node, arguments, env)
    if name in ("get", "aget", "get_var", "get_meta_info", "probs"):
        return _read(c, state, name, node, arguments, env)
    if name in ("text_iter", "text_async_iter"):
        key = arguments.get(0, "var_name")
        if key is not None and key != Const(None):
            states.read(c, state, key, node, env)
        return GENERATED
    if name == "var_scope":
        return Turn(state, None, arguments.get(0, "name") or ANY)
    if name == "set_var":
        states.set_variable(state, arguments.get(0, "name") or ANY, node, env)
        return PLAIN
    if name == "fork":
        children = states.fork(c, state, arguments.get(0, "size") or Const(1), env)
        return Group(children, state.numbers)
    if name == "copy":
        return Copy(Group(states.fork(c, state, Const(1), env), state.numbers))
    return _other_state_method(c, state, name, node, arguments, env)


def _other_state_method(
    c: Checker, state: State, name: str, node: ast.Call, arguments: Arguments, env: Env
) -> Value:
    if name in ("text", "messages", "error", "sync", "atext"):
        if not c.in_async_program or c.is_awaited(node):
            states.wait_all(state, env)
        return _maybe_awaited(c, name, GENERATED)
    if name == "call":
        for number in state.numbers:
            env.facts[number].forget()
    c.escape(arguments.all(), env)
    return _maybe_awaited(c, name, ANY)


def _state_turn(c: Checker, state: State, role: str, node: ast.Call, arguments: Arguments, env: Env) -> Value:
    inside = arguments.get(0, "expr")
    if inside is None:
        return Turn(state, role)
    check_content(c, role, inside, node)
    states.append(c, state, Nodes(turn(role, inside, node)), node, env)
    return Submitted(role)


def _read(c: Checker, state: State, name: str, node: ast.Call, arguments: Arguments, env: Env) -> Value:
    key = _named(arguments.get(0, "name") or ANY)
    awaited = c.is_awaited(node)
    found = states.read(c, state, key, node, env, name == "get_var", needed=name != "get_meta_info")
    if awaited:
        states.wait_for(state, key, env)
    if name == "get" and isinstance(found, GenText):
        found = GENERATED
    if name in ("get_meta_info", "probs"):
        found = GENERATED
    return _maybe_awaited(c, name, found)


def _named(key: Value) -> Value:
    """`s.get(node)` reads what the gen is called."""
    if isinstance(key, Nodes):
        [*names] = (
            node.name for node in key.nodes if isinstance(node, Node) and node.kind in ("gen", "select")
        )
        return names[0] if len(names) == 1 else ANY
    return key


def _maybe_awaited(c: Checker, name: str, value: Value) -> Value:
    """Async programs must await their reads; `aget` and `atext` must be awaited anywhere."""
    return Coroutine(name, value) if name in states.awaited_names(c.in_async_program) else value


def _group_method(c: Checker, group: Group, name: str, arguments: Arguments, env: Env) -> Value:
    if name == "join":
        states.join(group.parents, group.children, arguments.get(0, "mode") or Const("gather_variable"), env)
        return PLAIN
    c.escape([group], env)
    return ANY


def _data_method(
    c: Checker, owner: Value, name: str, node: ast.Call, arguments: Arguments, env: Env
) -> Value:
    values = arguments.all()
    is_list = isinstance(owner, Many) or (isinstance(owner, Const) and isinstance(owner.value, list))
    if is_list and name in _CHANGERS:
        _change(c, owner, name, node, values, env)
        return ANY if not is_plain(owner) else PLAIN
    if isinstance(owner, Const) and isinstance(owner.value, str) and name in ("format", "join"):
        for value in values:
            for item in value.items if isinstance(value, Many) else (value,):
                c.check_text_of(item, node, f"str.{name}")
        return _folded(owner.value, name, arguments)
    c.escape(values, env)
    if is_generated(owner) or any(map(is_generated, values)):
        return GENERATED
    return PLAIN if is_plain(owner) else ANY


def _folded(text: str, name: str, arguments: Arguments) -> Value:
    """`text.format(...)` or `text.join(...)` of constants."""
    constants = [value for value in arguments.all() if isinstance(value, Const)]
    if arguments.whole and len(constants) == len(arguments.all()):
        named = {key: value.value for key, value in arguments.named.items() if isinstance(value, Const)}
        try:
            made: Any = getattr(text, name)(
                *(v.value for v in arguments.positional if isinstance(v, Const)), **named
            )
        except Exception:
            return PLAIN
        return Const(made) if len(made) < 100_000 else PLAIN
    return GENERATED if any(map(is_generated, arguments.all())) else Text(".*")


def _change(c: Checker, owner: Value, name: str, node: ast.Call, values: list[Value], env: Env) -> None:
    """A list is changed: from now on it may hold what it held and what was added."""
    items = (
        owner.items
        if isinstance(owner, Many)
        else tuple(map(Const, owner.value))
        if isinstance(owner, Const)
        else ()
    )
    added: tuple[Value, ...] = ()
    if name in _ADDERS and values:
        last = values[-1]
        added = (last,) if name != "extend" else last.items if isinstance(last, Many) else (ANY,)
    assert isinstance(node.func, ast.Attribute)
    target = node.func.value
    if isinstance(target, ast.Name) and target.id in env.names:
        kept = [item for item in added if item not in items]
        env.names[target.id] = Many((*items, *kept), complete=False)
    else:
        c.escape(list(added), env)


# --- anything else -----------------------------------------------------------------------------------------


def _other(c: Checker, callee: Value, node: ast.Call, arguments: Arguments, env: Env) -> Value:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    values = arguments.all()
    for value in values:
        if name in (*_TO_TEXT, "int", "float", "len"):
            c.check_awaited(value, node)
    if name in _TO_TEXT and name not in c.assigned:
        for value in values:
            c.check_text_of(value, node, f"{name}()")
    if name in ("list", "tuple", "reversed", "sorted") and len(values) == 1:
        items = iterated(values[0])
        return Many(
            tuple(items) if items is not None else (element(values[0]),),
            items is not None and name != "sorted",
        )
    if name == "enumerate" and values:
        return _pairs(values[:1], counted=True)
    if name == "zip" and values and arguments.whole:
        return _pairs(values)
    if name == "range" and 0 < len(values) < 4:
        return _range(values)
    if (
        isinstance(callee, Module)
        and callee.name == "json.dumps"
        and len(values) == 1
        and isinstance(values[0], Const)
    ):
        return _dumped(values[0])
    if (name in _PURE and name not in c.assigned) or (isinstance(callee, Module) and _is_pure_module(callee)):
        generated = any(map(is_generated, values)) and name not in ("print", "input", "open")
        return GENERATED if generated else PLAIN
    c.escape(values, env)
    if isinstance(callee, Module) and is_stdlib(callee.name):
        return GENERATED if any(map(is_generated, values)) else PLAIN if all(map(is_plain, values)) else ANY
    if isinstance(callee, Unknown) and callee.plain and isinstance(node.func, ast.Name):
        return ANY
    return GENERATED if is_generated(callee) else callee if isinstance(callee, Unknown) else ANY


def _is_pure_module(module: Module) -> bool:
    return module.name.partition(".")[0] in ("json", "re", "time", "os", "math", "random", "textwrap")


def _dumped(value: Const) -> Value:
    try:
        return Const(json.dumps(value.value))
    except (TypeError, ValueError):
        return PLAIN


def _range(values: list[Value]) -> Value:
    numbers = [value.value for value in values if isinstance(value, Const) and isinstance(value.value, int)]
    if len(numbers) != len(values):
        return PLAIN
    try:
        return Const(range(*numbers))
    except ValueError:
        return PLAIN


def _pairs(columns: list[Value], counted: bool = False) -> Value:
    """The tuples that zip gives; `counted`: those that enumerate gives."""
    seen = [items for column in columns if (items := iterated(column)) is not None]
    if len(seen) == len(columns):
        rows = [tuple(row) for row in zip(*seen, strict=False)]
        if counted:
            rows = [(Const(index), *row) for index, row in enumerate(rows)]
        return Many(tuple(Many(row, is_tuple=True) for row in rows))
    any_row = tuple(element(column) for column in columns)
    return Many((Many((PLAIN, *any_row) if counted else any_row, is_tuple=True),), complete=False)
