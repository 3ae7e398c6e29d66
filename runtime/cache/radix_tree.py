"""The radix tree of computed prefixes.

    root ── [system prompt] ─┬─ [question 1] ── [answer 1]
                             └─ [question 2]

Every namespace has its own root: what was computed under one is never found under another. A node holds
int32 tokens and the pages that store their keys and values; its length is a multiple of the page size. The tree
itself holds each of its pages once. A lock on a node keeps its whole path; what is unlocked is evicted leaf by
leaf, least recently used first, whatever its namespace (RadixAttention, arXiv 2312.07104, section 3); of a leaf
that is longer than what is needed only the end goes.

Where the model keeps states too, a prefix can be used up to the deepest node with a state. A node that is split keeps
its own, which covers everything up to its end; the new one before it has none.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .growable_int_array import Ints, Space
from .page_pool import PagePool
from .radix_node_states import RadixNodeStates
from .recurrent_state_slots import EMPTY_SLOT

NOTHING: Ints = np.empty(0, np.int32)


class RadixNode:
    __slots__ = ("children", "last_used", "locks", "pages", "parent", "queued", "state", "tokens")

    def __init__(self, tokens: Ints, pages: Ints, parent: RadixNode | None) -> None:
        self.tokens = tokens
        self.pages = pages
        self.parent = parent
        self.children: dict[bytes, RadixNode] = {}
        self.locks = 0
        self.last_used = 0
        self.queued = False  # has an entry in the eviction heap
        self.state = EMPTY_SLOT  # no state


class RadixRoot(RadixNode):
    """Where the prefixes of a namespace begin."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Space) -> None:
        super().__init__(NOTHING, NOTHING, None)
        self.namespace = namespace


class PrefixMatch(NamedTuple):
    """length: in tokens, a multiple of the page size.  known: up to there keys and
    values are cached; states end at `length`.
    """

    pages: Ints
    node: RadixNode
    length: int
    known: int


