"""What an expression of a program may be, as far as its source shows."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


class AbstractValue:
    """Base of all abstract values."""


MOST_UNROLLED = 16  # items of a loop that is followed item by item


@dataclass(frozen=True)
class UnknownValue(AbstractValue):
    """Nothing is known, but if it is `plain`, that it holds no nodes and no states; `generated`: a model wrote it."""

    plain: bool = True
    generated: bool = False


PLAIN = UnknownValue()
ANY = UnknownValue(plain=False)
GENERATED = UnknownValue(generated=True)


@dataclass(frozen=True)
class ConstantValue(AbstractValue):
    """A value that the source spells out: text, number, list, dict, type."""

    value: Any


@dataclass(frozen=True)
class TextPattern(AbstractValue):
    """Text with holes; `pattern` matches what it may be."""

    pattern: str


@dataclass(frozen=True)
class GeneratedText(AbstractValue):
    """The text of one gen or select, as `s[name]` gives it."""

    name: str


@dataclass(frozen=True)
class CoroutineValue(AbstractValue):
    """What an async method of a state gives before it is awaited; `inner` afterwards."""

    call: str
    inner: AbstractValue


@dataclass(frozen=True)
class DictValue(AbstractValue):
    """A dict whose keys are known."""

    keys: tuple[Any, ...]


@dataclass(frozen=True)
class ListValue(AbstractValue):
    """A list or tuple. If it is not `complete` there may be more of the same kind."""

    items: tuple[AbstractValue, ...]
    complete: bool = True
    is_tuple: bool = False


@dataclass(frozen=True)
class UnionValue(AbstractValue):
    """One of several values."""

    options: tuple[AbstractValue, ...]


@dataclass(frozen=True)
class ImportedModule(AbstractValue):
    """An imported module: sgl itself, or another one (by name)."""

    name: str
    is_sgl: bool = False


@dataclass(frozen=True)
class PublicName(AbstractValue):
    """A public name of sgl, as `gen`."""

    name: str


@dataclass(eq=False)
class FunctionValue(AbstractValue):
    """A function of the file. `bound` are the arguments of `bind`; None: it is not a program."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    bound: frozenset[str] | None = None
    closure: dict[str, AbstractValue] = field(default_factory=dict)

    @property
    def is_program(self) -> bool:
        return self.bound is not None

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "lambda")


@dataclass(frozen=True)
class StateRef(AbstractValue):
    """A program state; several numbers if it is one of several states."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class BoundMethod(AbstractValue):
    """An attribute of a state, a group, a program or a list that is about to be called."""

    owner: AbstractValue
    name: str


@dataclass(frozen=True)
class ForkGroup(AbstractValue):
    """What `s.fork()` gives."""

    children: tuple[int, ...]
    parents: tuple[int, ...]


@dataclass(frozen=True)
class StateBlock(AbstractValue):
    """`s.user()` without an expression: a context manager. `name` for var_scope."""

    state: StateRef
    role: str | None
    name: AbstractValue | None = None


@dataclass(frozen=True)
class CopyBlock(AbstractValue):
    """`s.copy()`: a context manager that gives a forked state."""

    group: ForkGroup


@dataclass(frozen=True)
class AppendedTurn(AbstractValue):
    """What `s.user(expr)` gives: it is appended already."""

    role: str


@dataclass
class CallArguments:
    """The values of a call's arguments. Not `whole` if it has * or **; `rest` is what those and the later ones give."""

    positional: list[AbstractValue] = field(default_factory=list)
    named: dict[str, AbstractValue] = field(default_factory=dict)
    rest: list[AbstractValue] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.rest

    def get(self, index: int, name: str) -> AbstractValue | None:
        if len(self.positional) > index:
            return self.positional[index]
        return self.named.get(name, None if self.whole else ANY)

    def all(self) -> list[AbstractValue]:
        return [*self.positional, *self.named.values(), *self.rest]


# --- nodes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpressionNodeValue:
    """A piece of an expression.

    `kind`: gen, select, begin, end, scope, text, plain_text, turns, or any (unknown pieces).
    """

    kind: str
    place: ast.AST
    name: AbstractValue = ConstantValue(None)
    role: str = ""
    single: bool = True


