"""A recursive transition network in flat tables, grown rule by rule from the expressions.

A thread of the automaton is (node, count, frame). Nodes, as rows of five int32 (kind, a, b, c, d):

    BYTE   class a, next b, c: start of plain string text (0 no, 1 unbounded, 2 bounded by loop d)
    SPLIT  edges[a : a + b]
    CALL   rule a, return to b           pushes a frame
    ENTER  loop a, leave to b            pushes a frame, count starts at 0
    LOOP   body a, least b, most c (-1: no bound); leaving pops the frame
    NEXT   loop a: one more iteration, count saturates at the least where there is no most
    RETURN pops a frame; from the bottom frame: the text may end

`d` is the loop whose iterations the thread's count counts at this node (-1: none).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

from sgl.grammars.charset import ByteRanges, utf8_sequences
from sgl.grammars.expr import (
    PLAIN_REPEATED,
    Alt,
    Bytes,
    Call,
    Chars,
    Expr,
    Graph,
    Joined,
    Literal,
    Part,
    Repeat,
    Rule,
    Seq,
    Words,
    repeat,
    seq,
)

BYTE, SPLIT, CALL, ENTER, LOOP, NEXT, RETURN = range(7)
FIELDS = 5
CLASS_BYTES = 32
UNBUILT = -1
_UNROLLED = 3


class Scope(NamedTuple):
    """The loop that counts here, and what repeats the item lowered right now: 0 nothing, 1 a star, 2 the loop."""

    loop: int = -1
    repeated: int = 0


_TOP = Scope()


class Network:
    """The tables; `root` is rule 0."""

    def __init__(self, root: Expr) -> None:
        self.nodes = array("i")
        self.edges = array("i")
        self.classes = bytearray()
        self.rules: list[Rule] = []
        self.entries = array("i")
        self._rule_ids: dict[Rule, int] = {}
        self._class_ids: dict[int, int] = {}
        self.rule_id(Rule("root", lambda: root))

    def __len__(self) -> int:
        return len(self.nodes) // FIELDS

    def rule_id(self, rule: Rule) -> int:
        found = self._rule_ids.get(rule)
        if found is None:
            found = self._rule_ids[rule] = len(self.rules)
            self.rules.append(rule)
            self.entries.append(UNBUILT)
        return found

    def build(self, rule: int) -> None:
        """Lower a rule's body; a no-op when that is done already."""
        if self.entries[rule] == UNBUILT:
            lowering = _Lowering(self)
            end = lowering.node(RETURN)
            self.entries[rule] = lowering.lower(self.rules[rule].build(), end, _TOP)

    def class_id(self, mask: int) -> int:
        found = self._class_ids.get(mask)
        if found is None:
            found = self._class_ids[mask] = len(self._class_ids)
            self.classes += mask.to_bytes(CLASS_BYTES, "little")
        return found

    def class_mask(self, index: int) -> int:
        return int.from_bytes(self.classes[index * CLASS_BYTES : (index + 1) * CLASS_BYTES], "little")

    def node(self, index: int) -> tuple[int, int, int, int, int]:
        kind, a, b, c, d = self.nodes[index * FIELDS : index * FIELDS + FIELDS]
        return kind, a, b, c, d

    def targets(self, offset: int, count: int) -> array[int]:
        return self.edges[offset : offset + count]


