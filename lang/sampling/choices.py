"""How `select` decides: each method turns the log-probabilities of the choices into one of them."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..errors import BadValueError

GREEDY = 1e-5  # temperatures up to this take the best choice
TokenLogprob = list[Any]  # (log-probability or None, token id, text or None)


@dataclass
class ChoicesDecision:
    """The chosen text and what is to be known about the decision."""

    decision: str
    meta_info: dict[str, Any] | None = field(default=None)


class ChoicesSamplingMethod(ABC):
    """Base of the methods. Instances, not classes, are given to `select`."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """True if the method also wants the log-probabilities of the choices without the prompt."""
        return False

    def scores_end(self, choices: Sequence[str]) -> bool:
        """Whether each of these choices is scored together with the end of the turn after it."""
        return False

    @abstractmethod
    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenLogprob]],
        output_token_logprobs: list[list[TokenLogprob]],
        unconditional_token_logprobs: list[list[TokenLogprob]] | None = None,
    ) -> ChoicesDecision:
        """Decide. Rows of the inputs belong to the choices; a token is (log-probability, id, text)."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


@dataclass(frozen=True)
class Choice:
    """One choice of a `select`, as scored by the model.

    logprobs: the log-probability of each token after the prompt. priors: the same without the prompt, for methods
    with `uses_priors`; 0 for a first token with nothing before it. prob: the choice's probability among the choices.
    """

    text: str
    logprobs: tuple[float, ...]
    prob: float
    priors: tuple[float, ...] = ()

    @property
    def logprob(self) -> float:
        """Log-probability of the whole choice: the sum over its tokens; -inf without tokens."""
        return sum(self.logprobs) if self.logprobs else -math.inf

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability per token: the score of `token_length_normalized`."""
        return _mean(self.logprobs)


class ChoicesMethod(ChoicesSamplingMethod):
    """Base class for your own methods: define `choose` and pass an instance to `select` as `choices_method`."""

    uses_priors = False

    @abstractmethod
    def choose(self, choices: list[Choice]) -> str | tuple[str, dict[str, Any]]:
        """Return the chosen text, or a tuple of it and a dict that is added to the select's meta_info."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return self.uses_priors

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenLogprob]],
        output_token_logprobs: list[list[TokenLogprob]],
        unconditional_token_logprobs: list[list[TokenLogprob]] | None = None,
    ) -> ChoicesDecision:
        priors = unconditional_token_logprobs or [[] for _ in choices]
        probs = choice_probabilities(input_token_logprobs)
        rows = zip(choices, input_token_logprobs, probs, priors, strict=True)
        chosen = self.choose(
            [Choice(text, _known(row), prob, tuple(_values(prior))) for text, row, prob, prior in rows]
        )
        text, extras = self._read(chosen)
        if text not in choices:
            raise BadValueError(f"{self!r} chose {text!r}, which is not one of the choices {choices}")
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        return ChoicesDecision(text, {**meta, **extras})

    def _read(self, chosen: Any) -> tuple[str, Mapping[str, Any]]:
        """What `choose` returned. Raises BadValueError for anything but a text, alone or with a dict."""
        text, extras = chosen if isinstance(chosen, tuple) and len(chosen) == 2 else (chosen, {})
        if not isinstance(text, str) or not isinstance(extras, Mapping):
            raise BadValueError(
                f"{self!r}.choose returned {chosen!r:.120}; return the text of a choice, or (text, dict)"
            )
        return text, extras


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The choice with the highest mean log-probability per token; on a tie, the first."""

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenLogprob]],
        output_token_logprobs: list[list[TokenLogprob]],
        unconditional_token_logprobs: list[list[TokenLogprob]] | None = None,
    ) -> ChoicesDecision:
        best = _argmax(normalized_prompt_logprobs)
        return ChoicesDecision(
            choices[best], _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        )


class AnswerLikelihood(ChoicesSamplingMethod):
    """The choice that is most likely the answer: the highest sum of log-probabilities; on a tie, the first.

    The order of `state.probs` is that of this method. Where one choice is the beginning of another ("art", "artist"),
    all are scored with the end of the turn after them: else the shorter one would count as written whenever the longer
    one is.
    """

    def scores_end(self, choices: Sequence[str]) -> bool:
        ordered = sorted(set(choices))  # what a text begins is right after it
        return any(longer.startswith(shorter) for shorter, longer in pairwise(ordered))

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenLogprob]],
        output_token_logprobs: list[list[TokenLogprob]],
        unconditional_token_logprobs: list[list[TokenLogprob]] | None = None,
    ) -> ChoicesDecision:
        best = _argmax(choice_probabilities(input_token_logprobs))
        return ChoicesDecision(
            choices[best], _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        )


class GreedyTokenSelection(ChoicesSamplingMethod):
    """Compare the choices token by token and keep the most likely ones until one is left.

    A choice with fewer tokens than the longest is padded with the mean of its tokens.
    """

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenLogprob]],
        output_token_logprobs: list[list[TokenLogprob]],
        unconditional_token_logprobs: list[list[TokenLogprob]] | None = None,
    ) -> ChoicesDecision:
        rows = [_values(tokens) for tokens in input_token_logprobs]
        width = max(map(len, rows), default=0)
        matrix = [row + [_mean(row)] * (width - len(row)) for row in rows]
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        return ChoicesDecision(choices[_greedy(matrix)], {**meta, "greedy_logprob_matrix": matrix})


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The choice that gains most from the prompt: mean of conditional minus unconditional log-probability."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return True

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[TokenLogprob]],
        output_token_logprobs: list[list[TokenLogprob]],
        unconditional_token_logprobs: list[list[TokenLogprob]] | None = None,
    ) -> ChoicesDecision:
        if unconditional_token_logprobs is None:
            raise ValueError("unconditional_likelihood_normalized needs unconditional_token_logprobs")
        scores = [
            _mean([given - prior for given, prior in zip(_values(tokens), _values(priors), strict=True)])
            for tokens, priors in zip(input_token_logprobs, unconditional_token_logprobs, strict=True)
        ]
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs) | {
            "unconditional_token_logprobs": unconditional_token_logprobs,
            "normalized_unconditional_prompt_logprobs": scores,
        }
        return ChoicesDecision(choices[_argmax(scores)], meta)


def mean_logprob(tokens: Sequence[TokenLogprob]) -> float:
    """Mean over the tokens that have a log-probability; -inf for a choice without tokens."""
    return _mean([token[0] for token in tokens if token[0] is not None])


def choice_probabilities(rows: Sequence[Sequence[TokenLogprob]]) -> list[float]:
    """P(choice | prompt, the answer is one of the choices), from the sums of the log-probabilities."""
    sums = [sum(_values(row)) if row else -math.inf for row in rows]
    top = max(sums, default=-math.inf)
    if top == -math.inf:
        return [1.0 / len(sums)] * len(sums)
    weights = [math.exp(value - top) for value in sums]
    return [weight / sum(weights) for weight in weights]


def draw(weights: Sequence[float], seed: int | None = None) -> int:
    """The index of one of the weights, drawn in proportion to them: by `seed` if that is given."""
    return random.Random(seed).choices(range(len(weights)), weights)[0]


def tempered(probabilities: Sequence[float], temperature: float) -> list[float]:
    """Weights in proportion to p ** (1 / temperature); the largest is 1. `temperature` is above 0."""
    top = max(probabilities)
    return [(value / top) ** (1 / temperature) if top else 1.0 for value in probabilities]


def _greedy(matrix: list[list[float]]) -> int:
    remaining = list(range(len(matrix)))
    for column in zip(*matrix, strict=True):
        best = max(column[row] for row in remaining)
        remaining = [row for row in remaining if column[row] == best]
        if len(remaining) == 1:
            break
    return remaining[0]


def _values(tokens: Sequence[TokenLogprob]) -> list[float]:
    return [0.0 if token[0] is None else token[0] for token in tokens]


def _known(tokens: Sequence[TokenLogprob]) -> tuple[float, ...]:
    return tuple(token[0] for token in tokens if token[0] is not None)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else -math.inf


def _argmax(values: list[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _meta(
    normalized: list[float], inputs: list[list[TokenLogprob]], outputs: list[list[TokenLogprob]]
) -> dict[str, Any]:
    return {"normalized_prompt_logprobs": normalized, "input_token_logprobs": inputs, "output_token_logprobs": outputs}


token_length_normalized = TokenLengthNormalized()
answer_likelihood = AnswerLikelihood()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()
