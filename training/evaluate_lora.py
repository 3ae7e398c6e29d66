"""Scores the adapter that ships with sgl-nano: the base before, the same engine with the adapter after, on rows that
neither saw.

    python -m training.evaluate_lora --adapter runtime/nano/adapters/listings --count 300

Writes benchmarks/results/nano_adapter.json. The first two tasks are the adapter's own; the others show what it costs
elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import sgl
from training.evaluate import choose, fill, shares
from training.listings import reworded
from training.probes import Probe, sample
from training.values import load_pools

RESULTS = Path("benchmarks/results/nano_adapter.json")
TASKS = ("documents-domains", "documents-names", "snips-intent", "snips-slots")


def score(engine: Any, probes: list[Probe], adapter: str | None) -> dict[str, float]:
    """Shares of exact answers and of right fields."""
    program = choose if probes[0].choices else fill
    last = "choices" if probes[0].choices else "schema"
    asked: list[dict[str, Any]] = [{"turns": probe.prompt, last: getattr(probe, last)} for probe in probes]
    done = program.run_batch(asked, backend=engine, adapter=adapter, progress_bar=True)
    return shares([(probe.answer, state["answer"]) for probe, state in zip(probes, done, strict=True)])


def evaluate(adapter: Path, data: Path, count: int) -> dict[str, dict[str, dict[str, float]]]:
    """By task: before, after."""
    tasks = {
        "listings-reworded": reworded(load_pools(data), count),
        **{task: sample(data, task, count) for task in TASKS},
    }
    scores = {}
    with sgl.Engine(adapters={"listings": adapter}) as engine:
        for task, probes in tasks.items():
            scores[task] = {
                when: score(engine, probes, name) for when, name in (("before", None), ("after", "listings"))
            }
            print(task, scores[task], flush=True)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description="Score sgl-nano before and after its adapter.")
    parser.add_argument("--adapter", type=Path, default=Path("runtime/nano/adapters/listings"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    scores = evaluate(args.adapter, args.data, args.count)
    args.out.write_text(
        json.dumps({"command": " ".join(sys.argv), "scores": scores}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
