"""The KV cache: pages, the radix tree of prefixes, what main memory keeps of it, and rows of ints."""

from .growable_int_array import GrowableIntArray, Ints, Space
from .host_kv_tier import HostKVTier, PageCopier
from .page_pool import PagePool
from .prefix_cache import WORTH_LOADING, PrefixCache
from .radix_tree import PrefixMatch, RadixNode, RadixTree, common_prefix
from .recurrent_prefix_cache import RecurrentPrefixCache
from .recurrent_state_slots import RecurrentStateSlots
from .state_checkpoints import StateCheckpoint
from .window_pages import WindowPages, WindowPageTable
from .window_prefix_cache import WindowPrefixCache

__all__ = [
    "WORTH_LOADING",
    "GrowableIntArray",
    "HostKVTier",
    "Ints",
    "PageCopier",
    "PagePool",
    "PrefixCache",
    "PrefixMatch",
    "RadixNode",
    "RadixTree",
    "RecurrentPrefixCache",
    "RecurrentStateSlots",
    "Space",
    "StateCheckpoint",
    "WindowPageTable",
    "WindowPages",
    "WindowPrefixCache",
    "common_prefix",
]
