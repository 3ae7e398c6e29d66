"""How many tokens of prompts a step takes in which others get a token, by how long such steps took."""

from __future__ import annotations

import time
from collections import deque
from statistics import median_low

LEAST = 256  # tokens of a step; what smaller ones take says little about how long larger ones would
REMEMBERED = 7  # measurements; of fewer than half of them, compiling and other waits do no harm
WHOLE = 128  # tokens; budgets are multiples of it


class PrefillBudget:
    """Learns what a token of a prompt costs, from steps that the host has waited for.

    seconds: how long the prompts of a step may take while others wait for a token; None: as long as they take.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._costs: deque[float] = deque(maxlen=REMEMBERED)  # seconds a token
        self._since = 0.0
        self._tokens = 0

    def launched(self, tokens: int, began: float) -> None:
        """A step was launched at `began`, when the device began with it if nothing else was under way."""
        if not self._tokens:
            self._since = began
        self._tokens += tokens

    def finished(self, left: int) -> None:
        """All steps but those with the last `left` tokens are over, and the host has waited for that."""
        now = time.perf_counter()
        if (tokens := self._tokens - left) >= LEAST:
            self._costs.append((now - self._since) / tokens)
        self._since, self._tokens = now, left

    def budget(self, most: int) -> int:
        """Tokens of prompts, up to `most`, in a step in which others get a token; `most` before any measurement."""
        if self.seconds is None or not self._costs:
            return most
        tokens = int(self.seconds / median_low(self._costs))
        return min(most, max(LEAST, tokens - tokens % WHOLE))
