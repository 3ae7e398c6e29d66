"""Halves of characters (lone surrogates) are named wherever text comes in; what
is a set is one wherever it is asked for.
"""

from __future__ import annotations

import json

import pydantic
import pytest

import sgl
from sgl.lang.errors import BadValueError, ProgramError
from sgl.lang.sampling.options import schema_text
from sgl.runtime.errors import ConfigError
from sgl.runtime.sampling.sampling_params import SamplingParams

HALF = "ab\ud800"


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine(threads=1, dtype="float32") as opened:
        yield opened


@pytest.mark.parametrize(
    "node",
    [
        lambda: sgl.user(HALF),
        lambda: sgl.system("x" + HALF),
        lambda: sgl.tool({"a": HALF}),
        lambda: sgl.plain(HALF),
        lambda: HALF,
        lambda: sgl.special(HALF),
        lambda: sgl.messages([{"role": "user", "content": HALF}]),
        lambda: "x" + sgl.gen("a") + HALF,
    ],
)
@pytest.mark.parametrize("way", ["run", "compiled"])
def test_appended(engine, node, way):
    @sgl.function
    def program(s):
        s += node()
        s += sgl.gen("b", max_tokens=1)

    with pytest.raises(
        ProgramError, match=r"not valid Unicode: it has an? (lone|unpaired) surrogate, '\\ud800', at position \d"
    ):
        state = program.run(backend=engine) if way == "run" else program.compile(engine).run()
        state["b"]


@pytest.mark.parametrize(
    "options", [{"stop": HALF}, {"stop": ["x", HALF]}, {"stop_regex": HALF}, {"choices": ["x", HALF]}]
)
def test_options(options):
    with pytest.raises(BadValueError, match=r"not valid Unicode: it has an? (lone|unpaired) surrogate"):
        sgl.gen("a", **options)


def test_the_engine_s_own_calls(engine):
    for call in (engine.generate, engine.embed):
        with pytest.raises(ConfigError, match=r"not valid Unicode: it has an? (lone|unpaired) surrogate"):
            call(HALF)
    with pytest.raises(ConfigError, match="a stop is not valid Unicode"):
        SamplingParams(stop=(HALF,)).validate()


class Tagged(pydantic.BaseModel):
    uniqueItems: set[str]
    more: list[set[int]]


def test_a_set_is_the_same_as_a_type_and_as_a_schema(engine):
    assert "uniqueItems" not in json.dumps(json.loads(schema_text(Tagged))["properties"]["more"])

    @sgl.function
    def program(s, options):
        s += "x" + sgl.gen("a", max_tokens=40, temperature=0, close_at_limit=True, **options)

    texts = {program.run(options, backend=engine)["a"] for options in ({"type": Tagged}, {"json_schema": Tagged})}
    assert all(isinstance(Tagged.model_validate_json(text), Tagged) for text in texts)
    sized = schema_text(
        type("Sized", (pydantic.BaseModel,), {"__annotations__": {"a": "set[str]"}, "a": pydantic.Field(min_length=2)})
    )
    assert '"uniqueItems": true' in sized
