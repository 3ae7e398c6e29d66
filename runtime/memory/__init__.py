"""Main memory: pinned memory and its pool, huge pages, sizes as options give them."""
