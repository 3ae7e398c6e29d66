"""A recursive transition network in flat tables, grown rule by rule from the expressions; `nodes.py` says of what."""

from __future__ import annotations

from array import array
from functools import cached_property
from typing import Any

from sgl.grammars.algebra.expr import Expr, GrammarRule
from sgl.grammars.algebra.grammar_core_extension import extension
from sgl.grammars.algebra.unordered_parts import PartTable
from sgl.grammars.copied.text_pieces import TextPieces
from sgl.grammars.network.transition_network_lowering import RuleLowering
from sgl.grammars.network.transition_network_nodes import (
    BYTE,
    CALL,
    CLASS_BYTES,
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
    UNBUILT,
)

__all__ = [
    "BYTE",
    "CALL",
    "CLASS_BYTES",
    "COPY",
    "ENTER",
    "FIELDS",
    "LOOP",
    "NEXT",
    "PICK",
    "RETURN",
    "SEEN",
    "SPLIT",
    "UNBUILT",
    "TransitionNetwork",
]


class TransitionNetwork:
    """The tables; `root` is rule 0.

    They are lowered in C and read from there when Python asks for them, or lowered in Python where there is no C.
    """

    lost = False  # no more rules can be built

    def __init__(self, root: Expr, native: bool = True) -> None:
        self.rules: list[GrammarRule] = []
        self.texts: list[TextPieces] = []  # that values are copied from
        self._rule_ids: dict[GrammarRule, int] = {}
        self._class_ids: dict[int, int] = {}
        self._core: Any = extension() if native else None
        self.native: Any = self._core.tables(self.rules, self._rule_ids, self.texts) if self._core else None
        if self.native is None:
            self.nodes, self.edges, self.entries = array("i"), array("i"), array("i")
            self.classes = bytearray()
        self.rule_id(GrammarRule("root", lambda: root))

    @cached_property
    def nodes(self) -> array[int]:
        return array("i", self._core.read(self.native, 0))

    @cached_property
    def edges(self) -> array[int]:
        return array("i", self._core.read(self.native, 1))

    @cached_property
    def classes(self) -> bytearray:
        return bytearray(self._core.read(self.native, 2))

    @cached_property
    def entries(self) -> array[int]:
        return array("i", self._core.read(self.native, 3))

    def __len__(self) -> int:
        return len(self.nodes) // FIELDS

    def rule_id(self, rule: GrammarRule) -> int:
        found = self._rule_ids.get(rule)
        if found is None and self.native is not None:
            return int(self._core.rule_id(self.native, rule))
        if found is None:
            found = self._rule_ids[rule] = len(self.rules)
            self.rules.append(rule)
            self.entries.append(UNBUILT)
        return found

    def text_id(self, pieces: TextPieces) -> int:
        """The number of a text by its pieces, which are compared by identity."""
        if pieces not in self.texts:
            self.texts.append(pieces)
        return self.texts.index(pieces)

    def build(self, rule: int) -> None:
        """Lower a rule's body; a no-op when that is done already."""
        if self.native is not None:
            self._build_native(rule)
        elif self.entries[rule] == UNBUILT:
            self.entries[rule] = RuleLowering(self).rule(self.rules[rule].build())

    def finish(self, most: int) -> dict[int, bytes]:
        """Build every rule but those that know their end, until there are more than so many nodes; returns these
        ends."""
        ends: dict[int, bytes] = {}
        rule = 0
        while rule < len(self.rules) and len(self) <= most:
            end = self.rules[rule].end
            if end is not None and self.entries[rule] == UNBUILT:
                ends[rule] = end()
            else:
                self.build(rule)
            rule += 1
        return ends

    def _build_native(self, rule: int) -> None:
        """What was read of the tables before is read again."""
        if self._core.entry(self.native, rule) == UNBUILT:
            self._core.lower(self.native, rule, self.rules[rule].build())
            for table in ("nodes", "edges", "classes", "entries"):
                self.__dict__.pop(table, None)

    def memory(self) -> int:
        """Bytes of the tables, and of the automata of texts."""
        texts = sum(pieces.memory() for pieces in self.texts)
        if self.native is not None:
            return int(self._core.memory(self.native)) + texts
        rows = len(self.nodes) + len(self.edges) + len(self.entries)
        return rows * self.nodes.itemsize + len(self.classes) + texts

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

    def part_table(self, pick: int) -> PartTable:
        _, offset, parts, _, _ = self.node(pick)
        required, least, most, extra = self.edges[offset : offset + TABLE]
        return PartTable(required, least, most, extra, tuple(self.targets(offset + TABLE, parts)))
