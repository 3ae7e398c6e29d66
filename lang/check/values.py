"""What an expression of a program may be, as far as its source tells."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


class Value:
    """Base of all abstract values."""


@dataclass(frozen=True)
class Unknown(Value):
    """Nothing is known, but if it is `plain`, that it holds no nodes and no states; `generated`: a model wrote it."""

    plain: bool = True
    generated: bool = False


PLAIN = Unknown()
ANY = Unknown(plain=False)
GENERATED = Unknown(generated=True)


@dataclass(frozen=True)
class Const(Value):
    """A value that the source spells out: text, number, list, dict, type."""

    value: Any


@dataclass(frozen=True)
class Text(Value):
    """Text with holes; `pattern` matches what it may be."""

    pattern: str


@dataclass(frozen=True)
class GenText(Value):
    """The text of one gen or select, as `s[name]` gives it."""

    name: str


@dataclass(frozen=True)
class Coroutine(Value):
    """What an async method of a state gives before it is awaited; `inner` afterwards."""

    call: str
    inner: Value


@dataclass(frozen=True)
class Dict(Value):
    """A dict whose keys are known."""

    keys: tuple[Any, ...]


@dataclass(frozen=True)
class Many(Value):
    """A list or tuple. If it is not `complete` there may be more of the same kind."""

    items: tuple[Value, ...]
    complete: bool = True
    is_tuple: bool = False


@dataclass(frozen=True)
class Choice(Value):
    """One of several values."""

    options: tuple[Value, ...]


@dataclass(frozen=True)
class Module(Value):
    """An imported module: sgl itself, or another one (by name)."""

    name: str
    is_sgl: bool = False


@dataclass(frozen=True)
class Word(Value):
    """A public name of sgl, as `gen`."""

    name: str


@dataclass(eq=False)
class Function(Value):
    """A function of the file. `bound` are the arguments that `bind` gave; None: it is no program."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    bound: frozenset[str] | None = None
    closure: dict[str, Value] = field(default_factory=dict)

    @property
    def is_program(self) -> bool:
        return self.bound is not None

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "lambda")


@dataclass(frozen=True)
class State(Value):
    """A program state; several numbers if it is one of several states."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Method(Value):
    """An attribute of a state, a group, a program or a list that is about to be called."""

    owner: Value
    name: str


@dataclass(frozen=True)
class Group(Value):
    """What `s.fork()` gives."""

    children: tuple[int, ...]
    parents: tuple[int, ...]


@dataclass(frozen=True)
class Turn(Value):
    """`s.user()` without an expression: a context manager. `name` for var_scope."""

    state: State
    role: str | None
    name: Value | None = None


@dataclass(frozen=True)
class Copy(Value):
    """`s.copy()`: a context manager that gives a forked state."""

    group: Group


@dataclass(frozen=True)
class Submitted(Value):
    """What `s.user(expr)` gives: it is appended already."""

    role: str


# --- nodes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """A piece of an expression. `kind`: gen, select, begin, end, scope, text, or any (unknown pieces)."""

    kind: str
    place: ast.AST
    name: Value = Const(None)
    role: str = ""
    single: bool = True


@dataclass(frozen=True)
class Nodes(Value):
    """A chain of nodes that may be appended to a state."""

    nodes: tuple[Node | Choice, ...]


def options_of(value: Value) -> Iterator[Value]:
    """All that the value may be."""
    if isinstance(value, Choice):
        for option in value.options:
            yield from options_of(option)
    else:
        yield value


def either(values: Iterable[Value]) -> Value:
    """One of these."""
    found: list[Value] = []
    for value in values:
        found += [option for option in options_of(value) if option not in found]
    if len(found) == 1:
        return found[0]
    if all(isinstance(value, State) for value in found) and found:
        return State(tuple(dict.fromkeys(n for v in found if isinstance(v, State) for n in v.numbers)))
    if all(isinstance(value, Const | Unknown | Text | GenText | Dict) for value in found):
        if any(isinstance(value, Unknown) and not value.plain for value in found):
            return ANY
        return GENERATED if any(is_generated(value) for value in found) else PLAIN
    return Choice(tuple(found)) if 0 < len(found) <= 8 else ANY


def is_generated(value: Value) -> bool:
    """Whether a model wrote it, or it was made of what a model wrote."""
    return isinstance(value, GenText) or (isinstance(value, Unknown) and value.generated)


def holds_nodes(value: Value) -> bool:
    """Whether the value surely is an expression of the language."""
    return isinstance(value, Nodes) or (
        isinstance(value, Choice) and all(holds_nodes(option) for option in value.options)
    )


def is_plain(value: Value) -> bool:
    """Whether it surely holds neither nodes nor states."""
    if isinstance(value, Unknown):
        return value.plain
    if isinstance(value, Many | Choice):
        return all(map(is_plain, value.items if isinstance(value, Many) else value.options))
    return isinstance(value, Const | Text | GenText | Dict)
