"""The common part of caches of models that cannot go on from every cached token: more than keys and values is needed,
and may be gone.
"""

from __future__ import annotations

import numpy as np

from .growable_int_array import Ints
from .prefix_cache import CacheHolder, PrefixCache
from .radix_tree import RadixNode


class PartialPrefixCache(PrefixCache):
    """A sequence may go further back than it was asked to, and compute again what the tree has."""

    def _lock_within(self, seq: CacheHolder, node: RadixNode) -> None:
        """What of the path is computed of `seq`: no node may tell of other tokens than its own."""
        within = self.tree.up_to(node, seq.computed)
        if within is None:
            self._unlock(seq)
        else:
            self._lock(seq, within)

    def _adopt(self, seq: CacheHolder, pages: Ints) -> None:
        """Stand on pages of the tree with the same content: what was computed again is there twice."""
        own = self.pages(seq).copy()
        twice = own[: len(pages)]
        if not np.array_equal(twice, pages):
            self.pool.retain(pages)
            seq.slots.truncate(0)
            seq.slots.extend(self._slots(np.concatenate([pages, own[len(pages) :]])))
            self.pool.release(twice)
