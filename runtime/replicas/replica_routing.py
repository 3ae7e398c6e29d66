"""To which replica a new sequence goes: where its tokens would be done first, what is cached there counted in."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from ..cache.growable_int_array import GrowableIntArray, Ints, Space

BLOCK = 32  # tokens that are remembered together
RUNNING = 64  # tokens of a prompt that a running operation counts as much as: it takes part in every step
# that a token counts which is not cached there: a request away from its prefix makes work that others wait for
UNCACHED = 1.5


class HashedTokenBlocks:
    """The tokens of a sequence as far as known here, and of each whole block a number for all tokens up to its end."""

    __slots__ = ("_keys", "_space", "tokens")

    def __init__(self, space: Space, tokens: ArrayLike = ()) -> None:
        self._space, self.tokens = space, GrowableIntArray(tokens)
        self._keys: list[int] = []

    def extend(self, tokens: Ints, drop: int = 0) -> None:
        self.tokens.truncate(max(0, len(self.tokens) - drop))
        del self._keys[len(self.tokens) // BLOCK :]
        self.tokens.extend(tokens)

    @property
    def keys(self) -> list[int]:
        known, whole = len(self._keys), len(self.tokens) // BLOCK
        if known == whole:
            return self._keys
        new = self.tokens.array[known * BLOCK : whole * BLOCK].tobytes()
        above, size = self._keys[-1] if known else hash(self._space), len(new) // (whole - known)
        for start in range(0, len(new), size):
            above = hash((above, new[start : start + size]))
            self._keys.append(above)
        return self._keys


class ReplicaCacheEstimate:
    """What a replica's tree of prefixes holds, as far as can be known from what was sent there: the tokens used last.

    tokens: of the replica's KV pool.
    """

    def __init__(self, tokens: int) -> None:
        self._most = max(1, tokens // BLOCK)
        self._keys: OrderedDict[int, None] = OrderedDict()

    def matched(self, keys: Sequence[int]) -> int:
        """Tokens of the longest beginning that is there."""
        # where a block is, all before it are, see `add`
        return BLOCK * bisect_left(keys, True, key=lambda key: key not in self._keys)

    def add(self, keys: Sequence[int]) -> None:
        """The tree drops ends before beginnings: of a text the first block is the one used last."""
        for key in reversed(keys):
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._most:
            self._keys.popitem(last=False)

    def clear(self) -> None:
        self._keys.clear()


@dataclass(slots=True)
class ReplicaLoad:
    """Of one replica. waiting: tokens of prompts that are not known to be computed.  running: operations under way."""

    shadow: ReplicaCacheEstimate
    waiting: int = 0
    running: int = 0


class ReplicaRouter:
    """capacities: tokens of each replica's KV pool. All methods are thread-safe.

    The estimate is in tokens of a prompt. It adds those that wait there, UNCACHED times those of the new sequence that
    are not cached there, and RUNNING for each operation under way. There are no thresholds: a cached prefix draws until
    those that run there weigh more. Equals take turns.
    """

    def __init__(self, capacities: Sequence[int]) -> None:
        self.loads = [ReplicaLoad(ReplicaCacheEstimate(tokens)) for tokens in capacities]
        self._last = len(self.loads) - 1
        self._lock = threading.Lock()

    def choose(self, keys: Sequence[int], tokens: int, up: Sequence[bool]) -> tuple[int, int]:
        """The replica, of those that are up if any is, and how many tokens it has to compute.

        These wait there from now on.
        """
        with self._lock:
            order = [(self._last + 1 + each) % len(self.loads) for each in range(len(self.loads))]
            missing = [tokens - min(tokens, load.shadow.matched(keys)) for load in self.loads]
            open_to = [each for each in order if up[each]] or order
            chosen = min(
                open_to,
                key=lambda each: (
                    UNCACHED * missing[each] + self.loads[each].waiting + RUNNING * self.loads[each].running
                ),
            )
            self._last = chosen
            self.loads[chosen].waiting += missing[chosen]
            self.loads[chosen].shadow.add(keys)
            return chosen, missing[chosen]

    def began(self, replica: int) -> None:
        with self._lock:
            self.loads[replica].running += 1

    def ended(self, replica: int, tokens: int = 0) -> None:
        """An operation; so many tokens no longer wait."""
        with self._lock:
            self.loads[replica].running -= 1
            self.loads[replica].waiting -= tokens

    def learn(self, replica: int, keys: Sequence[int]) -> None:
        """A text is there now."""
        with self._lock:
            self.loads[replica].shadow.add(keys)

    def forget(self, replica: int) -> None:
        """Nothing is cached there any more."""
        with self._lock:
            self.loads[replica].shadow.clear()
