"""Grammars of recipes, compiled outside of the threads that ask for them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from sgl.grammars import Grammar, Vocabulary
from sgl.grammars.compile import GrammarRecipe

from .grammar_workers import GrammarWorkers, Task

THREADS = 2  # a slow grammar does not hold up those after it


class GrammarCompilePool:
    """Compiles for one vocabulary, each grammar once, with its first masks. Tenants take turns."""

    def __init__(self, vocabulary: Vocabulary, observe: Callable[[float], None] | None = None) -> None:
        """observe: is called with the seconds of each compilation, on the thread that did it."""
        self._vocabulary, self._observe = vocabulary, observe
        self._workers = GrammarWorkers(THREADS)
        weakref.finalize(self, self._workers.close)
        self._last: dict[str, int] = {}  # the rank of each tenant's last grammar, as long as it was not begun
        self._now = 0  # the rank of the grammar that was begun last

    def grammar(self, recipe: GrammarRecipe, tenant: str = "") -> Future[Grammar]:
        """As long as it is not begun, the future can be cancelled."""
        future, fill = recipe.reserve(self._vocabulary)
        if fill is not None:
            self._last = {one: rank for one, rank in self._last.items() if rank > self._now}
            self._last[tenant] = rank = max(self._last.get(tenant, 0), self._now) + 1
            self._workers.add(rank, partial(self._compile, rank, future, fill))
        return future

    def _compile(self, rank: int, future: Future[Grammar], fill: Task) -> None:
        self._now, started = max(self._now, rank), time.perf_counter()
        fill()
        if self._observe is not None and not future.cancelled() and future.exception() is None:
            self._observe(time.perf_counter() - started)