class _Lowering:
    """Lowers one rule from its end to its start; equal tails are shared."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.done: dict[tuple[int, int, Scope], int] = {}
        self.shared: dict[tuple[int, ...], int] = {}
        self.literals: dict[tuple[bytes, int, int], int] = {}
        self.alive: list[Expr] = []
        self.lowerers: dict[type, Callable[..., int]] = {
            Literal: self._literal,
            Bytes: self._bytes,
            Chars: self._chars,
            Words: self._words,
            Seq: self._seq,
            Alt: self._alt,
            Repeat: self._repeat,
            Joined: self._joined,
            Graph: self._graph,
            Call: self._call,
        }

    def lower(self, expr: Expr, after: int, scope: Scope) -> int:
        """The node from which `expr` and then `after` are matched."""
        key = (id(expr), after, scope)
        found = self.done.get(key)
        if found is None:
            self.alive.append(expr)
            found = self.done[key] = self.lowerers[type(expr)](expr, after, scope)
        return found

    def node(self, kind: int, a: int = 0, b: int = 0, c: int = 0, scope: Scope = _TOP) -> int:
        nodes = self.network.nodes
        nodes.extend((kind, a, b, c, scope.loop))
        return len(nodes) // FIELDS - 1

    def _shared(self, kind: int, a: int, b: int, c: int, scope: Scope) -> int:
        key = (kind, a, b, c, scope.loop)
        found = self.shared.get(key)
        if found is None:
            found = self.shared[key] = self.node(kind, a, b, c, scope)
        return found

    def _byte(self, mask: int, after: int, scope: Scope, plain: int = 0) -> int:
        return self._shared(BYTE, self.network.class_id(mask), after, plain, scope)

    def split(self, targets: list[int], scope: Scope) -> int:
        unique = list(dict.fromkeys(targets))
        if len(unique) == 1:
            return unique[0]
        offset = len(self.network.edges)
        self.network.edges.extend(unique)
        return self.node(SPLIT, offset, len(unique), scope=scope)

    def _literal(self, expr: Literal, after: int, scope: Scope) -> int:
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

    def _bytes(self, expr: Bytes, after: int, scope: Scope) -> int:
        plain = scope.repeated if expr.plain == PLAIN_REPEATED else expr.plain
        return self._byte(expr.mask, after, scope, plain)

    def _chars(self, expr: Chars, after: int, scope: Scope) -> int:
        sequences = utf8_sequences(expr.chars)
        ascii_mask = sum(_range_mask(*s[0]) for s in sequences if len(s) == 1)
        starts = [self._byte(ascii_mask, after, scope)] if ascii_mask else []
        starts += [self._ranges(s, after, scope) for s in sequences if len(s) > 1]
        return self.split(starts, scope)

    def _ranges(self, ranges: ByteRanges, after: int, scope: Scope) -> int:
        for low, high in reversed(ranges):
            after = self._byte(_range_mask(low, high), after, scope)
        return after

    def _seq(self, expr: Seq, after: int, scope: Scope) -> int:
        inner = Scope(scope.loop)
        for item in reversed(expr.items):
            after = self.lower(item, after, inner)
        return after

    def _alt(self, expr: Alt, after: int, scope: Scope) -> int:
        return self.split([self.lower(item, after, scope) for item in expr.items], scope)

    def _call(self, expr: Call, after: int, scope: Scope) -> int:
        return self._shared(CALL, self.network.rule_id(expr.rule), after, 0, scope)

    def _words(self, expr: Words, after: int, scope: Scope) -> int:
        """A trie built from the sorted words, deepest nodes first, equal tails shared."""
        path: list[dict[int, int]] = [{}]
        ends = [False]
        previous = b""
        for word in (*expr.words, None):
            keep = _common(previous, word) if word is not None else 0
            while len(path) - 1 > keep:
                children, final = path.pop(), ends.pop()
                path[-1][previous[len(path) - 1]] = self._trie_node(children, final, after, scope)
            if word is not None:
                path += [{} for _ in range(len(word) - keep)]
                ends += [False] * (len(word) - keep)
                ends[-1] = True
                previous = word
        return self._trie_node(path[0], ends[0], after, scope)

    def _trie_node(self, children: dict[int, int], final: bool, after: int, scope: Scope) -> int:
        grouped: dict[int, int] = {}
        for byte, target in children.items():
            grouped[target] = grouped.get(target, 0) | 1 << byte
        starts = [self._byte(mask, target, scope) for target, mask in grouped.items()]
        key = (-1, scope.loop, *starts, after if final else -1)
        if key not in self.shared:
            self.shared[key] = self.split(starts + [after] * final, scope)
        return self.shared[key]

    def _repeat(self, expr: Repeat, after: int, scope: Scope) -> int:
        minimum, maximum = expr.minimum, expr.maximum
        if maximum is None and minimum <= 1:
            return self._star(expr, after, scope)
        if maximum is not None and maximum <= _UNROLLED:
            return self._unrolled(expr, maximum, after, scope)
        loop = self.node(LOOP, 0, minimum, -1 if maximum is None else maximum)
        inner = Scope(loop, 2)
        body = self.lower(expr.item, self.node(NEXT, loop, scope=inner), inner)
        self.network.nodes[loop * FIELDS + 1] = body
        self.network.nodes[loop * FIELDS + 4] = loop
        return self.node(ENTER, loop, after, scope=scope)

    def _star(self, expr: Repeat, after: int, scope: Scope) -> int:
        inner = Scope(scope.loop, 1)
        offset = len(self.network.edges)
        self.network.edges.extend((after, after))
        again = self.node(SPLIT, offset, 2, scope=inner)
        body = self.lower(expr.item, again, inner)
        self.network.edges[offset] = body
        return body if expr.minimum else again

    def _unrolled(self, expr: Repeat, maximum: int, after: int, scope: Scope) -> int:
        inner = Scope(scope.loop)
        start = after
        for left in range(1, maximum + 1):
            body = self.lower(expr.item, start, inner)
            start = body if maximum - left < expr.minimum else self.split([body, after], scope)
        return start

    def _joined(self, expr: Joined, after: int, scope: Scope) -> int:
        """Members right to left; one column of nodes for every number of members before, as far as it matters."""
        inner = Scope(scope.loop)
        cap = min(max(expr.minimum, expr.maximum or 0, 1), max(len(expr.parts), 1))
        closing = self.lower(expr.closing, after, inner)
        column = [self._extras(expr, count, closing if count else after, inner) for count in range(cap + 1)]
        for part in reversed(expr.parts):
            column = [self._member(expr, part, count, column, inner) for count in range(cap + 1)]
        return self.split([], inner) if column[0] is None else column[0]

    def _member(
        self, expr: Joined, part: Part, count: int, column: list[int | None], scope: Scope
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

    def _extras(self, expr: Joined, count: int, after: int, scope: Scope) -> int | None:
        least = max(expr.minimum - count, 0)
        most = None if expr.maximum is None else expr.maximum - count
        if most is not None and most < least:
            return None
        if expr.extra is None or most == 0:
            return None if least else after
        if count:
            return self.lower(_again(expr, expr.extra, least, most), after, scope)
        later = _again(expr, expr.extra, max(least - 1, 0), None if most is None else most - 1)
        first = self.lower(seq(expr.opening, expr.extra, later, expr.closing), after, scope)
        return first if least else self.split([first, after], scope)

    def _graph(self, expr: Graph, after: int, scope: Scope) -> int:
        inner = Scope(scope.loop)
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


def _again(expr: Joined, extra: Expr, least: int, most: int | None) -> Expr:
    return repeat(seq(expr.separator, extra), least, most)


def _range_mask(low: int, high: int) -> int:
    return (1 << (high + 1)) - (1 << low)


def _common(left: bytes, right: bytes) -> int:
    limit = min(len(left), len(right))
    for i in range(limit):
        if left[i] != right[i]:
            return i
    return limit
