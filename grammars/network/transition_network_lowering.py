"""From expressions to the rows of a network, in Python: the oracle of the lowering in C and its fallback."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeVar

from sgl.grammars.algebra.charset import ByteRanges, utf8_sequences
from sgl.grammars.algebra.expr import (
    PLAIN_REPEATED,
    Alt,
    AutomatonExpr,
    ByteClass,
    CharClass,
    CopiedText,
    Expr,
    GrammarRule,
    ListMember,
    Literal,
    LiteralSet,
    NameComplement,
    Repeat,
    RuleCall,
    SeparatedList,
    Seq,
)
from sgl.grammars.copied.text_pieces import TextPieces
from sgl.grammars.network.transition_network_nodes import (
    BYTE,
    CALL,
    COPY,
    ENTER,
    FIELDS,
    LOOP,
    NEXT,
    PICK,
    RETURN,
    SEEN,
    SPLIT,
    TABLE,
)

_UNROLLED = 3
_MOST_COPIES = 27  # of an item in repeats of repeats; beyond that they are counted


class LoopScope(NamedTuple):
    """The loop that counts here, and what repeats the item lowered right now: 0 nothing, 1 a star, 2 the loop."""

    loop: int = -1
    repeated: int = 0


_TOP = LoopScope()
Items = tuple[Expr, ...]
Word = TypeVar("Word", bytes, str)


class NetworkTables(Protocol):
    """What a network keeps, as far as a rule is written into it."""

    @property
    def nodes(self) -> array[int]: ...
    @property
    def edges(self) -> array[int]: ...
    def __len__(self) -> int: ...
    def class_id(self, mask: int) -> int: ...
    def rule_id(self, rule: GrammarRule) -> int: ...
    def text_id(self, pieces: TextPieces) -> int: ...


class RuleLowering:
    """Lowers one rule from its end to its start; equal tails are shared. `core/lowering` is the same in C."""

    def __init__(self, network: NetworkTables) -> None:
        self.network = network
        self.done: dict[tuple[int, int, LoopScope], int] = {}
        self.shared: dict[tuple[int, ...], int] = {}
        self.literals: dict[tuple[bytes, int, int], int] = {}
        self.alive: list[Expr] = []
        self.copies = 1  # of what is lowered now, by the repeats around it
        self.lowerers: dict[type, Callable[..., int]] = {
            Literal: self._literal,
            ByteClass: self._bytes,
            CharClass: self._chars,
            LiteralSet: self._words,
            Seq: self._seq,
            Alt: self._alt,
            Repeat: self._repeat,
            SeparatedList: self._joined,
            AutomatonExpr: self._graph,
            NameComplement: self._other_than,
            CopiedText: self._copied,
            RuleCall: self._call,
        }

    def rule(self, body: Expr) -> int:
        """The first node of a rule."""
        return self.lower(body, self.node(RETURN), _TOP)

    def lower(self, expr: Expr, after: int, scope: LoopScope) -> int:
        """The node from which `expr` and then `after` are matched."""
        key = (id(expr), after, scope)
        found = self.done.get(key)
        if found is None:
            self.alive.append(expr)
            found = self.done[key] = self.lowerers[type(expr)](expr, after, scope)
        return found

    def node(self, kind: int, a: int = 0, b: int = 0, c: int = 0, scope: LoopScope = _TOP) -> int:
        nodes = self.network.nodes
        nodes.extend((kind, a, b, c, scope.loop))
        return len(nodes) // FIELDS - 1

    def _shared(self, kind: int, a: int, b: int, c: int, scope: LoopScope) -> int:
        key = (kind, a, b, c, scope.loop)
        found = self.shared.get(key)
        if found is None:
            found = self.shared[key] = self.node(kind, a, b, c, scope)
        return found

    def _byte(self, mask: int, after: int, scope: LoopScope, plain: int = 0) -> int:
        return self._shared(BYTE, self.network.class_id(mask), after, plain, scope)

    def split(self, targets: list[int], scope: LoopScope) -> int:
        unique = list(dict.fromkeys(targets))
        if len(unique) == 1:
            return unique[0]
        offset = len(self.network.edges)
        self.network.edges.extend(unique)
        return self.node(SPLIT, offset, len(unique), scope=scope)

    def _literal(self, expr: Literal, after: int, scope: LoopScope) -> int:
        key = (expr.data, after, scope.loop)
        found = self.literals.get(key)
        if found is None:
            rows: list[int] = []
            found, fresh = after, len(self.network)
            for byte in reversed(expr.data):
                rows += (BYTE, self.network.class_id(1 << byte), found, 0, scope.loop)
                found, fresh = fresh, fresh + 1
            self.network.nodes.extend(rows)
            self.literals[key] = found
        return found

    def _bytes(self, expr: ByteClass, after: int, scope: LoopScope) -> int:
        plain = scope.repeated if expr.plain == PLAIN_REPEATED else expr.plain
        return self._byte(expr.mask, after, scope, plain)

    def _chars(self, expr: CharClass, after: int, scope: LoopScope) -> int:
        return self._products(utf8_sequences(expr.chars), 0, after, scope)

    def _products(self, products: Sequence[ByteRanges], at: int, after: int, scope: LoopScope) -> int:
        """The node of products of byte ranges that begin alike; those that go on alike become one node."""
        ways: dict[int, int] = {}
        for (low, high), alike in groupby(products, lambda product: product[at]):
            rest = list(alike)
            target = after if at + 1 == len(rest[0]) else self._products(rest, at + 1, after, scope)
            ways[target] = ways.get(target, 0) | _range_mask(low, high)
        starts = [self._byte(mask, target, scope) for target, mask in ways.items()]
        return self._end_split(starts, False, after, scope)

    def _seq(self, expr: Seq, after: int, scope: LoopScope) -> int:
        return self._row(expr.items, after, scope)

    def _row(self, items: Items, after: int, scope: LoopScope) -> int:
        inner = LoopScope(scope.loop)
        for item in reversed(items):
            after = self.lower(item, after, inner)
        return after

    def _alt(self, expr: Alt, after: int, scope: LoopScope) -> int:
        return self.split([self.lower(item, after, scope) for item in expr.items], scope)

    def _call(self, expr: RuleCall, after: int, scope: LoopScope) -> int:
        return self._shared(CALL, self.network.rule_id(expr.rule), after, 0, scope)

    def _copied(self, expr: CopiedText, after: int, scope: LoopScope) -> int:
        if scope.loop >= 0:
            raise ValueError("copied text belongs into a rule")
        return self._shared(COPY, self.network.text_id(expr.pieces), 0, 0, _TOP)

    def _words(self, expr: LiteralSet, after: int, scope: LoopScope) -> int:
        def close(children: dict[int, int], final: bool) -> int:
            return self._end_split(self._grouped(children, scope), final, after, scope)

        return _trie(expr.words, close)

    def _grouped(self, children: dict[int, int], scope: LoopScope) -> list[int]:
        """One node for each target of the bytes of a trie's node."""
        grouped: dict[int, int] = {}
        for byte, target in children.items():
            grouped[target] = grouped.get(target, 0) | 1 << byte
        return [self._byte(mask, target, scope) for target, mask in grouped.items()]

    def _end_split(self, starts: list[int], final: bool, after: int, scope: LoopScope) -> int:
        """A split over some nodes, and over what comes after where the text may end; shared with its equals."""
        key = (-1, scope.loop, *starts, after if final else -1)
        if key not in self.shared:
            self.shared[key] = self.split(starts + [after] * final, scope)
        return self.shared[key]

    def _other_than(self, expr: NameComplement, after: int, scope: LoopScope) -> int:
        inner = LoopScope(scope.loop)
        text = self.lower(expr.text, after, inner)

        def close(children: dict[str, int], final: bool) -> int:
            plain = {ord(c): t for c, t in children.items() if c < "\x80" and expr.plain >> ord(c) & 1}
            strange = {c: t for c, t in children.items() if ord(c) not in plain}
            others = expr.plain & ~sum(1 << byte for byte in plain)
            starts = [self._byte(others, text, inner, expr.mark)] if others else []
            starts.append(self.lower(expr.leaving["".join(strange)], text, inner))
            starts += self._grouped(plain, inner)
            starts += [self.lower(expr.spelled[c], target, inner) for c, target in strange.items()]
            return self._end_split(starts, not final, after, inner)

        return _trie(expr.names, close)

    def _repeat(self, expr: Repeat, after: int, scope: LoopScope) -> int:
        return self._times((expr.item,), expr.minimum, expr.maximum, after, scope)

    def _times(self, items: Items, minimum: int, maximum: int | None, after: int, scope: LoopScope) -> int:
        """Some items in a row, which are never empty together, so many times."""
        if maximum is None and minimum <= 1:
            return self._star(items, minimum, after, scope)
        if maximum is not None and maximum <= _UNROLLED and self.copies * maximum <= _MOST_COPIES:
            return self._unrolled(items, minimum, maximum, after, scope)
        loop = self.node(LOOP, 0, minimum, -1 if maximum is None else maximum)
        inner = LoopScope(loop, 2)
        body = self._repeated(items, self.node(NEXT, loop, scope=inner), inner)
        self.network.nodes[loop * FIELDS + 1] = body
        self.network.nodes[loop * FIELDS + 4] = loop
        return self.node(ENTER, loop, after, scope=scope)

    def _repeated(self, items: Items, after: int, scope: LoopScope) -> int:
        """Only an item that is repeated alone learns by what it is repeated."""
        return self.lower(items[0], after, scope) if len(items) == 1 else self._row(items, after, scope)

    def _star(self, items: Items, minimum: int, after: int, scope: LoopScope) -> int:
        inner = LoopScope(scope.loop, 1)
        offset = len(self.network.edges)
        self.network.edges.extend((after, after))
        again = self.node(SPLIT, offset, 2, scope=inner)
        body = self._repeated(items, again, inner)
        self.network.edges[offset] = body
        return body if minimum else again

    def _unrolled(self, items: Items, minimum: int, maximum: int, after: int, scope: LoopScope) -> int:
        inner, copies = LoopScope(scope.loop), self.copies
        self.copies *= max(maximum, 1)
        start = after
        for left in range(1, maximum + 1):
            body = self._repeated(items, start, inner)
            start = body if maximum - left < minimum else self.split([body, after], scope)
        self.copies = copies
        return start

    def _joined(self, expr: SeparatedList, after: int, scope: LoopScope) -> int:
        """Members right to left; one column of nodes for every number of members before, as far as it matters."""
        if not expr.ordered:
            return self._unordered(expr, after, scope)
        inner = LoopScope(scope.loop)
        cap = min(max(expr.minimum, expr.maximum or 0, 1), max(len(expr.parts), 1))
        closing = self.lower(expr.closing, after, inner)
        column = [self._extras(expr, count, closing, inner) for count in range(1, cap + 1)]
        column.insert(0, None if expr.minimum else after)
        if expr.extra is not None:
            column[0] = self._member(expr, ListMember(expr.extra, False), 0, column, inner)
        for part in reversed(expr.parts):
            column = [self._member(expr, part, count, column, inner) for count in range(cap + 1)]
        return self.split([], inner) if column[0] is None else column[0]

    def _member(
        self, expr: SeparatedList, part: ListMember, count: int, column: list[int | None], scope: LoopScope
    ) -> int | None:
        """None where no number of further members can end the list."""
        starts: list[int] = []
        rest = column[min(count + 1, len(column) - 1)]
        if rest is not None and (expr.maximum is None or count < expr.maximum):
            member = self.lower(part.item, rest, scope)
            starts.append(self.lower(expr.separator if count else expr.opening, member, scope))
        skipped = column[count]
        if not part.required and skipped is not None:
            starts.append(skipped)
        return self.split(starts, scope) if starts else None

    def _extras(self, expr: SeparatedList, count: int, after: int, scope: LoopScope) -> int | None:
        """What may follow the parts once there are members."""
        least = max(expr.minimum - count, 0)
        most = None if expr.maximum is None else expr.maximum - count
        if most is not None and most < least:
            return None
        if expr.extra is None or most == 0:
            return None if least else after
        return self._times((expr.separator, expr.extra), least, most, after, scope)

    def _unordered(self, expr: SeparatedList, after: int, scope: LoopScope) -> int:
        """The empty list, or a frame around the members; nothing where no list can satisfy the bounds."""
        required = sum(part.required for part in expr.parts)
        least = max(expr.minimum, required)
        able = len(expr.parts) if expr.extra is None else None
        most = min((bound for bound in (expr.maximum, able) if bound is not None), default=None)
        starts = [] if least else [after]
        if most is None or most >= max(least, 1):
            starts.append(self._list(expr, required, after, scope))
        return self.split(starts, scope)

    def _list(self, expr: SeparatedList, required: int, after: int, scope: LoopScope) -> int:
        parts = sorted(expr.parts, key=lambda part: not part.required)
        offset = self._reserve(TABLE + len(parts))
        pick = self.node(PICK, offset, len(parts), scope=LoopScope(len(self.network)))
        inner = LoopScope(pick)
        items = [part.item for part in parts] + ([] if expr.extra is None else [expr.extra])
        entries = [self.lower(item, self.node(SEEN, pick, i, scope=inner), inner) for i, item in enumerate(items)]
        extra = -1 if expr.extra is None else entries.pop()
        most = -1 if expr.maximum is None else expr.maximum
        table = array("i", (required, expr.minimum, most, extra, *entries))
        self.network.edges[offset : offset + len(table)] = table
        self.network.nodes[pick * FIELDS + 3] = self.lower(expr.separator, pick, inner)
        closing = self.lower(expr.closing, after, LoopScope(scope.loop))
        return self.node(ENTER, self.lower(expr.opening, pick, inner), closing, scope=scope)

    def _graph(self, expr: AutomatonExpr, after: int, scope: LoopScope) -> int:
        inner = LoopScope(scope.loop)
        offsets = [self._reserve(len(e) + a) for e, a in zip(expr.edges, expr.accepting, strict=True)]
        states = [
            self.node(SPLIT, offset, len(e) + a, scope=inner)
            for offset, e, a in zip(offsets, expr.edges, expr.accepting, strict=True)
        ]
        for offset, edges, final in zip(offsets, expr.edges, expr.accepting, strict=True):
            targets = [self.lower(item, states[target], inner) for item, target in edges] + [after] * final
            self.network.edges[offset : offset + len(targets)] = array("i", targets)
        return states[0]

    def _reserve(self, count: int) -> int:
        offset = len(self.network.edges)
        self.network.edges.extend([0] * count)
        return offset


def _range_mask(low: int, high: int) -> int:
    return (1 << (high + 1)) - (1 << low)


def _trie(words: Sequence[Word], close: Callable[[dict[Any, int], bool], int]) -> int:
    """Close the nodes of a trie of sorted words, deepest first; what closing the root gives."""
    path: list[dict[Any, int]] = [{}]
    ends = [False]
    previous = words[0][:0] if words else None
    for word in words:
        keep = _common(previous, word)
        _close(path, ends, keep, previous, close)
        path += [{} for _ in range(len(word) - keep)]
        ends += [False] * (len(word) - keep)
        ends[-1] = True
        previous = word
    _close(path, ends, 0, previous, close)
    return close(path[0], ends[0])


def _close(path: list[dict[Any, int]], ends: list[bool], keep: int, word: Any, close: Callable[..., int]) -> None:
    """Close the nodes of the way that `word` spells but for its first ones."""
    while len(path) - 1 > keep:
        children, final = path.pop(), ends.pop()
        path[-1][word[len(path) - 1]] = close(children, final)


def _common(left: Any, right: Any) -> int:
    limit = min(len(left), len(right))
    for i in range(limit):
        if left[i] != right[i]:
            return i
    return limit
