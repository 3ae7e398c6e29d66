"""The processes of the ranks above 0, which begin as early as can be: what they import takes seconds.

The process of an engine of several ranks begins here: it starts the others, and then imports itself what all of them
import.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from sgl.common.child_process.parent_death import command_with_parent

OTHER, ENGINE = (
    "sgl.runtime.parallel.workers.rank_worker",
    "sgl.runtime.process.engine_worker",
)  # what a rank above 0 runs, and rank 0


class RendezvousFile:
    """A file for the ranks to find each other by.

    Where the system can, no folder names it, so that nothing is left of it however they end.

    shared: descriptors for the others to have, at the same numbers.
    """

    def __init__(self) -> None:
        self._folder = "" if sys.platform == "linux" else tempfile.mkdtemp(prefix="sgl-ranks-")
        # open to the end: who meets may look at it again
        self.shared = [] if self._folder else [os.memfd_create("sgl-ranks")]
        self.path = Path(self._folder, "meeting") if self._folder else Path(f"/proc/self/fd/{self.shared[0]}")

    def end(self) -> None:
        """All have met, or never will."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class RankProcess:
    """A rank's process. end: of the socket to it."""

    def __init__(self, meeting: RendezvousFile) -> None:
        self.end, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                command_with_parent(OTHER, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *meeting.shared],
                process_group=0,
            )
        except BaseException:
            self.end.close()
            raise
        finally:
            theirs.close()


class RankProcesses:
    """Of an engine of so many ranks."""

    def __init__(self, ranks: int) -> None:
        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nothing leaves this machine
        self.meeting = RendezvousFile()
        self.each = [RankProcess(self.meeting) for _ in range(1, ranks)]


_early: list[RankProcesses] = []


def begin(descriptor: str, ranks: str) -> None:
    """Of rank 0's process. descriptor: see `process.worker`."""
    with suppress(OSError):  # they are started when they are wanted, where an error is reported
        _early.append(RankProcesses(int(ranks)))
    import_module(ENGINE).begin(descriptor)


def rank_processes(ranks: int) -> RankProcesses:
    """Those that began with this process, which are as many, or new ones.

    Raises OSError where no process can be started.
    """
    return _early.pop() if _early else RankProcesses(ranks)
