"""`engine.generate(grammar=...)` takes types and schemas as gens do."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel, TypeAdapter

from sgl.grammars import compile_ebnf, compile_regex
from sgl.runtime.engine import Engine
from sgl.runtime.errors import ConfigError


class Invoice(BaseModel):
    paid: bool
    kind: Literal["bill", "receipt"]


@dataclass
class Line:
    paid: bool


@pytest.fixture(scope="module")
def engine():
    with Engine() as opened:
        yield opened


@pytest.mark.parametrize("kind", [Invoice, Line, list[Literal["a", "b"]], Literal["x", "y"]])
def test_types(engine: Engine, kind: Any) -> None:
    options = {"max_tokens": 24, "temperature": 1, "seed": 3, "close_at_limit": True}
    for made in engine.generate(["One:", "Two:"], grammar=kind, **options):
        TypeAdapter(kind).validate_json(made.text)


def test_a_schema_and_a_compiled_grammar(engine: Engine) -> None:
    assert json.loads(engine.generate("x", grammar={"const": "yes"}, max_tokens=8).text) == "yes"
    assert engine.generate("x", grammar=compile_regex("ab", engine.vocabulary), max_tokens=8).text == "ab"


def test_what_is_no_grammar(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="compile_regex"):
        engine.generate("x", grammar=r"\d+")
    with pytest.raises(ConfigError, match="has no JSON schema"):
        engine.generate("x", grammar=Engine)


def test_tokens_as_terminals_are_written_as_such(engine: Engine) -> None:
    vocabulary, special = engine.vocabulary, engine.tokenizer.token_id
    grammar = compile_ebnf("start: /[a-c]{2,4}/ <|tool|> /[4-6]{3}/ <[6-8]>", vocabulary)
    made = engine.generate(
        ["One:", "Two:"], grammar=grammar, max_tokens=20, temperature=1, seed=1, skip_special_tokens=False
    )
    for each in made:
        assert re.fullmatch(r"[a-c]{2,4}<\|tool\|>[4-6]{3}<\|reserved_[0-2]\|>", each.text)
        assert special("<|tool|>") in each.token_ids and each.token_ids[-1] in (6, 7, 8) and not each.truncated


@pytest.mark.parametrize("logprobs", [True, False])  # with them nothing is jumped over
def test_a_token_that_ends_texts_may_stand_within_one(engine: Engine, logprobs: bool) -> None:
    end = engine.tokenizer.eos_ids[0]
    grammar = compile_ebnf('start: "some words" <|end|> "and more" <|user|> <|end|>', engine.vocabulary)
    made = engine.generate("One:", grammar=grammar, max_tokens=40, logprobs=logprobs)
    assert made.text == "some wordsand more" and made.token_ids.count(end) == 2 and made.token_ids[-1] == end
    assert made.finish_reason == {"type": "stop", "matched": None}
    cut = engine.generate("One:", grammar=grammar, max_tokens=5, close_at_limit=True)
    assert cut.truncated and cut.finish_reason["type"] == "length"
    stopped = engine.generate("One:", grammar=grammar, max_tokens=40, stop=("and",))
    assert stopped.text == "some words" and stopped.finish_reason["matched"] == "and"
