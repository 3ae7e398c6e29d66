"""Tree of thought: three plans, three ways to carry out each, a verdict on every leaf, an
answer after the best one.
"""

from __future__ import annotations

import sgl

from . import words
from .work import Answer, Calls, Item, Workload

WIDTH, TOKENS, ANSWER = 3, 24, 16
VERDICTS = ["good", "bad"]
TASK = (
    "Solve the task about an order. First make a plan, then carry it out step by step, then say whether the "
    "solution is "
    "good or bad, and give the answer as a number. Read every number of the task once more before you begin. Prices "
    "are "
    "in euros, and a discount is taken off the sum before the delivery is added.\n"
)


def items(count: int) -> list[Item]:
    return [{"task": task(i)} for i in range(count)]


def task(index: int) -> str:
    source = words.rng("tree", index)
    lines = [
        f"{source.randint(2, 40)} {thing} at {source.randint(5, 90)} euros each"
        for thing in source.sample(["chairs", "lamps", "desks", "shelves", "books"], 3)
    ]
    return (
        f"Task: {source.choice(words.PEOPLE)} from {source.choice(words.CITIES)} orders {', '.join(lines)}. "
        f"The discount is {source.randint(2, 20)} percent and the delivery costs {source.randint(5, 30)} euros. "
        f"{words.sentences(source, 6)} What is to be paid?\n"
    )


@sgl.function
def solve(s, task):
    s += TASK + task
    leaves = []
    for i, plan in enumerate(s.fork(WIDTH)):
        plan += f"Plan {i + 1}:" + sgl.gen("plan", max_tokens=TOKENS, min_tokens=TOKENS)
        for j, leaf in enumerate(plan.fork(WIDTH)):
            leaf += f"\nSolution {j + 1}:" + sgl.gen("solution", max_tokens=TOKENS, min_tokens=TOKENS)
            leaf += "\nVerdict: " + sgl.select("verdict", VERDICTS)
            leaves.append(leaf)
    s["solutions"] = [leaf["solution"] for leaf in leaves]
    s["verdicts"] = [leaf["verdict"] for leaf in leaves]
    best = leaves[first_good(s["verdicts"])]
    best += "\nAnswer:" + sgl.gen("answer", max_tokens=ANSWER, min_tokens=ANSWER)
    s["answer"] = best["answer"]


def first_good(verdicts: list[str]) -> int:
    return verdicts.index("good") if "good" in verdicts else 0


def by_calls(model: Calls, items: list[Item]) -> list[Answer]:
    roots = [f"{TASK}{item['task']}Plan {i + 1}:" for item in items for i in range(WIDTH)]
    plans = [root + text for root, text in zip(roots, model.write(roots, TOKENS), strict=True)]
    asked = [f"{plan}\nSolution {j + 1}:" for plan in plans for j in range(WIDTH)]
    solutions = model.write(asked, TOKENS)
    leaves = [f"{text}{solution}\nVerdict: " for text, solution in zip(asked, solutions, strict=True)]
    verdicts = model.choose(leaves, VERDICTS)
    share = WIDTH * WIDTH
    best = [i * share + first_good(verdicts[i * share : (i + 1) * share]) for i in range(len(items))]
    answers = model.write([f"{leaves[leaf]}{verdicts[leaf]}\nAnswer:" for leaf in best], ANSWER)
    return [
        {
            "solutions": solutions[i * share : (i + 1) * share],
            "verdicts": verdicts[i * share : (i + 1) * share],
            "answer": answer,
        }
        for i, answer in enumerate(answers)
    ]


WORKLOAD = Workload(
    "tree_of_thought",
    "tree of thought: 3 plans, 3 solutions of each, 9 verdicts, an answer",
    items,
    4,
    1,
    solve,
    by_calls,
    decisions=("verdicts",),
    texts=("solutions", "answer"),
    forks=True,
)
