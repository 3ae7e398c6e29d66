"""Typed questions about a text, and their answers: the kinds, names and fields of OpenAI's `decisions` resource."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NotRequired, TypeAlias, TypedDict

from sgl.lang.errors import BadValueError, UnsupportedByBackendError, shown

from .label_values import LabelValues, concentration

YES, NO = "yes", "no"


class PredicateParam(TypedDict):
    """`sgl.predicate` as a dict."""

    type: Literal["predicate"]
    instructions: str
    name: NotRequired[str]


class OptionParam(TypedDict):
    value: str | bool
    description: NotRequired[str]


class ChoiceParam(TypedDict):
    """`sgl.choice` as a dict."""

    type: Literal["choice"]
    instructions: str
    choices: list[OptionParam]
    name: NotRequired[str]


class LevelParam(TypedDict):
    label: str
    description: NotRequired[str]


class ScoreParam(TypedDict):
    """`sgl.score` as a dict."""

    type: Literal["score"]
    instructions: str
    levels: list[LevelParam]
    name: NotRequired[str]


QuestionParam: TypeAlias = PredicateParam | ChoiceParam | ScoreParam


@dataclass(frozen=True)
class PredicateAnswer:
    """`probability`: how likely the statement is true."""

    name: str | None
    probability: float
    type: Literal["predicate"] = "predicate"


@dataclass(frozen=True)
class ChoiceProbability:
    value: Any
    probability: float


@dataclass(frozen=True)
class ChoiceAnswer:
    """`choice`: the most likely value. `confidence`: 0 where all choices are equally likely, 1 where one is certain."""

    name: str | None
    choice: Any
    confidence: float
    probabilities: list[ChoiceProbability]
    type: Literal["choice"] = "choice"


@dataclass(frozen=True)
class ScoreProbability:
    label: str
    value: int
    probability: float


@dataclass(frozen=True)
class ScoreAnswer:
    """`score`: the expected level, a number from 0 to the number of levels - 1. `confidence`: as of a choice."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[ScoreProbability]
    type: Literal["score"] = "score"


Answer: TypeAlias = PredicateAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True)
class Predicate:
    """A statement about the text that is true or not. `sgl.predicate` makes it."""

    instructions: str
    name: str | None = None
    type: ClassVar[str] = "predicate"

    @property
    def task(self) -> str:
        return f"Is this true? {self.instructions}"

    @property
    def labels(self) -> dict[str, str | None]:
        return {YES: None, NO: None}

    def answer(self, probs: Mapping[str, float]) -> PredicateAnswer:
        """The answer, from the probability of each label."""
        return PredicateAnswer(self.name, probs[YES])


@dataclass(frozen=True)
class ChoiceQuestion:
    """One of several values. `sgl.choice` makes it."""

    instructions: str
    choices: LabelValues
    name: str | None = None
    type: ClassVar[str] = "choice"

    @property
    def task(self) -> str:
        return self.instructions

    @property
    def labels(self) -> dict[str, str | None]:
        return self.choices.about

    def answer(self, probs: Mapping[str, float]) -> ChoiceAnswer:
        """The answer, from the probability of each label. Probabilities are in the order of the choices."""
        listed = [ChoiceProbability(value, probs[text]) for text, value in self.choices.values.items()]
        best = max(listed, key=lambda item: item.probability)
        return ChoiceAnswer(self.name, best.value, concentration([item.probability for item in listed]), listed)


@dataclass(frozen=True)
class ScoreQuestion:
    """One of several ordered levels, the lowest first. `sgl.score` makes it."""

    instructions: str
    levels: LabelValues
    name: str | None = None
    type: ClassVar[str] = "score"

    @property
    def task(self) -> str:
        return self.instructions

    @property
    def labels(self) -> dict[str, str | None]:
        return self.levels.about

    def answer(self, probs: Mapping[str, float]) -> ScoreAnswer:
        """The answer, from the probability of each label. Probabilities are in the order of the levels."""
        listed = [ScoreProbability(text, value, probs[text]) for value, text in enumerate(self.labels)]
        score = math.fsum(item.value * item.probability for item in listed)
        return ScoreAnswer(self.name, score, concentration([item.probability for item in listed]), listed)


Question: TypeAlias = Predicate | ChoiceQuestion | ScoreQuestion


def predicate(instructions: str, *, name: str | None = None) -> Predicate:
    """A statement about the text; the answer is the probability that it is true. Raises BadValueError."""
    return Predicate(_instructions("predicate", instructions), _name("predicate", name))


