"""What the cache holds at one moment, in plain parts that can be sent to another process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..growable_int_array import Ints, Space
from ..prefix_cache import PrefixCache
from ..radix_tree import RadixNode


class HeldSequence(NamedTuple):
    """A sequence that holds pages.

    node: the deepest node that it stands on. beyond: its computed tokens after that.
    """

    sequence: int
    status: str
    node: int
    beyond: Ints


class CacheSnapshot(NamedTuple):
    """The nodes by number, parents before their children; the first ones are the roots of `namespaces`.

    tokens: int32 of each node, [] of a root.  parents: -1 of a root.  last_used: ticks of the tree's clock.
    """

    namespaces: list[Space]
    parents: list[int]
    tokens: list[Ints]
    locks: list[int]
    last_used: list[int]
    held: list[HeldSequence]
    page_size: int
    pages_total: int
    pages_free: int


def snapshot(cache: PrefixCache, holders: Iterable[tuple[RadixNode | None, Space, int, str, Ints]]) -> CacheSnapshot:
    """holders: of each sequence with pages its node, namespace, number, status and computed tokens.

    Only the thread that changes the cache may call this. Arrays of nodes are not copied: none is ever written to.
    """
    holders, roots = list(holders), dict(cache.tree.roots)
    namespaces = list(dict.fromkeys([*roots, *(namespace for _, namespace, *_ in holders)]))
    nodes: list[RadixNode | None] = [roots.get(name) for name in namespaces]
    parents = [-1] * len(nodes)
    numbers: dict[RadixNode | None, int] = {node: i for i, node in enumerate(nodes) if node is not None}
    for node in _below([root for root in nodes if root is not None]):
        assert node.parent is not None
        numbers[node] = len(nodes)
        nodes.append(node)
        parents.append(numbers[node.parent])
    return CacheSnapshot(
        namespaces,
        parents,
        [node.tokens if node else np.empty(0, np.int32) for node in nodes],
        [node.locks if node else 0 for node in nodes],
        [node.last_used if node else 0 for node in nodes],
        [
            HeldSequence(number, status, numbers.get(node, namespaces.index(namespace)), tokens[_depth(node) :].copy())
            for node, namespace, number, status, tokens in holders
        ],
        cache.pool.page_size,
        cache.pool.total,
        cache.pool.free,
    )


def _below(roots: list[RadixNode]) -> Iterable[RadixNode]:
    """All nodes but the roots, parents first, the children of a node in the order in which they came."""
    stack = [child for root in reversed(roots) for child in reversed(root.children.values())]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children.values()))


def _depth(node: RadixNode | None) -> int:
    """Tokens from the root to the end of `node`."""
    depth = 0
    while node is not None:
        depth, node = depth + len(node.tokens), node.parent
    return depth
