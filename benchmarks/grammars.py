"""Constrained decoding against llguidance and xgrammar, on the same inputs in one run.

    python benchmarks/grammars.py --vocab nano                # the bundled model's 8,192 tokens
    python benchmarks/grammars.py --vocab tekken              # 131,072 tokens; needs mistral-common
    python benchmarks/grammars.py --files FILE.jsonl.gz --count 300 --engines sgl llguidance xgrammar

Peers are measured where they are installed (`pip install llguidance tiktoken xgrammar`). Times are of one thread, each
engine in a separate process, one after the other. "First mask" is compile + matcher + mask, cold, of the cases that
are no schema files the median of a few; "mask" is mask + accept of one token of a valid text, its first token excluded;
"again" is the second walk of a text. An engine that runs out of its time leaves schema files out, in a random order.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import io
import multiprocessing
import queue
import resource
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench_results import keep_text
from grammar_cases import GROUPS, WARM_UP, Case, schema_files
from grammar_engines import ENGINES
from grammar_tables import print_report
from grammar_vocabularies import BenchVocabulary, load

FILES = Path(__file__).parents[2] / "shared" / "data" / "jsonschemabench-dev.jsonl.gz"
BATCH = 64
COLD_STARTS = 9
CASE_SECONDS = 4.0
now = time.perf_counter_ns


@dataclass
class Outcome:
    """Of one case: times in microseconds; `wrong_valid` of the valid texts
    were refused; `cut` says it took too long.
    """

    name: str
    error: str = ""
    first: float = 0.0
    masks: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    wrong_valid: int = 0
    wrong_invalid: int = 0
    memory: int | None = None
    cut: bool = False


class TooLong(Exception):
    """A case that takes more than its time."""


def measure(engine: Any, vocabulary: BenchVocabulary, case: Case, starts: int = 1) -> Outcome:
    outcome = Outcome(case.name)
    limit = time.monotonic() + CASE_SECONDS
    gc.collect()
    gc.disable()
    try:
        outcome.first = median(_cold_starts(engine, case, starts, limit))
        _walk_all(engine, vocabulary, case, outcome, limit)
        outcome.memory = engine.memory()
    except TooLong:
        outcome.cut = True
    except Exception as error:
        return Outcome(case.name, error=f"{type(error).__name__}: {error}")
    finally:
        gc.enable()
    return outcome


def _cold_starts(engine: Any, case: Case, starts: int, limit: float) -> list[float]:
    """Microseconds from the source to the first mask, a few times over."""
    found: list[float] = []
    while not found or (len(found) < starts and time.monotonic() < limit - CASE_SECONDS / 2):
        engine.forget()
        started = now()
        engine.compile(case.kind, case.source)
        engine.start()
        engine.mask()
        found.append((now() - started) / 1e3)
    return found


def _walk_all(engine: Any, vocabulary: BenchVocabulary, case: Case, outcome: Outcome, limit: float) -> None:
    for text, valid in case.tests:
        ids = vocabulary.encode(text)
        taken = _walk(engine, ids, outcome.masks if valid else [], limit)
        if valid and taken:
            _walk(engine, ids, outcome.again, limit)
        outcome.wrong_valid += valid and not taken
        outcome.wrong_invalid += taken and not valid


def _walk(engine: Any, ids: list[int], times: list[float], limit: float) -> bool:
    """Whether the engine takes the tokens as a whole text."""
    engine.start()
    for place, token in enumerate(ids):
        if time.monotonic() > limit:
            raise TooLong
        started = now()
        engine.mask()
        masked = now()
        if not engine.allowed(token):
            return False
        accepting = now()
        if not engine.advance(token):
            return False
        if place:
            times.append((now() - accepting + masked - started) / 1e3)
    return bool(engine.eos_ok())


def warm_batch(engine: Any, case: Case, ids: list[int]) -> float:
    """Microseconds of one call for a batch of masks that were all seen before."""
    engine.compile(case.kind, case.source)
    fill = engine.batch([ids[: i % max(len(ids), 1)] for i in range(BATCH)])
    return min(_timed(fill) for _ in range(50))


def _timed(work: Callable[[], Any]) -> float:
    started = now()
    work()
    return (now() - started) / 1e3


def run(name: str, vocabulary_name: str, schemas: list[Case], seconds: float, cpu_time: bool, results: Any) -> None:
    """One engine over all cases, in a separate process."""
    global now
    now = time.thread_time_ns if cpu_time else time.perf_counter_ns
    vocabulary = load(vocabulary_name)
    engine = ENGINES[name](vocabulary)
    started = time.monotonic()
    for case in WARM_UP:
        measure(engine, vocabulary, case)
    outcomes = [measure(engine, vocabulary, c, COLD_STARTS) for cases in GROUPS.values() for c in cases]
    for case in schemas:
        if time.monotonic() - started > seconds:
            break
        outcomes.append(measure(engine, vocabulary, case))
    batch = warm_batch(engine, WARM_UP[0], vocabulary.encode(WARM_UP[0].tests[0][0]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    rows = {outcome.name: asdict(outcome) for outcome in outcomes}
    results.put({"engine": name, "version": engine.version(), "peak_mb": peak, "batch": batch, "outcomes": rows})


def in_process(*arguments: Any) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=run, args=(*arguments, results))
    process.start()
    while True:
        try:
            found: dict[str, Any] = results.get(timeout=1)
            break
        except queue.Empty:
            if not process.is_alive():
                raise RuntimeError(f"{arguments[0]} ended without a result") from None
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", default="nano", help="nano, tekken, or a file of the shared tool's form")
    parser.add_argument("--files", type=Path, default=FILES)
    parser.add_argument("--count", type=int, default=300, help="schema files, stratified; 0 for all, -1 for none")
    parser.add_argument("--engines", nargs="*", default=["sgl", "llguidance", "xgrammar"], choices=list(ENGINES))
    parser.add_argument("--seconds", type=float, default=140, help="most time an engine gets")
    parser.add_argument("--cpu-time", action="store_true", help="count the thread's own time, where others are at work")
    parser.add_argument("--name", help="of the file in results/; by default it tells the vocabulary")
    options = parser.parse_args()
    engines = [name for name in options.engines if importlib.util.find_spec(ENGINES[name].package)]
    schemas = schema_files(options.files, options.count) if options.files.exists() and options.count >= 0 else []
    found = [in_process(name, options.vocab, schemas, options.seconds, options.cpu_time) for name in engines]
    report = io.StringIO()
    with redirect_stdout(report):
        print_report(found, GROUPS, schemas, load(options.vocab), BATCH)
    print(report.getvalue())
    keep_text(options.name or f"grammars_{Path(options.vocab).name.split('.')[0]}", report.getvalue())


if __name__ == "__main__":
    main()
