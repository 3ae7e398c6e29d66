"""ReAct: thought, action, observation, four times over. The observations are
replayed, so that all who run it do the same work.
"""

from __future__ import annotations

import sgl

from . import words
from .work import Answer, Calls, Item, Workload

ACTIONS = ["search", "lookup", "calculate", "finish"]
STEPS, THOUGHT, ANSWER = 4, 20, 12
EXAMPLE = (
    "Question: In which city does the manager of Maria live?\n"
    "Thought: I need the manager of Maria first.\nAction: search\nObservation: The manager of Maria is Omar.\n"
    "Thought: Now I need the city of Omar.\nAction: lookup\nObservation: Omar lives in Cairo, in Garden Street.\n"
    "Thought: Cairo is the answer.\nAction: finish\nObservation: Done.\nAnswer: Cairo\n\n"
    "Question: What do three tickets at 12 euros cost, with a fee of 4 euros?\n"
    "Thought: I multiply the price and add the fee.\nAction: calculate\nObservation: 3 * 12 + 4 = 40\n"
    "Thought: The sum is 40 euros.\nAction: finish\nObservation: Done.\nAnswer: 40 euros\n\n"
)
TASK = (
    "Answer the question step by step. Each step is a thought, an action and an observation. The actions are "
    "search, which "
    "finds a page, lookup, which reads on in it, calculate, which does sums, and finish.\n\n" + EXAMPLE
)


def items(count: int) -> list[Item]:
    found = []
    for i in range(count):
        source = words.rng("react", i)
        person, other = source.sample(words.PEOPLE, 2)
        question = (
            f"Where did {person} and {other} meet, and what did they talk about in {source.choice(words.CITIES)}?"
        )
        found.append({"question": question, "seen": [words.sentences(source, 3) for _ in range(STEPS)]})
    return found


@sgl.function
def react(s, question, seen):
    s += f"{TASK}Question: {question}\n"
    for i, observation in enumerate(seen):
        s += "Thought:" + sgl.gen(f"thought{i}", max_tokens=THOUGHT, min_tokens=THOUGHT)
        s += "\nAction: " + sgl.select(f"action{i}", ACTIONS)
        s += f"\nObservation: {observation}\n"
    s += "Answer:" + sgl.gen("answer", max_tokens=ANSWER, min_tokens=ANSWER)


def by_calls(model: Calls, items: list[Item]) -> list[Answer]:
    texts = [f"{TASK}Question: {item['question']}\n" for item in items]
    answers: list[Answer] = [{} for _ in items]
    for i in range(STEPS):
        thoughts = model.write([text + "Thought:" for text in texts], THOUGHT)
        texts = [f"{text}Thought:{thought}\nAction: " for text, thought in zip(texts, thoughts, strict=True)]
        actions = model.choose(texts, ACTIONS)
        for row, (thought, action) in enumerate(zip(thoughts, actions, strict=True)):
            texts[row] += f"{action}\nObservation: {items[row]['seen'][i]}\n"
            answers[row] |= {f"thought{i}": thought, f"action{i}": action}
    for answer, text in zip(answers, model.write([text + "Answer:" for text in texts], ANSWER), strict=True):
        answer["answer"] = text
    return answers


WORKLOAD = Workload(
    "react",
    "ReAct: four times a thought of 20 tokens, an action among 4, an observation",
    items,
    12,
    2,
    react,
    by_calls,
    decisions=tuple(f"action{i}" for i in range(STEPS)),
    texts=(*(f"thought{i}" for i in range(STEPS)), "answer"),
)
