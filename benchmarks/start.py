"""From the start of a process to a ready engine and its first answer, beside llama.cpp on the same files.

    python benchmarks/start.py [--file NAME=FILE.gguf ...] [--peers PYTHON] [--runs 5] [--cold] [--commands] [--keep]

Models: the bundled one, and each `--file` (`start_models.py` makes one of 0.5 billion random weights). `--peers`:
the interpreter of an environment with llama-cpp-python. In each round every system starts once, in turns, each in a
process of its own; `import torch` alone is one of them. sgl starts twice: with an empty cache of packed weights, and
with what that start left there. `--cold` drops the file from the page cache before each start.
`--commands` also times `sgl models`, `sgl chat` and `sgl serve`. Figures are medians. --keep writes results/start.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from bench_results import keep_text

CHILD = Path(__file__).parent / "start_child.py"
FIRST = "sgl, first start"
CONTEXT = 2048  # llama.cpp's room for one sequence
PHASE = 0.05  # seconds; a shorter phase is not printed
PORT = 30_981
Figures = dict[str, float]


def start(python: str, kind: str, model: str, options: dict[str, Any], cache: str) -> Figures:
    """Seconds from the start of the process to the end of each step, and what it used."""
    started, before = time.time(), os.times()
    done = subprocess.run(
        [python, str(CHILD), kind, model, json.dumps(options)],
        capture_output=True,
        text=True,
        env=os.environ | {"SGL_CACHE": cache},
    )
    after = os.times()
    if done.returncode:
        raise RuntimeError(f"{kind} with {model} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    figures = {name: at - started for name, at in found["marks"].items()}
    figures |= {f"phase {name}": seconds for name, seconds in found["phases"].items() if seconds >= PHASE}
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return figures | {"CPU": cpu, "peak GB": found["peak"] / 1e9, "kept GB": found["kept"] / 1e9}


def drop_from_page_cache(file: str) -> None:
    """Only a file that has been written back is dropped."""
    with open(file, "rb") as handle:
        os.fdatasync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rounds(name: str, file: str, args: argparse.Namespace) -> dict[str, list[Figures]]:
    """Of each system the figures of every round."""
    ours = sys.executable, "sgl", {}
    systems: dict[str, tuple[str, str, dict[str, Any]]] = {"torch": (sys.executable, "torch", {}), FIRST: ours}
    systems["sgl"] = ours
    if args.peers and file != "-":
        systems["llama.cpp"] = (args.peers, "llama.cpp", {"n_ctx": CONTEXT, "n_threads": os.cpu_count()})
    found: dict[str, list[Figures]] = defaultdict(list)
    for number in range(args.runs):
        with tempfile.TemporaryDirectory() as cache:
            for system, (python, kind, options) in systems.items():
                for each in (file, *map(str, Path(cache).rglob("*.weights"))) if args.cold and file != "-" else ():
                    drop_from_page_cache(each)
                found[system].append(start(python, kind, file, options, cache))
        print(f"{name}: round {number + 1} of {args.runs}", file=sys.stderr)
    return found


def lines_of(name: str, found: dict[str, list[Figures]]) -> Iterator[str]:
    """A line a system, then the ratio without the import of torch, then the phases."""
    middles = {system: middle(runs) for system, runs in found.items()}
    torch = middles.pop("torch")["ready"]
    yield f"{name} (import torch: {torch:.2f} s)"
    for system, runs in middles.items():
        parts = ("ready", "first answer", "first schema", "CPU", "peak GB", "kept GB")
        yield f"  {system:16} " + "  ".join(f"{part} {runs[part]:.2f}" for part in parts)
        yield "             ready in each run: " + " ".join(f"{run['ready']:.2f}" for run in found[system])
    for peer in middles.keys() - {"sgl", FIRST}:
        for system, part in product((FIRST, "sgl"), ("ready", "first answer")):
            ours, theirs = middles[system][part], middles[peer][part]
            ratios = f"{ours / theirs:.2f} times {peer}; less the import {(ours - torch) / theirs:.2f} times"
            yield f"  {system}, {part}: {ratios}"
    phases = {part: seconds for part, seconds in middles["sgl"].items() if part.startswith("phase ")}
    if phases:
        named = ", ".join(f"{part.removeprefix('phase ')} {seconds:.2f}" for part, seconds in phases.items())
        yield f"  phases of sgl.Engine of at least {PHASE * 1e3:.0f} ms: {named}"


def middle(runs: list[Figures]) -> Figures:
    return {part: median(run[part] for run in runs if part in run) for part in runs[0]}


def commands(files: dict[str, str], runs: int) -> Iterator[str]:
    """Seconds and CPU of the commands that people start often."""
    for name, file in files.items():
        model = [] if file == "-" else [file]
        cases = {"chat": [*model, "--max-tokens", "8"]} | ({"models": model} if model else {})
        for command, arguments in cases.items():
            found = [timed_command(command, arguments) for _ in range(runs)]
            yield f"sgl {command}, {name}: {median(f[0] for f in found):.2f} s, CPU {median(f[1] for f in found):.2f}"
        served = [serve(model) for _ in range(runs)]
        ready, first, tenth = (median(each) for each in zip(*served, strict=True))
        yield f"sgl serve, {name}: ready {ready:.2f} s; first request {first:.3f}, tenth {tenth:.3f}"


def timed_command(command: str, arguments: list[str]) -> tuple[float, float]:
    started, before = time.time(), os.times()
    subprocess.run(
        [sys.executable, "-m", "sgl", command, *arguments], input="Hello!\n", text=True, check=True, capture_output=True
    )
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.time() - started, cpu


def serve(model: list[str]) -> tuple[float, float, float]:
    """Seconds until /health answers 200, and of the first and the tenth request."""
    started = time.time()
    server = subprocess.Popen(
        [sys.executable, "-m", "sgl", "serve", *model, "--port", str(PORT)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while not answers("/health"):
            if server.poll() is not None:
                assert server.stderr
                raise RuntimeError(f"sgl serve ended with {server.returncode}: {server.stderr.read().decode()[-3000:]}")
            time.sleep(0.01)
        ready = time.time() - started
        seconds = [request() for _ in range(10)]
        return ready, seconds[0], seconds[-1]
    finally:
        server.terminate()
        server.wait()


def answers(path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=60) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


def request() -> float:
    body = {"model": "default", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    started = time.time()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=60) as reply:
        reply.read()
    return time.time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--file", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--peers", help="the interpreter of an environment with llama-cpp-python")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--without-nano", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    files = ({} if args.without_nano else {"bundled": "-"}) | dict(pair.split("=", 1) for pair in args.file)
    lines = []
    for name, file in files.items():
        lines += lines_of(name, rounds(name, file, args))
        print("\n".join(lines[-8:]), flush=True)
    if args.commands:
        for line in commands(files, args.runs):
            lines.append(line)
            print(line, flush=True)
    if args.keep:
        keep_text("start_cold" if args.cold else "start", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
