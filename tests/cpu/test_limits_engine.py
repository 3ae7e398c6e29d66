"""Limits on the engine: a typed text that one of them cuts is an error, of the whole text there is the value.

The oracle: with the same seed, what a run without a limit writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import httpx
import pytest
from pydantic import BaseModel, Field
from server_rig import serving

import sgl
from sgl.lang.errors import ProgramError
from sgl.runtime.errors import TruncatedError

Name = Annotated[str, Field(max_length=6)]


@dataclass
class Order:
    customer: Name
    total: float
    paid: bool


class Guest(BaseModel):
    name: Name
    age: Annotated[int, Field(ge=0, le=999)]


class Place(TypedDict):
    city: Name
    note: Name | None


class Size(Enum):
    SMALL = "small"
    SMALLEST = "smallest"


KINDS: dict[str, Any] = {
    "dataclass": Order,
    "pydantic": Guest,
    "typed dict": Place,
    "int": int,
    "list": Annotated[list[Literal["a", "bb"]], Field(max_length=4)],
    "optional": Name | None,
    "enum": Size,
    "literal": Literal[1, 12, 123],
    "date": date,
}


@sgl.function
def ask(s, kind, **options):
    s += "Give one: " + sgl.gen("a", kind, **options) + " thanks"


@pytest.fixture(scope="module")
def engine() -> Iterator[sgl.Engine]:
    with sgl.Engine(threads=1, context=512) as made:
        yield made


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_length(engine: sgl.Engine, kind: str) -> None:
    options = {"backend": engine, "seed": 3, "temperature": 0.8}
    whole = ask.run(KINDS[kind], **options)
    text, value = whole["a"], whole.get("a")
    for most in range(1, 61):
        state = ask.run(KINDS[kind], max_tokens=most, **options)
        if state.error() is None:
            assert (state["a"], state.get("a")) == (text, value)
            assert state.text().endswith(" thanks")
        else:
            assert isinstance(state.error().__cause__, TruncatedError) and f"max_tokens={most} was reached" in str(
                state.error()
            )
    assert state.error() is None or whole.get_meta_info("a")["completion_tokens"] >= 60


@pytest.mark.parametrize("stream", [False, True])
def test_closing_is_asked_for_and_said(engine: sgl.Engine, stream: bool) -> None:
    for run, gen in (({"close_at_limit": True}, {}), ({}, {"close_at_limit": True})):

        @sgl.function
        def order(s, gen=gen):
            s += "Give one: " + sgl.gen("a", Order, max_tokens=6, **gen)

        with pytest.warns(UserWarning, match="was closed"):
            state = order.run(backend=engine, seed=3, stream=stream, **run)
            assert isinstance(state.get("a"), Order)
        meta = state.get_meta_info("a")
        assert meta["truncated"] is True and meta["closed"] is True and meta["finish_reason"]["type"] == "length"
        if stream:
            assert "".join(state.text_iter("a")) == state["a"]


def test_a_number_that_is_cut_is_marked_where_it_is_text(engine: sgl.Engine) -> None:
    @sgl.function
    def digits(s, **options):
        s += "Number: " + sgl.gen("n", regex="[0-9]{1,40}[.]", max_tokens=1, **options)

    state = digits.run(backend=engine, seed=1)
    assert state["n"].isdigit() and state.get_meta_info("n")["truncated"] is True
    with pytest.raises(ProgramError, match="max_tokens=1 was reached"):
        _ = digits.run(backend=engine, seed=1, error_on_truncation=True)["n"]


def test_a_grammar_that_ends_with_the_last_token_is_whole(engine: sgl.Engine) -> None:
    text = engine.generate("x", grammar={"const": "yes"}, max_tokens=50)
    made = engine.generate("x", grammar={"const": "yes"}, max_tokens=text.completion_tokens, error_on_truncation=True)
    assert json.loads(made.text) == "yes" and made.finish_reason["type"] == "stop" and not made.truncated
    with pytest.raises(TruncatedError, match="max_tokens=1 was reached"):
        engine.generate("x", grammar={"const": "yes" * 9}, max_tokens=1, error_on_truncation=True)


def test_without_a_limit_the_context_is_the_limit(engine: sgl.Engine) -> None:
    """No text reserves the context: many that could fill it run side by side."""

    @sgl.function
    def endless(s):
        s += "Numbers: " + sgl.gen("a", list[Annotated[str, Field(min_length=900)]])

    with pytest.raises(ProgramError, match="the context of 512 tokens was full before the text was complete, after"):
        endless.run(backend=engine, seed=1).get("a")
    states = ask.run_batch([{"kind": Guest}] * 16, backend=engine, seed=5)
    assert all(isinstance(state.get("a"), Guest) for state in states)


def test_a_text_of_more_than_the_default(engine: sgl.Engine) -> None:
    kind = Annotated[list[Annotated[str, Field(pattern="^[0-9]{12}$")]], Field(min_length=20, max_length=20)]

    @sgl.function
    def lines(s):
        s += "Lines: " + sgl.gen("a", kind)

    state = lines.run(backend=engine, seed=1)
    assert len(state.get("a")) == 20 and state.get_meta_info("a")["completion_tokens"] > 128


# --- over the server --------------------------------------------------------------------------------------

TOOL = {
    "type": "function",
    "function": {
        "name": "order",
        "parameters": {
            "type": "object",
            "properties": {
                "dish": {"enum": ["soup of the day", "cake"]},
                "count": {"type": "integer", "minimum": 1000, "maximum": 9999},
            },
            "required": ["dish", "count"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def url(engine: sgl.Engine) -> Iterator[str]:
    with serving(engine, served_name="nano", tool_format="hermes") as address:
        yield address


def called(url: str, stream: bool = False, **options: Any) -> tuple[str, str]:
    """Why the answer ended, and the arguments of its only call."""
    body = {
        "model": "nano",
        "messages": [{"role": "user", "content": "Soup."}],
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    answer = httpx.post(
        f"{url}/v1/chat/completions",
        json={**body, "temperature": 0.7, "seed": 4, "stream": stream, **options},
        timeout=60,
    )
    if not stream:
        choice = answer.json()["choices"][0]
        calls = choice["message"].get("tool_calls") or [{"function": {"arguments": ""}}]
        return choice["finish_reason"], calls[0]["function"]["arguments"]
    chunks = [json.loads(line[6:])["choices"][0] for line in answer.text.splitlines() if line.startswith("data: {")]
    pieces = [
        call["function"].get("arguments") or "" for chunk in chunks for call in chunk["delta"].get("tool_calls") or ()
    ]
    return chunks[-1]["finish_reason"], "".join(pieces)


@pytest.mark.whole
@pytest.mark.parametrize("stream", [False, True])
def test_arguments_of_a_cut_call_are_as_far_as_they_were_written(url: str, stream: bool) -> None:
    finish, whole = called(url, stream)
    assert finish == "tool_calls" and json.loads(whole).keys() == {"dish", "count"}
    found = [called(url, stream, max_tokens=most) for most in range(1, 61)]
    assert all(
        (whole == arguments) if finish == "tool_calls" else whole.startswith(arguments) for finish, arguments in found
    )
    assert {finish for finish, _ in found} == {"length", "tool_calls"} and any(
        0 < len(arguments) < len(whole) for _, arguments in found
    )


def test_over_the_server_a_text_is_cut_and_closed_as_in_this_process(engine: sgl.Engine, url: str) -> None:
    endpoint = sgl.RuntimeEndpoint(url)
    try:
        for most in (1, 3, 8, 20, None):
            here, there = (ask.run(Guest, backend=backend, max_tokens=most, seed=3) for backend in (engine, endpoint))
            assert (here.error() is None) == (there.error() is None)
            if here.error() is None:
                assert here.get("a") == there.get("a")
            else:
                assert isinstance(there.error().__cause__, TruncatedError) and f"max_tokens={most} was reached" in str(
                    there.error()
                )
        with pytest.warns(UserWarning, match="was closed"):
            closed = ask.run(Guest, backend=endpoint, max_tokens=8, seed=3, close_at_limit=True)
            assert isinstance(closed.get("a"), Guest) and closed.get_meta_info("a")["closed"] is True
    finally:
        endpoint.shutdown()
