"""A typed text that a limit cuts is an error or a whole value, never one that the model did not write: on every
backend.

The oracle: of the text that the model would have written, everything but the whole of it has no value.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from enum import Enum
from itertools import product
from typing import Any, Literal, TypedDict

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or its import asks the network for prices

import pytest
from anthropic_server import AnthropicServer
from api_toy import TOKENIZER
from native_server import NativeServer
from openai_server import OpenAIServer
from pydantic import BaseModel

import sgl
from sgl.lang.backend import Generated
from sgl.lang.backends.apis.anthropic_backend import Anthropic
from sgl.lang.backends.legacy.legacy_backend import BaseBackend
from sgl.lang.backends.native.runtime_endpoint import RuntimeEndpoint
from sgl.lang.backends.openai.openai_backend import OpenAI
from sgl.lang.errors import ProgramError
from sgl.runtime.errors import TruncatedError


@dataclass
class Order:
    customer: str
    total: float
    paid: bool


class Guest(BaseModel):
    name: str
    age: int
    tags: list[str]


class Place(TypedDict):
    city: str
    note: str | None


class Size(Enum):
    SMALL = "small"
    SMALLEST = "smallest"


KINDS: dict[str, tuple[Any, str, Any]] = {  # the type, what the model writes, what that is
    "dataclass": (Order, '{"customer": "Anna", "total": 12.5, "paid": true}', Order("Anna", 12.5, True)),
    "pydantic": (Guest, '{"name": "Bo", "age": 12, "tags": ["a", "b"]}', Guest(name="Bo", age=12, tags=["a", "b"])),
    "typed dict": (Place, '{"city": "Rome", "note": null}', {"city": "Rome", "note": None}),
    "int": (int, "1234", 1234),
    "float": (float, "-3.125", -3.125),
    "str": (str, "one two three", "one two three"),
    "list": (list[int], "[1, 22, 333]", [1, 22, 333]),
    "optional": (int | None, "123", 123),
    "enum": (Size, "smallest", Size.SMALLEST),
    "literal": (Literal["yes", "no"], "yes", "yes"),
    "date": (date, '"2026-11-27"', date(2026, 11, 27)),
}
LONGEST = 60


@sgl.function
def ask(s, kind, **options):
    s += sgl.user("What?")
    s += sgl.assistant(sgl.gen("a", kind, **options))


def cut_at(text: str, most: int | None) -> Generated:
    """The text as a model of characters writes it: a limit that it reaches is why it ended."""
    if most is None or len(text) < most:
        return Generated(text, {"finish_reason": {"type": "stop", "matched": None}})
    return Generated(text[:most], {"finish_reason": {"type": "length", "length": most}})


def scripted(text: str) -> sgl.Scripted:
    return sgl.Scripted(lambda prompt, request: cut_at(text, request.options.max_new_tokens))


class Legacy(BaseBackend):
    def __init__(self, text: str) -> None:
        self.text = text

    def generate(self, s: Any, sampling_params: Any) -> tuple[str, dict[str, Any]]:
        made = cut_at(self.text, sampling_params.max_new_tokens)
        return made.text, {"finish_reason": made.meta_info["finish_reason"]["type"]}


def outcome(state: Any, kind: str, most: int, whole: bool) -> str:
    """`value` or `error` of a run at that limit; `whole`: the model wrote all that it had to write."""
    _, text, expected = KINDS[kind]
    if state.error() is None:
        assert whole, f"{kind} at {most}: {state['a']!r} was handed out of {text!r}"
        assert state.get("a") == expected and state["a"] == text
        return "value"
    assert isinstance(state.error().__cause__, TruncatedError), state.error()
    message = str(state.error())
    assert f"max_tokens={most} was reached" in message and "allow more tokens" in message and "JSON" not in message
    with pytest.raises(ProgramError, match="TruncatedError"):
        state.get("a")
    return "error"


@pytest.mark.parametrize("make", [scripted, Legacy])
@pytest.mark.parametrize("kind", KINDS)
def test_every_length_in_this_process(kind: str, make: Callable[[str], Any]) -> None:
    type_, text, _ = KINDS[kind]
    found = [
        outcome(ask.run(type_, backend=make(text), max_tokens=most), kind, most, most >= len(text))
        for most in range(1, LONGEST + 1)
    ]
    assert found.index("value") in (len(text) - 1, len(text)) and "error" not in found[len(text) :]


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_to_run(kind: str, tmp_path: Any) -> None:
    """Streams, batches, compiled programs, journals and their replay are cut as a plain run is."""
    type_, text, _ = KINDS[kind]
    backend, compiled = scripted(text), ask.compile(scripted(text), kind=type_)
    for most in (1, len(text) // 2, len(text) - 1, len(text) + 1):
        whole = most >= len(text)
        options = {"max_tokens": most, "backend": backend}
        expected = outcome(ask.run(type_, **options), kind, most, whole)
        journal = tmp_path / f"{most}.jsonl"
        with sgl.journal(journal, backend) as recording:
            recorded = ask.run(type_, max_tokens=most, backend=recording)
            recorded.sync()
        states = [
            ask.run(type_, stream=True, **options),
            *ask.run_batch([{"kind": type_}], **options),
            compiled.run(**options),
            recorded,
            ask.run(type_, max_tokens=most, backend=sgl.replay(journal)),
        ]
        assert {outcome(state, kind, most, whole) for state in states} == {expected}


# --- servers ---------------------------------------------------------------------------------------------


REMOTE = {"timeout": 20, "backoff": 0.01}
SERVERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "native": (NativeServer, lambda server: RuntimeEndpoint(server.url, backoff=0.01)),
    "openai": (OpenAIServer, lambda server: OpenAI("gpt-4o", base_url=server.base_url, **REMOTE)),
    "vllm": (
        lambda: OpenAIServer(compatible=True),
        lambda server: OpenAI("toy", base_url=server.base_url, constrained="vllm", **REMOTE),
    ),
    "anthropic": (AnthropicServer, lambda server: Anthropic("claude-x", base_url=server.url, api_key="k", **REMOTE)),
    "litellm": (
        OpenAIServer,
        lambda server: sgl.LiteLLM("openai/gpt-4o", base_url=server.base_url, api_key="k", **REMOTE),
    ),
}


@pytest.fixture(scope="module")
def reach() -> Iterator[Callable[[str], tuple[Any, Any]]]:
    """A server that nobody has asked yet, and the backend that asks it."""
    with ExitStack() as running:
        made: dict[str, tuple[Any, Any]] = {}

        def reach(name: str) -> tuple[Any, Any]:
            if name not in made:
                server = running.enter_context(SERVERS[name][0]())
                made[name] = server, SERVERS[name][1](server)
                running.callback(made[name][1].shutdown)
            made[name][0].reset()
            return made[name]

        yield reach


def answer_to(text: str) -> Callable[[str, Any], str]:
    """The text, in an object where the call asks for one that has nothing but a value."""

    def answer(prompt: str, body: dict[str, Any]) -> str:
        form = body.get("response_format", {}).get("json_schema") or body.get("output_config", {}).get("format") or {}
        if list(form.get("schema", {}).get("properties", ())) != ["value"]:
            return text
        return f'{{"value": {text}}}' if text[0] in '[{"-0123456789' else json.dumps({"value": text})

    return answer


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("name", "kind"),
    [*product(["native", "openai", "vllm", "anthropic"], KINDS), ("litellm", "int"), ("litellm", "dataclass")],
)
def test_every_length_of_servers(reach: Callable[[str], tuple[Any, Any]], name: str, kind: str) -> None:
    server, backend = reach(name)
    type_, text, expected = KINDS[kind]
    server.script = answer_to(text)
    assert ask.run(type_, backend=backend).get("a") == expected  # nobody gave a limit, and none was in the way
    sent = server.requests[-1]
    assert not {"max_tokens", "max_completion_tokens"} & sent.keys() or (
        name == "anthropic" and sent["max_tokens"] == 8192
    )
    written = len(TOKENIZER.encode(server.script("", sent)))
    for stream in (False, True):
        found = [cut_by_server(backend, type_, most, stream) for most in range(1, written + 2)]
        assert found[-1] == expected
        for most, value in enumerate(found[: written - 1], 1):  # at `written` it may be known to be whole
            assert isinstance(value, TruncatedError) and f"max_tokens={most} was reached" in str(value), (most, value)


def cut_by_server(backend: Any, kind: Any, most: int, stream: bool) -> Any:
    """The value, or the cause of the error."""
    state = ask.run(kind, backend=backend, max_tokens=most, stream=stream)
    return state.get("a") if state.error() is None else state.error().__cause__


def test_what_a_server_that_cannot_close_says(reach: Callable[[str], tuple[Any, Any]]) -> None:
    for name in ("native", "openai", "anthropic"):
        for run, gen in (({"close_at_limit": True}, {}), ({}, {"close_at_limit": True})):
            with pytest.raises(ProgramError, match=r"close_at_limit|cannot close"):
                ask.run(Order, backend=reach(name)[1], **run, **gen).get("a")


def test_a_limit_of_the_server_is_named(reach: Callable[[str], tuple[Any, Any]]) -> None:
    server, backend = reach("anthropic")
    server.script = lambda prompt, body: "one " * 9000
    state = ask.run(str, backend=backend)
    assert "max_tokens=8192 was reached" in str(state.error())
    native, endpoint = reach("native")
    native.script = lambda prompt, body: "one " * 3000
    assert "the context was full or the server's own limit was reached, after 4096 tokens," in str(
        ask.run(str, backend=endpoint).error()
    )


# --- what may be asked for ---------------------------------------------------------------------------------


ORDER = KINDS["dataclass"][1]
SCHEMA = {
    "type": "object",
    "properties": {"customer": {"type": "string"}, "total": {"type": "number"}, "paid": {"type": "boolean"}},
    "required": ["customer", "total", "paid"],
    "additionalProperties": False,
}


@sgl.function
def order(s, **options):
    s += "Order: " + sgl.gen("a", Order, **options)


@sgl.function
def schema(s, **options):
    s += "Order: " + sgl.gen("a", json_schema=SCHEMA, **options)


@pytest.mark.parametrize("place", ["gen", "run", "run_batch", "compile"])
def test_closing_is_asked_for_and_said(place: str, tmp_path: Any) -> None:
    backend = scripted(ORDER)
    gen, run = ({"close_at_limit": True}, {}) if place == "gen" else ({}, {"close_at_limit": True})
    with pytest.warns(UserWarning, match=r"reached its limit and was closed") as heard:
        if place == "run_batch":
            (state,) = order.run_batch([{}], backend=backend, max_tokens=17, **run)
        elif place == "compile":
            state = order.compile(backend).run(backend=backend, max_tokens=17, **run)
        else:
            state = order.run(**gen, backend=backend, max_tokens=17, **run)
        state.sync()
    assert heard[0].filename == __file__  # the line of the gen
    assert state["a"].startswith(ORDER[:17]) and isinstance(state.get("a"), Order)
    meta = state.get_meta_info("a")
    assert (meta["truncated"], meta["closed"], meta["finish_reason"]["type"]) == (True, True, "length")
    state.report(tmp_path / "report.html")
    assert "then the grammar closed the text" in (tmp_path / "report.html").read_text()


def test_the_gen_decides_over_the_run() -> None:
    state = order.run(close_at_limit=False, backend=scripted(ORDER), max_tokens=9)
    assert isinstance(state.error().__cause__, TruncatedError)

    @sgl.function
    def own(s):
        s += sgl.gen("a", Order, close_at_limit=False)

    assert isinstance(
        own.run(backend=scripted(ORDER), max_tokens=9, close_at_limit=True).error().__cause__, TruncatedError
    )


@pytest.mark.parametrize("place", ["gen", "run"])
def test_an_error_cannot_be_asked_away(place: str) -> None:
    """`error_on_truncation=False` invents no value either."""
    state = order.run(error_on_truncation=False, backend=scripted(ORDER), max_tokens=9)
    assert isinstance(state.error().__cause__, TruncatedError)


@pytest.mark.parametrize("make", [scripted, Legacy])
def test_a_form_without_a_type_stays_as_it_was_cut(make: Callable[[str], Any]) -> None:
    state = schema.run(backend=make(ORDER), max_tokens=9)
    assert state["a"] == ORDER[:9] and state.get_meta_info("a")["truncated"] is True
    with pytest.raises(ProgramError, match="its text was cut at its limit"):
        state.get("a", Order)
    failed = schema.run(backend=make(ORDER), max_tokens=9, error_on_truncation=True)
    assert "max_tokens=9 was reached" in str(failed.error())
    whole = schema.run(backend=make(ORDER), max_tokens=len(ORDER), error_on_truncation=True)
    assert whole.get("a", Order) == KINDS["dataclass"][2] and not whole.get_meta_info("a").get("truncated")


def test_free_text_keeps_its_default_and_forms_have_none() -> None:
    backend = sgl.Scripted(lambda prompt, request: "1")

    @sgl.function
    def program(s):
        s += (
            sgl.gen("free")
            + sgl.gen("typed", int)
            + sgl.gen("form", regex="[0-9]")
            + sgl.gen("own", int, max_tokens=7)
            + sgl.gen("text", str)
        )

    program.run(backend=backend).sync()
    assert [call.options.max_new_tokens for call in backend.calls] == [128, None, None, 7, None]
    backend.calls.clear()
    program.run(backend=backend, max_tokens=9).sync()
    assert [call.options.max_new_tokens for call in backend.calls] == [9, 9, 9, 7, 9]


def test_choices_are_not_cut() -> None:
    @sgl.function
    def program(s):
        s += sgl.select("a", ["long enough", "short"]) + sgl.gen("b", choices=["x", "y"])

    state = program.run(backend=sgl.Scripted({"a": "long enough", "b": "x"}), max_tokens=1)
    assert state["a"] == "long enough" and state["b"] == "x" and state.error() is None


def test_samples_are_looked_at_one_by_one() -> None:
    texts = iter(["12", "345", "6"])
    backend = sgl.Scripted(lambda prompt, request: cut_at(next(texts), request.options.max_new_tokens))

    @sgl.function
    def program(s):
        s += sgl.gen("a", int, n=3, max_tokens=3)

    assert "after '345'" in str(program.run(backend=backend).error())


# --- tools -------------------------------------------------------------------------------------------------


def look_up(name: str, year: int) -> str:
    """Find somebody."""
    return f"{name} {year}"


CALL = '<tool_call>\n{"name": "look_up", "arguments": {"name": "Ada", "year": 1815}}\n</tool_call>'


@pytest.mark.parametrize("choice", ["auto", "required", "look_up"])
def test_arguments_of_a_cut_call_are_not_invented(choice: str) -> None:
    toolbox = sgl.tools([look_up], format="hermes")

    @sgl.function
    def program(s):
        s += sgl.user("Who?") + sgl.assistant(toolbox.call("step", choice))

    said = "I look. " if choice == "auto" else ""
    for most in range(1, len(said + CALL) + 1):
        state = program.run(backend=scripted(said + CALL), max_tokens=most)
        if state.error() is None:
            step = state.get("step")
            assert all(call.arguments == {"name": "Ada", "year": 1815} for call in step)
            assert len(step) == (most >= len(said) + CALL.index("}}") + 2) or (
                choice == "auto" and not step and most <= len(said) + len("<tool_call>")
            ), most
        else:
            assert isinstance(state.error().__cause__, TruncatedError), (most, state.error())


def test_what_a_journal_holds_after_an_edit_is_no_cut_text(tmp_path: Any) -> None:
    path = tmp_path / "run.jsonl"
    with sgl.journal(path, scripted("one two three")) as recording:
        assert ask.run(str, max_tokens=5, backend=recording).error() is not None
    edited = sgl.Journal.open(path)
    edited.edit(edited.nodes[0], "one two")
    assert ask.run(str, max_tokens=5, backend=sgl.replay(path)).get("a") == "one two"


def test_the_warning_is_heard_once_for_a_line() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default")
        for _ in range(3):
            order.run(close_at_limit=True, backend=scripted(ORDER), max_tokens=20).sync()
    assert sum("was closed" in str(one.message) for one in heard) == 1
