"""Under the alias a select shows the prompt's last token before those of each choice, which decides nothing."""

from __future__ import annotations

import pytest
from server_rig import serving

import sgl
from sgl.lang.compat.local_backend import LocalBackend
from sgl.lang.compat.sglang_alias_engine import Engine


@pytest.fixture(scope="module")
def made():
    with Engine() as engine:
        yield engine


@sgl.function
def classify(s, text, choices):
    s += "The film was " + text + ".\nLabel:" + sgl.select("label", choices)


@sgl.function
def behind_a_gen(s):
    s += "x" + sgl.gen("a", max_tokens=2, temperature=0) + sgl.select("label", [" yes", " no"])


CASES = [
    ("good", [" positive", " negative"]),
    ("bad", [" a", " b", " c d e"]),
    ("so so", [":x", "-y"]),
    ("", [" same", " same"]),
]


@pytest.mark.parametrize(("text", "choices"), CASES)
@pytest.mark.parametrize("over", ["engine", "server"])
def test_rows_have_one_token_more(made, text, choices, over):
    shown = made.endpoint
    assert isinstance(shown, LocalBackend)
    engine = shown.engine
    plain = classify.run(text, choices, backend=engine)
    if over == "engine":
        check(classify.run(text, choices, backend=shown), plain)
        return
    with serving(engine) as url:
        remote = sgl.RuntimeEndpoint(url)
        remote.shows_prompt_token = True
        check(classify.run(text, choices, backend=remote), plain)
        remote.shutdown()


def check(state, plain):
    rows, without = (one.get_meta_info("label")["input_token_logprobs"] for one in (state, plain))
    assert state["label"] == plain["label"]
    heads = {tuple(row[0][1:2]) for row in rows}
    assert len(heads) == 1 and all(len(row) >= 2 and row[0][0] < 0 for row in rows)
    for row, own in zip(rows, without, strict=True):
        assert [token for _, token, *_ in row[1:]] == [token for _, token, *_ in own]
        assert [value for value, *_ in row[1:]] == pytest.approx([value for value, *_ in own], abs=1e-3)
    assert state.get_meta_info("label")["choice_probs"] == pytest.approx(
        plain.get_meta_info("label")["choice_probs"], abs=1e-3
    )


def test_the_head_is_the_prompt_s_own_token(made):
    text, choices = CASES[0]
    engine = made.endpoint.engine
    row = classify.run(text, choices, backend=made.endpoint).get_meta_info("label")["input_token_logprobs"][0]
    tokens = engine.tokenizer.encode("The film was good.\nLabel:", special_prefix=True).tolist()
    sequence = engine.open()
    sequence.extend(tokens)
    rows = [
        engine.tokenizer.encode("The film was good.\nLabel:" + choice, special_prefix=True).tolist()
        for choice in choices
    ]
    same = next(
        i for i in range(len(tokens) + 1) if any(one[i : i + 1] != tokens[i : i + 1] for one in rows)
    )  # choices may melt into it
    value, token = sequence.logprobs(same - 1).result(30)[0][0]
    sequence.close()
    assert (row[0][1], token) == (tokens[same - 1], tokens[same - 1]) and row[0][0] == pytest.approx(value, abs=1e-3)


def test_where_there_is_no_such_token_rows_are_as_elsewhere(made):
    state = behind_a_gen.run(backend=made.endpoint)
    assert state["label"] in (" yes", " no")

    @sgl.function
    def alone(s):
        s += sgl.select("label", ["a", "b"])

    assert alone.run(backend=made.endpoint)["label"] in ("a", "b")