@dataclass(frozen=True)
class AppendableExpression(AbstractValue):
    """A chain of nodes that may be appended to a state."""

    nodes: tuple[ExpressionNodeValue | UnionValue, ...]


def options_of(value: AbstractValue) -> Iterator[AbstractValue]:
    """All that the value may be."""
    if isinstance(value, UnionValue):
        for option in value.options:
            yield from options_of(option)
    else:
        yield value


def one_of(values: Iterable[AbstractValue]) -> AbstractValue:
    """One of these."""
    found: list[AbstractValue] = []
    for value in values:
        found += [option for option in options_of(value) if option not in found]
    if len(found) == 1:
        return found[0]
    if all(isinstance(value, StateRef) for value in found) and found:
        return StateRef(tuple(dict.fromkeys(n for v in found if isinstance(v, StateRef) for n in v.numbers)))
    if all(
        isinstance(value, ConstantValue | UnknownValue | TextPattern | GeneratedText | DictValue) for value in found
    ):
        if any(isinstance(value, UnknownValue) and not value.plain for value in found):
            return ANY
        return GENERATED if any(is_generated(value) for value in found) else PLAIN
    return UnionValue(tuple(found)) if 0 < len(found) <= 8 else ANY


def is_generated(value: AbstractValue) -> bool:
    """Whether a model wrote it, or it was made of what a model wrote."""
    return isinstance(value, GeneratedText) or (isinstance(value, UnknownValue) and value.generated)


def is_expression(value: AbstractValue) -> bool:
    """Whether the value surely is an expression of the language."""
    return isinstance(value, AppendableExpression) or (
        isinstance(value, UnionValue) and all(is_expression(option) for option in value.options)
    )


def is_plain(value: AbstractValue) -> bool:
    """Whether it surely holds neither nodes nor states."""
    if isinstance(value, UnknownValue):
        return value.plain
    if isinstance(value, ListValue | UnionValue):
        return all(map(is_plain, value.items if isinstance(value, ListValue) else value.options))
    return isinstance(value, ConstantValue | TextPattern | GeneratedText | DictValue)


# --- what is in a value ----------------------------------------------------------------------------------


def known_items(value: AbstractValue) -> list[AbstractValue] | None:
    """The items that a loop over the value goes through, if the source shows them and they are few."""
    items: list[AbstractValue] | None = None
    if isinstance(value, ConstantValue) and isinstance(value.value, list | tuple | str | range | dict):
        items = [ConstantValue(item) for item in value.value] if len(value.value) <= MOST_UNROLLED else None
    elif isinstance(value, ListValue) and value.complete:
        items = list(value.items)
    elif isinstance(value, ForkGroup) and len(value.children) > 1:
        items = [StateRef((number,)) for number in value.children]
    return items if items is None or len(items) <= MOST_UNROLLED else None


def any_element(value: AbstractValue) -> AbstractValue:
    """Any item of the value."""
    if isinstance(value, ForkGroup):
        return StateRef(value.children)
    if isinstance(value, ListValue):
        return any_item(value)
    if isinstance(value, UnionValue):
        return one_of(any_element(option) for option in value.options)
    if isinstance(value, UnknownValue):
        return value
    return PLAIN if is_plain(value) else ANY


def any_item(many: ListValue) -> AbstractValue:
    return one_of(many.items) if many.items else ANY


def leaves(value: AbstractValue) -> Iterator[AbstractValue]:
    if isinstance(value, ListValue | UnionValue):
        for item in value.items if isinstance(value, ListValue) else value.options:
            yield from leaves(item)
    else:
        yield value


def states_in(function: FunctionValue) -> Iterator[AbstractValue]:
    """States of the functions around that the function mentions."""
    used = {node.id for node in ast.walk(function.node) if isinstance(node, ast.Name)}
    for name in used & set(function.closure):
        for leaf in leaves(function.closure[name]):
            if isinstance(leaf, StateRef | ForkGroup):
                yield leaf
