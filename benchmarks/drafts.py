"""What drafts save: workloads with `speculation="auto"` and without, in turns, 1, 8 or 64 programs at a time.

    python benchmarks/drafts.py [--only extraction agents ...] [--rows 1 8 64] [--rounds 5] [--cpu] [--noise] [--keep]

How many times as fast with drafts: both engines get each group of programs one after the other, and a round's ratio
is that of their sums; the median of the rounds is printed. Prompts are cached, so that decoding is measured; what
drafts learn of finished texts is forgotten before each round. Then: how many times as many steps are taken without
drafts, the draft tokens accepted a step, draft tokens proposed and accepted for a hundred generated ones, and whether
the texts are the same (they differ only where rounding does).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import extract_bookings
from bench_results import keep_text, table
from workloads.every import WORKLOADS
from workloads.ours import run_programs
from workloads.work import Item, Workload

import sgl

COLUMNS = (
    "workload",
    "at a time",
    "times as fast",
    "least",
    "most",
    "steps",
    "kept a step",
    "guessed of 100",
    "kept of 100",
    "same texts",
)
MORE = 3  # rounds, of more than one program at a time
OPTIONS: dict[str, Any] = {"kv_tokens": 131_072, "json_options": {"whitespace": "spaced"}, "threads": 1}


class Kind(NamedTuple):
    """A workload, and how many programs a round runs for each number at a time."""

    work: Workload
    programs: dict[int, int]


def dialogues(count: int) -> list[Item]:
    sample = json.loads(extract_bookings.SAMPLE.read_text(encoding="utf-8"))
    services = {service["service_name"]: service for service in sample["services"]}
    items = [
        {"turns": each["turns"], "service": services[name]} for each in sample["dialogues"] for name in each["expected"]
    ]
    return [items[index % len(items)] for index in range(count)]


@sgl.function
def track(s: Any, turns: Any, service: Any) -> None:
    """The example's program for one service."""
    s += sgl.system(extract_bookings.TASK) + sgl.user(extract_bookings.transcript(turns))
    s += sgl.user(sgl.fields(extract_bookings.slots(service), extract_bookings.about(service)))
    s += sgl.assistant(sgl.gen("slots", max_tokens=120, json_schema=extract_bookings.slots(service, "dontcare")))


EXTRACTION = Workload(
    "extraction",
    "what customers want, as JSON from real dialogues",
    dialogues,
    32,
    4,
    track,
    lambda model, items: [],
    decisions=("slots",),
    grammars=True,
)
KINDS = {
    "extraction": Kind(EXTRACTION, {1: 16, 8: 32, 64: 64}),
    "json_decoding": Kind(WORKLOADS["json_decoding"], {1: 24, 8: 32, 64: 64}),
    "agents": Kind(WORKLOADS["agents"], {1: 16, 8: 32, 64: 64}),
    "react": Kind(WORKLOADS["react"], {1: 6, 8: 16, 64: 64}),
    "classification": Kind(WORKLOADS["classification"], {1: 16, 8: 32, 64: 64}),
    "chat_long": Kind(WORKLOADS["chat_long"], {1: 2, 8: 8, 64: 64}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="*", choices=tuple(KINDS), default=tuple(KINDS), metavar="WORKLOAD", help=", ".join(KINDS)
    )
    parser.add_argument(
        "--rows", nargs="*", type=int, choices=(1, 8, 64), default=(1, 8, 64), help="programs at a time"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help=f"at one program at a time; {MORE} times as many for more, as these are short",
    )
    parser.add_argument("--noise", action="store_true", help="no drafts on either side: what the ratios are by chance")
    parser.add_argument("--cpu", action="store_true", help="seconds of this process's CPU time, for a busy machine")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/drafts.txt")
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    with sgl.Engine(**OPTIONS) as plain, sgl.Engine(speculation=False if args.noise else "auto", **OPTIONS) as drafting:
        rows = [
            compared(KINDS[name], count, plain, drafting, args.rounds if count == 1 else MORE * args.rounds, clock)
            for name in args.only
            for count in args.rows
        ]
    table(COLUMNS, rows)
    if args.keep:
        keep_text("drafts", "\n".join("  ".join(map(str, row)) for row in (COLUMNS, *rows)) + "\n")


def compared(
    kind: Kind, count: int, plain: sgl.Engine, drafting: sgl.Engine, rounds: int, clock: Callable[[], float]
) -> tuple[Any, ...]:
    items = kind.work.items(kind.programs[count])
    groups = [items[start : start + count] for start in range(0, len(items), count)]
    for engine in (plain, drafting):
        engine.flush_cache()
    ratios, same, before, alone = [], True, drafting.stats(), plain.stats()
    for number in range(rounds + 1):
        forget(drafting)
        seconds, alike = one_round(kind.work, groups, plain, drafting, number, clock)
        same = same and alike
        if number == 0:
            before, alone = drafting.stats(), plain.stats()
        else:
            ratios.append(seconds[plain] / seconds[drafting])
    spent = drafting.stats() - before
    made, shown = (
        max(1, spent.generated_tokens),
        [f"{value:.2f}" for value in (statistics.median(ratios), min(ratios), max(ratios))],
    )
    shown.append(f"{(plain.stats() - alone).steps / max(1, spent.steps):.2f}")
    shares = [f"{100 * tokens / made:.0f}" for tokens in (spent.drafted_tokens, spent.accepted_tokens)]
    return (
        kind.work.name,
        str(count),
        *shown,
        f"{spent.accepted_tokens / max(1, spent.steps):.2f}",
        *shares,
        "yes" if same else "no",
    )


def one_round(
    work: Workload,
    groups: list[list[Item]],
    plain: sgl.Engine,
    drafting: sgl.Engine,
    number: int,
    clock: Callable[[], float],
) -> tuple[dict[sgl.Engine, float], bool]:
    """Seconds of each engine over all groups, and whether they wrote the same; who comes first changes."""
    seconds, same = {plain: 0.0, drafting: 0.0}, True
    for place, group in enumerate(groups):
        answers = {}
        for engine in (plain, drafting) if (place + number) % 2 else (drafting, plain):
            started = clock()
            states = run_programs(work, group, engine, len(group) > 1)
            seconds[engine] += clock() - started
            answers[engine] = [work.answer(state) for state in states]
        same = same and answers[plain] == answers[drafting]
    return seconds, same


def forget(engine: sgl.Engine) -> None:
    """What drafts were learned, not the cached prompts."""
    core = engine._core
    if core.life.speculation is not None:
        core.call(core.life.speculation.forget)


if __name__ == "__main__":
    main()
