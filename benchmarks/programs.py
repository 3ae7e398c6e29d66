"""What does the language cost on top of the engine? Programs against the same tokens as plain sequences.

    python benchmarks/programs.py [--programs 10000] [--tokens 8] [--keep]

fork      programs that fork three ways and join, all in one run_batch, against plain sequences with the same tokens
chain     50 literal/gen pairs in one program against one generation that makes as many tokens, and against
          one of the same length
select    one of 3, 30, 300, 500 choices: side by side and as a tree of tokens
"""

from __future__ import annotations

import argparse
import gc
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from bench_results import keep, table

import sgl
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.ops import score_op

PAIRS = 50


@sgl.function
def fork_three(s, i, tokens):
    s += f"Item number {i}: tell me about it.\n"
    forks = s.fork(3)
    forks += lambda k: f"Aspect {k}:" + sgl.gen("a", max_tokens=tokens, temperature=0, ignore_eos=True)
    forks.join()


@sgl.function
def chain(s, tokens):
    s += "Start:"
    for i in range(PAIRS):
        s += f" step {i}:" + sgl.gen(f"g{i}", max_tokens=tokens, temperature=0, ignore_eos=True)


@sgl.function
def one_gen(s, tokens):
    s += "Start:" + sgl.gen("g", max_tokens=tokens, temperature=0, ignore_eos=True)


@sgl.function
def choose(s, choices):
    s += "The next action is" + sgl.select("action", choices)


class Watch:
    """The highest number of threads seen, and the memory of the process in MB."""

    def __init__(self) -> None:
        self.threads = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            self.threads = max(self.threads, threading.active_count() - 1)  # without this one


def memory() -> float:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def timed(engine: sgl.Engine, work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and the engine's counts."""
    engine.flush_cache()
    gc.collect()
    before, started = engine.stats(), time.perf_counter()
    work()
    return time.perf_counter() - started, engine.stats() - before


def plain_sequences(engine: sgl.Engine, programs: int, tokens: int) -> None:
    """What the programs generate, as sequences that share nothing but what the cache finds."""
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    futures = []
    for i in range(programs):
        for k in range(3):
            sequence = engine.open()
            text = f"Item number {i}: tell me about it.\nAspect {k}:"
            sequence.extend(engine.tokenizer.encode(text, special_prefix=True))
            futures.append(sequence.generate(params))
            sequence.close()
    for future in futures:
        future.result()


def forks(engine: sgl.Engine, programs: int, tokens: int) -> dict[str, Any]:
    items = [{"i": i, "tokens": tokens} for i in range(programs)]
    fork_three.run_batch(items[:50])
    start = memory()
    with Watch() as watch:
        batch, counts = timed(engine, lambda: fork_three.run_batch(items))
    after = memory()
    plain, plain_counts = timed(engine, lambda: plain_sequences(engine, programs, tokens))
    return {
        "programs": programs,
        "seconds": batch,
        "plain_seconds": plain,
        "ratio": batch / plain,
        "threads": watch.threads,
        "steps": counts.steps,
        "plain_steps": plain_counts.steps,
        "computed_tokens": counts.computed_tokens,
        "plain_computed_tokens": plain_counts.computed_tokens,
        "memory_before_mb": start,
        "memory_after_mb": after,
    }


def chains(engine: sgl.Engine, tokens: int) -> dict[str, Any]:
    runs = []
    for _ in range(6):
        linked = timed(engine, lambda: chain.run(tokens).sync())
        single = timed(engine, lambda: one_gen.run(PAIRS * tokens).sync())
        length = linked[1].computed_tokens
        long = timed(engine, lambda n=length: one_gen.run(n).sync())
        runs.append((linked[0], single[0], long[0]))
    middle = [statistics.median(column) for column in zip(*runs[1:], strict=True)]
    return {
        "generated_tokens": PAIRS * tokens,
        "tokens": length,
        "steps": linked[1].steps,
        "one_gen_steps": single[1].steps,
        "seconds": middle[0],
        "one_gen_seconds": middle[1],
        "ratio_to_as_many_generated_tokens": middle[0] / middle[1],
        "ratio_to_one_gen_of_the_same_length": middle[0] / middle[2],
    }


def selects(engine: sgl.Engine) -> list[dict[str, Any]]:
    verbs = ["open", "close", "find", "delete", "update", "list", "share", "rename", "move", "copy"]
    nouns = ["account", "document", "folder", "user", "invoice", "report", "ticket", "order", "message", "contact"]
    names = [f" {v}_{n}{end}" for end in ("", "_now", "_all", "_by_id", "_by_name") for n in nouns for v in verbs]
    usual, found = score_op.WORTH_A_TREE, []
    for count in (3, 30, 300, 500):
        row: dict[str, Any] = {"choices": count}
        for form, worth in (("side_by_side", 10**9), ("as_chosen", usual)):
            score_op.WORTH_A_TREE = worth
            choose.run(names[:count]).sync()
            runs = [timed(engine, lambda n=count: choose.run(names[:n]).sync()) for _ in range(5)]
            row[f"{form}_ms"] = 1000 * statistics.median(seconds for seconds, _ in runs)
            row[f"{form}_tokens"] = runs[-1][1].computed_tokens
        score_op.WORTH_A_TREE = usual
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/programs.json")
    args = parser.parse_args()
    with sgl.Engine() as engine:
        sgl.set_default_backend(engine)
        info = engine.info()
        figures = {
            "engine": {name: info[name] for name in ("dtype", "threads", "kv_tokens")},
            "chain": chains(engine, args.tokens),
            "select": selects(engine),
            "fork": forks(engine, args.programs, args.tokens),
        }
        sgl.set_default_backend(None)
    for name in ("fork", "chain"):
        print(f"\n{name}")
        table(("", "figure"), [(key, round(value, 3)) for key, value in figures[name].items()])
    print("\nselect")
    table(tuple(figures["select"][0]), [tuple(row.values()) for row in figures["select"]])
    if args.keep:
        keep("programs", figures)


if __name__ == "__main__":
    main()
