"""Which threads of this process have a processor first, where the system can tell threads apart (Linux)."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from contextlib import suppress

# added to the niceness of a thread that gives way; much more, and such a thread holds Python for long, which the
# others wait for
LESS = 5
SHORT, LONG = (
    100_000,
    1_000_000,
)  # nanoseconds of a turn: of threads that are waited for, and of those that work in parallel
_GET_AND_SET = {"x86_64": (315, 314), "aarch64": (275, 274)}  # numbers of sched_getattr and sched_setattr


class _SchedAttributes(ctypes.Structure):
    """`struct sched_attr`, as it began."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    ]


def yield_priority() -> None:
    """Have the calling thread leave the processors to others that want them."""
    if sys.platform == "linux":
        with suppress(OSError):
            number = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, number, min(os.getpriority(os.PRIO_PROCESS, number) + LESS, 19))
        _set_time_slice(LONG)


def take_priority() -> None:
    """Have the calling thread, which others wait for, get a processor as soon as it
    wants one: it takes short turns for that.
    """
    if sys.platform == "linux":
        _set_time_slice(SHORT)


def _set_time_slice(nanoseconds: int) -> None:
    """Linux 6.12 and later heed it of ordinary threads, older ones ignore it."""
    numbers = _GET_AND_SET.get(platform.machine())
    if numbers is None:
        return
    call, size, found = ctypes.CDLL(None).syscall, ctypes.sizeof(_SchedAttributes), _SchedAttributes()
    if call(numbers[0], 0, ctypes.byref(found), size, 0) == 0 and found.policy == os.SCHED_OTHER:
        found.size, found.flags, found.runtime = size, 0, nanoseconds
        call(numbers[1], 0, ctypes.byref(found), 0)
