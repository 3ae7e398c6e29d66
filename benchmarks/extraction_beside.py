"""sgl.extract beside outlines, guidance and instructor: the same model, documents and types, in turns.

    python benchmarks/extraction_beside.py DATA --peers outlines=PYTHON guidance=PYTHON instructor=PYTHON [--each 10]

DATA is the folder that training/README.md describes. PYTHON is an interpreter with that package; guidance 0.3.1 needs
one with transformers 4. outlines and guidance run the bundled model with transformers, instructor asks `sgl serve`.
Documents come from layouts, values and names that the model was not trained on. Prints fields that are right, whole
documents that are right, and seconds for all documents with the model loaded; keeps the medians of --runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sgl
from benchmarks.bench_results import RESULTS, machine
from benchmarks.extraction_documents import Asked, asked
from benchmarks.extraction_peers import MOST_TOKENS
from benchmarks.extraction_types import model_of
from benchmarks.server_process import served

NANO = Path(__file__).parent.parent / "runtime/nano"
PEERS = Path(__file__).with_name("extraction_peers.py")
Answers = tuple[list[dict[str, Any]], float]  # the values of each document, and seconds


def ours(rows: list[Asked]) -> Answers:
    """`sgl.extract.batch`, a call for each type, as a user writes it."""
    with sgl.Engine() as engine:
        started = time.perf_counter()
        found = [sgl.extract.batch(kind, texts, **options(engine)) for kind, texts in by_type(rows)]
        return plain(found), time.perf_counter() - started


def ours_at_once(rows: list[Asked]) -> Answers:
    """`sgl.extract.abatch` of all types at once."""

    async def run(engine: sgl.Engine) -> list[list[Any]]:
        return await asyncio.gather(*(sgl.extract.abatch(k, texts, **options(engine)) for k, texts in by_type(rows)))

    with sgl.Engine() as engine:
        started = time.perf_counter()
        found = asyncio.run(run(engine))
        return plain(found), time.perf_counter() - started


def by_type(rows: list[Asked]) -> list[tuple[Any, list[str]]]:
    kinds = sorted({row.kind for row in rows})
    parts = [[row for row in rows if row.kind == kind] for kind in kinds]
    return [(model_of(part[0].schema), [row.text for row in part]) for part in parts]


def options(engine: sgl.Engine) -> dict[str, Any]:
    return {"backend": engine, "max_tokens": MOST_TOKENS, "return_exceptions": True}


def plain(found: list[list[Any]]) -> list[dict[str, Any]]:
    values = [value for part in found for value in part]
    return [{} if isinstance(v, Exception) else v.model_dump(mode="json", exclude_none=True) for v in values]


def theirs(name: str, python: str, model: str, rows: list[Asked]) -> Answers:
    env = {**os.environ, "PYTHONPATH": str(PEERS.parent.parent), "TOKENIZERS_PARALLELISM": "false"}
    lines = "".join(json.dumps(row.row()) + "\n" for row in rows)
    out = subprocess.run([python, str(PEERS), name, model], input=lines, env=env, capture_output=True, text=True)
    if out.returncode:
        raise SystemExit(f"{name} failed: {out.stderr[-800:]}")
    said = json.loads(out.stdout.splitlines()[-1])
    return [parsed(text) for text in said["texts"]], said["seconds"]


def parsed(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}


def scores(rows: list[Asked], found: list[dict[str, Any]]) -> tuple[float, float]:
    """The share of fields that are right (left out where the document does not say them), and of documents."""
    right = [
        [value.get(f.name) == row.answer.get(f.name) for f in row.fields]
        for row, value in zip(rows, found, strict=True)
    ]
    flat = [one for each in right for one in each]
    return sum(flat) / len(flat), sum(map(all, right)) / len(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--peers", nargs="*", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--schemas", type=int, default=20)
    parser.add_argument("--each", type=int, default=10, help="documents of each schema")
    parser.add_argument("--runs", type=int, default=1)
    args = parser.parse_args()
    rows = asked(args.data, args.schemas, args.each)
    systems: dict[str, Callable[[], Answers]] = {"sgl": lambda: ours(rows), "sgl, at once": lambda: ours_at_once(rows)}
    for peer in args.peers:
        name, _, python = peer.partition("=")
        systems[name] = peer_of(name, python, rows)
    results = measured(systems, rows, args.runs)
    show(results, len(rows))
    keep = {"documents": len(rows), "schemas": args.schemas, "machine": machine(), "systems": results}
    (RESULTS / "extraction_beside.json").write_text(json.dumps(keep, indent=1) + "\n", encoding="utf-8")


def peer_of(name: str, python: str, rows: list[Asked]) -> Callable[[], Answers]:
    def run() -> Answers:
        if name != "instructor":
            return theirs(name, python, str(NANO), rows)
        with served() as server:
            return theirs(name, python, f"{server.url}/v1", rows)

    return run


def measured(systems: dict[str, Callable[[], Answers]], rows: list[Asked], runs: int) -> dict[str, dict[str, Any]]:
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(runs):
        for name, run in systems.items():
            found[name], took = run()
            seconds[name].append(took)
            print(f"{name}: {took:.2f} s", file=sys.stderr, flush=True)
    results = {}
    for name in systems:
        fields, documents = scores(rows, found[name])
        results[name] = {
            "seconds": statistics.median(seconds[name]),
            "fields": fields,
            "documents": documents,
            "all": seconds[name],
        }
    return results


def show(results: dict[str, dict[str, Any]], count: int) -> None:
    print(f"{count} documents\n{'':12} {'fields':>8} {'documents':>10} {'seconds':>9} {'of sgl':>7}")
    for name, row in results.items():
        times = row["seconds"] / results["sgl"]["seconds"]
        print(f"{name:12} {row['fields']:8.1%} {row['documents']:10.1%} {row['seconds']:9.2f} {times:6.1f}x")


if __name__ == "__main__":
    main()
