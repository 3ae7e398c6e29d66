"""Tracebacks for those who wrote the program: its own lines, without the ones of sgl between them."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from traceback import FrameSummary, StackSummary, TracebackException


def print_brief(error: BaseException, full_option: str) -> None:
    """Print an error to stderr as Python does, without sgl's own lines; one line says how many are left out."""
    told = TracebackException.from_exception(error)
    left_out = sum(_shorten(part) for part in _parts(told))
    print("".join(told.format()), end="", file=sys.stderr)
    if left_out and told.stack:
        print(f"({left_out} calls inside sgl are left out; {full_option} shows them)", file=sys.stderr)


def of_the_program(error: BaseException) -> bool:
    """Whether any line of the program itself took part in the error."""
    return bool(_kept(traceback.extract_tb(error.__traceback__)))


def _parts(told: TracebackException | None) -> Iterator[TracebackException]:
    """The error, and those that led to it."""
    if told is None:
        return
    yield told
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        yield from _parts(other)


def _shorten(told: TracebackException) -> int:
    """Leave out sgl's own lines; how many there were behind the program's first one."""
    kept = _kept(told.stack)
    left_out = len(told.stack) - told.stack.index(kept[0]) - len(kept) if kept else 0
    # Without a stack there is no heading either.
    told.stack = StackSummary.from_list(kept) if kept else None  # type: ignore[assignment]
    return left_out


def _kept(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    """All but sgl's own lines and those of the libraries that these call."""
    ours, libraries = _folders_of_sgl(), _folders_of_libraries()
    kept, inside = [], False
    for frame in frames:
        inside = frame.filename.startswith(ours) or (inside and frame.filename.startswith(libraries))
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
