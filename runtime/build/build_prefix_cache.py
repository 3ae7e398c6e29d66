"""Builds the prefix cache of an engine, of the kind that its model needs, over the memory that it was given."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from ..cache import (
    HostKVTier,
    Ints,
    PagePool,
    PrefixCache,
    RecurrentPrefixCache,
    RecurrentStateSlots,
    WindowPages,
    WindowPrefixCache,
)
from ..cache.host_kv_pages import HostKVPages
from ..cache.multi_width_kv_pools import MultiKVPool, Pool
from ..cache.recurrent_state_memory import RecurrentStateMemory
from ..cache.recurrent_state_slots import FIRST_SLOT
from ..errors import ConfigError
from ..executor.runner_protocol import Runner
from ..memory.memory_sizes import free_memory, parse_memory
from .engine_config import DeviceDefaults
from .sliding_window_plan import SlidingWindowPlan

if TYPE_CHECKING:
    from ..parallel.workers.rank_host_pages import RankPageCopies
    from .build_ranks import RanksBuilder

P = TypeVar("P", bound=Pool)


def make_cache(runner: Runner, config: DeviceDefaults, pool: Pool, side: RanksBuilder | None = None) -> PrefixCache:
    poison = _poison(pool, config.page_size, _fill_nan) if config.poison_freed else None
    windows = runner.windows
    assert windows is None or isinstance(windows, WindowPages)  # tables alone are other ranks'
    on_free = poison if windows is None else _each(windows.drop, poison)
    pages = PagePool(pool.slots // config.page_size, config.page_size, on_free)
    states = _state_slots(config, runner.memory)
    if states is not None:
        return RecurrentPrefixCache(pages, states)
    return PrefixCache(pages, _host_tier(config, pool, side)) if windows is None else WindowPrefixCache(pages, windows)


def plain_cache(config: DeviceDefaults, pool: Pool) -> PrefixCache:
    """Of layers that keep all tokens, with nothing in main memory."""
    poison = _poison(pool, config.page_size, _fill_nan) if config.poison_freed else None
    return PrefixCache(PagePool(pool.slots // config.page_size, config.page_size, poison))


def _each(first: Callable[[Ints], None], second: Callable[[Ints], None] | None) -> Callable[[Ints], None]:
    def both(pages: Ints) -> None:
        first(pages)
        if second is not None:
            second(pages)

    return both


def window_pages(config: DeviceDefaults, plan: SlidingWindowPlan, pool: Pool) -> WindowPages | None:
    if not plan.tokens:
        return None
    poison = None
    if config.poison_freed and isinstance(pool, MultiKVPool):  # not where other stages have all the windows
        poison = _poison(pool, config.page_size, MultiKVPool.fill_windows_nan)
    size = config.page_size
    return WindowPages(pool.slots // size, plan.tokens // size, size, plan.reach, poison)


def _state_slots(config: DeviceDefaults, states: RecurrentStateMemory | None) -> RecurrentStateSlots | None:
    if states is None:
        return None
    held = weakref.ref(states)

    def fill(slot: int) -> None:
        if (memory := held()) is not None:
            memory.fill_nan([slot])

    return RecurrentStateSlots(states.slots - FIRST_SLOT, fill if config.poison_freed else None)


def _host_tier(config: DeviceDefaults, pool: Pool, side: RanksBuilder | None) -> HostKVTier | None:
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
    copies: RankPageCopies = HostKVPages(pool, config.page_size, places)
    if side is not None:
        from ..parallel.workers.rank_host_pages import RanksPageCopier

        copies = RanksPageCopier(copies, side.team, config.page_size, places)
    return HostKVTier(PagePool(places, config.page_size, copies.fill_nan if config.poison_freed else None), copies)


def _fill_nan(pool: Pool, slots: Tensor) -> None:
    pool.fill_nan(slots)


def _poison(pool: P, page_size: int, fill_nan: Callable[[P, Tensor], None]) -> Callable[[Ints], None]:
    """Fills the slots of freed pages with NaN; it does not keep the pool alive."""
    held = weakref.ref(pool)

    def fill(pages: Ints) -> None:
        first = torch.from_numpy(pages.astype("int64")) * page_size
        if (living := held()) is not None:
            fill_nan(living, (first[:, None] + torch.arange(page_size)).flatten())

    return fill
