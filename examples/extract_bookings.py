"""Real dialogues in, correct JSON out: what each customer wants, read by the bundled model.

For every dialogue the program forks once per service: each fork selects the intent, then writes the request
as JSON that the service's schema enforces. No slot is required, so what a customer has not said is left out.
The forks share the dialogue's prefix in the cache. The results are compared with the annotations of the data
set (Schema-Guided Dialogue, development set, CC BY-SA 4.0).

    python examples/extract_bookings.py [--dialogues 32] [--show ID]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import sgl

SAMPLE = Path(__file__).parent / "data/sgd_sample.json"
TASK = (  # in the words that the bundled model was trained on; for another model, write your own
    "Track the user's request in the dialogue. For a service, give the active intent, then the slot values "
    'so far as JSON. Use "dontcare" where any value is fine.'
)
Service = dict[str, Any]


def transcript(turns: list[tuple[str, str]]) -> str:
    return "\n".join(f"{speaker.capitalize()}: {words}" for speaker, words in turns)


def intents(service: Service) -> list[str]:
    return [*(intent["name"] for intent in service["intents"]), "NONE"]


def slots(service: Service, *more: str) -> dict[str, Any]:
    """The JSON Schema of what a customer may say, none of it required; slots with a fixed set of values take `more`."""
    wanted = {name for intent in service["intents"] for name in (*intent["required_slots"], *intent["optional_slots"])}
    properties = {}
    for slot in service["slots"]:
        kind = {"enum": [*slot["possible_values"], *more]} if slot["is_categorical"] else {"type": "string"}
        if slot["name"] in wanted:
            properties[slot["name"]] = {**kind, "description": slot["description"]}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def about(service: Service) -> str:
    """The service and its intents in words; `sgl.fields` adds a line for each slot."""
    lines = [f"Service: {service['service_name']} - {service['description']}", "Intents:"]
    lines += [f"- {intent['name']}: {intent['description']}" for intent in service["intents"]]
    return "\n".join([*lines, "Slots:"])


@sgl.function
def track(s: sgl.State, turns: list[tuple[str, str]], services: list[dict[str, Any]]):
    s += sgl.system(TASK) + sgl.user(transcript(turns))
    forks = s.fork(len(services))
    for branch, service in zip(forks, services, strict=True):
        branch += sgl.user(sgl.fields(slots(service), about(service)))
        branch += sgl.assistant(sgl.select("intent", intents(service)))
        branch += sgl.assistant(sgl.gen("slots", max_tokens=200, json_schema=slots(service, "dontcare")))
    forks.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, default=32, help="how many of the sample's dialogues")
    parser.add_argument("--show", metavar="ID", help="print this dialogue and the whole text of its program")
    args = parser.parse_args()
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    services = {service["service_name"]: service for service in sample["services"]}
    dialogues = [d for d in sample["dialogues"] if args.show in (None, d["id"])][: args.dialogues]
    if not dialogues:
        raise SystemExit(f"no dialogue {args.show!r} in {SAMPLE.name}; the first is {sample['dialogues'][0]['id']}")
    with sgl.Engine() as engine:
        items = [{"turns": d["turns"], "services": [services[name] for name in d["expected"]]} for d in dialogues]
        before, started = engine.stats(), time.perf_counter()
        states = track.run_batch(items, backend=engine, temperature=0, progress_bar=True)
        seconds, spent = time.perf_counter() - started, engine.stats() - before
    if args.show:
        print(states[0].text())
    report(dialogues, states)
    print(
        f"{spent.computed_tokens:,} tokens computed, {spent.cached_tokens:,} taken from the cache, "
        f"{spent.forced_tokens:,} forced by grammars; {spent.generated_tokens:,} generated in {seconds:.1f} s "
        f"= {spent.generated_tokens / seconds:,.0f} tokens/s"
    )


def report(dialogues: list[dict[str, Any]], states: list[sgl.State]) -> None:
    right = total = 0
    print(f"\n{'dialogue':10} {'service':14} {'right':5}  what the customer wants")
    for dialogue, state in zip(dialogues, states, strict=True):
        for (service, expected), intent, text in zip(
            dialogue["expected"].items(), state["intent"], state["slots"], strict=True
        ):
            slots = json.loads(text)
            good = same(intent, slots, expected)
            right, total = right + good, total + 1
            print(
                f"{dialogue['id']:10} {service:14} {'yes' if good else 'NO':5}  {intent} "
                f"{json.dumps(slots, ensure_ascii=False)}"
            )
            if not good:
                print(f"{'':33}annotated: {expected['intent']} {json.dumps(expected['slots'], ensure_ascii=False)}")
    print(f"\n{right} of {total} requests are right in the intent and in every slot.")


def same(intent: str, slots: dict[str, str], expected: dict[str, Any]) -> bool:
    """Equal intent, equal slots; letter case does not count."""
    lower = {name: value.lower() for name, value in slots.items()}
    return intent == expected["intent"] and lower == {name: value.lower() for name, value in expected["slots"].items()}


if __name__ == "__main__":
    main()
