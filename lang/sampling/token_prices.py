"""What tokens cost at a remote backend."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import BadValueError


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost at a remote backend, in a currency of your choice. `Usage.cost` is in the same.

    input         prompt tokens
    output        generated tokens, those of thoughts included
    cached_input  prompt tokens that the server had in its cache; None: as input. Where a server does not report
                  them, all count as input, so that the cost is an upper bound

    What a server asks for writing its cache is not counted. Raises BadValueError for a price below 0.
    """

    input: float
    output: float
    cached_input: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            value = getattr(self, name)
            if value is None and name == "cached_input":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise BadValueError(f"the price {name}={value!r} is not a number from 0; give it for a million tokens")

    def cost(self, prompt_tokens: int, cached_tokens: int, generated_tokens: int) -> float:
        """What an operation with these counts costs."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = prompt_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached + generated_tokens * self.output) / 1_000_000
