"""A process that has imported what costs seconds and does nothing: what needs
a process of its own is forked from it.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from typing import Any

IMPORTED = ("pytest", "sgl.lang.program.program_run", "sgl.runtime.engine", "transformers.models.llama.modeling_llama")


def run_warm(
    command: list[str], cwd: str, env: dict[str, str], path: list[str], seconds: int = 0
) -> subprocess.CompletedProcess[str]:
    """As `python *command` with `path` as its sys.path.

    command: a file and its arguments, or -m and a module.  seconds: after which it is killed; 0: never.
    """
    with (
        tempfile.NamedTemporaryFile("r", encoding="utf-8") as out,
        tempfile.NamedTemporaryFile("r", encoding="utf-8") as err,
    ):
        job = {
            "command": command,
            "cwd": cwd,
            "env": env,
            "path": path,
            "seconds": seconds,
            "said": [out.name, err.name],
        }
        status = _asked(_process(os.getpid()), job)
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


@functools.cache
def _process(_: int) -> subprocess.Popen[str]:
    """The one of this process; it ends with it."""
    return subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _asked(process: subprocess.Popen[str], job: dict[str, Any]) -> int:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())
    except BaseException:  # a test's time is over: what still runs ends, and its status is nobody else's
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _process.cache_clear()
        raise


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(ended(json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def ended(job: dict[str, Any]) -> int:
    """The exit status.

    All that belongs to the end of a process is done, but its modules are not taken apart: that takes a second.
    """
    status = 0
    try:
        become(job)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    return status


def become(job: dict[str, Any]) -> None:
    _speak_into(*job["said"])
    signal.alarm(job["seconds"])
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.path[:] = job["path"]
    module = job["command"][0] == "-m"
    sys.argv = job["command"][module:]
    if module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _speak_into(out: str, err: str) -> None:
    for channel, (name, flags) in enumerate([(os.devnull, os.O_RDONLY), (out, os.O_WRONLY), (err, os.O_WRONLY)]):
        file = os.open(name, flags)
        os.dup2(file, channel)
        os.close(file)


if __name__ == "__main__":
    main()
