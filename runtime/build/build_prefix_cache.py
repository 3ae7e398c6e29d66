"""Builds the prefix cache of an engine, of the kind that its model needs, over the memory that it was given."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..cache import HostTier, Ints, PagePool, PrefixCache, StateCache, StateSlots, WindowCache, WindowPages
from ..cache.host_pages import HostPages
from ..cache.pools import KVPools, Pool
from ..cache.state_slots import FIRST_SLOT
from ..cache.states import StateMemory
from ..errors import ConfigError
from ..parallel.host_pages import PagesMoved, TeamPages
from .config import Resolved
from .ranks_side import RanksSide
from .sizes import free_memory, parse_memory
from .window_plan import WindowPlan


def make_cache(runner: Any, config: Resolved, pool: Pool, side: RanksSide | None = None) -> PrefixCache:
    poison = _poison(weakref.ref(pool), config.page_size, "fill_nan") if config.poison_freed else None
    windows: WindowPages | None = getattr(runner, "windows", None)
    on_free = poison if windows is None else _each(windows.drop, poison)
    pages = PagePool(pool.slots // config.page_size, config.page_size, on_free)
    states = _state_slots(config, runner.memory)
    if states is not None:
        return StateCache(pages, states)
    return PrefixCache(pages, _host_tier(config, pool, side)) if windows is None else WindowCache(pages, windows)


def plain_cache(config: Resolved, pool: Pool) -> PrefixCache:
    """Of layers that keep all tokens, with nothing in main memory."""
    poison = _poison(weakref.ref(pool), config.page_size, "fill_nan") if config.poison_freed else None
    return PrefixCache(PagePool(pool.slots // config.page_size, config.page_size, poison))


def _each(first: Callable[[Ints], None], second: Callable[[Ints], None] | None) -> Callable[[Ints], None]:
    def both(pages: Ints) -> None:
        first(pages)
        if second is not None:
            second(pages)

    return both


def window_pages(config: Resolved, plan: WindowPlan, pool: Pool) -> WindowPages | None:
    if not plan.tokens:
        return None
    here = isinstance(pool, KVPools)  # not where other stages have all the windows
    poison = _poison(weakref.ref(pool), config.page_size, "fill_windows_nan") if config.poison_freed and here else None
    size = config.page_size
    return WindowPages(pool.slots // size, plan.tokens // size, size, plan.reach, poison)


def _state_slots(config: Resolved, states: StateMemory | None) -> StateSlots | None:
    if states is None:
        return None
    held = weakref.ref(states)

    def fill(slot: int) -> None:
        if (memory := held()) is not None:
            memory.fill_nan([slot])

    return StateSlots(states.slots - FIRST_SLOT, fill if config.poison_freed else None)


def _host_tier(config: Resolved, pool: Pool, side: RanksSide | None) -> HostTier | None:
    size, free = parse_memory(config.host_kv, "host_kv"), free_memory()
    page = (pool.bytes // pool.slots + (0 if side is None else side.elsewhere(pool))) * config.page_size
    if not size:
        return None
    if not page <= size <= free:
        raise ConfigError(
            f"host_kv={config.host_kv!r}: a page of keys and values takes {page:,} bytes, "
            f"and {free / 1e9:.2f} GB of main memory are free; ask for something between"
        )
    places = size // page + 1  # the first one is never used
    copies: PagesMoved = HostPages(pool, config.page_size, places)
    copies = copies if side is None else TeamPages(copies, side.team, config.page_size, places)
    return HostTier(PagePool(places, config.page_size, copies.fill_nan if config.poison_freed else None), copies)


def _poison(pool: weakref.ref[Any], page_size: int, fill_nan: str) -> Callable[[Ints], None]:
    """fill_nan: the pool's method for these pages."""

    def fill(pages: Ints) -> None:
        first = torch.from_numpy(pages.astype("int64")) * page_size
        if (held := pool()) is not None:
            getattr(held, fill_nan)((first[:, None] + torch.arange(page_size)).flatten())

    return fill
