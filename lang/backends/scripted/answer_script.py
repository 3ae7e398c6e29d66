"""The answers of a scripted backend: who gets which, and when they are used up."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...backend import Generated, GenRequest, SelectRequest
from ...errors import BadValueError, ScriptError, nearest
from ...sampling.choices import ChoicesDecision, choice_probabilities

Request = GenRequest | SelectRequest
Key = str | re.Pattern[str] | None


@dataclass(frozen=True, slots=True)
class Delayed:
    """An answer that comes after so many seconds."""

    seconds: float
    answer: Any


class ScriptedAnswers:
    """Successive answers from a list, or the same one each time."""

    def __init__(self, key: str, given: Any) -> None:
        self.key = key
        self.used = 0
        self._given = given

    def next(self) -> Any:
        self.used += 1
        if not isinstance(self._given, list):
            return self._given
        if self.used > len(self._given):
            raise ScriptError(
                f"the script has {len(self._given)} answers for {self.key}, but this is number {self.used}"
            )
        return self._given[self.used - 1]

    def left_over(self) -> str | None:
        if isinstance(self._given, list):
            left = self._given[self.used :]
            return f"{self.key}: {len(left)} of {len(self._given)} answers left, from {left[0]!r} on" if left else None
        return None if self.used else f"{self.key}: never asked"


def _called(function: Callable[[str, Request], Any], prompt: str, request: Request) -> Any:
    try:
        return function(prompt, request)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # it began
            raise
        raise ScriptError(f"the script's function is called with (prompt, request): {error}") from None


class AnswerScript:
    """Finds the answer to a request.

    From a mapping: the variable's name, else the first pattern that is found in the prompt. From a list: the
    next one. From a function: what it gives for (prompt, request).
    """

    def __init__(self, given: Any) -> None:
        self._lock = threading.Lock()
        self._function: Callable[[str, Request], Any] | None = None
        self._named: dict[str | None, ScriptedAnswers] = {}
        self._patterns: list[tuple[re.Pattern[str], ScriptedAnswers]] = []
        self._in_order: ScriptedAnswers | None = None
        if isinstance(given, Mapping):
            for key, answers in given.items():
                self._add(key, answers)
        elif isinstance(given, list | tuple):
            self._in_order = ScriptedAnswers("the program", list(given))
        elif callable(given):
            self._function = given
        else:
            raise BadValueError(f"the script is {given!r:.60}; give a dict, a list or a function of (prompt, request)")

    def _add(self, key: Any, given: Any) -> None:
        if isinstance(key, re.Pattern):
            self._patterns.append((key, ScriptedAnswers(f"prompts with {key.pattern!r}", given)))
        elif isinstance(key, str) or key is None:
            self._named[key] = ScriptedAnswers(f"variable {key!r}", given)
        else:
            raise BadValueError(f"{key!r} cannot be a key of the script; give a variable's name or a compiled regex")

    def answer(self, prompt: str, request: Request) -> Any:
        """What is scripted for a request. Raises ScriptError if nothing is."""
        with self._lock:
            answers = self._function or self._find(prompt, request.name).next()
        return _called(answers, prompt, request) if callable(answers) else answers

    def _find(self, prompt: str, name: str | None) -> ScriptedAnswers:
        if self._in_order is not None:
            return self._in_order
        if name in self._named:
            return self._named[name]
        for pattern, answers in self._patterns:
            if pattern.search(prompt):
                return answers
        raise ScriptError(self._unknown(prompt, name))

    def _unknown(self, prompt: str, name: str | None) -> str:
        names = [known for known in self._named if known is not None]
        near = f"; {nearest(name, names)}" if name and names else ""
        patterns = ", ".join(repr(pattern.pattern) for pattern, _ in self._patterns)
        found = f" and no pattern ({patterns}) is in its prompt" if patterns else ""
        return f"the script has no answer for variable {name!r}{found}{near}. The prompt ends {prompt[-60:]!r}"

    def left_over(self) -> list[str]:
        """What was not asked for, in words."""
        order = [self._in_order] if self._in_order else []
        answers = [*self._named.values(), *(answers for _, answers in self._patterns), *order]
        return [left for one in answers if (left := one.left_over())]


def as_generated(answer: Any, prompt: str) -> Generated:
    """A scripted answer of a gen as a backend returns it: words count as tokens."""
    if isinstance(answer, Generated):
        return Generated(answer.text, {**_meta(prompt, answer.text), **answer.meta_info}, answer.token_ids)
    if isinstance(answer, bool | int | float):
        answer = str(answer)
    elif isinstance(answer, dict):
        answer = json.dumps(answer, ensure_ascii=False)
    if not isinstance(answer, str):
        raise ScriptError(f"{answer!r:.60} is not an answer; script text, a number, a dict (as JSON), or an exception")
    return Generated(answer, _meta(prompt, answer))


def words(text: str) -> list[str]:
    """The text in pieces, each with the white space after it."""
    return re.findall(r"\s*\S+\s*|\s+", text)


def as_decision(answer: Any, request: SelectRequest) -> ChoicesDecision:
    """A scripted answer of a select: one of the choices, or log-probabilities for its method to decide on."""
    if isinstance(answer, dict):
        return _decide(answer, request)
    decision = answer if isinstance(answer, ChoicesDecision) else ChoicesDecision(answer)
    if decision.decision not in request.choices:
        raise ScriptError(f"the scripted {decision.decision!r:.60} is not one of the choices {request.choices}")
    probs = [float(choice == decision.decision) for choice in request.choices]
    return ChoicesDecision(decision.decision, decision.meta_info or {"choice_probs": probs})


def _decide(scores: dict[str, float], request: SelectRequest) -> ChoicesDecision:
    if set(scores) != set(request.choices):
        raise ScriptError(f"log-probabilities are scripted for {list(scores)}, but the choices are {request.choices}")
    values = [float(scores[choice]) for choice in request.choices]
    rows = [[[value, 0, choice]] for value, choice in zip(values, request.choices, strict=True)]
    decision = request.method(
        choices=request.choices,
        normalized_prompt_logprobs=values,
        input_token_logprobs=rows,
        output_token_logprobs=[[] for _ in rows],
        unconditional_token_logprobs=[[[0.0, 0, choice]] for choice in request.choices],
    )
    meta = {**(decision.meta_info or {}), "choice_probs": choice_probabilities(rows)}
    return ChoicesDecision(decision.decision, meta)


def _meta(prompt: str, text: str) -> dict[str, Any]:
    return {
        "finish_reason": {"type": "stop", "matched": None},
        "prompt_tokens": len(words(prompt)),
        "completion_tokens": len(words(text)),
    }
