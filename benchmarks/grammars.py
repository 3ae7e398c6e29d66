"""Constrained decoding against llguidance and xgrammar, on the same inputs in one run.

    python benchmarks/grammars.py --vocab nano                # the bundled model's 8,192 tokens
    python benchmarks/grammars.py --vocab tekken              # 131,072 tokens; needs mistral-common
    python benchmarks/grammars.py --files FILE.jsonl.gz --count 300 --engines sgl llguidance xgrammar

Peers are measured where they are installed (`pip install llguidance tiktoken xgrammar`). Times are of one thread, each
engine in a process of its own, one after the other. "First mask" is compile + matcher + mask, cold; "mask" is mask +
accept of one token of a valid text, its first token excluded; "again" is the second walk of a text.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import multiprocessing
import resource
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import keep, table
from grammar_cases import EBNF, HARD, LENGTHS, REGEXES, Case, schema_files
from grammar_engines import ENGINES
from grammar_vocabularies import BenchVocabulary, load

FILES = Path(__file__).parents[2] / "shared" / "data" / "jsonschemabench-dev.jsonl.gz"
BATCH = 64
now = time.perf_counter_ns


@dataclass
class Outcome:
    """Of one case: times in microseconds; `wrong` counts texts judged wrong, by what they should have been."""

    name: str
    error: str = ""
    first: float = 0.0
    masks: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    wrong_valid: int = 0
    wrong_invalid: int = 0
    memory: int = 0


def measure(engine: Any, vocabulary: BenchVocabulary, case: Case) -> Outcome:
    engine.forget()
    gc.collect()
    gc.disable()
    try:
        started = now()
        engine.compile(case.kind, case.source)
        engine.start()
        engine.mask()
        outcome = Outcome(case.name, first=(now() - started) / 1e3)
        _walk_all(engine, vocabulary, case, outcome)
        outcome.memory = engine.memory()
    except Exception as error:
        return Outcome(case.name, error=f"{type(error).__name__}: {error}"[:200])
    finally:
        gc.enable()
    return outcome


def _walk_all(engine: Any, vocabulary: BenchVocabulary, case: Case, outcome: Outcome) -> None:
    for text, valid in case.tests:
        ids = vocabulary.encode(text)
        taken = _walk(engine, ids, outcome.masks if valid else [])
        if valid and taken:
            _walk(engine, ids, outcome.again)
        outcome.wrong_valid += valid and not taken
        outcome.wrong_invalid += taken and not valid


def _walk(engine: Any, ids: list[int], times: list[float]) -> bool:
    """Whether the engine takes the tokens as a whole text."""
    engine.start()
    for place, token in enumerate(ids):
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
    from sgl.grammars import fill_masks

    engine.compile(case.kind, case.source)
    matchers = [engine.grammar.matcher() for _ in range(BATCH)]
    for i, matcher in enumerate(matchers):
        for token in ids[: i % max(len(ids), 1)]:
            matcher.mask()
            matcher.accept(token)
    fill_masks(matchers)
    best = float("inf")
    for _ in range(20):
        started = now()
        fill_masks(matchers)
        best = min(best, (now() - started) / 1e3)
    return best


def run(name: str, vocabulary_name: str, cases: list[Case], seconds: float, queue: Any) -> None:
    """One engine over all cases, in a process of its own."""
    vocabulary = load(vocabulary_name)
    engine = ENGINES[name](vocabulary)
    measure(engine, vocabulary, Case("warm-up", "json", '{"type": "object"}', [("{}", True)]))
    started, outcomes = time.monotonic(), []
    for case in cases:
        if time.monotonic() - started > seconds:
            break
        outcomes.append(asdict(measure(engine, vocabulary, case)))
    extra = {}
    if name == "sgl":
        case = next(c for c in cases if c.kind == "json" and c.tests)
        extra["batch"] = warm_batch(engine, case, vocabulary.encode(case.tests[0][0]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    queue.put({"engine": name, "version": engine.version(), "peak_mb": peak, "outcomes": outcomes, **extra})


def in_process(*arguments: Any) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=run, args=(*arguments, queue))
    process.start()
    while True:
        try:
            found = queue.get(timeout=1)
            break
        except Exception:
            if not process.is_alive():
                raise RuntimeError(f"{arguments[0]} ended without a result") from None
    process.join()
    return found


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def summary(found: dict[str, Any], outcomes: list[dict[str, Any]]) -> tuple[Any, ...]:
    done = [o for o in outcomes if not o["error"]]
    masks, again = [t for o in done for t in o["masks"]], [t for o in done for t in o["again"]]
    firsts = [o["first"] / 1e3 for o in done]
    right = sum(not o["wrong_valid"] and not o["wrong_invalid"] for o in done)
    return (
        f"{found['engine']} {found['version']}",
        f"{len(done)} of {len(outcomes)}",
        right,
        f"{sum(o['wrong_valid'] for o in done)} / {sum(o['wrong_invalid'] for o in done)}",
        " / ".join(f"{quantile(firsts, q):.2f}" for q in (0.5, 0.95, 0.99, 1)),
        f"{sum(masks) / max(len(masks), 1):.1f} / " + " / ".join(f"{quantile(masks, q):.1f}" for q in (0.5, 0.95, 0.99, 1)),
        f"{sum(again) / max(len(again), 1):.2f} / {quantile(again, 0.99):.2f}",
        found["peak_mb"],
    )


HEAD = ("engine", "compiled", "all right", "refused valid / accepted invalid", "first mask ms p50 / p95 / p99 / max",
        "mask us mean / p50 / p95 / p99 / max", "again us mean / p99", "peak MB")


def print_schemas(results: list[dict[str, Any]], names: set[str]) -> None:
    table(HEAD, [summary(r, [o for o in r["outcomes"] if o["name"] in names]) for r in results])
    shared = set.intersection(*({o["name"] for o in r["outcomes"] if not o["error"]} for r in results)) & names
    print(f"\nthe {len(shared)} files that all engines compile")
    table(HEAD, [summary(r, [o for o in r["outcomes"] if o["name"] in shared]) for r in results])


def print_cases(results: list[dict[str, Any]], cases: list[Case]) -> None:
    head = ("case", *(f"{r['engine']}: first mask ms, mask us p50 / max" for r in results))
    table(head, [(case.name, *(_cell(r, case.name) for r in results)) for case in cases])


def _cell(found: dict[str, Any], name: str) -> str:
    outcome = next((o for o in found["outcomes"] if o["name"] == name), None)
    if outcome is None:
        return "not reached"
    if outcome["error"]:
        return outcome["error"][:60]
    wrong = " WRONG" if outcome["wrong_valid"] or outcome["wrong_invalid"] else ""
    return f"{outcome['first'] / 1e3:.2f}, {quantile(outcome['masks'], 0.5):.1f} / {quantile(outcome['masks'], 1):.1f}{wrong}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", default="nano", help="nano, tekken, or a file of the shared tool's form")
    parser.add_argument("--files", type=Path, default=FILES)
    parser.add_argument("--count", type=int, default=300, help="schema files, stratified; 0 for all")
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--seconds", type=float, default=240, help="most time an engine gets")
    options = parser.parse_args()
    engines = [name for name in options.engines if importlib.util.find_spec(ENGINES[name].package)]
    schemas = schema_files(options.files, options.count) if options.files.exists() else []
    cases = [*REGEXES, *EBNF, *LENGTHS, *HARD, *schemas]
    results = [in_process(name, options.vocab, cases, options.seconds) for name in engines]
    if schemas:
        print_schemas(results, {case.name for case in schemas})
    for group in (REGEXES, EBNF, LENGTHS, HARD):
        print()
        print_cases(results, group)
    for found in results:
        if "batch" in found:
            print(f"\n{found['engine']}: {BATCH} warm masks in one call: {found['batch']:.0f} us")
    largest = {r["engine"]: max((o["memory"], o["name"]) for o in r["outcomes"]) for r in results}
    print("largest grammar, bytes:", largest)
    keep(f"grammars_{Path(options.vocab).name.split('.')[0]}", {"results": [_kept(r, schemas) for r in results]})


def _kept(found: dict[str, Any], schemas: list[Case]) -> dict[str, Any]:
    names = {case.name for case in schemas}
    rows = [o for o in found["outcomes"] if o["name"] in names]
    small = [{**o, "masks": quantile(o["masks"], 0.5), "again": quantile(o["again"], 0.5)} for o in found["outcomes"] if o["name"] not in names]
    return {**{k: v for k, v in found.items() if k != "outcomes"}, "schemas": dict(zip(HEAD, summary(found, rows), strict=True)), "cases": small}


if __name__ == "__main__":
    main()
