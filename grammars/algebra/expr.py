"""The grammar algebra that every front end produces; values are immutable and compare by structure.

`CharClass` and `RegexAnchor` are of characters, the rest of bytes; the network's lowering encodes characters in UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sgl.grammars.algebra.charset import CharSet
from sgl.grammars.algebra.grammar_core_extension import compiled

PLAIN_ALWAYS, PLAIN_REPEATED = 1, 2


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ByteClass:
    """One byte of a set (bit b of `mask`).

    `plain` tells the masks that plain JSON string text may come here: PLAIN_REPEATED within the bounds of the
    repeat whose item begins here, PLAIN_ALWAYS any amount of it.
    """

    mask: int
    plain: int = 0


@dataclass(frozen=True, slots=True)
class CharClass:
    """One character of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class RegexAnchor:
    """The start (`^`) or the end (`$`) of the text; resolved before lowering."""

    start: bool
    position: int


@dataclass(frozen=True, slots=True)
class LazyRepeat:
    """Between `minimum` and `maximum` times an item, rather fewer; resolved before lowering."""

    item: Expr
    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class Lookaround:
    """A condition on what comes after this place (`ahead`) or before it; resolved before lowering."""

    item: Expr
    ahead: bool
    negative: bool
    position: int


@dataclass(frozen=True, slots=True)
class LiteralSet:
    """Any one of many literals; lowered as a shared trie."""

    words: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Seq:
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Between `minimum` and `maximum` (None: no bound) times an item that is never empty."""

    item: Expr
    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class ListMember:
    """A member of a `SeparatedList` list."""

    item: Expr
    required: bool


@dataclass(frozen=True, slots=True)
class SeparatedList:
    """Parts in order, optional ones left out at will, then any number of `extra`s, all split by `separator`.

    Without `ordered` parts and extras come in any order, each part at most once. The number of parts plus
    extras is between `minimum` and `maximum`. `opening` and `closing` come around a non-empty list.
    """

    parts: tuple[ListMember, ...]
    extra: Expr | None
    separator: Expr
    minimum: int = 0
    maximum: int | None = None
    opening: Expr = Literal(b"")
    closing: Expr = Literal(b"")
    ordered: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class AutomatonExpr:
    """A deterministic automaton over expressions; state 0 starts; `edges[s]` lists (expression, target)."""

    edges: tuple[tuple[tuple[Expr, int], ...], ...]
    accepting: tuple[bool, ...]


@dataclass(frozen=True, slots=True, eq=False)
class NameComplement:
    """Encoded text that spells none of some sorted names: a trie of their characters that is left at every node.

    `plain` is the set of bytes that spell themselves, `spelled` has the other characters of the names. `leaving` says
    what else may come where such characters of the names go on, `text` what may come once a text differs.
    `mark` is what `ByteClass.plain` is, of the bytes by which a text leaves the names.
    """

    names: tuple[str, ...]
    plain: int
    text: Expr
    leaving: dict[str, Expr]
    spelled: dict[str, Expr]
    mark: int = PLAIN_ALWAYS


@dataclass(frozen=True, slots=True, eq=False)
class CopiedText:
    """Any piece of a text, as a JSON string spells it: the whole body of a rule. `pieces` is a `TextPieces`."""

    pieces: Any


@dataclass(eq=False, slots=True)
class GrammarRule:
    """A named, possibly recursive part of a grammar; its body is made when it is first needed.

    `end` gives a shortest text of a rule that is one of very many, of which only those on the way are ever built.
    """

    name: str
    build: Callable[[], Expr]
    end: Callable[[], bytes] | None = None


@dataclass(frozen=True, slots=True)
class RuleCall:
    rule: GrammarRule


Expr = (
    Literal
    | ByteClass
    | CharClass
    | RegexAnchor
    | LazyRepeat
    | Lookaround
    | LiteralSet
    | Seq
    | Alt
    | Repeat
    | SeparatedList
    | AutomatonExpr
    | NameComplement
    | CopiedText
    | RuleCall
)

EMPTY = Literal(b"")
NEVER = Alt(())


def plain_seq(*items: Expr) -> Expr:
    """Concatenation; flattens, joins literals and is NEVER when an item is."""
    flat: list[Expr] = []
    for item in items:
        for part in item.items if type(item) is Seq else (item,):
            if type(part) is Literal:
                if flat and type(last := flat[-1]) is Literal:
                    flat[-1] = Literal(last.data + part.data)
                elif part.data:
                    flat.append(part)
            elif type(part) is Alt and not part.items:
                return NEVER
            else:
                flat.append(part)
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def plain_alt(*items: Expr) -> Expr:
    """Alternation; flattens and drops duplicates (which NEVER is part of)."""
    if len(items) == 1:
        return items[0]
    flat = [part for item in items for part in (item.items if type(item) is Alt else (item,))]
    if len(flat) == 1:
        return flat[0]
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else Alt(unique)


def optional(item: Expr) -> Expr:
    return alt(item, EMPTY)


def repeat(item: Expr, minimum: int = 0, maximum: int | None = None) -> Expr:
    """Bounded repetition of any item, brought to a form where the item is never empty."""
    if maximum == 0 or item == EMPTY:
        return EMPTY
    if item == NEVER:
        return EMPTY if minimum == 0 else NEVER
    if nullable(item):
        return optional(repeat(nonempty(item), 1, maximum))
    return item if minimum == maximum == 1 else Repeat(item, minimum, maximum)


def words(literals: Iterable[bytes]) -> Expr:
    unique = tuple(sorted(set(literals)))
    return Literal(unique[0]) if len(unique) == 1 else LiteralSet(unique) if unique else NEVER


def plain_nullable(expr: Expr) -> bool:
    """Whether the expression matches the empty text; a called rule is taken not to."""
    match expr:
        case Literal(data):
            return not data
        case LiteralSet(literals):
            return b"" in literals
        case Seq(items):
            return all(map(plain_nullable, items))
        case Alt(items):
            return any(map(plain_nullable, items))
        case Repeat(_, minimum, _):
            return minimum == 0
        case SeparatedList(parts, _, _, minimum, _):
            return minimum == 0 and not any(p.required for p in parts)
        case AutomatonExpr(_, accepting):
            return accepting[0]
        case NameComplement(names):
            return "" not in names
    return isinstance(expr, RegexAnchor)


def nonempty(expr: Expr) -> Expr:
    """The same language without the empty text."""
    match expr:
        case Literal(data):
            return expr if data else NEVER
        case LiteralSet(literals):
            return words(w for w in literals if w)
        case Alt(items):
            return alt(*map(nonempty, items))
        case Repeat(item, minimum, maximum):
            return Repeat(item, max(minimum, 1), maximum)
        case Seq(items) if nullable(expr):
            return alt(*(seq(nonempty(item), *items[i + 1 :]) for i, item in enumerate(items)))
        case AutomatonExpr(edges, accepting) if accepting[0]:
            moved = tuple(tuple((item, target + 1) for item, target in out) for out in edges)
            return AutomatonExpr((moved[0], *moved), (False, *accepting))
    return expr


def length_bounds(expr: Expr) -> tuple[int, int | None]:
    """Least and greatest number of characters (None: no bound) of an expression of characters."""
    match expr:
        case CharClass():
            return 1, 1
        case Literal(data):
            return len(data.decode()), len(data.decode())
        case LiteralSet(literals) if literals:
            sizes = [len(word.decode()) for word in literals]
            return min(sizes), max(sizes)
        case Seq(items):
            bounds = [length_bounds(i) for i in items]
            return sum(b[0] for b in bounds), _sum_bounds([b[1] for b in bounds])
        case Alt(items) if items:
            bounds = [length_bounds(i) for i in items]
            tops = [b[1] for b in bounds]
            return min(b[0] for b in bounds), None if None in tops else max(t for t in tops if t is not None)
        case Repeat(item, minimum, maximum):
            low, high = length_bounds(item)
            return low * minimum, None if high is None or maximum is None else high * maximum
    return 0, 0


def _sum_bounds(tops: list[int | None]) -> int | None:
    return None if None in tops else sum(t for t in tops if t is not None)


seq, alt, nullable = compiled(plain_seq), compiled(plain_alt), compiled(plain_nullable)
