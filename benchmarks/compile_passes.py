"""What does compiling a program save? Interpreted and compiled runs of the same programs on the bundled model.

    python benchmarks/compile_passes.py [--items 64] [--rounds 3]

Wall times are medians of rounds that alternate between both ways. The cache is flushed before each of them, and
a program is compiled anew in each round (its own column), so that interpreted runs find nothing that it has
pinned. Engine steps, computed tokens and round trips are counted, not timed. Greedy, in float32.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from contextlib import redirect_stdout
from typing import Any

from bench_results import keep_text, table

import sgl

QUESTIONS = (
    "the weather in Boston",
    "a table for two",
    "a train to Cambridge",
    "the next bus",
    "a cheap hotel",
    "a haircut",
)
PREFIX = "".join(
    f"Example {i}: I would like to book {q}. Certainly, for when shall that be?\n" for i, q in enumerate(QUESTIONS * 4)
)


@sgl.function
def chain(s, topic):
    """Twenty pairs of literal and gen; nothing is read."""
    s += "A guest asks about " + topic + ".\n"
    for i in range(20):
        s += f"Step {i}: " + sgl.gen(f"x{i}", max_tokens=4, ignore_eos=True) + "\n"


@sgl.function
def tree(s, topic):
    """3 x 3 branches: each reads its own value, then another branch's; joins on both levels."""
    s += "A guest asks about " + topic + ".\n"
    forks = s.fork(3)
    for i, fork in enumerate(forks):
        fork += f"Idea {i}: " + sgl.gen("idea", max_tokens=8, ignore_eos=True)
        fork += "\nIn other words: " + fork["idea"] + sgl.gen("again", max_tokens=8, ignore_eos=True)
        leaves = fork.fork(3)
        for j, leaf in enumerate(leaves):
            leaf += f"\nPoint {j}: " + sgl.gen("point", max_tokens=8, ignore_eos=True)
            leaf += " because " + leaf["point"] + sgl.gen("reason", max_tokens=8, ignore_eos=True)
        leaves.join()
    forks[2] += "\nCompare with " + forks[0]["idea"] + sgl.gen("comparison", max_tokens=8, ignore_eos=True)
    forks.join()
    s += "So: " + s["again"][0] + sgl.gen("end", max_tokens=8, ignore_eos=True)


@sgl.function
def prefixed(s, topic):
    """One short gen after a long text that all items share."""
    s += PREFIX
    s += "Now: I would like to book " + topic + ". " + sgl.gen("x", max_tokens=4, ignore_eos=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    out = io.StringIO()
    with sgl.Engine(dtype="float32") as engine, redirect_stdout(out):
        measure(engine, args.items, args.rounds)
    print(out.getvalue(), end="")
    keep_text("compile_passes", out.getvalue())


def measure(engine: Any, items: int, rounds: int) -> None:
    topics = [{"topic": f"{QUESTIONS[i % len(QUESTIONS)]}, number {i}"} for i in range(items)]
    cases = [
        ("chain", chain, topics[:1]),
        ("tree 3 x 3", tree, topics[:1]),
        (f"tree, batch of {items // 4}", tree, topics[: items // 4]),
        (f"prefix, batch of {items}", prefixed, topics),
    ]
    rows: list[tuple[Any, ...]] = []
    for name, program, batch in cases:
        rows += compared(name, engine, program, batch, rounds)
    table(("", "seconds", "ratio", "compiling", "steps", "computed", "from cache", "generated", "same text"), rows)
    for program in (chain, tree, prefixed):
        print(f"\n{program.__name__}, one run:\n{program.compile(engine).passes}")


def compared(name: str, engine: Any, program: Any, batch: list[Any], rounds: int) -> list[tuple[Any, ...]]:
    both(engine, program, batch)
    results = [both(engine, program, batch) for _ in range(rounds)]
    (_, before, texts), (_, after, others), _ = results[-1]
    plain, compiled = (statistics.median(result[way][0] for result in results) for way in (0, 1))
    compiling = statistics.median(result[2] for result in results)
    same = f"{sum(map(str.__eq__, texts, others))} of {len(texts)}"
    return [
        (f"{name}, interpreted", f"{plain:.3f}", "1.00", "", *counted(before), ""),
        (f"{name}, compiled", f"{compiled:.3f}", f"{compiled / plain:.2f}", f"{compiling:.3f}", *counted(after), same),
    ]


def both(engine: Any, program: Any, batch: list[Any]) -> tuple[Any, Any, float]:
    """One interpreted and one compiled batch, and the seconds that compiling takes."""
    plain = once(engine, program, batch)
    engine.flush_cache()
    started = time.perf_counter()
    compiled = program.compile(engine)
    compiled.wait_ready()
    seconds = time.perf_counter() - started
    return plain, once(engine, compiled, batch), seconds


def once(engine: Any, program: Any, batch: list[Any]) -> tuple[float, Any, list[str]]:
    """Seconds, the engine's counters and the texts of one batch."""
    engine.flush_cache()
    before, started = engine.stats(), time.perf_counter()
    states = program.run_batch(batch, backend=engine, temperature=0)
    seconds = time.perf_counter() - started
    return seconds, engine.stats() - before, [state.text() for state in states]


def counted(stats: Any) -> tuple[int, int, int, int]:
    return stats.steps, stats.computed_tokens, stats.cached_tokens, stats.generated_tokens


if __name__ == "__main__":
    main()