class RadixTree:
    """Finds, keeps and evicts computed prefixes. Token arrays are int32; lengths are in tokens."""

    def __init__(self, pool: PagePool, states: RadixNodeStates | None = None) -> None:
        self.pool, self.states = pool, states
        self.roots: dict[Space, RadixRoot] = {}  # of the namespaces that hold something
        self.evictable = 0  # pages of unlocked nodes
        self.evicted = 0  # pages, since it was made
        self.on_evict: Callable[[Space, Ints, Ints], None] | None = (
            None  # namespace, tokens of the path, pages at its end
        )
        self._clock = 0
        self._serial = 0
        self._heap: list[tuple[int, int, RadixNode]] = []

    def match(self, tokens: Ints, namespace: Space = "") -> PrefixMatch:
        """The longest cached prefix. Splits a node that matches in part, so that a lock holds no more."""
        root = self._root(namespace)
        path, known = self._walk(root, tokens)
        if self.states is not None:
            path = path[: next((i for i in range(len(path), 0, -1) if path[i - 1].state), 0)]
        for node in path:
            self._touch(node)
        if self.states is not None and path:
            self.states.touch(path[-1])
        pages, length = [node.pages for node in path], sum(len(node.tokens) for node in path)
        return PrefixMatch(np.concatenate(pages) if pages else NOTHING, path[-1] if path else root, length, known)

    def match_length(self, tokens: Ints, namespace: Space = "") -> int:
        """Length of the longest cached prefix; changes nothing."""
        return sum(length for _, length in self._found(tokens, namespace))

    def match_pages(self, tokens: Ints, namespace: Space = "") -> Ints:
        """Its pages; changes nothing."""
        size = self.pool.page_size
        pages = [node.pages[: length // size] for node, length in self._found(tokens, namespace)]
        return np.concatenate(pages) if pages else NOTHING

    def insert(self, tokens: Ints, pages: Ints, namespace: Space = "") -> RadixNode:
        """Keep `tokens` (cut to whole pages) in `pages`; what the tree has already stays as it is.

        Returns the deepest node of the path. The tree takes its own hold on the pages it keeps.
        """
        size = self.pool.page_size
        tokens = tokens[: len(tokens) - len(tokens) % size]
        root = self._root(namespace)
        path, length = self._walk(root, tokens)
        for step in path:
            self._touch(step)
        node = path[-1] if path else root
        if length == len(tokens):
            return node
        kept = pages[length // size : len(tokens) // size].copy()
        self.pool.retain(kept)
        leaf = RadixNode(tokens[length:].copy(), kept, node)
        self._touch(leaf)
        self.roots.setdefault(namespace, root)
        node.children[self._key(leaf.tokens)] = leaf
        self.evictable += len(kept)
        self._enqueue(leaf)
        return leaf

    def lock(self, node: RadixNode) -> None:
        """Keep the path from `node` to the root until `unlock`."""
        for step in self._path(node):
            if step.locks == 0:
                self.evictable -= len(step.pages)
            step.locks += 1

    def unlock(self, node: RadixNode) -> None:
        for step in self._path(node):
            step.locks -= 1
            if step.locks == 0:
                self.evictable += len(step.pages)
                self._enqueue(step)

    def pages_of(self, node: RadixNode) -> Ints:
        """Of the path from the root to `node`."""
        pages = [step.pages for step in self._path(node)]
        return np.concatenate(pages[::-1]) if pages else NOTHING

    def exchange(self, node: RadixNode, pages: Ints, better: NDArray[np.bool_]) -> None:
        """Hold these pages, which store the same, instead of the tree's on the path to `node` where they are better,
        bool [pages of the path].
        """
        stop = len(better)
        for step in self._path(node):
            start = stop - len(step.pages)
            chosen = better[start:stop]
            taken, left = pages[start:stop][chosen], step.pages[chosen]
            self.pool.retain(taken)
            step.pages = np.where(chosen, pages[start:stop], step.pages)
            self.pool.release(left)
            stop = start

    def root_of(self, node: RadixNode) -> RadixNode:
        while node.parent is not None:
            node = node.parent
        return node

    def up_to(self, node: RadixNode, length: int) -> RadixNode | None:
        """Of the path to `node` the deepest node within the first `length` tokens;
        splits the one that the last whole page ends in.
        """
        length -= length % self.pool.page_size
        depth = sum(len(step.tokens) for step in self._path(node))
        for step in self._path(node):
            start = depth - len(step.tokens)
            if start < length:
                return step if depth <= length else self._split(step, length - start)
            depth = start
        return None

    def mark(self, node: RadixNode, held: NDArray[np.bool_]) -> None:
        """Set the pages on the path from `node` to the root, which a lock on it keeps; held: bool [pages of the pool +
        1].
        """
        for step in self._path(node):
            held[step.pages] = True

    def evict(self, pages: int, tell: bool = True) -> int:
        """Free at least `pages` pages if it can, of the least recently used leaves; returns how many were freed.

        tell: `on_evict` sees each of them before it is free.
        """
        freed = 0
        while freed < pages and self._heap:
            used, _, node = heapq.heappop(self._heap)
            node.queued = False
            if node.locks or node.children:
                continue  # comes back when it is an unlocked leaf again
            if used != node.last_used:
                self._enqueue(node)
                continue
            if len(node.pages) > pages - freed:
                self._split(node, (len(node.pages) - pages + freed) * self.pool.page_size)
            if tell and self.on_evict is not None:
                self.on_evict(*self._whole(node), node.pages)
            freed += self._drop(node)
        self.evicted += freed
        return freed

    def clear(self) -> int:
        """Evict all that no sequence holds."""
        return self.evict(self.pool.total + 1, tell=False)

    def nodes(self) -> Iterator[RadixNode]:
        stack = [node for root in self.roots.values() for node in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self, rows: Iterable[Ints] = ()) -> None:
        """Raise unless tree, pool and the sequences' page rows agree on every page."""
        self.pool.check()
        held = np.zeros_like(self.pool.refs)
        for pages in rows:
            np.add.at(held, pages, 1)
        evictable = 0
        for name, root in self.roots.items():
            if root.namespace != name or not root.children:
                raise RuntimeError(f"the namespace {name!r} is empty, or holds the prefixes of {root.namespace!r}")
        for node in self.nodes():
            self._check_node(node)
            np.add.at(held, node.pages, 1)
            evictable += len(node.pages) if node.locks == 0 else 0
        if evictable != self.evictable:
            raise RuntimeError(f"the tree counts {self.evictable} evictable pages, a walk finds {evictable}")
        if (held != self.pool.refs).any():
            wrong = np.flatnonzero(held != self.pool.refs)[:8]
            raise RuntimeError(
                f"pages {wrong.tolist()} are held {held[wrong]} times but counted {self.pool.refs[wrong]}"
            )

    def _check_node(self, node: RadixNode) -> None:
        size, parent = self.pool.page_size, node.parent
        if parent is None or parent.children.get(self._key(node.tokens)) is not node:
            raise RuntimeError("a node is not its parent's child")
        if len(node.tokens) != len(node.pages) * size or not len(node.tokens):
            raise RuntimeError(f"a node has {len(node.tokens)} tokens in {len(node.pages)} pages of {size}")
        if node.locks < sum(child.locks for child in node.children.values()):
            raise RuntimeError("a node is locked less often than its children")
        if node.locks == 0 and not node.children and not node.queued:
            raise RuntimeError("an evictable leaf is not queued for eviction")

    def _root(self, namespace: Space) -> RadixRoot:
        """Of an unknown namespace: one that is kept once something is inserted."""
        return self.roots.get(namespace) or RadixRoot(namespace)

    def _found(self, tokens: Ints, namespace: Space) -> list[tuple[RadixNode, int]]:
        """The nodes of the longest cached prefix, each with how many of its tokens belong to it."""
        found = list(self._stored(tokens, namespace))
        while (
            self.states is not None and found and not (found[-1][0].state and found[-1][1] == len(found[-1][0].tokens))
        ):
            found.pop()
        return found

    def _stored(self, tokens: Ints, namespace: Space) -> Iterator[tuple[RadixNode, int]]:
        """The same, whether there is a state or not."""
        node: RadixNode = self._root(namespace)
        length = 0
        while (child := self._child(node, tokens[length:])) is not None:
            same = common_prefix(child.tokens, tokens[length:])
            whole = same - same % self.pool.page_size
            yield child, whole
            if same < len(child.tokens):
                break
            node, length = child, length + whole

    def _walk(self, root: RadixRoot, tokens: Ints) -> tuple[list[RadixNode], int]:
        node: RadixNode = root
        length, path = 0, []
        while (child := self._child(node, tokens[length:])) is not None:
            same = common_prefix(child.tokens, tokens[length:])
            same -= same % self.pool.page_size
            if same < len(child.tokens):
                child = self._split(child, same)
            path.append(child)
            node, length = child, length + len(child.tokens)
        return path, length

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Put a new node before `node`, which keeps its identity, its locks and its tail."""
        size, parent = self.pool.page_size, node.parent
        assert parent is not None
        head = RadixNode(node.tokens[:length], node.pages[: length // size], parent)
        head.locks, head.last_used = node.locks, node.last_used
        parent.children[self._key(head.tokens)] = head
        node.tokens, node.pages, node.parent = node.tokens[length:], node.pages[length // size :], head
        head.children[self._key(node.tokens)] = node
        return head

    def _drop(self, node: RadixNode) -> int:
        parent = node.parent
        assert parent is not None
        del parent.children[self._key(node.tokens)]
        if self.states is not None:
            self.states.forget(node)
        self.evictable -= len(node.pages)
        if isinstance(parent, RadixRoot):
            if not parent.children:
                del self.roots[parent.namespace]
        elif parent.locks == 0:
            self._enqueue(parent)
        return self.pool.release(node.pages)

    def _enqueue(self, node: RadixNode) -> None:
        if not node.queued and not node.children and node.parent is not None:
            node.queued = True
            self._serial += 1
            heapq.heappush(self._heap, (node.last_used, self._serial, node))

    def _touch(self, node: RadixNode) -> None:
        self._clock += 1
        node.last_used = self._clock

    def _child(self, node: RadixNode, tokens: Ints) -> RadixNode | None:
        return node.children.get(self._key(tokens)) if len(tokens) >= self.pool.page_size else None

    def _whole(self, node: RadixNode) -> tuple[Space, Ints]:
        """The namespace of a node and the tokens of its path."""
        path = list(self._path(node))
        root = path[-1].parent
        assert isinstance(root, RadixRoot)
        return root.namespace, np.concatenate([step.tokens for step in reversed(path)])

    def _key(self, tokens: Ints) -> bytes:
        return tokens[: self.pool.page_size].tobytes()

    def _path(self, node: RadixNode) -> Iterator[RadixNode]:
        step: RadixNode | None = node
        while step is not None and step.parent is not None:
            yield step
            step = step.parent


def common_prefix(a: Ints, b: Ints) -> int:
    """Number of equal leading tokens of two int32 arrays."""
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
