"""A process that ends with the one that started it: `python -m sgl.common.child_process.parent_death PARENT MODULE
ARGUMENTS`.

It is tied before `begin(*ARGUMENTS)` of the module is even imported: that takes seconds, in which a parent may end, and
orphaned processes would fill the memory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from importlib import import_module

PR_SET_PDEATHSIG = 1  # of prctl(2)


def command_with_parent(module: str, *arguments: object) -> list[str]:
    """How this process starts such a module in another."""
    return [
        sys.executable,
        "-P",
        "-m",
        "sgl.common.child_process.parent_death",
        str(os.getpid()),
        module,
        *map(str, arguments),
    ]


def die_with_parent(parent: int) -> None:
    """Where the system can: be killed when the thread that started this process ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it ended before


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    import_module(sys.argv[2]).begin(*sys.argv[3:])
