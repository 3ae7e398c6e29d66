"""Log-probabilities among what a grammar allows, of the bundled model, against masks and logits by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from sgl.grammars import Grammar, compile_json_schema
from sgl.runtime.engine import Engine
from sgl.runtime.nano import nano_prompts
from sgl.runtime.sampling.token_masks import unpack

FIELDS = {"city": {"type": "string"}, "guests": {"type": "integer"}, "kind": {"enum": ["single", "double"]}}
SCHEMA = {"type": "object", "properties": FIELDS, "required": [*FIELDS], "additionalProperties": False}
TEXT = "Something for us in town, please."  # says none of it: the model has to guess
PROMPT = nano_prompts.START + nano_prompts.render(
    [*nano_prompts.extraction(nano_prompts.fields_of(SCHEMA), TEXT), nano_prompts.message("assistant", "")]
).removesuffix(nano_prompts.END)


@pytest.fixture(scope="module", params=[True, False], ids=["jumping", "token by token"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(jump_forward=request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def grammar(engine: Engine) -> Grammar:
    return compile_json_schema(json.dumps(SCHEMA), engine.vocabulary)


def expected(engine: Engine, grammar: Grammar, tokens: list[int]) -> list[float]:
    """The share of each token among those that the grammar allows at its place."""
    prompt = engine.tokenizer.encode(PROMPT).tolist()
    width = len(engine.tokenizer.token_bytes)
    sequence, matcher, shares = engine.open(), grammar.matcher(), []
    sequence.extend(np.array(prompt + tokens, np.int32))
    for token, row in zip(tokens, sequence.logprobs(len(prompt), top=width).result(60)[1], strict=True):
        raw = np.full(width, -np.inf)
        raw[[other for _, other in row]] = [value for value, _ in row]
        raw[~unpack(matcher.mask(), width)] = -np.inf
        shares.append(float(raw[token] - np.logaddexp.reduce(raw)))
        matcher.accept(token)
    return shares


def test_shares_among_what_the_grammar_allows(engine: Engine, grammar: Grammar) -> None:
    made = engine.generate(
        PROMPT, grammar=grammar, max_tokens=60, temperature=0, masked_logprobs=True, logprobs=True, top_logprobs=3
    )
    assert [token for _, token in made.logprobs] == made.token_ids
    oracle = expected(engine, grammar, made.token_ids)
    pairs = [(logprob, share) for (logprob, _), share in zip(made.logprobs, oracle, strict=True)]
    assert any(logprob < -0.1 for logprob, _ in pairs)
    forced = [logprob == 0 for logprob, share in pairs if abs(logprob - share) > 1e-3]
    assert all(forced) and len(forced) <= made.forced_tokens
    assert (made.forced_tokens > 0) == engine.config.jump_forward
    for (logprob, token), top in zip(made.logprobs, made.top_logprobs, strict=True):
        assert top[0] == (pytest.approx(logprob, abs=1e-4), token)


def test_the_text_is_the_same_as_without_them(engine: Engine, grammar: Grammar) -> None:
    options = {"grammar": grammar, "max_tokens": 60, "temperature": 0}
    made = engine.generate(PROMPT, masked_logprobs=True, logprobs=True, **options)
    assert made.token_ids == engine.generate(PROMPT, **options).token_ids
    raw = engine.generate(PROMPT, logprobs=True, **options)
    assert raw.forced_tokens == 0  # each token has a probability of its own


def test_without_a_grammar_they_are_those_of_the_model(engine: Engine) -> None:
    options = {"max_tokens": 5, "temperature": 0, "logprobs": True}
    made = engine.generate("Hello", masked_logprobs=True, **options)
    assert made.logprobs == engine.generate("Hello", **options).logprobs
