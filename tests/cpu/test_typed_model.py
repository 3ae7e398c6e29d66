"""Typed results of the bundled model: whatever it writes, at any temperature, is a value of the type;
what a limit cuts is closed where that is asked for.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import warnings
from typing import Literal

import pytest
from pydantic import BaseModel, Field

import sgl
from sgl.lang.errors import ProgramError
from sgl.runtime.nano import nano_prompts


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclasses.dataclass
class Order:
    dish: str
    count: int
    size: Size
    when: datetime.date | None = None


class Guest(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, lt=120)


KINDS = [
    int,
    float,
    bool,
    Literal["red", "green"],
    Size,
    Order,
    Guest,
    list[int],
    dict[str, bool],
    tuple[int, str],
    datetime.datetime,
]


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine() as made:
        yield made


@sgl.function
def guess(s, kind, limit):
    s += sgl.system(nano_prompts.CHAT_TASK) + sgl.user("Tell me something.")
    s += sgl.assistant(sgl.gen("x", kind, max_tokens=limit))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_text_has_a_value(engine, kind):
    runs = [{"kind": kind, "limit": limit} for limit in (1, 2, 5, 12, 40)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*reached its limit and was closed")
        states = guess.run_batch(runs, backend=engine, temperature=1.5, seed=3, close_at_limit=True)
    for state in states:
        value = state.get("x")
        assert isinstance(state["x"], str)
        if isinstance(kind, type):
            assert isinstance(value, kind)


def test_a_document_becomes_a_dataclass(engine):
    @sgl.function
    def extract(s, text):
        fields = nano_prompts.fields_of({"properties": {"name": {}, "age": {"type": "integer"}}})
        for message in nano_prompts.extraction(fields, text):
            s += sgl.system(message["content"]) if message["role"] == "system" else sgl.user(message["content"])
        s += sgl.assistant(sgl.gen("guest", Guest, max_tokens=60))

    assert extract.run("My name is Anna and I am 34 years old.", backend=engine, temperature=0).get("guest") == Guest(
        name="Anna", age=34
    )


def test_the_text_can_be_read_as_another_type_later(engine):
    state = guess.run(int, 4, backend=engine, temperature=0)
    assert state.get("x", float) == float(state.get("x")) and state.get("x", str) == state["x"]
    with pytest.raises(ProgramError, match="'x' has no value of the type it was asked for: expected Size"):
        state.get("x", Size)


def test_several_samples_are_several_values(engine):
    @sgl.function
    def several(s):
        s += "A number: " + sgl.gen("x", int, n=3)

    values = several.run(backend=engine, temperature=1.0, seed=1).get("x")
    assert len(values) == 3 and all(isinstance(value, int) for value in values)


def test_async_programs_await_values(engine):
    import asyncio

    @sgl.function
    async def later(s):
        s += "A colour: " + sgl.gen("x", Size)
        return await s.get("x")

    assert asyncio.run(later.arun(backend=engine)).ret_value in Size
