"""Processes that end with the one that started them, whatever they are doing."""

from __future__ import annotations

import subprocess
import sys
import time

from ranks_rig import alive
from server_rig import await_true

from sgl.common.child_process.parent_death import command_with_parent

SLEEPER = "import time\n\ndef begin(*names):\n    print(*names, flush=True)\n    time.sleep(60)\n"
OWNER = """
import subprocess, sys, time
sys.path.insert(0, {folder!r})
from sgl.common.child_process.parent_death import command_with_parent
child = subprocess.Popen(command_with_parent("sleeper", "a", 1), env={{**__import__("os").environ, "PYTHONPATH": ":".join(sys.path)}}, stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline().decode().strip(), flush=True)
time.sleep(60)
"""  # noqa: E501


def test_it_ends_with_its_owner(tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(folder=str(tmp_path))], stdout=subprocess.PIPE, text=True
    )
    pid, *said = owner.stdout.readline().split()
    assert said == ["a", "1"] and alive(int(pid))
    owner.kill()
    owner.wait()
    await_true(lambda: not alive(int(pid)))


def test_one_whose_owner_has_ended_begins_nothing():
    """Nor does it import what it would begin with."""
    called = command_with_parent("nowhere")
    called[called.index("sgl.common.child_process.parent_death") + 1] = "1"  # another process
    started = time.monotonic()
    done = subprocess.run(called, capture_output=True, timeout=30)
    assert done.returncode == 0 and not done.stderr and time.monotonic() - started < 10
