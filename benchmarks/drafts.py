"""What drafts save: the workloads with `speculation="auto"` and without, in turns, one program after the other and all at once.

    python benchmarks/drafts.py [--only agents json_decoding ...] [--rounds 3] [--cpu]

How many times as fast with drafts, by medians; how many tokens were drafted and kept, a hundred generated ones; whether the texts are the
same (they differ only where rounding does). Each round begins with an empty cache, and learns from its own programs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from common import table
from workloads.every import WORKLOADS
from workloads.ours import run_programs
from workloads.work import Workload

import sgl

COLUMNS = ("workload", "programs", "alone, times", "all at once, times", "drafted", "kept", "same texts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=tuple(WORKLOADS), default=tuple(WORKLOADS), metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="seconds of this process's CPU time, for a busy machine")
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    options = {"kv_tokens": 65_536, "json_options": {"whitespace": "spaced"}, "threads": 1}
    with sgl.Engine(**options) as plain, sgl.Engine(speculation="auto", **options) as drafting:
        rows = [compared(WORKLOADS[name], plain, drafting, args.rounds, clock) for name in args.only]
    table(COLUMNS, rows)


def compared(work: Workload, plain: sgl.Engine, drafting: sgl.Engine, rounds: int, clock: object) -> list[object]:
    items = work.items(work.programs)
    cells: list[object] = [work.name, len(items)]
    same, before = True, drafting.stats()
    for together in (False, True):
        seconds: dict[sgl.Engine, list[float]] = {plain: [], drafting: []}
        for _ in range(rounds + 1):
            texts = []
            for engine, found in seconds.items():
                engine.flush_cache()
                started = clock()  # type: ignore[operator]
                states = run_programs(work, items, engine, together)
                found.append(clock() - started)  # type: ignore[operator]
                texts.append([work.answer(state) for state in states])
            same = same and texts[0] == texts[1]
        cells.append(f"{statistics.median(seconds[plain][1:]) / statistics.median(seconds[drafting][1:]):.2f}")
    spent = drafting.stats() - before
    made = max(1, spent.generated_tokens)
    return [*cells, f"{100 * spent.drafted_tokens / made:.0f}", f"{100 * spent.accepted_tokens / made:.0f}", "yes" if same else "no"]


if __name__ == "__main__":
    main()
