"""Prints the test files of the rooms that changed: CI runs what the short selection leaves out of them.

Changed is what differs from the commit in CI_BASE, main before this one. Without CI_BASE it is what differs from the
newest commit that is a day older than HEAD; where there is no history, everything. Every example and tutorial runs each
time. Then kernels, ranks and loading come first: what does not fit into SECONDS is named and left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from selection import durations

ROOT = Path(__file__).parent.parent
SECONDS = 2400  # of both workers: 20 minutes, with which CI stays below 45
DAY = 24 * 3600
ALWAYS = ["tests/slow/test_examples.py", "tests/slow/test_tutorials.py"]
ROOMS: list[tuple[str, str]] = [  # folders and files that begin so -> test files, as globs
    (
        "runtime/kernels runtime/layers runtime/csrc runtime/attention runtime/step",
        "cpu/*kernel* cpu/*gemv* cpu/*triton* cpu/*gemm* cpu/*int4* cpu/*int8* cpu/*float* cpu/*attention* cpu/*latent*"
        " cpu/*dense* cpu/*recurrent* cpu/*sparse* cpu/*compiled* cpu/*layer* cpu/*gpu* cpu/*blocks* cpu/*quantiz*"
        " cpu/test_sampler* cpu/test_deterministic* cpu/test_all_reduce* cpu/test_flashinfer* cpu/test_stacked*",
    ),
    (
        "runtime/parallel runtime/executor/ranks runtime/replicas",
        "cpu/test_ranks* cpu/test_stages* cpu/test_replicas* cpu/*expert* cpu/test_all_reduce* cpu/test_shard*",
    ),
    (
        "runtime/loading runtime/quantization runtime/calibration",
        "cpu/*load* cpu/*gguf* cpu/*quantiz* cpu/*hostile_files* cpu/test_bad* cpu/test_shard* cpu/*weight*"
        " cpu/*calibr* cpu/test_ranks_state* cpu/*families* cpu/*mlx* cpu/*torchao* cpu/test_pickles*"
        " cpu/*cache* unit/*readers* unit/*gguf*",
    ),
    (
        "runtime/models",
        "cpu/*families* cpu/*models* cpu/*published* cpu/*compiled* cpu/*generic* cpu/*config* cpu/*extending*",
    ),
    (
        "runtime/loop runtime/scheduling runtime/cache runtime/sequences runtime/executor runtime/build"
        " runtime/engine.py runtime/sampling runtime/memory runtime/common",
        "cpu/test_engine* cpu/*scheduler* cpu/*windows* cpu/*states* cpu/*host* cpu/*gpu* cpu/*piecewise*"
        " cpu/*embedding* cpu/*sampling* cpu/*failing* cpu/*lifecycle* cpu/*garbage* cpu/*extremes* cpu/*limits*"
        " cpu/*callbacks*"
        " cpu/*programs* cpu/*deterministic* cpu/*hidden* cpu/*fork* cpu/*constrained* cpu/*sampler* unit/*cache*"
        " unit/*limits* cpu/*greedy* cpu/*memory* cpu/*ahead* cpu/*deferred*",
    ),
    ("runtime/speculative", "cpu/*draft* cpu/*specul* cpu/*gpu_runner*"),
    ("runtime/adapters training", "cpu/*adapter* cpu/*lora* unit/*training*"),
    ("runtime/process", "cpu/*process* cpu/*replicas* cpu/*fork* cpu/*death* cpu/*lifecycle*"),
    ("runtime/server runtime/watch", "cpu/*server* cpu/*hostile_requests* cpu/*watched* cpu/*extremes* cpu/*chat*"),
    (
        "runtime/text runtime/dialects lang/chat",
        "unit/*token* unit/*dialects* unit/*template* unit/*vocab* unit/*stop* unit/*tools* cpu/*tools* cpu/*template*",
    ),
    ("grammars", "unit/grammars/* unit/*grammar* cpu/*grammar* cpu/*constrained* cpu/*json* unit/*types* cpu/*limits*"),
    (
        "common",
        "unit/test_child* unit/*cache* unit/grammars/*cache* unit/grammars/*process* cpu/*process* cpu/test_ranks*"
        " cpu/*death*",
    ),
    (
        "lang sgl examples",
        "unit/test_[a-z]* cpu/*programs* cpu/*compat* cpu/*journal* cpu/*tools* cpu/*docs* cpu/*chat*"
        " slow/test_examples*",
    ),
    ("tutorials lang/program lang/report", "slow/test_tutorials*"),
    ("benchmarks", "slow/test_workloads* cpu/*benchmark*"),
    ("docs", "cpu/*docs* unit/*docs*"),
    ("pyproject.toml setup.py constraints.txt", "slow/test_wheel*"),
    ("tests/alone.py tests/warm.py", "unit/test_alone*"),
]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def base() -> str:
    """Empty where the history begins later."""
    before = int(git("log", "-1", "--format=%ct")) - DAY
    return os.environ.get("CI_BASE") or git("rev-list", "-1", f"--before={before}", "HEAD")


def changed() -> list[str]:
    try:
        before = base()
        return git("diff", "--name-only", before, "HEAD").splitlines() if before else git("ls-files").splitlines()
    except (OSError, subprocess.CalledProcessError):
        return [str(path.relative_to(ROOT)) for path in ROOT.glob("[!.]*/**/*") if path.is_file()]


def tests_of(files: list[str]) -> list[str]:
    """In the order of the table; before them ALWAYS, and test files that changed themselves."""
    own = [file for file in files if file.startswith("tests/") and (ROOT / file).exists()]
    found = dict.fromkeys([*ALWAYS, *own])
    for folders, globs in ROOMS:
        if any(file.startswith(tuple(folders.split())) for file in files):
            for glob in globs.split():
                found |= dict.fromkeys(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(f"tests/{glob}.py")))
    return [file for file in found if Path(file).name.startswith("test_")]


def affordable(tests: list[str], seconds: float) -> list[str]:
    recorded, chosen, left = durations(), [], []
    for file in tests:
        short, whole = recorded.get(file, (0.0, 0.0))
        if whole > short and whole - short <= seconds:
            seconds -= whole - short
            chosen.append(file)
        elif whole > short:
            left.append(file)
    if left:
        print(f"there is no time for the rest of {len(left)} files: {' '.join(left)}", file=sys.stderr)
    return chosen


if __name__ == "__main__":
    print(*affordable(tests_of(changed()), SECONDS))
