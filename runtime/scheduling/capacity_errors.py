"""What is said where there is not enough memory, and which option would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import OutOfPages

if TYPE_CHECKING:
    from ..cache import PrefixCache


def kv_pages_exhausted(cache: PrefixCache, length: int, missing: int, pinned: int) -> OutOfPages:
    """Of the only running sequence, which cannot get `missing` pages for `length` tokens; pinned: pages."""
    pool, windows = cache.pool, cache.windows
    if windows is not None and missing > windows.free + windows.loose:
        return OutOfPages(
            f"the sequence needs {missing * pool.page_size} more tokens in layers with a window to get to {length}; "
            "these have "
            f"{windows.total * pool.page_size}, of which {windows.held * pool.page_size} are held; open the engine "
            "with more window_tokens"
        )
    of_which = f", of which {pinned * pool.page_size} are pinned" if pinned else ""
    return OutOfPages(
        f"the sequence needs {length} tokens of KV cache and the whole pool has "
        f"{pool.total * pool.page_size}{of_which}; "
        "open the engine with a larger kv_tokens"
    )


def pins_exceed_limit(cache: PrefixCache, pages: int) -> OutOfPages:
    return OutOfPages(
        f"with this prefix {pages} of the {cache.pool.total} pages of the KV pool would be pinned, more than half; "
        "release other pins, pin a shorter prefix, or open the engine with a larger kv_tokens"
    )
