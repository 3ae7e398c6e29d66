"""The grammar benchmark's report: schema files, single cases, where we are slower, memory, batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench_results import table
from grammar_cases import Case
from grammar_vocabularies import BenchVocabulary

Result = dict[str, Any]
HEAD = (
    "engine",
    "compiled",
    "all right",
    "refused valid / accepted invalid",
    "first mask ms p50 / p95 / p99 / max",
    "mask us mean / p50 / p95 / p99 / max",
    "again us mean / p99",
    "MB a grammar p50 / max",
)


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def print_report(
    results: list[Result], groups: dict[str, list[Case]], schemas: list[Case], vocabulary: BenchVocabulary, batch: int
) -> None:
    print(f"vocabulary {vocabulary.name}: {vocabulary.size} tokens\n")
    if schemas:
        _print_schemas(results, [case.name for case in schemas])
    for title, cases in groups.items():
        print(f"\n{title}: first mask ms; mask us mean / p50 / max; MB")
        _print_cases(results, cases)
    print(f"\na batch of {batch} masks seen before, one call, us:")
    table(("engine", "us", "peak MB"), [(r["engine"], f"{r['batch']:.0f}", r["peak_mb"]) for r in results])
    _print_slower(results, groups)


def _print_schemas(results: list[Result], names: list[str]) -> None:
    print("schema files: all; those that the engines before xgrammar all compile; those that all compile")
    table(HEAD, [_summary(r, names) for r in results])
    for engines in ([r for r in results if r["engine"] != "xgrammar"], results):
        shared = [name for name in names if all(_compiled(r, name) for r in engines)]
        print()
        table(HEAD, [_summary(r, shared) for r in engines])


def _compiled(result: Result, name: str) -> bool:
    outcome = result["outcomes"].get(name)
    return outcome is not None and not outcome["error"]


def _summary(result: Result, names: list[str]) -> tuple[Any, ...]:
    reached = [result["outcomes"][name] for name in names if name in result["outcomes"]]
    done = [o for o in reached if not o["error"]]
    masks, again = [t for o in done for t in o["masks"]], [t for o in done for t in o["again"]]
    firsts, held = [o["first"] / 1e3 for o in done], [o["memory"] / 1e6 for o in done if o["memory"] is not None]
    missed = len(names) - len(reached)
    return (
        f"{result['engine']} {result['version']}",
        f"{len(done)} of {len(reached)}" + (f" ({missed} not reached)" if missed else ""),
        sum(not (o["wrong_valid"] or o["wrong_invalid"] or o["cut"]) for o in done),
        f"{sum(o['wrong_valid'] for o in done)} / {sum(o['wrong_invalid'] for o in done)}",
        " / ".join(f"{quantile(firsts, q):.2f}" for q in (0.5, 0.95, 0.99, 1)),
        " / ".join(f"{t:.1f}" for t in (mean(masks), *(quantile(masks, q) for q in (0.5, 0.95, 0.99, 1)))),
        f"{mean(again):.2f} / {quantile(again, 0.99):.2f}",
        f"{quantile(held, 0.5):.2f} / {quantile(held, 1):.1f}" if held else "not reported",
    )


def _print_cases(results: list[Result], cases: list[Case]) -> None:
    refused: list[str] = []
    rows = [(case.name, *(_cell(r, case.name, refused) for r in results)) for case in cases]
    table(("case", *(r["engine"] for r in results)), rows)
    for line in refused:
        print(line)


def _cell(result: Result, name: str, refused: list[str]) -> str:
    outcome = result["outcomes"].get(name)
    if outcome is None:
        return "not reached"
    if outcome["error"]:
        refused.append(f"  {result['engine']} refuses {name}: {' '.join(outcome['error'].split())[:230]}")
        return "refused"
    wrong = " WRONG" if outcome["wrong_valid"] or outcome["wrong_invalid"] else " TOO SLOW" if outcome["cut"] else ""
    masks = outcome["masks"]
    times = f"{mean(masks):.1f} / {quantile(masks, 0.5):.1f} / {quantile(masks, 1):,.0f}" if masks else "-"
    held = "" if outcome["memory"] is None else f"; {outcome['memory'] / 1e6:.2f}"
    return f"{outcome['first'] / 1e3:,.2f}; {times}{held}{wrong}"


def _print_slower(results: list[Result], groups: dict[str, list[Case]]) -> None:
    """The cases where we take more time than a peer that is right."""
    ours, *peers = results
    for peer in peers:
        lines = [line for cases in groups.values() for case in cases for line in _slower(ours, peer, case.name)]
        print(f"\n{ours['engine']} slower than {peer['engine']}: {'; '.join(lines) or 'nowhere'}")


def _slower(ours: Result, peer: Result, name: str) -> list[str]:
    left, right = ours["outcomes"].get(name), peer["outcomes"].get(name)
    if not left or not right or left["error"] or right["error"] or right["wrong_valid"] or right["wrong_invalid"]:
        return []
    pairs = {
        "first mask ms": (left["first"] / 1e3, right["first"] / 1e3),
        "mean mask us": (mean(left["masks"]), mean(right["masks"])),
    }
    return [f"{name} {what} {mine:.2f} to {other:.2f}" for what, (mine, other) in pairs.items() if mine > other]
