"""JSON decoding: a mail in, an object of a schema out. This is what the bundled model was trained for."""

from __future__ import annotations

from typing import Any

import sgl

from . import words
from .work import ASK, Answer, Calls, Item, Workload, turn

LIMIT = 96
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "city": {"type": "string"},
        "arrival_date": {"type": "string"},
        "number_of_guests": {"type": "integer"},
        "breakfast": {"type": "boolean"},
        "room_type": {"enum": ["single", "double", "suite"]},
    },
    "required": ["name", "city", "arrival_date", "number_of_guests", "breakfast", "room_type"],
    "additionalProperties": False,
}
TASK = (
    "Extract these fields from the text as JSON. Leave out what the text does not say.\n- name\n- city\n- "
    "arrival_date\n"
    "- number_of_guests (integer)\n- breakfast (boolean)\n- room_type (single | double | suite)"
)
MONTHS = ("March", "April", "May", "June", "July", "August", "September", "October")


def items(count: int) -> list[Item]:
    return [{"mail": mail(i)} for i in range(count)]


def mail(index: int) -> str:
    source = words.rng("json", index)
    breakfast = source.choice(["We would like breakfast.", "We do not need breakfast."])
    return (
        f"Hello, my name is {source.choice(words.PEOPLE)}. We would like a {source.choice(['single', 'double'])} "
        f"room in {source.choice(words.CITIES)} "
        f"from {source.choice(MONTHS)} {source.randint(1, 28)} for {source.randint(1, 6)} guests. {breakfast} Thank "
        "you!"
    )


@sgl.function
def extract(s, mail):
    s += sgl.system(TASK) + sgl.user(mail) + sgl.assistant(sgl.gen("booking", json_schema=SCHEMA, max_tokens=LIMIT))


def by_calls(model: Calls, items: list[Item]) -> list[Answer]:
    prompts = [turn("system", TASK) + turn("user", item["mail"]) + ASK for item in items]
    return [{"booking": text} for text in model.fill(prompts, SCHEMA, LIMIT)]


WORKLOAD = Workload(
    "json_decoding",
    "JSON decoding: an object of six fields from a mail, under a schema",
    items,
    32,
    6,
    extract,
    by_calls,
    decisions=("booking",),
    chains=False,
    grammars=True,
)
