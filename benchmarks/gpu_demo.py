"""Does the bundled model answer the demo alike on the GPU and on the CPU? Intents and slots of
examples/extract_bookings.py.

    python benchmarks/gpu_demo.py [--dialogues 32] [--devices cuda,cpu] [--dtype float32]

Greedy decoding under the services' schemas. Answers are equal when intent and slots are the same text; in bfloat16 a
rare near-tie may fall the other way, in float32 (the default here) none should. Ends with 1 when an answer differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import sgl

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from extract_bookings import SAMPLE, same, track

Answers = dict[tuple[str, str], tuple[str, str]]  # (dialogue, service): (intent, slots as JSON)


def answers(
    dialogues: list[dict[str, Any]], services: dict[str, Any], device: str, dtype: str
) -> tuple[Answers, float]:
    """What the program says on this device, and the seconds it took."""
    items = [{"turns": d["turns"], "services": [services[name] for name in d["expected"]]} for d in dialogues]
    with sgl.Engine(device=device, dtype=dtype, json_options={"whitespace": "spaced"}) as engine:
        info, started = engine.info(), time.perf_counter()
        states = track.run_batch(items, backend=engine, temperature=0)
        seconds = time.perf_counter() - started
    print(f"{device}: {info['dtype']}, {info['attention']}, {seconds:.1f} s", flush=True)
    found: Answers = {}
    for dialogue, state in zip(dialogues, states, strict=True):
        for service, intent, slots in zip(dialogue["expected"], state["intent"], state["slots"], strict=True):
            found[dialogue["id"], service] = (intent, slots)
    return found, seconds


def differing(one: Answers, other: Answers) -> list[tuple[str, str]]:
    """The places whose intent or slots are not the same text."""
    if one.keys() != other.keys():
        raise ValueError(f"{len(one)} and {len(other)} answers, not to the same questions")
    return [place for place in one if one[place] != other[place]]


def right(found: Answers, dialogues: list[dict[str, Any]]) -> int:
    """How many answers agree with the annotations."""
    return sum(
        same(found[d["id"], name][0], json.loads(found[d["id"], name][1]), e)
        for d in dialogues
        for name, e in d["expected"].items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, default=32)
    parser.add_argument("--devices", default="cuda,cpu", help="two, compared with each other")
    parser.add_argument("--dtype", default="float32", help="the same on both; auto: what each device chooses")
    args = parser.parse_args()
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))
    services = {service["service_name"]: service for service in sample["services"]}
    dialogues = sample["dialogues"][: args.dialogues]
    one, other = (answers(dialogues, services, device, args.dtype)[0] for device in args.devices.split(","))
    different = differing(one, other)
    print(
        f"{args.devices}, {args.dtype}: {len(one) - len(different)} answers equal, {len(different)} different", end="; "
    )
    print(f"right by the annotations: {right(one, dialogues)} and {right(other, dialogues)} of {len(one)}")
    for place in different:
        print(f"  {place[0]} {place[1]}\n    {one[place]}\n    {other[place]}")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
