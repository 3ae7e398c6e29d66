"""Slopes of ALiBi (arXiv 2108.12409), the same for all families that have them."""

from __future__ import annotations

import math


def alibi_slopes(heads: int, scale: float = 1.0) -> tuple[float, ...]:
    """Of each head, times `scale`: powers of 2 ** (-8 / n) for the largest power of two n that `heads` holds.

    Heads beyond n take every other one of the powers for 2 n.
    """
    n = 2 ** int(math.log2(heads))
    whole = [2.0 ** (-8 * power / n) for power in range(1, n + 1)]
    between = [2.0 ** (-4 * power / n) for power in range(1, 2 * (heads - n) + 1, 2)]
    return tuple(scale * slope for slope in whole + between)
