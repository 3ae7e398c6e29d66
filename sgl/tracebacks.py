"""Tracebacks for those who wrote the program: its own lines, without the ones of sgl between them."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from traceback import FrameSummary, StackSummary, TracebackException

FULL_VARIABLE = "SGL_FULL_TRACEBACK"


def show(error: BaseException) -> None:
    """What `python program.py` prints of an uncaught error: a short form for an ordinary mistake in the program.

    Other errors inside sgl may be faults of sgl: they are printed in full, as Python does. So is every error with
    SGL_FULL_TRACEBACK=1.
    """
    if os.environ.get(FULL_VARIABLE, "0") in ("", "0") and _is_ordinary(error):
        print_brief(error, f"{FULL_VARIABLE}=1")
    else:
        sys.__excepthook__(type(error), error, error.__traceback__)


def _is_ordinary(error: BaseException) -> bool:
    """An error that sgl raises on purpose, or that a line of the program itself raised."""
    if any(base.__module__.split(".")[0] == "sgl" for base in type(error).__mro__):
        return user_frames(error)
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, AttributeError) and frames and frames[-1].name == "__getattr__":  # of a name that is not there
        return user_frames(error)
    kept = _kept(frames)
    return bool(kept) and kept[-1] is frames[-1] and len(kept) < len(frames)


def print_brief(error: BaseException, full_option: str) -> None:
    """Print an error to stderr as Python does, without sgl's own lines; one line says how many are left out."""
    trace = TracebackException.from_exception(error)
    for part in _parts(trace):
        _leave_out_repeated(part)
    left_out = sum(_shorten(part) for part in _parts(trace))
    print("".join(trace.format()), end="", file=sys.stderr)
    if left_out and trace.stack:
        print(f"({left_out} calls inside sgl are left out; {full_option} shows them)", file=sys.stderr)


def user_frames(error: BaseException) -> bool:
    """Whether any line of the program itself took part in the error."""
    return bool(_kept(traceback.extract_tb(error.__traceback__)))


def _parts(trace: TracebackException | None) -> Iterator[TracebackException]:
    """The error, and those that led to it."""
    if trace is None:
        return
    yield trace
    for other in (trace.__cause__, trace.__context__, *(trace.exceptions or ())):
        yield from _parts(other)


def _leave_out_repeated(trace: TracebackException) -> None:
    """A cause inside sgl and its libraries whose words the error repeats says nothing more."""
    cause, folders = trace.__cause__, (*_folders_of_sgl(), *_folders_of_libraries())
    if (
        cause is not None
        and str(cause) in str(trace)
        and all(frame.filename.startswith(folders) for frame in cause.stack)
    ):
        trace.__cause__, trace.__suppress_context__ = None, True


def _shorten(trace: TracebackException) -> int:
    """Leave out sgl's own lines; returns how many there were after the program's first one."""
    kept = _kept(trace.stack)
    left_out = len(trace.stack) - trace.stack.index(kept[0]) - len(kept) if kept else 0
    # Without a stack there is no heading either.
    trace.stack = StackSummary.from_list(kept) if kept else None  # type: ignore[assignment]
    return left_out


def _kept(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    """All but sgl's own lines and those of the libraries that these call."""
    ours, libraries = _folders_of_sgl(), _folders_of_libraries()
    kept, inside = [], False
    for frame in frames:
        made = frame.filename == "<string>" and frame.name == "__init__"  # of a dataclass
        inside = made or frame.filename.startswith(ours) or (inside and frame.filename.startswith(libraries))
        if not inside:
            kept.append(frame)
    return kept


def _folders_of_sgl() -> tuple[str, ...]:
    loaded = [module for name, module in sys.modules.items() if name.split(".")[0] == "sgl"]
    files = {file for module in loaded if (file := getattr(module, "__file__", None))}
    return tuple({os.path.dirname(file) + os.sep for file in files})


def _folders_of_libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return ("<frozen ", *(paths[name] + os.sep for name in ("stdlib", "purelib", "platlib")))
