"""Formats of tool calls: what is written is read again, any text is read, and nothing is lost."""

from __future__ import annotations

import json
import random
import re
from typing import Literal

import pytest
from grammar_walks import BYTES, WalkBackend, accepts, walk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from sgl.grammars import compile_structural
from sgl.lang.errors import BadValueError
from sgl.lang.tools import ToolCall, format_named
from sgl.lang.tools.formats import choose_format
from sgl.lang.tools.python_tool import tool_of

NAMES = ["hermes", "llama", "mistral", "pythonic", "nano"]
MARKS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "; ",
    '{"name": "',
    '"parameters": ',
    '"arguments": ',
    "get(",
    "[get(",
    "a=",
    ")]",
    "{}",
    "[]",
    "True",
    "'",
    '"',
    "\\",
    "<|end|><|assistant|>",
    "answer",
    "get",
    "\n",
]
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
keys = st.from_regex(r"[a-z][a-z_0-9]{0,5}", fullmatch=True)
calls = st.lists(
    st.builds(ToolCall, st.sampled_from(["get", "get_more", "x"]), st.dictionaries(keys, json_values, max_size=3)),
    min_size=1,
    max_size=3,
)
said = st.from_regex(r"([a-zA-Z,.!]+ ?){0,4}", fullmatch=True).map(str.strip)
messy = st.lists(st.one_of(st.sampled_from(MARKS), text, json_values.map(json.dumps)), max_size=12).map("".join)


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    name: str | None = None


def get(city: str, days: int = 1, sure: bool = False, pets: list[Pet] | None = None):
    """Weather."""


def get_more(a: float, b: Literal["x", "y"]):
    """More."""


def nothing():
    """Nothing."""


def options(on: bool = True, off: bool = False):
    """All of it is optional."""


TOOLS = [tool_of(function) for function in (get, get_more, nothing, options)]


def plain(found):
    return [(call.name, call.arguments) for call in found]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
@given(said, calls)
@quick
def test_what_is_written_is_read(name, text, calls):
    format = format_named(name)
    found = format.parse(format.render(text, calls), ["get", "get_more", "x"])
    assert plain(found) == plain(calls) and found.text == text
    assert plain(format.parse(format.render(text, calls))) == plain(calls) or name in ("nano", "pythonic")


