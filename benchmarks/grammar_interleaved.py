"""The slowest first masks and masks of JSON schemas, of several engines in turn over every schema, in one process.

    python benchmarks/grammar_interleaved.py --vocab tekken --rounds 3

The engines take turns schema by schema, so that what else the machine does meets all of them. Times are of the thread's
own
processor time, and the least of some rounds, each of which compiles anew; compared are the schemas that both compile.
xgrammar
needs seconds for some schemas: it gets so many seconds in all, and is compared where it got to.
"""

from __future__ import annotations

import argparse
import gc
import io
import time
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
from bench_results import keep_text
from grammar_cases import WARM_UP, Case, schema_files
from grammar_engines import ENGINES
from grammar_vocabularies import BenchVocabulary, load

from grammars import FILES

now = time.thread_time_ns
Times = tuple[float, list[float]]  # microseconds to the first mask, and of each later one with its token


def measured(engine: Any, vocabulary: BenchVocabulary, case: Case) -> Times | None:
    """None: it cannot compile the schema."""
    engine.forget()
    began = now()
    try:
        engine.compile(case.kind, case.source)
        engine.start()
        engine.mask()
    except Exception:
        return None
    first, masks = (now() - began) / 1e3, list[float]()
    for text, valid in case.tests:
        if valid:
            with suppress(Exception):  # an engine may meet its limits on the way: the texts end there
                _walk(engine, vocabulary.encode(text), masks)
    return first, masks


def _walk(engine: Any, tokens: list[int], times: list[float]) -> None:
    engine.start()
    for place, token in enumerate(tokens):
        began = now()
        engine.mask()
        taken = now() - began
        if not engine.allowed(token):
            return
        began = now()
        engine.advance(token)
        if place:
            times.append((taken + now() - began) / 1e3)


def least(rounds: list[Times]) -> Times:
    """Each time the least of the rounds, of which all walk the same tokens."""
    return min(first for first, _ in rounds), np.min([masks for _, masks in rounds], axis=0).tolist()


def in_turn(
    engines: dict[str, Any], vocabulary: BenchVocabulary, cases: list[Case], rounds: int, seconds: dict[str, float]
) -> dict[str, dict[str, Times]]:
    found: dict[str, dict[str, Times]] = {name: {} for name in engines}
    for case in cases:
        gc.collect()
        gc.disable()
        for name, engine in engines.items():
            if seconds.get(name, 1.0) <= 0:
                continue
            began, times = time.perf_counter(), list[Times]()
            for _ in range(rounds):
                if (one := measured(engine, vocabulary, case)) is None:
                    break
                times.append(one)
            if times:
                found[name][case.name] = least(times)
            if name in seconds:
                seconds[name] -= time.perf_counter() - began
        gc.enable()
    return found


def table(found: dict[str, dict[str, Times]], names: list[str]) -> None:
    """Over the schemas that all of some engines compile."""
    both = sorted(set.intersection(*(set(found[name]) for name in names)))
    print(f"\n{len(both)} schemas that {' and '.join(names)} compile")
    print(
        f"{'':12} first mask ms:    p50      p95      p99      max   mask us:     mean      p50      p99    p99.9    "
        "   max"
    )
    for name in names:
        first = np.array([found[name][case][0] for case in both]) / 1e3
        masks = np.array([each for case in both for each in found[name][case][1]])
        quantiles = "  ".join(f"{np.quantile(first, q):7.2f}" for q in (0.5, 0.95, 0.99, 1))
        later = "  ".join(f"{x:8.1f}" for x in (masks.mean(), *np.quantile(masks, (0.5, 0.99, 0.999, 1))))
        print(f"{name:12}                {quantiles}             {later}")


def worst(found: dict[str, Times], names: int = 8) -> None:
    for what, key in (
        ("first masks, ms", lambda times: times[0]),
        ("masks, ms", lambda times: max(times[1], default=0)),
    ):
        ordered = sorted(found, key=lambda case: -key(found[case]))[:names]
        print(f"slowest {what} of sgl: " + ", ".join(f"{case} {key(found[case]) / 1e3:.1f}" for case in ordered))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", default="nano", help="nano, tekken, or a file")
    parser.add_argument("--count", type=int, default=0, help="schemas; 0: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", default=["sgl", "llguidance", "xgrammar"])
    parser.add_argument("--xgrammar-seconds", type=float, default=60.0)
    parser.add_argument("--files", type=Path, default=FILES)
    parser.add_argument("--name", help="of the kept result")
    options = parser.parse_args()
    vocabulary = load(options.vocab)
    engines = {name: ENGINES[name](vocabulary) for name in options.engines}
    for engine in engines.values():
        measured(engine, vocabulary, WARM_UP[0])
    cases = schema_files(options.files, options.count)
    found = in_turn(engines, vocabulary, cases, options.rounds, {"xgrammar": options.xgrammar_seconds})
    report = io.StringIO()
    with redirect_stdout(report):
        print(f"vocabulary {options.vocab}, {len(cases)} schemas, the least of {options.rounds} rounds")
        for name, engine in engines.items():
            print(f"{engine.version()}: {len(found[name])} compiled")
        table(found, [name for name in engines if name != "xgrammar"])
        if "xgrammar" in engines:
            table(found, list(engines))
        worst(found["sgl"])
    print(report.getvalue())
    keep_text(options.name or f"grammar_interleaved_{options.vocab}", report.getvalue())


if __name__ == "__main__":
    main()