def choice(instructions: str, choices: Any, *, name: str | None = None) -> ChoiceQuestion:
    """A question with several possible answers.

    choices: at least two: a list of texts, a dict of texts with what each means, an Enum class, a Literal or bool. The
    answer's `choice` is a text, or the member or value of the type. Raises BadValueError.
    """
    asked = _instructions("choice", instructions)
    return ChoiceQuestion(asked, LabelValues.of(f"choice({shown(asked)})", choices), _name("choice", name))


def score(instructions: str, levels: Any, *, name: str | None = None) -> ScoreQuestion:
    """A rating by ordered levels, the lowest first; the answer is the expected level, which counts from 0.

    levels: at least two: a list of texts, or a dict of texts with what each means. Raises BadValueError.
    """
    asked = _instructions("score", instructions)
    return ScoreQuestion(asked, LabelValues.of(f"score({shown(asked)})", levels), _name("score", name))


def question_of(given: Any, place: str) -> Question:
    """A question as it is, or of a dict with `type`, as OpenAI's API takes it. Raises BadValueError, which names the
    place."""
    if isinstance(given, Predicate | ChoiceQuestion | ScoreQuestion):
        return given
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind not in _KEYS:
        raise BadValueError(
            f"{place} is {shown(given)}; give sgl.predicate(...), sgl.choice(...) or sgl.score(...), or a dict whose "
            "type is one of these names"
        )
    _check_keys(place, given, {"type", "instructions", "name", *_KEYS[kind]}, {"instructions", *_KEYS[kind]})
    asked, name = _instructions(place, given["instructions"]), _name(place, given.get("name"))
    if kind == "predicate":
        return Predicate(asked, name)
    if kind == "score":
        levels = _listed(place, given["levels"], "levels", "label")
        return ScoreQuestion(asked, LabelValues.of(place, levels), name)
    return ChoiceQuestion(asked, _typed_choices(place, given["choices"]), name)


_KEYS: dict[Any, tuple[str, ...]] = {"predicate": (), "choice": ("choices",), "score": ("levels",)}


def _typed_choices(place: str, given: Any) -> LabelValues:
    """Values are texts or booleans: `true` and "true" are two choices. A boolean is written True or False; where a text
    says that already, true or false."""
    found = _listed(place, given, "choices", "value")
    texts = {value for value in found if isinstance(value, str)}
    named = {value: _text_of(place, value, texts) for value in found}
    labels = LabelValues.of(place, {named[value]: about for value, about in found.items()})
    return LabelValues(labels.about, {text: value for value, text in named.items()})


def _text_of(place: str, value: str | bool, taken: set[str]) -> str:
    if isinstance(value, str):
        return value
    free = [text for text in (str(value), str(value).lower()) if text not in taken]
    if not free:
        raise BadValueError(f"{place}: with 'True' and 'true' there is no third way to write {value}; change a text")
    return free[0]


def _listed(place: str, given: Any, name: str, key: str) -> dict[Any, str | None]:
    """The descriptions of a list of dicts by what they describe."""
    if not isinstance(given, list | tuple):
        raise BadValueError(f"{place}: {name} is {shown(given)}; give a list of dicts with {key!r}")
    found: dict[Any, str | None] = {}
    for item in given:
        _check_keys(f"{place}: one of {name}", item, {key, "description"}, {key})
        value = item[key]
        if not isinstance(value, str | bool if key == "value" else str):
            raise BadValueError(f"{place}: {key} of one of {name} is {shown(value)}; give a text")
        if value in found:
            raise BadValueError(f"{place}: {shown(value)} is there twice in {name}; leave one out")
        found[value] = item.get("description")
    return found


def _check_keys(place: str, given: Any, known: set[str], needed: set[str]) -> None:
    if not isinstance(given, Mapping):
        raise BadValueError(f"{place} is {shown(given)}; give a dict with {', '.join(sorted(known))}")
    if unknown := given.keys() - known:
        raise BadValueError(f"{place} has {shown(sorted(unknown)[0])}; it may have {', '.join(sorted(known))}")
    if missing := needed - given.keys():
        raise BadValueError(f"{place} has no {sorted(missing)[0]!r}; add it")


def _instructions(place: str, given: Any) -> str:
    if isinstance(given, list | tuple):
        raise UnsupportedByBackendError(f"{place}: instructions is a list of parts; give one text")
    if not isinstance(given, str) or not given.strip():
        raise BadValueError(f"{place}: instructions is {shown(given)}; give a text that says what is asked")
    return given


def _name(place: str, given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise BadValueError(f"{place}: name is {shown(given)}; give a text, or leave it out")
    return given
