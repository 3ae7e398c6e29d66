"""The process that an engine runs in: started, recognised when it dies, and never left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sgl.common.child_process.parent_death import command_with_parent

from ..build.engine_config import EngineConfig
from ..errors import ConfigError
from . import process_messages
from .heartbeat_timeout import HeartbeatReader
from .process_heartbeat import HUNG

ENGINE, SEVERAL = (
    "sgl.runtime.process.engine_worker",
    "sgl.runtime.parallel.workers.worker_processes",
)  # what the process runs

GRACE = 10.0  # seconds that a process has to end by itself once it is asked to
HURRY = 1.0  # seconds, once it is silent without having been asked to end


class ProcessStart(NamedTuple):
    """What every process of an engine begins with, as it was when the engine was opened.

    message: the first one.  ranks: of the engine.
    """

    environment: dict[str, str]
    message: bytes
    ranks: int

    @classmethod
    def here(cls, path: Path, options: EngineConfig, environment: Mapping[str, str] | None = None) -> ProcessStart:
        """environment: what is another there. Raises ConfigError where there is no Python that could be started."""
        if getattr(sys, "frozen", False) or not sys.executable:
            raise ConfigError(
                "process=True starts a Python interpreter, which a frozen program lacks; leave it out here"
            )
        places = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
        return cls(
            os.environ | {"PYTHONPATH": os.pathsep.join(places), **(environment or {})},
            process_messages.frame(process_messages.StartMessage(os.path.abspath(path), options)),
            options.ranks,
        )

    def command(self, descriptor: int) -> list[str]:
        """Where there are other ranks, their processes begin together with this one."""
        return (
            command_with_parent(ENGINE, descriptor)
            if self.ranks == 1
            else command_with_parent(SEVERAL, descriptor, self.ranks)
        )


class EngineProcess:
    """A fresh interpreter with the worker in it, at the other end of `socket`.

    It ends when that end is closed, or where the system can see to it when the thread that made it ends. It finds the
    same modules as this process, belongs to no terminal, and writes to this process's stderr.
    """

    def __init__(self, beginning: ProcessStart) -> None:
        self.socket, theirs = map(_beyond_standard, socket.socketpair())
        try:
            self._process = subprocess.Popen(
                beginning.command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=_written_to(sys.__stdout__),
                stderr=_written_to(sys.__stderr__),
                pass_fds=[theirs.fileno()],
                env=beginning.environment,
                process_group=0,
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.file = HeartbeatReader(self.socket)
        self.first = beginning.message

    def leave(self) -> None:
        """Say no more: it stops what it does and ends. From any thread, and after its end."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is gone already

    def kill(self) -> None:
        self._process.kill()

    def reap(self, seconds: float = HURRY) -> str:
        """Wait for its end, force it where it does not come in time, and say how it was."""
        self.leave()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        return f"the engine's process (pid {self.pid}) {_how(self._process.returncode)}"

    def close(self) -> None:
        self.socket.close()


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


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}" + (
            ", as its loop did not go on (it wrote to stderr where)" if code == HUNG else ""
        )
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (" (by somebody, or as memory ran out)" if name == "SIGKILL" else "")
