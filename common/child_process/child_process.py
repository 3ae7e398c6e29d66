"""A Python process that this one starts and ends, with a channel to it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from .child_main import command
from .message_channel import MessageChannel


class ChildProcess:
    """A fresh interpreter that runs `begin(channel, *arguments)` of a module, at the other end of `channel`.

    It ends when that end is closed, and where the system can see to it when the thread that made it ends. It belongs to
    no terminal, and writes to this process's stdout and stderr.

    arguments: texts, or what `str` makes of them.  beat: seconds between its signs of life, 0: it gives none.
    environment: its variables, None: `child_environment()`.  shared: descriptors that it has at the same numbers.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        beat: float = 0.0,
        environment: Mapping[str, str] | None = None,
        shared: Sequence[int] = (),
    ) -> None:
        ours, theirs = map(_beyond_standard, socket.socketpair())
        try:
            self._process = subprocess.Popen(
                command(theirs.fileno(), beat, module, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=_written_to(sys.__stdout__),
                stderr=_written_to(sys.__stderr__),
                pass_fds=[theirs.fileno(), *shared],
                env=child_environment() if environment is None else environment,
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.channel = MessageChannel(ours)

    @property
    def code(self) -> int | None:
        """The exit code, or minus the signal that it was killed by; None until its end was waited for."""
        return self._process.returncode

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()

    def end(self, seconds: float, patience: float | None = None) -> str:
        """Have it end, by force after so many seconds, and say how it ended.

        patience: seconds that it is waited for once it is killed.
        """
        self.channel.leave()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        self.channel.close()
        return how_it_ended(self.code)


def how_it_ended(code: int | None) -> str:
    """code: see `ChildProcess.code`. Continues a sentence about the process."""
    if code is None:
        return "was killed and has not ended yet"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (" (by somebody, or as memory ran out)" if name == "SIGKILL" else "")


def child_environment(**others: str) -> dict[str, str]:
    """The variables of this process, with which another one finds the same modules. others: what is different there."""
    places = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(places), **others}


def _beyond_standard(end: socket.socket) -> socket.socket:
    """The same, but not as number 0, 1 or 2, which may be free in a program without stdin, stdout or stderr."""
    if end.fileno() > 2:
        return end
    import fcntl  # not everywhere

    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _written_to(stream: object) -> int | None:
    """What a process writes to: this one's, where it had any when it began."""
    return subprocess.DEVNULL if stream is None else None
