"""The KV cache: pages, the radix tree of prefixes, what main memory keeps of it, and rows of ints."""

from .host_kv_tier import HostKVTier, PageCopier
from .page_pool import PagePool
from .prefix_cache import WORTH_LOADING, PrefixCache
from .radix_tree import PrefixMatch, RadixNode, RadixTree, common_prefix
from .int_row import IntRow, Ints, Space
from .recurrent_prefix_cache import RecurrentPrefixCache
from .recurrent_state_slots import RecurrentStateSlots
from .state_checkpoints import StateCheckpoint
from .window_prefix_cache import WindowPrefixCache
from .window_pages import WindowPages, WindowPageTable

__all__ = [
    "WORTH_LOADING", "HostKVTier", "IntRow", "Ints", "StateCheckpoint", "PrefixMatch", "RadixNode", "PageCopier", "PagePool", "PrefixCache", "RadixTree", "Space", "RecurrentPrefixCache", "RecurrentStateSlots",
    "WindowPrefixCache", "WindowPages", "WindowPageTable", "common_prefix",
]  # fmt: skip
