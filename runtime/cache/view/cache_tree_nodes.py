"""What a copied tree of the prefix cache is made of: its nodes, and the sequences that stand on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ..growable_int_array import Ints, Space


@dataclass(frozen=True, slots=True)
class CachedSequenceRow:
    """A sequence that holds pages, beyond the deepest node that it stands on.

    sequence: its number, as `Sequence.id`.  status: "running", "waiting", "idle" or "pinned".
    tokens: int32 [n], computed after the node and not in the tree (yet); n is often 0.  text: of these.
    """

    sequence: int
    status: str
    tokens: Ints
    text: str


@dataclass(slots=True, eq=False)
class CacheNode:
    """A stretch of tokens whose keys and values are cached, after those of its `parent`.

    tokens: int32 [n], read-only; none for the root of a namespace.  start: tokens before it.
    text: of `tokens` alone: a character whose tokens are spread over two nodes reads as U+FFFD in both.
    locks: how many sequences stand on it or below. Only what none stands on is ever evicted.
    last_used: larger is later.  rows: the sequences that stand here.
    """

    tokens: Ints
    text: str
    start: int
    locks: int
    last_used: int
    parent: CacheNode | None = None
    children: list[CacheNode] = field(default_factory=list)
    rows: list[CachedSequenceRow] = field(default_factory=list)

    def __len__(self) -> int:
        """How many tokens it holds itself."""
        return len(self.tokens)

    def __bool__(self) -> bool:
        return True

    @property
    def locked(self) -> bool:
        return self.locks > 0

    @property
    def pinned(self) -> bool:
        """Whether an `Engine.pin` keeps it: one that ends here or below."""
        return any(row.status == "pinned" for node in self.nodes() for row in node.rows)

    def nodes(self) -> Iterator[CacheNode]:
        """It and all below, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def path_text(self) -> str:
        """The text from the root to its end."""
        texts, node = [self.text], self.parent
        while node is not None:
            texts.append(node.text)
            node = node.parent
        return "".join(reversed(texts))

    def __repr__(self) -> str:
        return (
            f"<CacheNode of {len(self)} tokens {self.text[:40]!r}, {len(self.children)} children, {self.locks} locks>"
        )


class DrawnCacheTree(Protocol):
    """A tree of texts as its outline and its picture read it: `cache_tree.CacheTree`."""

    @property
    def roots(self) -> dict[Space, CacheNode]: ...
    @property
    def page_size(self) -> int: ...
    @property
    def pages_total(self) -> int: ...
    @property
    def pages_free(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def next_evicted(self) -> CacheNode | None: ...

    def nodes(self) -> Iterator[CacheNode]:
        """All nodes that hold tokens, parents first."""
        ...
