"""LLM judge, by branch, solve and merge: an essay is judged by four dimensions in forks, then as a whole."""

from __future__ import annotations

import sgl

from . import words
from .work import Answer, Calls, Item, Workload

DIMENSIONS = ("clarity", "order of thoughts", "choice of words", "evidence")
GRADES, REASON, SUMMARY = ["high", "low"], 24, 24
VERDICTS = ["good", "bad"]
TASK = (
    "Judge the essay by the dimension that is named. Say what you see in one or two sentences, then grade it as "
    "high or low. "
    "Judge only what is written, not whom it is written by, and be as strict with long essays as with short ones.\n"
)


def items(count: int) -> list[Item]:
    return [{"essay": f"Essay {i + 1}: {words.sentences(words.rng('judge', i), 24)}\n"} for i in range(count)]


@sgl.function
def judge(s, essay):
    s += TASK + essay
    forks = s.fork(len(DIMENSIONS))
    for fork, name in zip(forks, DIMENSIONS, strict=True):
        fork += f"Dimension: {name}. Reason:" + sgl.gen("reasons", max_tokens=REASON, min_tokens=REASON)
        fork += "\nGrade: " + sgl.select("grades", GRADES)
    forks.join()
    for name, reason, grade in zip(DIMENSIONS, s["reasons"], s["grades"], strict=True):
        s += merged(name, reason, grade)
    s += "Summary:" + sgl.gen("summary", max_tokens=SUMMARY, min_tokens=SUMMARY)
    s += "\nVerdict: " + sgl.select("verdict", VERDICTS)


def merged(name: str, reason: str, grade: str) -> str:
    return f"{name}:{reason} ({grade})\n"


def by_calls(model: Calls, items: list[Item]) -> list[Answer]:
    count = len(DIMENSIONS)
    asked = [f"{TASK}{item['essay']}Dimension: {name}. Reason:" for item in items for name in DIMENSIONS]
    reasons = model.write(asked, REASON)
    grades = model.choose([f"{text}{reason}\nGrade: " for text, reason in zip(asked, reasons, strict=True)], GRADES)
    wholes = []
    for i, item in enumerate(items):
        own = slice(i * count, (i + 1) * count)
        parts = zip(DIMENSIONS, reasons[own], grades[own], strict=True)
        wholes.append(TASK + item["essay"] + "".join(merged(*part) for part in parts) + "Summary:")
    summaries = model.write(wholes, SUMMARY)
    verdicts = model.choose(
        [f"{whole}{text}\nVerdict: " for whole, text in zip(wholes, summaries, strict=True)], VERDICTS
    )
    return [
        {
            "reasons": reasons[i * count : (i + 1) * count],
            "grades": grades[i * count : (i + 1) * count],
            "summary": summaries[i],
            "verdict": verdicts[i],
        }
        for i in range(len(items))
    ]


WORKLOAD = Workload(
    "judge",
    "LLM judge: four dimensions in forks, merged into a summary and a verdict",
    items,
    8,
    2,
    judge,
    by_calls,
    decisions=("grades", "verdict"),
    texts=("reasons", "summary"),
    forks=True,
)
