"""The KV cache: pages, the radix tree of prefixes, what main memory keeps of it, and rows of ints."""

from .host import HostTier, PageCopies
from .pages import PagePool
from .prefix_cache import WORTH_LOADING, PrefixCache
from .radix import Match, Node, RadixTree, common_prefix
from .row import IntRow, Ints, Space
from .state_cache import StateCache
from .state_slots import StateSlots
from .trail import Mark
from .window_cache import WindowCache
from .window_pages import WindowPages, WindowPlaces

__all__ = [
    "WORTH_LOADING", "HostTier", "IntRow", "Ints", "Mark", "Match", "Node", "PageCopies", "PagePool", "PrefixCache", "RadixTree", "Space", "StateCache", "StateSlots",
    "WindowCache", "WindowPages", "WindowPlaces", "common_prefix",
]  # fmt: skip
