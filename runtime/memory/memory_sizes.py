"""Sizes of memory: as options ask for them, and what there is."""

from __future__ import annotations

import os
import re

from ..common.argument_checks import WORD, shown
from ..errors import ConfigError
from .touched_memory import untouched_bytes

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_memory(value: int | str, name: str = "kv_memory") -> int:
    """Bytes of `2000000`, `"2GB"`, `"512MiB"`. name: of the option, for the error."""
    if isinstance(value, int) and abs(value) < WORD:
        return value
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]*)?|\.[0-9]+)\s*([KMG]?I?)B?\s*", shown(value).strip("'").upper())
    if not match or match[2] not in UNITS:
        raise ConfigError(f"{name}={shown(value)} is not a size; write bytes or a text such as '2GB' or '512MiB'")
    return int(float(match[1]) * UNITS[match[2]])


GROUPS = (  # of versions 2 and 1: where, the limit, what is used, and what of it are files
    ("/sys/fs/cgroup/", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory() -> int:
    """Bytes of main memory that this process may still take, the control group's limit included.

    Files that were read and may be dropped count as free. What this process has taken and not touched does not.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo") as lines:
            said = dict(line.split(":", 1) for line in lines)
        free = int(said["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    for folder, limit, used, files in GROUPS:
        try:
            with open(folder + limit) as a, open(folder + used) as b, open(f"{folder}memory.stat") as c:
                dropped = dict(line.split() for line in c).get(files, "0")
                free = min(free, int(a.read()) - int(b.read()) + int(dropped))
        except (OSError, ValueError):
            pass
    return max(0, free - untouched_bytes())
