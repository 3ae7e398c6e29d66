"""Skeleton of thought: an outline, then its points at the same time, each as
long as the others, then a closing sentence.
"""

from __future__ import annotations

import sgl

from . import words
from .work import Answer, Calls, Item, Workload

POINTS, OUTLINE, TOKENS, CLOSING = 4, 24, 40, 16
TASK = (
    "Write advice for a visitor of a city. First an outline of four short points, then each point in full, then one "
    "closing "
    "sentence. Be friendly and exact, name places and times, and do not repeat what another point says.\n"
)


def items(count: int) -> list[Item]:
    return [{"topic": topic(i)} for i in range(count)]


def topic(index: int) -> str:
    source = words.rng("skeleton", index)
    return (
        f"City: {source.choice(words.CITIES)}. Visitor: {source.choice(words.PEOPLE)}. What is known: "
        f"{words.sentences(source, 8)}\n"
    )


@sgl.function
def advise(s, topic):
    s += TASK + topic + "Outline:" + sgl.gen("outline", max_tokens=OUTLINE, min_tokens=OUTLINE)
    points = s.fork(POINTS)
    points += lambda i: f"\nPoint {i + 1}:" + sgl.gen("points", max_tokens=TOKENS, min_tokens=TOKENS)
    points.join()
    for i, point in enumerate(s["points"]):
        s += f"\nPoint {i + 1}:{point}"
    s += "\nClosing:" + sgl.gen("closing", max_tokens=CLOSING, min_tokens=CLOSING)


def by_calls(model: Calls, items: list[Item]) -> list[Answer]:
    heads = [f"{TASK}{item['topic']}Outline:" for item in items]
    outlines = model.write(heads, OUTLINE)
    stems = [head + outline for head, outline in zip(heads, outlines, strict=True)]
    points = model.write([f"{stem}\nPoint {i + 1}:" for stem in stems for i in range(POINTS)], TOKENS)
    rows = [points[i * POINTS : (i + 1) * POINTS] for i in range(len(items))]
    whole = [
        stem + "".join(f"\nPoint {i + 1}:{point}" for i, point in enumerate(row))
        for stem, row in zip(stems, rows, strict=True)
    ]
    closings = model.write([f"{text}\nClosing:" for text in whole], CLOSING)
    return [{"outline": o, "points": p, "closing": c} for o, p, c in zip(outlines, rows, closings, strict=True)]


WORKLOAD = Workload(
    "skeleton_of_thought",
    "skeleton of thought: an outline, four points of 40 tokens at once, a closing",
    items,
    6,
    1,
    advise,
    by_calls,
    texts=("outline", "points", "closing"),
    forks=True,
)
