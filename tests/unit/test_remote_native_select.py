"""select over the native protocol: brute force over the toy model is the oracle."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from api_toy import write
from native_server import pieces_of, rows_of

import sgl
from sgl.lang.backend import SelectRequest
from sgl.lang.backends.native import native_select as native_select
from sgl.lang.backends.native.runtime_endpoint import RuntimeEndpoint
from sgl.lang.errors import UnsupportedByBackendError
from sgl.lang.sampling.choices import draw, tempered

pytest_plugins = ("native_rig",)

METHODS = [
    sgl.token_length_normalized,
    sgl.greedy_token_selection,
    sgl.unconditional_likelihood_normalized,
]
MELTING = [
    ("Is it? ", ["yes", "no", "maybe so"]),
    ("x abc", ["def", " x", "d e"]),  # the choice goes on with the last token of the prompt
    ("a <=", [">", "b", "> c"]),  # two tokens of the prompt melt into one
    ("Q: 1\nA:", ["", " 1", " 2 2"]),
    ("twice: ", ["same", "same", "other"]),
    ("long " * 40 + "a <=", ["> x", ">", " y"]),
]


def brute_force(prompt: str, choices: list[str]) -> list[list[list[Any]]]:
    """The rows that are to be scored, from the toy model itself."""
    rows = [rows_of(prompt + choice) for choice in choices]
    tokens = [pieces_of(prompt), *([row[2] for row in part] for part in rows)]
    start = 0
    while all(len(part) > start for part in tokens) and len({part[start] for part in tokens}) == 1:
        start += 1
    return [part[start:] for part in rows]


def head_scores_of(method: Any, rows: list[list[list[Any]]]) -> list[Any]:
    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else -math.inf

    given = [[row[0] for row in part] for part in rows]
    if method is sgl.token_length_normalized:
        return [mean(values) for values in given]
    if method is sgl.unconditional_likelihood_normalized:
        alone = [[row[0] or 0.0 for row in rows_of("".join(row[2] for row in part))] for part in rows]
        return [mean([a - b for a, b in zip(x, y, strict=True)]) for x, y in zip(given, alone, strict=True)]
    width = max(map(len, given))
    return [values + [mean(values)] * (width - len(values)) for values in given]  # compared token by token


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize(("prompt", "choices"), MELTING, ids=[prompt[-8:] for prompt, _ in MELTING])
def test_select_is_what_brute_force_says(
    endpoint: RuntimeEndpoint, prompt: str, choices: list[str], method: Any
) -> None:
    stream = endpoint.open()
    stream.append(prompt)
    decision = stream.select(SelectRequest(choices, method)).result(10)
    rows = brute_force(prompt, choices)
    scores = head_scores_of(method, rows)
    assert decision.decision == choices[max(range(len(choices)), key=scores.__getitem__)]
    meta = decision.meta_info or {}
    assert meta["input_token_logprobs"] == rows
    sums = [math.exp(sum(row[0] for row in part)) if part else 0.0 for part in rows]
    assert meta["choice_probs"] == pytest.approx([value / sum(sums) for value in sums])
    assert meta["prompt_tokens"] >= sum(len(pieces_of(prompt + choice)) for choice in choices)


def test_random_selects(endpoint: RuntimeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the smallest windows, so that the search for the start has to widen them."""
    monkeypatch.setattr(native_select, "WINDOWS", (1, 3))
    rng = random.Random(5)
    for _ in range(20):
        prompt = "x " + "".join(rng.choice("ab <=>1") for _ in range(rng.randint(1, 9)))
        choices = ["".join(rng.choice("ab <=>1") for _ in range(rng.randint(1, 5))) for _ in range(3)]
        stream = endpoint.open()
        stream.append(prompt)
        meta = stream.select(SelectRequest(choices, METHODS[0])).result(10).meta_info or {}
        assert meta["input_token_logprobs"] == brute_force(prompt, choices), (prompt, choices)


def test_the_end_of_a_turn_is_scored_and_not_appended(endpoint: RuntimeEndpoint) -> None:
    choices = ["art", "artist", "zoo"]
    stream = endpoint.open()
    stream.append("Is it? ")
    decision = stream.select(SelectRequest(choices, sgl.answer_likelihood, end=" end.")).result(10)
    rows = brute_force("Is it? ", [choice + " end." for choice in choices])
    meta = decision.meta_info or {}
    assert meta["input_token_logprobs"] == rows
    sums = [sum(row[0] for row in part) for part in rows]
    assert decision.decision == choices[sums.index(max(sums))]
    stream.append("?")
    again = stream.select(SelectRequest(["a", "b"], METHODS[0])).result(10).meta_info or {}
    assert again["input_token_logprobs"] == brute_force(f"Is it? {decision.decision}?", ["a", "b"])


def test_select_in_a_program(endpoint: RuntimeEndpoint) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "Sky: " + sgl.select("c", ["blue", "green", "red"]) + ", said " + sgl.gen("a", max_tokens=5)

    for stream in (False, True):
        state = program.run(backend=endpoint, stream=stream)
        assert state["c"] in ("blue", "green", "red")
        assert state["a"] == write(f"Sky: {state['c']}, said ", 5).text


def test_select_draws_by_its_seed(endpoint: RuntimeEndpoint) -> None:
    choices = ["yes", "no", "perhaps"]
    drawn = []
    for seed in range(15):
        stream = endpoint.open()
        stream.append("Is it? ")
        decision = stream.select(SelectRequest(choices, METHODS[0], 2.0, seed=seed)).result(10)
        probabilities = (decision.meta_info or {})["choice_probs"]
        assert decision.decision == choices[draw(tempered(probabilities, 2.0), seed)]
        drawn.append(decision.decision)
    assert len(set(drawn)) > 1


def test_draws_follow_the_weights() -> None:
    counts = [0, 0, 0]
    for seed in range(3000):
        counts[draw([1.0, 3.0, 0.0], seed)] += 1
    assert counts[2] == 0 and 650 < counts[0] < 850
    assert tempered([0.8, 0.2], 1.0) == pytest.approx([1.0, 0.25])
    assert tempered([0.8, 0.2], 0.5) == pytest.approx([1.0, 0.0625])


def test_select_that_cannot_be_scored_says_so(endpoint: RuntimeEndpoint) -> None:
    for prompt, words in (("", "nothing before it"), ("ab", "merge with the first token of the prompt")):
        stream = endpoint.open()
        stream.append(prompt)
        with pytest.raises(UnsupportedByBackendError, match=words):
            stream.select(SelectRequest(["cd", "x"], METHODS[0])).result(10)
