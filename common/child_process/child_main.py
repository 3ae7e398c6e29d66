"""What a child process runs: `python -m sgl.common.child_process.child_main PARENT DESCRIPTOR BEAT MODULE ARGUMENTS`.

It is tied to its parent and gives signs of life before the module is even imported: that takes seconds, in which a
parent may end, and orphaned processes would fill the memory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from importlib import import_module

from sgl.common.child_process.message_channel import MessageChannel

PR_SET_PDEATHSIG = 1  # of prctl(2)
WATCH = 1.0  # seconds between two looks at who the parent is, where no system call ties a process to it


def command(descriptor: int, beat: float, module: str, *arguments: object) -> list[str]:
    """How this process starts such a module in another. See `ChildProcess`."""
    given = map(str, (os.getpid(), descriptor, beat, module, *arguments))
    return [sys.executable, "-P", "-m", "sgl.common.child_process.child_main", *given]


def die_with_parent(parent: int) -> None:
    """Be killed when the thread that started this process ends, however it does; without Linux, end with the parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(0)  # it ended before


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH)
    os._exit(0)


def main(parent: str, descriptor: str, beat: str, module: str, *arguments: str) -> None:
    die_with_parent(int(parent))
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent's affair: it may want to finish what runs
        signal.signal(number, signal.SIG_IGN)
    end = socket.socket(fileno=int(descriptor))
    end.set_inheritable(False)
    channel = MessageChannel(end)
    if float(beat):
        channel.beat(float(beat))
    import_module(module).begin(channel, *arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
