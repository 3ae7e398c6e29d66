"""How much memory this process has, and may have."""

from __future__ import annotations

import os
from contextlib import suppress


def resident() -> int:
    """Bytes, 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def limit_memory(most: int) -> None:
    """From now on this process gets no more than so many bytes of addresses, where the system has such limits."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(hard, most), hard))
