"""`engine.generate(grammar=...)` takes types and schemas as gens do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel, TypeAdapter

from sgl.grammars import compile_regex
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
