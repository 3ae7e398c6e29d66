"""How threads ask for the processors: those that work beside are nicer and take longer turns than the loop's."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading

import pytest

from sgl.runtime.common import thread_priority

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in thread_priority._GET_AND_SET,
    reason="this system does not tell threads apart",
)


def attributes() -> tuple[int, int, int]:
    """Policy, niceness and nanoseconds of a turn of the calling thread."""
    found = thread_priority._SchedAttributes()
    size = ctypes.sizeof(found)
    assert (
        ctypes.CDLL(None).syscall(thread_priority._GET_AND_SET[platform.machine()][0], 0, ctypes.byref(found), size, 0)
        == 0
    )
    return found.policy, found.nice, found.runtime


def in_a_thread(what) -> tuple[tuple[int, int, int], ...]:
    found = []
    thread = threading.Thread(target=lambda: found.extend([attributes(), what(), attributes()]))
    thread.start()
    thread.join()
    return found[0], found[2]


@pytest.mark.parametrize(
    "what, nicer, turn",
    [
        (thread_priority.yield_priority, thread_priority.LESS, thread_priority.LONG),
        (thread_priority.take_priority, 0, thread_priority.SHORT),
    ],
)
def test_a_thread_alone_is_changed(what, nicer, turn):
    mine = attributes()
    (policy, nice, before), after = in_a_thread(what)
    assert (policy, nice) == mine[:2] and after[:2] == (policy, min(nice + nicer, 19))
    heeds = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 12)
    assert after[2] == (turn if heeds else before)
    assert attributes() == mine
