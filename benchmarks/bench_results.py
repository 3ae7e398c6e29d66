"""What every benchmark prints and keeps: the machine, the versions, the commit, a table of ratios."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def best_of(runs: int, work: Callable[[], Any]) -> float:
    """Seconds of the fastest of several runs, after one that is not counted."""
    work()
    return min(_timed(work) for _ in range(runs))


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def machine() -> dict[str, Any]:
    import torch
    import transformers

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS
    ).stdout.strip()
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit,
        "command": " ".join(["python", *sys.argv]),
    }


def cpu_name() -> str:
    with open("/proc/cpuinfo") as lines:
        fields = dict(line.strip().split("\t: ", 1) for line in lines if "\t: " in line)
    return (
        f"{fields.get('model name', platform.machine())} (family {fields.get('cpu family')}, model "
        f"{fields.get('model')})"
    )


def keep(name: str, figures: dict[str, Any]) -> None:
    """Write benchmarks/results/NAME.json and say where."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **figures}, indent=2) + "\n")
    print(f"kept in {path.relative_to(RESULTS.parent.parent)}")


def keep_text(name: str, text: str) -> None:
    """Write benchmarks/results/NAME.txt under a head that says where and how, and say where."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.txt"
    path.write_text("".join(f"{key}: {value}\n" for key, value in machine().items()) + "\n" + text)
    print(f"kept in {path.relative_to(RESULTS.parent.parent)}")


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    cells = [head, *[tuple(f"{c:,.1f}" if isinstance(c, float) else str(c) for c in row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        print(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
        )
