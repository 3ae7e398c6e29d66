"""A retrieval pipeline as DSPy builds them: write a query, read what was found,
answer, check. The passages are replayed.
"""

from __future__ import annotations

import sgl

from . import words
from .work import Answer, Calls, Item, Workload

QUERY, ANSWER = 12, 24
CHECKS = ["yes", "no"]
TASK = (
    "Write a query for the question, read the passages that were found, answer in one sentence, and say whether the "
    "passages "
    "support the answer.\n\n"
    "Question: Who runs the bakery in Dock Road?\nQuery: bakery Dock Road owner\n"
    "Passages: The bakery in Dock Road opened in 1987. Its owner is Rita Lopes. It closes at noon.\n"
    "Answer: Rita Lopes runs the bakery in Dock Road.\nSupported: yes\n\n"
    "Question: When does the museum open on Sunday?\nQuery: museum opening hours Sunday\n"
    "Passages: The museum lies behind the station. On Sunday it is open from ten to four. Children pay half.\n"
    "Answer: On Sunday the museum opens at ten.\nSupported: yes\n\n"
)


def items(count: int) -> list[Item]:
    found = []
    for i in range(count):
        source = words.rng("retrieval", i)
        question = (
            f"What does {source.choice(words.PEOPLE)} know about {source.choice(words.OBJECTS)} in "
            f"{source.choice(words.CITIES)}?"
        )
        found.append({"question": question, "passages": " ".join(words.sentences(source, 6) for _ in range(3))})
    return found


@sgl.function
def answer(s, question, passages):
    s += f"{TASK}Question: {question}\nQuery:" + sgl.gen("query", max_tokens=QUERY, min_tokens=QUERY)
    s += f"\nPassages: {passages}\nAnswer:" + sgl.gen("answer", max_tokens=ANSWER, min_tokens=ANSWER)
    s += "\nSupported: " + sgl.select("supported", CHECKS)


def by_calls(model: Calls, items: list[Item]) -> list[Answer]:
    texts = [f"{TASK}Question: {item['question']}\nQuery:" for item in items]
    queries = model.write(texts, QUERY)
    texts = [
        f"{text}{query}\nPassages: {item['passages']}\nAnswer:"
        for text, query, item in zip(texts, queries, items, strict=True)
    ]
    answers = model.write(texts, ANSWER)
    checks = model.choose([f"{text}{reply}\nSupported: " for text, reply in zip(texts, answers, strict=True)], CHECKS)
    return [{"query": q, "answer": a, "supported": c} for q, a, c in zip(queries, answers, checks, strict=True)]


WORKLOAD = Workload(
    "retrieval",
    "retrieval pipeline: a query, three passages, an answer, a check",
    items,
    16,
    3,
    answer,
    by_calls,
    decisions=("supported",),
    texts=("query", "answer"),
)
