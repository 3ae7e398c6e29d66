"""Python's cycle collector, set to run less often while a batch makes objects by the million.

States form no cycles: they are freed when the last reference goes. A collector that counts their objects walks
through all of them again and again.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 20_000  # between two collections of young objects; Python's own number is 700 or 2,000

_lock = threading.Lock()
_usual: list[tuple[int, int, int]] = []  # what to put back, once for each batch that is running


@contextmanager
def collect_less_often() -> Iterator[None]:
    """Inside, collections are rare; afterwards as the host program has set them. Leaves gc.disable() alone."""
    with _lock:
        usual = _usual[0] if _usual else gc.get_threshold()
        _usual.append(usual)
        if 0 < usual[0] < ALLOCATIONS:
            gc.set_threshold(ALLOCATIONS, *usual[1:])
    try:
        yield
    finally:
        with _lock:
            _usual.pop()
            if not _usual:
                gc.set_threshold(*usual)
