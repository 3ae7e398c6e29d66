"""The prefix cache as its users see it: a tree of texts, copied out of a running engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..growable_int_array import Ints, Space
from .cache_snapshot import CacheSnapshot
from .cache_tree_nodes import CachedSequenceRow, CacheNode
from .cache_tree_outline import outline
from .cache_tree_svg import draw


@dataclass(frozen=True, slots=True, eq=False)
class CacheTree:
    """What `Engine.cache_tree` gives: the tree as it stood between two steps. It never changes.

    roots: the namespaces with the root of each, "" being the usual one; those of adapters are tuples (namespace,
        digest).
    `print(tree)` shows it as text, a notebook as a picture, `save("cache.svg")` keeps that.
    """

    roots: dict[Space, CacheNode]
    page_size: int
    pages_total: int
    pages_free: int

    @classmethod
    def of(cls, taken: CacheSnapshot, decode: Callable[[Ints], str]) -> CacheTree:
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
            nodes[place].rows.append(CachedSequenceRow(sequence, status, _frozen(beyond), decode(beyond)))
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
        """A picture of at most `width` pixels as the text of an SVG file; long texts, deep and wide trees are cut
        short.

        Raises ConfigError for a width that is not from 200 to 20,000.
        """
        return draw(self, width)

    def save(self, path: str | Path, width: int = 1000) -> None:
        """Write the picture to a file."""
        Path(path).write_text(self.svg(width), encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg()

    def __str__(self) -> str:
        return outline(self)


def _frozen(tokens: Ints) -> Ints:
    kept = tokens.copy()
    kept.flags.writeable = False
    return kept
