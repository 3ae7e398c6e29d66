"""Prefixes that the tree has evicted, kept in main memory until somebody asks for them again.

    "" ── [system prompt: nowhere] ─┬─ [question 1: here] ── [answer 1: here]
                                    └─ [question 2: here]

A run holds the int32 tokens of whole pages, and for each page its place in main memory or `NOWHERE`: the tree gives up
its leaves first, so that what stands before a kept page is often on the device still. A prefix that was brought back
stays here too, and is not copied a second time when the tree evicts it again. Where room is needed the run that was
used longest ago, of those that nothing follows, loses pages from its end.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from .growable_int_array import Ints, Space
from .page_pool import PagePool
from .radix_tree import common_prefix

log = logging.getLogger("sgl.runtime")

NOWHERE = 0  # a pool never hands out its first page
NOTHING: Ints = np.empty(0, np.int32)


class PageCopier(Protocol):
    """Moves keys and values of pages between the KV pool and main memory, in the order of the calls.

    The pages and places of a call may be written by whatever is queued after it.
    """

    def save(self, pages: Ints, places: Ints) -> None: ...

    def load(self, places: Ints, pages: Ints) -> None: ...

    def release(self) -> None:
        """Hold nothing of the device's memory until the next call."""

    def close(self) -> None: ...


Key = bytes | Space  # the first page of a run, as bytes; or where prefixes are matched


class HostPageRun:
    """key: under which its parent holds it: its first page's tokens; of an empty run below the root, a namespace, or
    one with an adapter.
    """

    __slots__ = ("busy", "children", "key", "last_used", "parent", "places", "queued", "tokens")

    def __init__(self, key: Key, tokens: Ints, places: Ints, parent: HostPageRun | None) -> None:
        self.key = key
        self.tokens = tokens
        self.places = places
        self.parent = parent
        self.children: dict[Key, HostPageRun] = {}
        self.last_used = 0
        self.queued = False  # has an entry in the eviction heap
        self.busy = False  # is about to get pages: stays, though it holds nothing yet


