"""The KV cache: pages, the radix tree of prefixes, and rows of ints."""

from .pages import PagePool
from .prefix_cache import PrefixCache
from .radix import Match, Node, RadixTree, common_prefix
from .row import IntRow, Ints

__all__ = ["IntRow", "Ints", "Match", "Node", "PagePool", "PrefixCache", "RadixTree", "common_prefix"]
