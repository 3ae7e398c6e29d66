"""Outline first, then every point at once: which of nine services does a customer want, and what exactly?

    python examples/skeleton_of_thought.py [--dialogues 8] [--one-by-one]

The outline is a `select` for each service, in forks of the dialogue; each point of it is then written as JSON by the
fork that already holds its question. All forks run at the same time; --one-by-one shows the difference, which is small
on a CPU, where reading the questions is most of the work. The questions are those of extract_bookings.py, the dialogues
and annotations are from Schema-Guided Dialogue (CC BY-SA 4.0). A large model could write the outline itself.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from extract_bookings import SAMPLE, TASK, about, intents, slots, transcript

import sgl

Plan = dict[str, dict[str, Any]]


@sgl.function
def plan(
    s: sgl.State, turns: list[tuple[str, str]], services: list[dict[str, Any]], one_by_one: bool
) -> dict[str, Any]:
    s += sgl.system(TASK) + sgl.user(transcript(turns))
    forks = s.fork(len(services))
    for branch, service in zip(forks, services, strict=True):
        branch += sgl.user(sgl.fields(slots(service), about(service)))
        branch += sgl.assistant(sgl.select("intent", intents(service)))
        if one_by_one:
            branch["intent"]  # reading waits
    points = [(branch, service) for branch, service in zip(forks, services, strict=True) if branch["intent"] != "NONE"]
    for branch, service in points:
        branch += sgl.assistant(sgl.gen("slots", max_tokens=200, json_schema=slots(service, "dontcare")))
        if one_by_one:
            branch["slots"]
    return {
        service["service_name"]: {"intent": branch["intent"], "slots": json.loads(branch["slots"])}
        for branch, service in points
    }


def wanted(expected: Plan) -> Plan:
    """The annotated services that the customer wants something of."""
    return {name: point for name, point in expected.items() if point["intent"] != "NONE"}


def lower(point: dict[str, Any]) -> dict[str, Any]:
    return {"intent": point["intent"], "slots": {name: value.lower() for name, value in point["slots"].items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, default=8, help="how many of the sample's 32 dialogues")
    parser.add_argument("--one-by-one", action="store_true", help="wait for each select and gen before the next")
    args = parser.parse_args()
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    dialogues = [d for d in sample["dialogues"] if wanted(d["expected"])][: args.dialogues]
    with sgl.Engine() as engine:
        before, started = engine.stats(), time.perf_counter()
        states = [
            plan.run(d["turns"], sample["services"], args.one_by_one, backend=engine, temperature=0) for d in dialogues
        ]
        plans: list[Plan] = [state.ret_value for state in states]
        seconds, spent = time.perf_counter() - started, engine.stats() - before
    outlines = points = known = 0
    for dialogue, made in zip(dialogues, plans, strict=True):
        expected = wanted(dialogue["expected"])
        print(
            f"\n{dialogue['id']}  the outline is "
            f"{'right' if set(made) == set(expected) else f'WRONG: {sorted(expected)}'}"
        )
        for name, point in made.items():
            right = name in expected and lower(point) == lower(expected[name])
            points += right
            print(
                f"  {'right' if right else 'WRONG'}  {name:14} {point['intent']} "
                f"{json.dumps(point['slots'], ensure_ascii=False)}"
            )
        outlines, known = outlines + (set(made) == set(expected)), known + len(expected)
    print(f"\n{outlines} of {len(plans)} outlines and {points} of {known} points are right, in every slot.")
    print(
        f"{spent.computed_tokens:,} tokens computed, {spent.cached_tokens:,} taken from the cache, "
        f"{spent.forced_tokens:,} forced, in {seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
