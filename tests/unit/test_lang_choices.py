"""The choice methods against the reference numbers of the specification."""

from __future__ import annotations

import inspect
import math

import pytest

import sgl
from sgl.lang.check import check_source
from sgl.lang.errors import BadValueError, TraceError
from sgl.lang.sampling.choices import ChoicesDecision, ChoicesSamplingMethod, choice_probabilities, mean_logprob

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


# --- methods of one's own, and probabilities by name ---------------------------------------------------------


class Least(sgl.ChoicesMethod):
    """The least likely one."""

    def __init__(self, uses_priors=False):
        self.uses_priors = uses_priors
        self.seen = []

    def choose(self, choices):
        self.seen = choices
        return min(choices, key=lambda choice: choice.prob).text, {"told": len(choices)}


def test_a_method_of_ones_own_sees_choices():
    method = Least()
    made = decide(method)
    assert [choice.text for choice in method.seen] == CHOICES
    assert [choice.prob for choice in method.seen] == pytest.approx(choice_probabilities(rows(LOGPROBS)))
    assert method.seen[1].logprobs == (-0.1, -0.3) and method.seen[1].priors == (0.0, -1.4)
    assert method.seen[1].logprob == pytest.approx(-0.4) and method.seen[1].mean_logprob == pytest.approx(-0.2)
    assert made.decision == CHOICES[2] and made.meta_info["told"] == 3
    assert made.meta_info["normalized_prompt_logprobs"] == [-0.1, -0.2, -0.05]
    assert not method.requires_unconditional_logprobs and Least(uses_priors=True).requires_unconditional_logprobs


def test_a_method_that_chooses_what_is_no_choice_is_told():
    class Odd(sgl.ChoicesMethod):
        def choose(self, choices):
            return "none"

    with pytest.raises(BadValueError, match="<Odd> chose 'none', which is not one of the choices"):
        decide(Odd())


@pytest.mark.parametrize(
    "returned", [None, 0, ("organ", None), ("organ", {}, 1), ["organ", {}], sgl.Choice("organ", (-0.1,), 1.0)]
)
def test_a_method_that_returns_what_is_no_text_is_told(returned):
    class Odd(sgl.ChoicesMethod):
        def choose(self, choices):
            return returned

    with pytest.raises(
        BadValueError, match=r"<Odd>.choose returned .*; return the text of a choice, or \(text, dict\)"
    ):
        decide(Odd())


@sgl.function
def twice(s):
    s += sgl.select("first", ["a", "b", "c"]) + sgl.gen("second", choices=["x", "y", "x"])
    s += sgl.gen("free", max_tokens=2)
    s["own"] = "b"
    forks = s.fork(2)
    forks += sgl.select("part", ["a", "b"])
    forks.join()
    return [fork.probs("part") for fork in forks]


def script():
    return sgl.Scripted(
        {
            "first": {"a": -2.0, "b": -0.2, "c": -4.0},
            "second": {"x": -1.0, "y": -0.5},
            "free": "text",
            "part": {"a": -1.0, "b": -1.0},
        }
    )


def test_probabilities_by_name():
    state = twice.run(backend=script())
    found = state.probs("first")
    assert list(found) == ["b", "a", "c"] and sum(found.values()) == pytest.approx(1)
    assert [found[choice] for choice in "abc"] == pytest.approx(state.get_meta_info("first")["choice_probs"])
    assert set(state.probs("second")) == {"x", "y"} and sum(state.probs("second").values()) == pytest.approx(1)
    assert state.ret_value == [{"a": 0.5, "b": 0.5}] * 2
    for name, message in (("free", "no select made"), ("own", "value was assigned"), ("part", "gathered from forks")):
        with pytest.raises(BadValueError, match=message):
            state.probs(name)
    with pytest.raises(KeyError, match="nothing"):
        state.probs("nothing")


def test_probabilities_in_async_programs_and_traces():
    @sgl.function
    async def one(s):
        s += sgl.select("first", ["a", "b", "c"])
        return await s.probs("first")

    assert list(one.run(backend=script()).ret_value) == ["b", "a", "c"]
    with pytest.raises(TraceError, match="probabilities of 'first', which only a run has"):
        one.trace()
    assert check_source(
        inspect.cleandoc("""
        import sgl
        @sgl.function
        def one(s):
            s += sgl.select("a", ["x", "y"])
            return s.probs("a"), s.probs("b")
    """),
        "a.py",
    )[0].message.startswith("no gen, select or var_scope has made 'b'")


@pytest.mark.parametrize(
    "options", [{"choices": []}, {"choices": ["a"], "regex": "b"}, {"choices": ["a"], "type": int}]
)
def test_choices_of_a_gen_are_enforced_or_refused(options):
    """No choices, or others beside them, must not become free text, or a choice that breaks the regex."""
    with pytest.raises(BadValueError, match="choices"):
        sgl.gen("x", **options)


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -1])
def test_a_choice_is_drawn_at_a_temperature_that_can_be(temperature):
    with pytest.raises(BadValueError, match=str(temperature)):
        sgl.select("x", ["a", "b"], temperature=temperature)


def test_an_error_of_a_select_shows_the_beginning_of_its_choices():
    assert len(repr(sgl.select("x", ["a" * 9000, "b"]))) < 400
