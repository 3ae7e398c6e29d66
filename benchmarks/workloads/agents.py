"""Generative agents: many short calls, each with one of a few templates that a
simulated village uses again and again.
"""

from __future__ import annotations

import sgl

from . import words
from .work import Answer, Calls, Item, Workload

RULES = (
    "You write for the people of a small village. Each of them has a home, a job and a few friends. They get up in the "
    "morning, work, meet on the square and go to bed. Stay with what is known of them. Write in the present tense, "
    "in short sentences, and never speak of yourself. "
)
TEMPLATES = {
    "plan": "Write the plan of a day, hour by hour, beginning with the time at which the person gets up.",
    "meeting": "Two people meet on the square. Write what the first one says to the second one, and nothing else.",
    "memory": "Write down in one sentence what the person will remember of the event, and why it matters.",
    "importance": "Say how important the event is for the person, on a scale from 1, everyday, to 9, life-changing.",
}
TOKENS = {"plan": 32, "meeting": 24, "memory": 16, "importance": 8}
SCALE = [str(i) for i in range(1, 10)]


def items(count: int) -> list[Item]:
    return [item(i) for i in range(count)]


def item(index: int) -> Item:
    source = words.rng("agents", index)
    person, friend = source.sample(words.PEOPLE, 2)
    about = f"{person} is {source.choice(words.JOBS)} and lives near {friend}. {words.sentences(source, 3)}"
    return {"kind": list(TEMPLATES)[index % len(TEMPLATES)], "about": about}


def prompt(kind: str, about: str) -> str:
    return f"{RULES}\nTask: {TEMPLATES[kind]}\nPerson: {about}\nAnswer: "


@sgl.function
def act(s, kind, about):
    s += prompt(kind, about)
    if kind == "importance":
        s += sgl.select("score", SCALE) + "\nReason:"
    s += sgl.gen("text", max_tokens=TOKENS[kind], min_tokens=TOKENS[kind])
    if kind != "importance":
        s["score"] = ""


def by_calls(model: Calls, items: list[Item]) -> list[Answer]:
    """Calls of one kind together: they are of the same length."""
    answers: list[Answer] = [{} for _ in items]
    for kind, tokens in TOKENS.items():
        places = [i for i, item in enumerate(items) if item["kind"] == kind]
        if not places:
            continue
        prompts = [prompt(kind, items[i]["about"]) for i in places]
        scores = model.choose(prompts, SCALE) if kind == "importance" else [""] * len(places)
        if kind == "importance":
            prompts = [f"{text}{score}\nReason:" for text, score in zip(prompts, scores, strict=True)]
        for place, score, text in zip(places, scores, model.write(prompts, tokens), strict=True):
            answers[place] = {"score": score, "text": text}
    return answers


WORKLOAD = Workload(
    "agents",
    "generative agents: short calls with four shared templates, 8 to 32 tokens each",
    items,
    48,
    8,
    act,
    by_calls,
    decisions=("score",),
    texts=("text",),
)
