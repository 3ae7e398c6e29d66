"""What texts have in common."""

from __future__ import annotations

from itertools import takewhile


def common_begin(*texts: str) -> str:
    return "".join(chars[0] for chars in takewhile(lambda chars: len(set(chars)) == 1, zip(*texts, strict=False)))


def common_end(*texts: str) -> str:
    return common_begin(*(text[::-1] for text in texts))[::-1]


def squeezed(text: str) -> str:
    """Without white space."""
    return "".join(text.split())
