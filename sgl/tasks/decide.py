"""`sgl.decide` under its four forms. The program that it runs is in `decide_program.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from sgl.lang.errors import BadValueError, shown
from sgl.lang.program.batch_options import BatchDisplayOptions, BatchOptions
from sgl.lang.program.run_options import RunOptions

from .decide_program import Decision, decide_program
from .questions import Question, QuestionParam, question_of
from .task import Task

Questions = Sequence[Question | QuestionParam]


class DecideOptions(RunOptions, total=False):
    instructions: str | None


class DecideBatchOptions(BatchDisplayOptions, total=False):
    instructions: str | None


class DecideAsyncBatchOptions(BatchOptions, total=False):
    instructions: str | None


class Decide(Task):
    """`sgl.decide`."""

    def __call__(self, text: str, questions: Questions, **options: Unpack[DecideOptions]) -> Decision:
        """Answer typed questions about a text by probabilities.

        The text is computed once. Each question is a fork after it, whose answer is scored and not written; all forks
        are in the same few steps of the engine.

        text: what the questions are about.
        questions: at least one of `sgl.predicate`, `sgl.choice`, `sgl.score`, or dicts as OpenAI's API takes them.
            Names, where given, differ. There is no upper limit; a server of OpenAI's protocol takes 400.
        instructions: a system turn before the text, for all questions.
        options: as of `run`.

        The probability of a label is that of the label as the whole answer, given that the answer is one of the labels.
        Returns a `Decision`. Needs a backend that scores texts: the embedded engine, `sgl serve` and other servers of
        its protocol, or a completions API that echoes log-probabilities. A chat API writes its choice and has no
        scores: a ProgramError names it (its cause is UnsupportedByBackendError). Raises BadValueError for a question
        that is wrong, ProgramError.
        """
        arguments, run = _split(text, questions, options)
        decision: Decision = self._run(arguments, run)
        return decision

    async def arun(self, text: str, questions: Questions, **options: Unpack[DecideOptions]) -> Decision:
        """`sgl.decide(...)` for event loops."""
        arguments, run = _split(text, questions, options)
        decision: Decision = await self._arun(arguments, run)
        return decision

    def batch(
        self,
        texts: Sequence[str],
        questions: Questions,
        *,
        return_exceptions: bool = False,
        **options: Unpack[DecideBatchOptions],
    ) -> list[Decision]:
        """The same questions about each of the texts; decisions in their order. Options are those of `run_batch`.

        Raises BatchError for the first text that failed, when all have ended. With `return_exceptions` an error is the
        result of its text.
        """
        items, run = _split_batch(texts, questions, options)
        return self._run_batch(items, run, return_exceptions)

    async def abatch(
        self,
        texts: Sequence[str],
        questions: Questions,
        *,
        return_exceptions: bool = False,
        **options: Unpack[DecideAsyncBatchOptions],
    ) -> list[Decision]:
        """`batch` for event loops."""
        items, run = _split_batch(texts, questions, options)
        return await self._arun_batch(items, run, return_exceptions)


def _split(text: str, questions: Questions, options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the program, and the options of its run."""
    run = dict(options)
    asked = {"questions": _checked(questions), "instructions": run.pop("instructions", None)}
    return {"text": _text(text), **asked}, run


def _split_batch(
    texts: Sequence[str], questions: Questions, options: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise BadValueError(f"decide.batch: texts is {shown(texts)}; give a list of texts")
    run = dict(options)
    asked = {"questions": _checked(questions), "instructions": run.pop("instructions", None)}
    return [{"text": _text(text), **asked} for text in texts], run


def _text(text: Any) -> str:
    if not isinstance(text, str) or not text:
        raise BadValueError(f"decide: text is {shown(text)}; give the text that the questions are about")
    return text


def _checked(questions: Any) -> list[Question]:
    """Raises BadValueError for what is no question, and for two of the same name."""
    if not isinstance(questions, list | tuple) or not questions:
        raise BadValueError(f"decide: questions is {shown(questions)}; give a list with at least one question")
    found = [question_of(one, f"decide: question {index}") for index, one in enumerate(questions)]
    names = [question.name for question in found if question.name is not None]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadValueError(f"decide: two questions are named {twice!r}; give each another name, or none")
    return found


decide = Decide("decide", decide_program)
