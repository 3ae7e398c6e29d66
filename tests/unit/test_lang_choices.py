"""The choice methods against the reference numbers of the specification."""

from __future__ import annotations

import math

import pytest

import sgl
from sgl.lang.choices import ChoicesDecision, ChoicesSamplingMethod, choice_probabilities, mean_logprob

CHOICES = ["organ", "organism", "antidisestablishmentarianism"]
LOGPROBS = [[-0.1], [-0.1, -0.3], [-0.4, -0.25, -0.1] + [-0.01] * 5]
UNCONDITIONAL = [[None], [None, -1.4], [None, -0.25, -0.1] + [-0.01] * 5]


def rows(values):
    return [[[value, token, None] for token, value in enumerate(row)] for row in values]


def decide(method):
    return method(
        choices=CHOICES,
        normalized_prompt_logprobs=[-0.1, -0.2, -0.05],
        input_token_logprobs=rows(LOGPROBS),
        output_token_logprobs=rows(LOGPROBS),
        unconditional_token_logprobs=rows(UNCONDITIONAL),
    )


def test_token_length_normalized():
    made = decide(sgl.token_length_normalized)
    assert made.decision == "antidisestablishmentarianism"
    assert made.meta_info["normalized_prompt_logprobs"] == [-0.1, -0.2, -0.05]
    assert made.meta_info["input_token_logprobs"] == rows(LOGPROBS)


def test_greedy_token_selection():
    made = decide(sgl.greedy_token_selection)
    assert made.decision == "organ"
    matrix = made.meta_info["greedy_logprob_matrix"]
    assert matrix[0] == [-0.1] * 8 and matrix[2] == LOGPROBS[2]
    assert matrix[1] == pytest.approx([-0.1, -0.3] + [-0.2] * 6)


def test_unconditional_likelihood_normalized():
    made = decide(sgl.unconditional_likelihood_normalized)
    assert made.decision == "organism"
    assert made.meta_info["normalized_unconditional_prompt_logprobs"] == pytest.approx([-0.1, 0.5, -0.05])
    assert sgl.unconditional_likelihood_normalized.requires_unconditional_logprobs
    assert not sgl.token_length_normalized.requires_unconditional_logprobs


@pytest.mark.parametrize("method", [sgl.token_length_normalized, sgl.greedy_token_selection])
def test_the_first_of_equals_wins(method):
    same = rows([[-1.0], [-1.0]])
    made = method(
        choices=["b", "a"],
        normalized_prompt_logprobs=[-1.0, -1.0],
        input_token_logprobs=same,
        output_token_logprobs=same,
    )
    assert made.decision == "b"


def test_probabilities_and_means():
    assert choice_probabilities(rows([[math.log(0.2)], [math.log(0.3), math.log(0.5)]])) == pytest.approx(
        [4 / 7, 3 / 7]
    )
    assert choice_probabilities([[], rows([[-1.0]])[0]]) == [0.0, 1.0]
    assert mean_logprob(rows([[None, -1.0, -3.0]])[0]) == -2.0 and mean_logprob([]) == -math.inf


def test_own_methods_are_instances():
    class First(ChoicesSamplingMethod):
        def __call__(self, *, choices, **_):
            return ChoicesDecision(choices[0])

    assert sgl.select("a", ["x"], choices_method=First()).choices == ["x"]
    with pytest.raises(ValueError, match="instance"):
        sgl.select("a", ["x"], choices_method=First)
