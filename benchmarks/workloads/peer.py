"""The process of one peer: it reads what to run from its standard input and writes what came of it, JSON by line.

python -m benchmarks.workloads.peer outlines MODEL THREADS
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any, TextIO


def main() -> None:
    who, path, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        calls, about = start(who, path, threads)
    except ImportError as error:
        tell(out, {"missing": f"{error}"})
        return
    tell(out, about)
    for line in sys.stdin:
        tell(out, run(calls, **json.loads(line)))


def start(who: str, path: str, threads: int) -> tuple[Any, dict[str, Any]]:
    """The peer, ready, and what it is. Raises ImportError where it is not installed."""
    import torch
    from transformers.utils import logging

    from .peer_calls import OPEN

    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(threads)
    return OPEN[who](path, threads)


def run(calls: Any, workload: str, programs: int, free_tokens: int) -> dict[str, Any]:
    """Seconds, answers and tokens made of the first items of a workload."""
    from .every import WORKLOADS

    work = WORKLOADS[workload]
    items, made = work.items(programs), calls.made
    calls.free_tokens = free_tokens
    started = time.perf_counter()
    groups = [items] if calls.batched else [[item] for item in items]
    answers = [answer for group in groups for answer in work.by_calls(calls, group)]
    return {"seconds": time.perf_counter() - started, "answers": answers, "made": calls.made - made}


def tell(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
