"""Types that no grammar can promise to be readable."""

from __future__ import annotations


class UnsupportedType(Exception):
    """Says why, and what to do. `path`: the names of the fields that lead to the type."""

    def __init__(self, reason: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.path = path
