"""Chats of four turns. Short answers make them a matter of reading, long ones a matter of writing."""

from __future__ import annotations

from functools import partial

import sgl

from . import words
from .work import ASK, Answer, Calls, Item, Workload, turn

TURNS = 4
TASK = (
    "You are a helpful assistant. Answer the customer of a travel agency in full sentences, and ask back where "
    "something is not said."
)


def items(name: str, sentences: int, tokens: int, count: int) -> list[Item]:
    return [{"questions": questions(words.rng(name, i), sentences), "tokens": tokens} for i in range(count)]


def questions(source, sentences: int) -> list[str]:
    return [f"{words.sentences(source, sentences)} What about {source.choice(words.CITIES)}?" for _ in range(TURNS)]


@sgl.function
def talk(s, questions, tokens):
    s += sgl.system(TASK)
    for i, question in enumerate(questions):
        s += sgl.user(question) + sgl.assistant(sgl.gen(f"answer{i}", max_tokens=tokens, min_tokens=tokens))


def by_calls(model: Calls, items: list[Item]) -> list[Answer]:
    texts = [turn("system", TASK) for _ in items]
    answers: list[Answer] = [{} for _ in items]
    for i in range(TURNS):
        texts = [text + turn("user", item["questions"][i]) + ASK for text, item in zip(texts, items, strict=True)]
        for row, reply in enumerate(model.write(texts, items[0]["tokens"])):
            texts[row] += f"{reply}<|end|>"
            answers[row][f"answer{i}"] = reply
    return answers


ANSWERS = tuple(f"answer{i}" for i in range(TURNS))
SHORT = Workload(
    "chat_short",
    "chat of four turns, questions of about 140 tokens, answers of 8",
    partial(items, "short", 12, 8),
    16,
    2,
    talk,
    by_calls,
    texts=ANSWERS,
)
LONG = Workload(
    "chat_long",
    "chat of four turns, questions of about 70 tokens, answers of 80",
    partial(items, "long", 5, 80),
    8,
    1,
    talk,
    by_calls,
    texts=ANSWERS,
)
