"""Where packed weights are kept."""

from __future__ import annotations

from sgl.common.file_cache import FileCache, cache_folder, most_bytes

FOLDER = "packed"


def packed_cache() -> FileCache:
    """Of this user. Raises OSError."""
    return FileCache(cache_folder() / FOLDER, most_bytes())
