"""The prefix cache as its users see it: a tree of texts, copied out of a running engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .row import Ints
from .snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class CacheRow:
    """A sequence that holds pages, beyond the deepest node that it stands on.

    sequence: its number, as `Sequence.id`.  status: "running", "waiting", "idle" or "pinned".
    tokens: int32 [n], computed behind the node and not in the tree (yet); n is often 0.  text: of these.
    """

    sequence: int
    status: str
    tokens: Ints
    text: str


@dataclass(slots=True, eq=False)
class CacheNode:
    """A stretch of tokens whose keys and values are cached, behind those of its `parent`.

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
    rows: list[CacheRow] = field(default_factory=list)

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
        return f"<CacheNode of {len(self)} tokens {self.text[:40]!r}, {len(self.children)} children, {self.locks} locks>"


@dataclass(frozen=True, slots=True, eq=False)
class CacheTree:
    """What `Engine.cache_tree` gives: the tree as it stood between two steps. It never changes.

    roots: the namespaces with the root of each, "" being the usual one.
    `print(tree)` shows it as text, a notebook as a picture, `save("cache.svg")` keeps that.
    """

    roots: dict[str, CacheNode]
    page_size: int
    pages_total: int
    pages_free: int

    @classmethod
    def of(cls, taken: Snapshot, decode: Callable[[Ints], str]) -> CacheTree:
        nodes: list[CacheNode] = []
        for number, parent in enumerate(taken.parents):
            above = nodes[parent] if parent >= 0 else None
            tokens = _frozen(taken.tokens[number])
            start = above.start + len(above) if above else 0
            node = CacheNode(tokens, decode(tokens), start, taken.locks[number], taken.last_used[number], above)
            nodes.append(node)
            if above is not None:
                above.children.append(node)
        for sequence, status, place, beyond in taken.held:
            nodes[place].rows.append(CacheRow(sequence, status, _frozen(beyond), decode(beyond)))
        roots = dict(zip(taken.namespaces, nodes, strict=False))
        return cls(roots, taken.page_size, taken.pages_total, taken.pages_free)

    def nodes(self) -> Iterator[CacheNode]:
        """All nodes that hold tokens, parents first."""
        for root in self.roots.values():
            yield from (node for node in root.nodes() if node is not root)

    @property
    def tokens(self) -> int:
        """How many tokens the tree holds."""
        return sum(map(len, self.nodes()))

    @property
    def next_evicted(self) -> CacheNode | None:
        """The leaf that goes first when room is needed: the one used longest ago that no sequence stands on."""
        leaves = [node for node in self.nodes() if not (node.children or node.locks)]
        return min(leaves, key=lambda node: node.last_used, default=None)

    def svg(self, width: int = 1000) -> str:
        """A picture of at most `width` pixels as the text of an SVG file; long texts, deep and wide trees are cut short.

        Raises ConfigError for a width that is not from 200 to 20,000.
        """
        from .picture import draw

        return draw(self, width)

    def save(self, path: str | Path, width: int = 1000) -> None:
        """Write the picture to a file."""
        Path(path).write_text(self.svg(width), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        from .outline import outline

        return outline(self)


def _frozen(tokens: Ints) -> Ints:
    kept = tokens.copy()
    kept.flags.writeable = False
    return kept
