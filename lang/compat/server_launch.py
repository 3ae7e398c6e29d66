"""Programs that launch a server: under `sgl run` none is started, the embedded engine is there already."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from .server_process_stand_ins import stand_in_for, with_pid
from .sglang_alias_endpoint import answers
from .sglang_alias_settings import settings

LAUNCHERS = ("sglang.launch_server", "sglang_router.launch_server", "sglang serve")


def execute_shell_command(command: str) -> Any:
    """Start a command; where endpoints are local, a stand-in replaces a server's command."""
    words = shlex.split(command.replace("\\\n", " "))
    if settings.servers_are_replaced and any(launcher in " ".join(words) for launcher in LAUNCHERS):
        return stand_in_for(words)
    return subprocess.Popen(words, text=True, stderr=subprocess.STDOUT)


def launch_server_cmd(command: str, host: str = "0.0.0.0", port: int | None = None) -> tuple[Any, int]:
    """(process, port) of the server that a command launches."""
    port = port or free_port()
    return execute_shell_command(f"{command} --port {port}"), port


def popen_launch_server(
    model: str,
    base_url: str,
    timeout: float,
    api_key: str | None = None,
    other_args: Sequence[str] | None = None,
    env: dict[str, str] | None = None,
    return_stdout_stderr: Any = None,
    device: str = "auto",
    **others: Any,
) -> Any:
    """The process of a server for tests, ready."""
    where = urlsplit(base_url)
    words = ["python", "-m", "sglang.launch_server", "--model-path", model]
    words += ["--host", str(where.hostname), "--port", str(where.port), *map(str, other_args or ())]
    if settings.servers_are_replaced:
        return stand_in_for(words)
    process = subprocess.Popen([*words, *(["--api-key", api_key] if api_key else [])], env=env)
    wait_for_server(base_url, int(timeout), process)
    return process


def wait_for_server(base_url: str, timeout: int | None = None, process: Any = None) -> None:
    """Wait until the server answers. RuntimeError if its process ended, TimeoutError after `timeout` s."""
    started = time.monotonic()
    while not settings.servers_are_replaced and not answers(base_url):
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the server for {base_url} ended with status {process.poll()}; see what it wrote")
        if timeout and time.monotonic() - started > timeout:
            raise TimeoutError(f"nothing answers at {base_url} after {timeout} seconds")
        time.sleep(1)


def terminate_process(process: Any) -> None:
    """End a server and what it started."""
    kill_process_tree(process.pid)


def kill_process_tree(parent_pid: int | None, include_parent: bool = True, skip_pid: int | None = None) -> None:
    """Kill the descendants of a process, and the process itself."""
    if stand_in := with_pid(parent_pid):
        stand_in.terminate()
        return
    parent = os.getpid() if parent_pid is None else parent_pid
    include_parent = include_parent and parent_pid is not None
    for pid in [*_descendants(parent), *([parent] if include_parent else [])]:
        if pid != skip_pid:
            _kill(pid)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _descendants(parent: int) -> list[int]:
    """The processes below one, children before their parents."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
    below: dict[int, list[int]] = {}
    for line in listed.splitlines():
        pid, above = map(int, line.split())
        below.setdefault(above, []).append(pid)

    def under(pid: int) -> Iterator[int]:
        for child in below.get(pid, ()):
            yield from under(child)
            yield child

    return list(under(parent))


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