class HostKVTier:
    """What the tree evicts, by namespace and path. pool: the places in main memory, of the tree's page size.

    loaded: tokens brought back so far.
    """

    def __init__(self, pool: PagePool, copies: PageCopier) -> None:
        self.pool, self.copies = pool, copies
        self.loaded = 0
        self._root = HostPageRun(b"", NOTHING, NOTHING, None)
        self._clock = 0
        self._serial = 0
        self._heap: list[tuple[int, int, HostPageRun]] = []

    @property
    def tokens(self) -> int:
        """Tokens whose keys and values are here."""
        return (self.pool.total - self.pool.free) * self.pool.page_size

    @property
    def capacity(self) -> int:
        """Pages."""
        return self.pool.total

    def keep(self, namespace: Space, tokens: Ints, pages: Ints) -> None:
        """Copy `pages`, which hold the last of `tokens`, the whole path; as many of them as there is room for."""
        before, first = self._clock, len(tokens) // self.pool.page_size - len(pages)
        path = self._path_to(namespace, tokens)
        places = np.concatenate([run.places for run in path])
        absent = np.flatnonzero(places[first:] == NOWHERE)
        path[-1].busy = True
        absent = absent[: self._make_room(len(absent), before)]
        path[-1].busy = False
        if len(absent):
            added = self.pool.allocate(len(absent))
            if self._done(self.copies.save, pages[absent], added):
                places[first + absent] = added
                self._write(path, places)
            else:
                self.pool.release(added)
        self._tidy(path[-1])
        self._join(path[-1])

    def find(self, namespace: Space, tokens: Ints, start: int) -> Ints:
        """Places of the pages of `tokens` from `start` on (a page border), as far as they are here without a gap."""
        found = [run.places[:pages] for run, pages in self._walk(namespace, tokens)]
        places = np.concatenate([NOTHING, *found])[start // self.pool.page_size :]
        gaps = np.flatnonzero(places == NOWHERE)
        return places[: gaps[0]] if len(gaps) else places

    def load(self, namespace: Space, tokens: Ints, places: Ints, pages: Ints) -> bool:
        """Copy what `find` gave into `pages`, False: it failed. tokens: of the whole path, to where the last page
        ends."""
        self._path_to(namespace, tokens)
        if loaded := self._done(self.copies.load, places, pages):
            self.loaded += len(pages) * self.pool.page_size
        return loaded

    def clear(self) -> None:
        """Forget everything."""
        for run in self._runs():
            self.pool.release(run.places[run.places != NOWHERE])
        self._root.children.clear()
        self._heap.clear()

    def close(self) -> None:
        """Give the memory back; nothing may be called after this."""
        self._root.children.clear()
        self._heap.clear()
        self.copies.close()

    def check(self) -> None:
        """Raise unless runs and pool agree on every place."""
        self.pool.check()
        held = np.zeros_like(self.pool.refs)
        for run in self._runs():
            self._check_run(run)
            np.add.at(held, run.places[run.places != NOWHERE], 1)
        if (held != self.pool.refs).any():
            wrong = np.flatnonzero(held != self.pool.refs)[:8]
            raise RuntimeError(
                f"places {wrong.tolist()} are held {held[wrong]} times but counted {self.pool.refs[wrong]}"
            )

    def _check_run(self, run: HostPageRun) -> None:
        parent = run.parent
        if parent is None or parent.children.get(run.key) is not run or run.key != self._key(run.tokens):
            raise RuntimeError("a run is not its parent's child")
        if len(run.tokens) != len(run.places) * self.pool.page_size or not len(run.tokens):
            raise RuntimeError(
                f"a run has {len(run.tokens)} tokens in {len(run.places)} pages of {self.pool.page_size}"
            )
        if not run.children and (run.places[-1] == NOWHERE or not run.queued):
            raise RuntimeError("a run that nothing follows ends with nothing, or is not queued for eviction")

    def _done(self, copy: Callable[[Ints, Ints], None], source: Ints, target: Ints) -> bool:
        """Whether a copy could be queued.

        One that cannot, as the device has no room left, costs a prefix, not the engine.
        """
        try:
            copy(source, target)
        except Exception:
            log.exception("a prefix could not be copied between device and main memory; it will be computed again")
            return False
        return True

    # the tree of runs

    def _runs(self) -> Iterator[HostPageRun]:
        stack = [run for root in self._root.children.values() for run in root.children.values()]
        while stack:
            run = stack.pop()
            yield run
            stack.extend(run.children.values())

    def _walk(self, namespace: Space, tokens: Ints) -> Iterator[tuple[HostPageRun, int]]:
        """The runs that `tokens` go through, each with the number of its pages that they go through."""
        size, run = self.pool.page_size, self._root.children.get(namespace)
        while run is not None and len(tokens) >= size and (run := run.children.get(self._key(tokens))) is not None:
            same, whole = common_prefix(run.tokens, tokens) // size, len(run.places)
            yield run, same
            if same < whole:
                return
            tokens = tokens[same * size :]

    def _path_to(self, namespace: Space, tokens: Ints) -> list[HostPageRun]:
        """Runs, used just now, that hold exactly `tokens` (whole pages); what is missing is made, with nothing in
        it."""
        size, key = self.pool.page_size, namespace
        root = self._root.children.setdefault(key, HostPageRun(key, NOTHING, NOTHING, self._root))
        path = [
            run if pages == len(run.places) else self._split(run, pages) for run, pages in self._walk(namespace, tokens)
        ]
        rest = tokens[sum(len(run.tokens) for run in path) :].copy()
        if len(rest):
            parent = path[-1] if path else root
            path.append(HostPageRun(self._key(rest), rest, np.full(len(rest) // size, NOWHERE, np.int32), parent))
            parent.children[path[-1].key] = path[-1]
        for run in path:
            self._touch(run)
        return path

    def _split(self, run: HostPageRun, pages: int) -> HostPageRun:
        """Put a new run of the first `pages` before `run`, which keeps its identity and its tail."""
        length, parent = pages * self.pool.page_size, run.parent
        assert parent is not None
        head = HostPageRun(run.key, run.tokens[:length], run.places[:pages], parent)
        head.last_used = run.last_used
        parent.children[head.key] = head
        run.tokens, run.places, run.parent = run.tokens[length:], run.places[pages:], head
        run.key = self._key(run.tokens)
        head.children[run.key] = run
        return head

    def _join(self, run: HostPageRun) -> None:
        """Have the only run that follows `run` begin where `run` does: a text that leaves in many pieces becomes
        one."""
        if len(run.children) != 1 or run.parent is None:
            return
        (tail,) = run.children.values()
        tail.tokens = np.concatenate([run.tokens, tail.tokens])
        tail.places = np.concatenate([run.places, tail.places])
        tail.key, tail.parent, tail.last_used = run.key, run.parent, max(run.last_used, tail.last_used)
        run.parent.children[run.key] = tail

    def _write(self, path: list[HostPageRun], places: Ints) -> None:
        start = 0
        for run in path:
            run.places = places[start : start + len(run.places)].copy()
            start += len(run.places)

    def _touch(self, run: HostPageRun) -> None:
        self._clock += 1
        run.last_used = self._clock

    def _key(self, tokens: Ints) -> bytes:
        return tokens[: self.pool.page_size].tobytes()

    # what has to go

    def _make_room(self, wanted: int, before: int) -> int:
        """Free places until `wanted` are, of runs last used up to `before`;
        returns how many of the wanted there are.
        """
        while self.pool.free < wanted and self._heap:
            used, _, run = heapq.heappop(self._heap)
            run.queued = False
            if run.children:
                continue  # comes back when nothing follows it any more
            if used == run.last_used <= before:
                self._shorten(run, wanted - self.pool.free)
                continue
            self._enqueue(run)
            if used > before:
                break
        return min(wanted, self.pool.free)

    def _shorten(self, run: HostPageRun, pages: int) -> None:
        """Free up to `pages` places at the end of a run that nothing follows."""
        last = np.flatnonzero(run.places != NOWHERE)[-pages:]
        self.pool.release(run.places[last])
        run.places[last] = NOWHERE
        self._tidy(run)

    def _tidy(self, run: HostPageRun) -> None:
        """Where nothing follows, cut what holds nothing off the end, of the runs before it too."""
        while not (run.children or run.busy or run.parent is None):
            held = np.flatnonzero(run.places != NOWHERE)
            if len(held):
                pages = int(held[-1]) + 1
                run.tokens, run.places = run.tokens[: pages * self.pool.page_size], run.places[:pages]
                self._enqueue(run)
                return
            del run.parent.children[run.key]
            run = run.parent

    def _enqueue(self, run: HostPageRun) -> None:
        if not run.queued:
            run.queued = True
            self._serial += 1
            heapq.heappush(self._heap, (run.last_used, self._serial, run))
