"""The KV cache: pages, the radix tree of prefixes, what main memory keeps of it, and rows of ints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import lazy_names

if TYPE_CHECKING:
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

_HOMES = {
    "growable_int_array": ("GrowableIntArray", "Ints", "Space"),
    "host_kv_tier": ("HostKVTier", "PageCopier"),
    "page_pool": ("PagePool",),
    "prefix_cache": ("WORTH_LOADING", "PrefixCache"),
    "radix_tree": ("PrefixMatch", "RadixNode", "RadixTree", "common_prefix"),
    "recurrent_prefix_cache": ("RecurrentPrefixCache",),
    "recurrent_state_slots": ("RecurrentStateSlots",),
    "state_checkpoints": ("StateCheckpoint",),
    "window_pages": ("WindowPages", "WindowPageTable"),
    "window_prefix_cache": ("WindowPrefixCache",),
}

__getattr__ = lazy_names(__name__, _HOMES)
