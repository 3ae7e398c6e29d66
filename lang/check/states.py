"""What a program does to its states: appending, reading, forking, joining."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from . import roles
from .facts import ANY_ROLE, LOOP, MAYBE, NEVER, SURE, Bound, Env, Facts
from .problem import hint
from .values import (
    ANY,
    PLAIN,
    Choice,
    Const,
    Coroutine,
    Function,
    GenText,
    Method,
    Node,
    Nodes,
    State,
    Submitted,
    Text,
    Value,
    is_plain,
    options_of,
)

if TYPE_CHECKING:
    from .checker import Checker

_NAMED = {"gen", "select", "scope"}


@cache
def attribute_names() -> frozenset[str]:
    """All that `s.` may be followed by."""
    from ..program.async_program_state import AsyncProgramState
    from ..program.program_state import ProgramState

    names = {"stream_executor", "ret_value", "get", "call", "report", "usage", "cancel"}
    return frozenset(names.union(dir(ProgramState), dir(AsyncProgramState)))


@cache
def awaited_names(in_async_program: bool) -> frozenset[str]:
    """The methods of a state that must be awaited."""
    from ..program.async_program_state import AsyncProgramState
    from ..program.program_state import ProgramState

    owner = AsyncProgramState if in_async_program else ProgramState
    return frozenset(name for name in dir(owner) if inspect.iscoroutinefunction(getattr(owner, name)))


def attribute(c: Checker, state: State, node: ast.Attribute, env: Env) -> Value:
    """`s.name`."""
    if node.attr not in attribute_names() and not node.attr.startswith("__"):
        if not c.guessed & set(state.numbers):
            c.report("SGL106", node, f"a state has no attribute {node.attr!r}{hint(node.attr, _public())}")
        return ANY
    if node.attr in ("stream_executor", "control", "__dict__"):
        for number in state.numbers:
            env.facts[number].forget()
        return ANY
    if node.attr == "ret_value":
        return ANY
    return Method(state, node.attr)


def _public() -> list[str]:
    return [name for name in attribute_names() if not name.startswith("_")]


# --- reading -----------------------------------------------------------------------------------------------


def read(
    c: Checker,
    state: State,
    key: Value,
    place: ast.AST,
    env: Env,
    blocking: bool = False,
    needed: bool = True,
) -> Value:
    """`s[key]`: the value, and what is wrong with reading it here."""
    if not (isinstance(key, Const) and isinstance(key.value, str)):
        for number in state.numbers:
            _read_any(env.facts[number])
        return ANY if not isinstance(key, Const) else PLAIN
    name = key.value
    bounds = [env.facts[number].find(name) for number in state.numbers]
    found = [bound for bound in bounds if bound is not None]
    _check_defined(c, Missing(state, name, place, needed), found, env)
    if found and all(bound.lone for bound in found) and id(place) in c.names.as_text:
        c.report(
            "SGL107", place,
            f"s[{name!r}] is a list of one value: only one of the joined forks made {name!r}; use the same name in all "
            f"forks, or read s[{name!r}][0]",
        )  # fmt: skip
    for number in state.numbers:
        facts = env.facts[number]
        if (bound := facts.find(name)) is not None:
            facts.names[name] = replace(bound, read=True, sure=max(bound.sure, LOOP))
    if blocking and c.in_async_program and found and not all(b.waited for b in found):
        _report_blocking(c, state, name, place, env)
    return _value_of(name, found)


def _read_any(facts: Facts) -> None:
    for name, bound in facts.names.items():
        facts.names[name] = replace(bound, read=True)


def _report_blocking(c: Checker, state: State, name: str, place: ast.AST, env: Env) -> None:
    if not any(env.facts[number].waited for number in state.numbers):
        c.report(
            "SGL802", place,
            f"s[{name!r}] cannot wait for its value in an async program; write `await s.get({name!r})`",
        )  # fmt: skip


@dataclass(frozen=True)
class Missing:
    """A read of a variable that nothing has made before. A later part of a loop may have made it."""

    state: State
    name: str
    place: ast.AST
    needed: bool  # else None is read

    def found_in(self, env: Env) -> bool:
        facts = [env.facts[number] for number in self.state.numbers if number in env.facts]
        return any(fact.may_have(self.name) or self.name in fact.names for fact in facts)


def _check_defined(c: Checker, missing: Missing, found: list[Bound], env: Env) -> None:
    facts = [env.facts[number] for number in missing.state.numbers]
    if any(fact.may_have(missing.name) for fact in facts) or c.forgiving:
        return
    sure = max((bound.sure for bound in found), default=NEVER)
    if sure == NEVER:
        known = sorted({known for fact in facts for known in fact.names})
        found_before = hint(missing.name, known) if known else "; nothing has been generated yet"
        if any(missing.name in env.facts[fork].names for fork in _forks_of(c, missing.state) if fork in env.facts):
            found_before = f": {missing.name!r} is a variable of the forks; join first"
        c.report_undefined(
            missing, f"no gen, select or var_scope has made {missing.name!r} before this{found_before}", env
        )
    elif sure == MAYBE and not any(len(env.conditions) > len(bound.conditions) for bound in found):
        line = getattr(found[0].place, "lineno", 0)
        c.report(
            "SGL102", missing.place,
            f"{missing.name!r} may be undefined: it is made in line {line}, but not on every path",
        )  # fmt: skip


def _forks_of(c: Checker, state: State) -> list[int]:
    return [fork for number in state.numbers for fork in c.forks.get(number, [])]


def _value_of(name: str, found: list[Bound]) -> Value:
    kinds = {bound.kind for bound in found}
    if kinds and kinds <= _NAMED and all(bound.single for bound in found):
        return GenText(name)
    return PLAIN


def allow(state: State, key: Value, place: ast.AST, env: Env) -> None:
    """`key in s` was asked: the program knows that the variable may be missing."""
    for number in state.numbers:
        facts = env.facts[number]
        if not (isinstance(key, Const) and isinstance(key.value, str)):
            facts.unknown = True
        else:
            bound = facts.find(key.value) or Bound("set", place, read=True)
            facts.names[key.value] = replace(bound, sure=max(bound.sure, LOOP), read=True)


# --- appending ---------------------------------------------------------------------------------------------


def append(c: Checker, state: State, value: Value, place: ast.AST, env: Env) -> None:
    """`s += value`."""
    c.check_awaited(value, place)
    if isinstance(value, Choice) and len(list(options_of(value))) > 1:
        _append_choice(c, state, value, place, env)
        return
    if (message := _not_appendable(value)) is not None:
        c.report("SGL302", place, message)
        return
    for number in state.numbers:
        facts = env.facts[number]
        _append_to(c, facts, value, place, env, alone=len(state.numbers) == 1 and not facts.many)


def _append_choice(c: Checker, state: State, value: Choice, place: ast.AST, env: Env) -> None:
    paths = []
    for option in options_of(value):
        path = env.copy()
        append(c, state, option, place, path)
        paths.append(path)
    env.become(c.merged(paths, env.conditions))


def _not_appendable(value: Value) -> str | None:
    if isinstance(value, Const) and value.value is None:
        return "None is appended; append text or an expression"
    if isinstance(value, Const) and isinstance(value.value, int | float | list | tuple | dict):
        return f"{value.value!r} is appended; append text (str() it) or an expression"
    if isinstance(value, Function) and value.is_program:
        return f"a program is appended; to run it here, write s.call({value.name}, ...)"
    if isinstance(value, State):
        return "a state is appended; append its text: state.text() or state[name]"
    return None


def _append_to(c: Checker, facts: Facts, value: Value, place: ast.AST, env: Env, alone: bool) -> None:
    if isinstance(value, Submitted):
        c.report(
            "SGL205", place,
            f"s.{value.role}(...) already appends the turn; `s +=` before it adds nothing (in sglang "
            "it adds the turn again). Leave one of them out",
        )  # fmt: skip
    elif isinstance(value, Nodes):
        for node in value.nodes:
            _append_node(c, facts, node, place, env, alone)
    elif is_plain(value):
        roles.note_text(facts, value)
    elif not isinstance(value, Coroutine):
        facts.forget()


def _append_node(
    c: Checker, facts: Facts, node: Node | Choice, place: ast.AST, env: Env, alone: bool
) -> None:
    if isinstance(node, Choice):
        paths = []
        for option in node.options:
            path = facts.copy()
            _append_to(c, path, option, place, env, alone)
            paths.append(path)
        merged = paths[0]
        for path in paths[1:]:
            merged = merged.merged(path, env.conditions)
        facts.__dict__.update(merged.__dict__)
    elif node.kind == "any":
        facts.forget()
    elif node.kind == "said":
        roles.note_text(facts, node.name)
    elif node.kind == "turns":
        facts.turns = facts.role is None
    elif node.kind in ("begin", "end"):
        if alone:
            roles.step(c, facts, node)
        else:
            facts.role = ANY_ROLE
    elif node.kind in _NAMED:
        if node.kind != "scope":
            roles.check_inside(c, facts, node)
        make(c, facts, node.name, node, env, alone)


def make(c: Checker, facts: Facts, name: Value, node: Node, env: Env, alone: bool = True) -> None:
    """A variable is made."""
    if isinstance(name, Text):
        facts.patterns.add(name.pattern)
    elif not isinstance(name, Const):
        facts.unknown = True
    elif isinstance(name.value, str):
        before = facts.find(name.value)
        if alone and before is not None:
            _check_overwritten(c, before, name.value, node, env)
        sure = SURE if alone else LOOP
        place = node.place
        facts.names[name.value] = Bound(node.kind, place, sure, env.conditions, single=node.single)


def _check_overwritten(c: Checker, before: Bound, name: str, node: Node, env: Env) -> None:
    if before.read or before.sure != SURE or before.kind not in _NAMED or node.kind not in _NAMED:
        return
    if before.place is node.place or c.loop_depth or c.repeated:
        return
    line = getattr(before.place, "lineno", 0)
    c.report(
        "SGL103", node.place,
        f"{name!r} is made again, and its value from line {line} was never read; give one of them another name",
    )  # fmt: skip


def set_variable(state: State, key: Value, place: ast.AST, env: Env) -> None:
    """`s[key] = value`."""
    for number in state.numbers:
        facts = env.facts[number]
        if isinstance(key, Const) and isinstance(key.value, str):
            facts.names[key.value] = Bound("set", place, SURE, env.conditions, read=True, waited=True)
        elif isinstance(key, Text):
            facts.patterns.add(key.pattern)
        else:
            facts.unknown = True


# --- forks -------------------------------------------------------------------------------------------------

MOST_CHILDREN = 8


def fork(c: Checker, state: State, size: Value, env: Env) -> tuple[int, ...]:
    """New states that go on from here; one stands for all if their number is not known."""
    count = size.value if isinstance(size, Const) and isinstance(size.value, int) else None
    known = count is not None and 1 <= count <= MOST_CHILDREN
    facts = env.facts[state.numbers[0]]
    for number in state.numbers[1:]:
        facts = facts.merged(env.facts[number], env.conditions)
    children = []
    for _ in range(count if known and count is not None else 1):
        number = c.new_state(env, _inherited(facts))
        if not known:
            env.facts[number].role, env.facts[number].many = ANY_ROLE, True
        children.append(number)
    for parent in state.numbers:
        c.forks.setdefault(parent, []).extend(children)
    return tuple(children)


def _inherited(facts: Facts) -> Facts:
    child = facts.copy()
    child.names = {name: replace(bound, read=True) for name, bound in facts.names.items()}
    return child


def join(parents: tuple[int, ...], children: tuple[int, ...], mode: Value, env: Env) -> None:
    """The parents get lists of what the children have made."""
    if isinstance(mode, Const) and mode.value == "concate_and_append":
        return
    forks = [env.facts[child] for child in children]
    for number in parents:
        parent = env.facts[number]
        for child in forks:
            parent.unknown |= child.unknown
            parent.patterns |= child.patterns
            for name, bound in child.names.items():
                if name not in parent.names:
                    lone = len(forks) > 1 and sum(name in fork.names for fork in forks) == 1
                    parent.names[name] = replace(bound, kind="list", read=True, conditions=env.conditions, lone=lone)


def wait_all(state: State, env: Env) -> None:
    """Everything that was appended is there: reading does not block any more."""
    for number in state.numbers:
        facts = env.facts[number]
        facts.names = {name: replace(bound, waited=True) for name, bound in facts.names.items()}


def wait_for(state: State, key: Value, env: Env) -> None:
    """`await s.get(key)`."""
    for number in state.numbers:
        facts = env.facts[number]
        if isinstance(key, Const) and (bound := facts.find(key.value)) is not None:
            facts.names[key.value] = replace(bound, waited=True)