@pytest.mark.parametrize("name", NAMES)
@given(messy)
@quick
def test_any_text_is_read_and_nothing_is_lost(name, text):
    for names in ([], ["get", "x"]):
        found = format_named(name).parse(text, names)
        if not found.calls:
            kept = re.sub(r"(^|<\|assistant\|>)\s*answer\s*(?=$|<\|end\|>)|<\|end\|><\|assistant\|>", "", text)
            assert "".join(found.text.split()) == "".join((kept if name == "nano" else text).split())
        for call in found:
            assert isinstance(call.name, str) and isinstance(call.arguments, dict) and call.id


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mark", ["[", "{", '{"a":', "<tool_call>{", "[get(a=", "[get(a=[", "(", "[TOOL_CALLS][{"])
def test_deeply_nested_text_is_text(name, mark):
    assert format_named(name).parse(mark * 3000, ["get"]).calls == []


def walked(name: str, choice: str, seed: int) -> str:
    format = format_named(name)
    chosen = [tool for tool in TOOLS if choice in ("auto", "required", tool.name)]
    grammar = compile_structural(format.grammar(chosen, choice), BYTES)
    rng = random.Random(seed)
    return walk(grammar, rng, rng.choice([5, 40, 160]))


@pytest.mark.parametrize("choice", ["required", "get", "get_more", "nothing", "options"])
@pytest.mark.parametrize("name", ["hermes", "llama", "mistral", "pythonic"])
def test_constrained_calls_are_calls_of_the_tools(name, choice):
    for seed in range(25):
        text = walked(name, choice, seed)
        found = format_named(name).parse(text, [tool.name for tool in TOOLS])
        assert found.calls and found.text == "", text
        assert len(found) == 1 or choice == "required"
        for call in found:
            assert choice in ("required", call.name)
            (tool,) = (tool for tool in TOOLS if tool.name == call.name)
            tool.check(call.arguments)


@pytest.mark.parametrize("name", ["hermes", "llama", "pythonic"])
def test_free_text_that_begins_a_call_has_to_finish_it(name):
    format = format_named(name)
    grammar = compile_structural(format.grammar(TOOLS, "auto"), BYTES)
    begin = {"hermes": "Let me see.\n<tool_call>", "llama": '{"name": "', "pythonic": "[get_more("}[name]
    assert accepts(grammar, "It rains, 3 [mm] {so} <b>.") and not accepts(grammar, begin)
    for seed in range(10):
        matcher = grammar.matcher()
        assert all(matcher.accept(byte) for byte in begin.encode())
        whole = begin + matcher.shortest_end().decode()
        assert len(format.parse(whole, [tool.name for tool in TOOLS])) == 1, (seed, whole)


@given(st.lists(st.sampled_from(["city", "days", "sure", "pets"]), min_size=1, unique=True))
@quick
def test_python_calls_take_any_of_their_arguments_in_order(names):
    values = {"city": "Rome", "days": 2, "sure": True, "pets": [{"kind": "cat"}]}
    given = {name: values[name] for name in ("city", "days", "sure", "pets") if name in names or name == "city"}
    grammar = compile_structural(format_named("pythonic").grammar(TOOLS, "required"), BYTES)
    written = format_named("pythonic").render("", [ToolCall("get", given), ToolCall("nothing", {})])
    assert accepts(grammar, written), written


def test_python_arguments_may_be_python_or_json():
    parse = format_named("pythonic").parse
    found = parse("""Sure: [get(city='it\\'s "x"', days=2, sure=True, pets=[{"a": None}, (1, 2)]), x( )]. Done""")
    assert plain(found)[0] == (
        "get",
        {"city": 'it\'s "x"', "days": 2, "sure": True, "pets": [{"a": None}, [1, 2]]},
    )
    assert plain(found)[1] == ("x", {}) and found.text == "Sure:\n. Done"
    assert parse("see [1] and [a(b)]").calls == [] and parse("[f(a=open('x'))]").calls == []


def test_tolerant_reading_of_what_models_really_write():
    hermes, llama, mistral, nano = (format_named(name).parse for name in ("hermes", "llama", "mistral", "nano"))
    assert plain(hermes('<tool_call>{"name": "get", "arguments": {"a": "</tool_call>"}}')) == [
        ("get", {"a": "</tool_call>"})
    ]
    assert plain(hermes('<tool_call>{"name": "get", "arguments": "{\\"a\\": 1}"}</tool_call> ok')) == [
        ("get", {"a": 1})
    ]
    assert hermes("<tool_call>oops</tool_call>").text == "<tool_call>oops</tool_call>"
    assert plain(llama('<|python_tag|>{"name": "get", "parameters": {}}', ["get"])) == [("get", {})]
    assert llama('The object {"name": "Bob", "parameters": {}} is JSON', ["get"]).calls == []
    assert plain(mistral('[{"name": "get", "arguments": {}}]', ["get"])) == [("get", {})]
    assert mistral('Hi[TOOL_CALLS][{"name": "get", "arguments": {}, "id": "abc"}]').calls[0].id == "abc"
    assert plain(mistral('[TOOL_CALLS]get[ARGS]{"a": 1}[TOOL_CALLS]x[ARGS]{}')) == [
        ("get", {"a": 1}),
        ("x", {}),
    ]
    assert plain(nano('get\n{"a": 1}', ["get"])) == [("get", {"a": 1})]


@pytest.mark.parametrize(
    ("model", "template", "name"),
    [
        ("/x/sgl/runtime/nano", "tokenizer", "nano"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen", "hermes"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-instruct", "llama"),
        ("meta-llama/Llama-3.2-1B-Instruct", "llama-3-instruct", "llama"),
        ("meta-llama/Llama-4-Scout", "llama-4", "pythonic"),
        ("mistralai/Mixtral-8x7B", "mistral", "mistral"),
        ("/models/checkpoint-7", "llama-3-instruct", "llama"),
        ("/models/checkpoint-7", "qwen", "hermes"),
    ],
)
def test_the_format_follows_the_model(model, template, name):
    assert (
        choose_format(WalkBackend(name=model, template=template if template != "tokenizer" else "chatml")).name == name
    )


def test_an_unknown_model_gets_hermes_and_a_note(caplog):
    assert choose_format(WalkBackend(name="something-new-7b")).name == "hermes"
    assert "something-new-7b" in caplog.text and 'format="llama"' in caplog.text


def test_unknown_formats_are_refused():
    with pytest.raises(BadValueError, match="no tool format 'hermas'; did you mean 'hermes'"):
        format_named("hermas")
