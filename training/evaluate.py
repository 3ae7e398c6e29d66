"""Scores a model with sgl itself: choices by `select`, JSON by schema, on held-back rows.

    python -m training.evaluate --model runtime/nano --count 300

Writes benchmarks/results/nano.json, and the table between the marks of the model card with --card.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import sgl
from sgl.runtime.nano.nano_prompts import Message, intent_names, json_text, schema_of, state_fields
from training.compare import fields_right, same
from training.dialogues import ordered_slots
from training.probes import StateProbe, sample, states

RESULTS = Path("benchmarks/results/nano.json")
MARKS = ("<!-- scores -->", "<!-- /scores -->")
LONGEST_ANSWER = 400
TITLES = {
    "snips-intent": "SNIPS intent",
    "snips-slots": "SNIPS slots, exact JSON",
    "documents-names": "documents, unseen field names",
    "documents-domains": "documents, unseen domains",
    "sgd-seen": "dialogue state, seen services",
    "sgd-unseen": "dialogue state, unseen services",
}


def add_turns(s: Any, turns: Sequence[Message]) -> None:
    roles = {"system": sgl.system, "user": sgl.user, "assistant": sgl.assistant}
    for turn in turns:
        s += roles[turn["role"]](turn["content"])


@sgl.function
def choose(s: Any, turns: Sequence[Message], choices: Sequence[str]) -> None:
    add_turns(s, turns)
    s += sgl.assistant(sgl.select("answer", choices=list(choices)))


@sgl.function
def fill(s: Any, turns: Sequence[Message], schema: dict[str, Any]) -> None:
    add_turns(s, turns)
    s += sgl.assistant(sgl.gen("answer", max_tokens=LONGEST_ANSWER, json_schema=schema, temperature=0))


@sgl.function
def track(s: Any, turns: Sequence[Message], choices: Sequence[str], schema: dict[str, Any]) -> None:
    """The intent, then the slots after the intent that was chosen."""
    add_turns(s, turns)
    s += sgl.assistant(sgl.select("intent", choices=list(choices)))
    s += sgl.assistant(sgl.gen("slots", max_tokens=LONGEST_ANSWER, json_schema=schema, temperature=0))


def score_task(engine: Any, data: Path, task: str, count: int) -> dict[str, float]:
    """Shares of exact answers and of right fields."""
    probes = sample(data, task, count)
    if probes[0].choices:
        asked: list[dict[str, Any]] = [{"turns": probe.prompt, "choices": probe.choices} for probe in probes]
        done = choose.run_batch(asked, backend=engine, progress_bar=True)
    else:
        asked = [{"turns": probe.prompt, "schema": probe.schema} for probe in probes]
        done = fill.run_batch(asked, backend=engine, progress_bar=True)
    return shares([(probe.answer, state["answer"]) for probe, state in zip(probes, done, strict=True)])


def score_states(engine: Any, data: Path, seen: bool, count: int) -> dict[str, float]:
    """Accuracy of the active intent, joint goal accuracy (all slots of the turn right), right slots."""
    found = list(states(data, seen))
    probes = Random(0).sample(found, min(count, len(found)))
    done = track.run_batch([_asked(probe) for probe in probes], backend=engine, progress_bar=True)
    intents = [probe.intent == state["intent"] for probe, state in zip(probes, done, strict=True)]
    slots = shares(
        [
            (json_text(ordered_slots(probe.service, probe.slots)), state["slots"])
            for probe, state in zip(probes, done, strict=True)
        ]
    )
    return {
        "count": len(probes),
        "intent": round(sum(intents) / len(intents), 4),
        "joint_goal": slots["exact"],
        "slots": slots["fields"],
    }


def _asked(probe: StateProbe) -> dict[str, Any]:
    schema = schema_of(state_fields(probe.service))
    return {"turns": probe.prompt, "choices": intent_names(probe.service), "schema": schema}


def shares(pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    right, total = map(sum, zip(*(fields_right(*pair) for pair in pairs), strict=True))
    exact = sum(same(*pair) for pair in pairs)
    return {
        "count": len(pairs),
        "exact": round(exact / len(pairs), 4),
        "fields": round(right / max(1, total), 4),
    }


def evaluate(model: str | None, data: Path, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The scores by task, and what computed them."""
    scores: dict[str, Any] = {}
    with sgl.Engine(model) as engine:
        info = {name: engine.info()[name] for name in ("parameters", "device", "dtype", "threads", "attention")}
        for task in ("snips-intent", "snips-slots", "documents-names", "documents-domains"):
            scores[task] = _timed(task, score_task, engine, data, task, count)
        for name, seen in (("sgd-seen", True), ("sgd-unseen", False)):
            scores[name] = _timed(name, score_states, engine, data, seen, count)
    return scores, info | {"torch": version("torch"), "sgl": version("sgl")}


def _timed(name: str, score: Any, *args: Any) -> dict[str, float]:
    begun = time.perf_counter()
    result = {**score(*args), "seconds": 0.0}
    result["seconds"] = round(time.perf_counter() - begun, 1)
    print(f"{name}: {result}", flush=True)
    return result


def card_table(scores: dict[str, Any]) -> str:
    """The scores as a Markdown table."""
    lines = ["| task | rows | score |", "|---|---|---|"]
    for task, title in TITLES.items():
        score = scores[task]
        told = {name: value for name, value in score.items() if name not in ("count", "seconds")}
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.1%}" for name, value in told.items())
        lines.append(f"| {title} | {score['count']} | {shown} |")
    return "\n".join(lines)


def update_card(card: Path, scores: dict[str, Any]) -> None:
    text = card.read_text(encoding="utf-8")
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    card.write_text(f"{before}{MARKS[0]}\n{card_table(scores)}\n{MARKS[1]}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Score a model with sgl on held-back rows.")
    parser.add_argument("--model", default=None, help="folder of the model; the bundled one by default")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--count", type=int, default=300, help="rows a task at most")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--card", type=Path, default=None, help="model card whose score table to renew")
    args = parser.parse_args()
    scores, machine = evaluate(args.model, args.data, args.count)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(
        json.dumps({"command": " ".join(sys.argv), "machine": machine, "scores": scores}, indent=1) + "\n",
        encoding="utf-8",
    )
    if args.card:
        update_card(args.card, scores)


if __name__ == "__main__":
    main()
