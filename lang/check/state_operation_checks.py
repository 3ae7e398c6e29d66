"""What a program does to its states: appending, reading, forking, joining."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from functools import cache

from . import role_checks
from .abstract_values import (
    ANY,
    PLAIN,
    AbstractValue,
    AppendableExpression,
    AppendedTurn,
    BoundMethod,
    ConstantValue,
    CoroutineValue,
    ExpressionNodeValue,
    FunctionValue,
    GeneratedText,
    StateRef,
    TextPattern,
    UnionValue,
    is_plain,
    options_of,
)
from .check_context import CheckContext
from .check_environment import (
    ALWAYS,
    ANY_ROLE,
    NEVER,
    SOMETIMES,
    UNDECIDED,
    CheckEnvironment,
    MissingRead,
    StateFacts,
    VariableBinding,
    merge,
)
from .check_problem import hint

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


def attribute(c: CheckContext, state: StateRef, node: ast.Attribute, env: CheckEnvironment) -> AbstractValue:
    """`s.name`."""
    if node.attr not in attribute_names() and not node.attr.startswith("__"):
        if not c.assumed_states & set(state.numbers):
            c.report("SGL106", node, f"a state has no attribute {node.attr!r}{hint(node.attr, _public())}")
        return ANY
    if node.attr in ("stream_executor", "control", "__dict__"):
        for number in state.numbers:
            env.facts[number].forget()
        return ANY
    if node.attr == "ret_value":
        return ANY
    return BoundMethod(state, node.attr)


def _public() -> list[str]:
    return [name for name in attribute_names() if not name.startswith("_")]


# --- reading -----------------------------------------------------------------------------------------------


def read(
    c: CheckContext,
    state: StateRef,
    key: AbstractValue,
    place: ast.AST,
    env: CheckEnvironment,
    blocking: bool = False,
    needed: bool = True,
) -> AbstractValue:
    """`s[key]`: the value, and what is wrong with reading it here."""
    if not (isinstance(key, ConstantValue) and isinstance(key.value, str)):
        for number in state.numbers:
            _read_any(env.facts[number])
        return ANY if not isinstance(key, ConstantValue) else PLAIN
    name = key.value
    bounds = [env.facts[number].find(name) for number in state.numbers]
    found = [bound for bound in bounds if bound is not None]
    _check_defined(c, MissingRead(state, name, place, needed), found, env)
    if found and all(bound.from_one_fork for bound in found) and id(place) in c.names.as_text:
        c.report(
            "SGL107",
            place,
            f"s[{name!r}] is a list of one value: only one of the joined forks made {name!r}; use the same name in all "
            f"forks, or read s[{name!r}][0]",
        )
    for number in state.numbers:
        facts = env.facts[number]
        if (bound := facts.find(name)) is not None:
            facts.names[name] = replace(bound, read=True, defined=max(bound.defined, UNDECIDED))
    if blocking and c.in_async_program and found and not all(b.ready for b in found):
        c.report(
            "SGL802", place, f"s[{name!r}] cannot wait for its value in an async program; write `await s.get({name!r})`"
        )
    return _value_of(name, found)


def _read_any(facts: StateFacts) -> None:
    for name, bound in facts.names.items():
        facts.names[name] = replace(bound, read=True)


def _check_defined(c: CheckContext, missing: MissingRead, found: list[VariableBinding], env: CheckEnvironment) -> None:
    facts = [env.facts[number] for number in missing.state.numbers]
    if any(fact.may_define(missing.name) for fact in facts) or c.missing_expected:
        return
    defined = max((bound.defined for bound in found), default=NEVER)
    if defined == NEVER:
        known = sorted({known for fact in facts for known in fact.names})
        found_before = hint(missing.name, known) if known else "; nothing has been generated yet"
        if any(missing.name in env.facts[fork].names for fork in _forks_of(c, missing.state) if fork in env.facts):
            found_before = f": {missing.name!r} is a variable of the forks; join first"
        c.report_undefined(
            missing, f"no gen, select or var_scope has made {missing.name!r} before this{found_before}", env
        )
    elif defined == SOMETIMES and not any(len(env.conditions) > len(bound.conditions) for bound in found):
        line = getattr(found[0].place, "lineno", 0)
        c.report(
            "SGL102",
            missing.place,
            f"{missing.name!r} may be undefined: it is made in line {line}, but not on every path",
        )


def _forks_of(c: CheckContext, state: StateRef) -> list[int]:
    return [fork for number in state.numbers for fork in c.forks.get(number, [])]


def _value_of(name: str, found: list[VariableBinding]) -> AbstractValue:
    kinds = {bound.kind for bound in found}
    if kinds and kinds <= _NAMED and all(bound.single for bound in found):
        return GeneratedText(name)
    return PLAIN


def allow_missing(state: StateRef, key: AbstractValue, place: ast.AST, env: CheckEnvironment) -> None:
    """`key in s` was asked: the program knows that the variable may be missing."""
    for number in state.numbers:
        facts = env.facts[number]
        if not (isinstance(key, ConstantValue) and isinstance(key.value, str)):
            facts.unknown = True
        else:
            bound = facts.find(key.value) or VariableBinding("set", place, read=True)
            facts.names[key.value] = replace(bound, defined=max(bound.defined, UNDECIDED), read=True)


# --- appending ---------------------------------------------------------------------------------------------


def append(c: CheckContext, state: StateRef, value: AbstractValue, place: ast.AST, env: CheckEnvironment) -> None:
    """`s += value`."""
    c.check_awaited(value, place)
    if isinstance(value, UnionValue) and len(list(options_of(value))) > 1:
        _append_choice(c, state, value, place, env)
        return
    if (message := _not_appendable(value)) is not None:
        c.report("SGL302", place, message)
        return
    for number in state.numbers:
        facts = env.facts[number]
        _append_to(c, facts, value, place, env, is_only_state=len(state.numbers) == 1 and not facts.is_summary)


def _append_choice(c: CheckContext, state: StateRef, value: UnionValue, place: ast.AST, env: CheckEnvironment) -> None:
    paths = []
    for option in options_of(value):
        path = env.copy()
        append(c, state, option, place, path)
        paths.append(path)
    env.become(merge(paths, env.conditions))


def _not_appendable(value: AbstractValue) -> str | None:
    if isinstance(value, ConstantValue) and value.value is None:
        return "None is appended; append text or an expression"
    if isinstance(value, ConstantValue) and isinstance(value.value, int | float | list | tuple | dict):
        return f"{value.value!r} is appended; append text (str() it) or an expression"
    if isinstance(value, FunctionValue) and value.is_program:
        return f"a program is appended; to run it here, write s.call({value.name}, ...)"
    if isinstance(value, StateRef):
        return "a state is appended; append its text: state.text() or state[name]"
    return None


def _append_to(
    c: CheckContext, facts: StateFacts, value: AbstractValue, place: ast.AST, env: CheckEnvironment, is_only_state: bool
) -> None:
    if isinstance(value, AppendedTurn):
        c.report(
            "SGL205",
            place,
            f"s.{value.role}(...) already appends the turn; `s +=` before it adds nothing (in sglang "
            "it adds the turn again). Leave one of them out",
        )
    elif isinstance(value, AppendableExpression):
        for node in value.nodes:
            _append_node(c, facts, node, place, env, is_only_state)
    elif is_plain(value):
        role_checks.note_text(facts, value)
    elif not isinstance(value, CoroutineValue):
        facts.forget()


def _append_node(
    c: CheckContext,
    facts: StateFacts,
    node: ExpressionNodeValue | UnionValue,
    place: ast.AST,
    env: CheckEnvironment,
    is_only_state: bool,
) -> None:
    if isinstance(node, UnionValue):
        paths = []
        for option in node.options:
            path = facts.copy()
            _append_to(c, path, option, place, env, is_only_state)
            paths.append(path)
        merged = paths[0]
        for path in paths[1:]:
            merged = merged.merged(path, env.conditions)
        facts.__dict__.update(merged.__dict__)
    elif node.kind == "any":
        facts.forget()
    elif node.kind == "plain_text":
        role_checks.note_text(facts, node.name)
    elif node.kind == "turns":
        facts.ends_with_turn = facts.role is None
    elif node.kind in ("begin", "end"):
        if is_only_state:
            role_checks.apply_role(c, facts, node)
        else:
            facts.role = ANY_ROLE
    elif node.kind in _NAMED:
        if node.kind != "scope":
            role_checks.check_inside(c, facts, node)
        define_variable(c, facts, node.name, node, env, is_only_state)


def define_variable(
    c: CheckContext,
    facts: StateFacts,
    name: AbstractValue,
    node: ExpressionNodeValue,
    env: CheckEnvironment,
    is_only_state: bool = True,
) -> None:
    """A variable is made."""
    if isinstance(name, TextPattern):
        facts.patterns.add(name.pattern)
    elif not isinstance(name, ConstantValue):
        facts.unknown = True
    elif isinstance(name.value, str):
        before = facts.find(name.value)
        if is_only_state and before is not None:
            _check_overwritten(c, before, name.value, node, env)
        defined = ALWAYS if is_only_state else UNDECIDED
        place = node.place
        facts.names[name.value] = VariableBinding(node.kind, place, defined, env.conditions, single=node.single)


def _check_overwritten(
    c: CheckContext, before: VariableBinding, name: str, node: ExpressionNodeValue, env: CheckEnvironment
) -> None:
    if before.read or before.defined != ALWAYS or before.kind not in _NAMED or node.kind not in _NAMED:
        return
    if before.place is node.place or c.loop_depth or c.in_repetition:
        return
    line = getattr(before.place, "lineno", 0)
    c.report(
        "SGL103",
        node.place,
        f"{name!r} is made again, and its value from line {line} was never read; give one of them another name",
    )


def set_variable(state: StateRef, key: AbstractValue, place: ast.AST, env: CheckEnvironment) -> None:
    """`s[key] = value`."""
    for number in state.numbers:
        facts = env.facts[number]
        if isinstance(key, ConstantValue) and isinstance(key.value, str):
            facts.names[key.value] = VariableBinding("set", place, ALWAYS, env.conditions, read=True, ready=True)
        elif isinstance(key, TextPattern):
            facts.patterns.add(key.pattern)
        else:
            facts.unknown = True


# --- forks -------------------------------------------------------------------------------------------------

MOST_CHILDREN = 8


def fork(c: CheckContext, state: StateRef, size: AbstractValue, env: CheckEnvironment) -> tuple[int, ...]:
    """New states that continue from here; one for all of them if their number is not known."""
    count = size.value if isinstance(size, ConstantValue) and isinstance(size.value, int) else None
    known = count is not None and 1 <= count <= MOST_CHILDREN
    facts = env.facts[state.numbers[0]]
    for number in state.numbers[1:]:
        facts = facts.merged(env.facts[number], env.conditions)
    children = []
    for _ in range(count if known and count is not None else 1):
        number = c.new_state(env, _inherited(facts))
        if not known:
            env.facts[number].role, env.facts[number].is_summary = ANY_ROLE, True
        children.append(number)
    for parent in state.numbers:
        c.forks.setdefault(parent, []).extend(children)
    return tuple(children)


def _inherited(facts: StateFacts) -> StateFacts:
    child = facts.copy()
    child.names = {name: replace(bound, read=True) for name, bound in facts.names.items()}
    return child


def join(parents: tuple[int, ...], children: tuple[int, ...], mode: AbstractValue, env: CheckEnvironment) -> None:
    """The parents get lists of what the children have made."""
    if isinstance(mode, ConstantValue) and mode.value == "concate_and_append":
        return
    forks = [env.facts[child] for child in children]
    for number in parents:
        parent = env.facts[number]
        for child in forks:
            parent.unknown |= child.unknown
            parent.patterns |= child.patterns
            for name, bound in child.names.items():
                if name not in parent.names:
                    from_one_fork = len(forks) > 1 and sum(name in fork.names for fork in forks) == 1
                    parent.names[name] = replace(
                        bound, kind="list", read=True, conditions=env.conditions, from_one_fork=from_one_fork
                    )


def mark_all_ready(state: StateRef, env: CheckEnvironment) -> None:
    """Everything that was appended is there: reading does not block any more."""
    for number in state.numbers:
        facts = env.facts[number]
        facts.names = {name: replace(bound, ready=True) for name, bound in facts.names.items()}


def mark_ready(state: StateRef, key: AbstractValue, env: CheckEnvironment) -> None:
    """`await s.get(key)`."""
    for number in state.numbers:
        facts = env.facts[number]
        if isinstance(key, ConstantValue) and (bound := facts.find(key.value)) is not None:
            facts.names[key.value] = replace(bound, ready=True)
