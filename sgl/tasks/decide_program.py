"""Many typed questions about one text: the text is computed once, and no token is generated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sgl

from .questions import Answer, Question


@dataclass(frozen=True)
class Decision:
    """The answers in the order of the questions: `decision[0]`, or by the name of a question, `decision["angry"]`.

    `model` is the name of the model, `usage` what all questions together have cost.
    """

    answers: list[Answer]
    model: str
    usage: sgl.Usage

    def __getitem__(self, key: int | str) -> Answer:
        if isinstance(key, int):
            return self.answers[key]
        named = {answer.name: answer for answer in self.answers if answer.name is not None}
        if key not in named:
            raise KeyError(f"no question is named {key!r}; their names: {', '.join(named) or 'none'}")
        return named[key]

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)


@sgl.function
def decide_program(s: sgl.State, text: str, questions: list[Question], instructions: str | None = None) -> Decision:
    if instructions:
        s += sgl.system(instructions)
    s += sgl.user_begin()
    s += text
    forks = s.fork(len(questions))
    for fork, question in zip(forks, questions, strict=True):
        fork += "\n\n"
        fork += sgl.labels(question.labels, question.task)
        fork += sgl.user_end()
        answer = sgl.select(question.name or "answer", list(question.labels), choices_method=sgl.answer_likelihood)
        fork += sgl.assistant(answer)
    answers: list[Answer] = []
    for fork, question in zip(forks, questions, strict=True):
        answers.append(question.answer(fork.probs(question.name or "answer")))
        fork.end()
    return Decision(answers, s.stream_executor.backend.get_model_name(), s.usage())
