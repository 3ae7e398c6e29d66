"""An adapter (LoRA) of the bundled model: offers of cars and courses, before, after, and both in one batch.

    python examples/adapter_listings.py

The adapter is 0.9 MB, and `python -m training.lora` made it in nine minutes on two CPU cores. No offer here was in its
training data; many of
their sentences were.
"""

from __future__ import annotations

import json
from typing import Any

import sgl
from sgl.runtime.nano import ADAPTERS

CAR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "year": {"type": "integer"},
        "mileage": {"type": "integer"},
        "fuel": {"enum": ["petrol", "diesel", "electric", "hybrid"]},
        "gearbox": {"enum": ["manual", "automatic"]},
        "price": {"type": "number"},
        "location": {"type": "string"},
    },
    "additionalProperties": False,
}
COURSE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "subject": {"type": "string"},
        "teacher": {"type": "string"},
        "first_day": {"type": "string"},
        "lessons": {"type": "integer"},
        "fee": {"type": "number"},
        "level": {"enum": ["beginner", "intermediate", "advanced"]},
        "certificate": {"type": "boolean"},
    },
    "additionalProperties": False,
}
OFFERS: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    (
        CAR,
        "For sale: Volvo V60. Built in 2017. It has 84000 km on the clock. It runs on diesel. Gearbox: manual. I "
        "ask $14,500. Pick it up in Leeds.",
        {
            "model": "Volvo V60",
            "year": 2017,
            "mileage": 84000,
            "fuel": "diesel",
            "gearbox": "manual",
            "price": 14500,
            "location": "Leeds",
        },
    ),
    (
        CAR,
        "Model: Fiat Panda\nYear: 2012\nOdometer: 132500\nEngine: petrol\nPrice: $3,200\nLocation: Turin",
        {"model": "Fiat Panda", "year": 2012, "mileage": 132500, "fuel": "petrol", "price": 3200, "location": "Turin"},
    ),
    (
        COURSE,
        "Learn all about watercolours. Taught by Mia Rossi. It starts on May 4th. 12 lessons in all. The fee is "
        "$180. For beginner learners. You get a certificate.",
        {
            "subject": "watercolours",
            "teacher": "Mia Rossi",
            "first_day": "May 4th",
            "lessons": 12,
            "fee": 180,
            "level": "beginner",
            "certificate": True,
        },
    ),
    (
        COURSE,
        "Course: Data Analysis\nLecturer: Omar Haddad\nBegins: March 3rd\nSessions: 8\nTuition: $950\nLevel: advanced",
        {
            "subject": "Data Analysis",
            "teacher": "Omar Haddad",
            "first_day": "March 3rd",
            "lessons": 8,
            "fee": 950,
            "level": "advanced",
        },
    ),
]


@sgl.function
def read_offer(s: sgl.State, kind: dict[str, Any], offer: str):
    s += sgl.system(sgl.fields(kind)) + sgl.user(offer)
    s += sgl.assistant(sgl.gen("offer", json_schema=kind, max_tokens=160, temperature=0))


def main() -> None:
    with sgl.Engine(adapters={"listings": ADAPTERS / "listings"}) as engine:
        items = [{"kind": kind, "offer": offer} for kind, offer, _ in OFFERS]
        by = [None, "listings"]
        states = read_offer.run_batch(
            items * 2, backend=engine, adapter=[name for name in by for _ in items]
        )  # one batch
        right = dict.fromkeys(by, 0)
        for i, state in enumerate(states):
            name, wanted = by[i // len(items)], OFFERS[i % len(items)][2]
            found = json.loads(state["offer"])
            right[name] += sum(found.get(key) == value for key, value in wanted.items()) - sum(
                key not in wanted for key in found
            )
            print(f"{name or 'base':9}", state["offer"])
        total = sum(len(wanted) for *_, wanted in OFFERS)
        print(
            f"\nfields right, less those that no offer states: base {right[None]} of {total}, with the adapter "
            f"{right['listings']}"
        )


if __name__ == "__main__":
    main()
