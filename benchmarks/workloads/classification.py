"""Few-shot classification: the paper's MMLU. One long prefix of shots for all, then a question and a `select`.

Shots and questions are held-back sentences of SNIPS (CC0), `examples/data/snips_sample.json`. Every label is one token.
"""

from __future__ import annotations

import json
from pathlib import Path

import sgl

from .work import ASK, Answer, Calls, Item, Workload, turn

SAMPLE = Path(__file__).resolve().parents[2] / "examples/data/snips_sample.json"
LABELS = {
    "AddToPlaylist": "playlist",
    "BookRestaurant": "restaurant",
    "GetWeather": "weather",
    "PlayMusic": "music",
    "RateBook": "rating",
    "SearchCreativeWork": "title",
    "SearchScreeningEvent": "cinema",
}
CHOICES = list(LABELS.values())
TASK = "Choose the label that fits the text.\n" + "\n".join(f"- {label}" for label in CHOICES)


def shots() -> list[tuple[str, str]]:
    rows = json.loads(SAMPLE.read_text(encoding="utf-8"))["shots"]
    return [(row["text"], LABELS[row["intent"]]) for row in rows]


def items(count: int) -> list[Item]:
    rows = json.loads(SAMPLE.read_text(encoding="utf-8"))["rows"]
    return [{"text": row["text"], "examples": shots()} for row in rows[:count]]


@sgl.function
def classify(s, text, examples):
    s += sgl.system(TASK)
    for shot, label in examples:
        s += sgl.user(shot) + sgl.assistant(label)
    s += sgl.user(text) + sgl.assistant(sgl.select("label", CHOICES))


def prompt(item: Item) -> str:
    learnt = [turn("user", text) + turn("assistant", label) for text, label in item["examples"]]
    return turn("system", TASK) + "".join(learnt) + turn("user", item["text"]) + ASK


def by_calls(model: Calls, items: list[Item]) -> list[Answer]:
    return [{"label": label} for label in model.choose([prompt(item) for item in items], CHOICES)]


WORKLOAD = Workload(
    "classification",
    "few-shot classification: 28 shots for all, one select among 7 labels",
    items,
    48,
    8,
    classify,
    by_calls,
    decisions=("label",),
    chains=False,
)
