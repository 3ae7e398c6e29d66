"""Texts of models as they come: the same events however they are split, nothing lost, nothing held back for long."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sgl.runtime.dialects import (
    DIALECTS,
    MARKS,
    ArgumentsDelta,
    ContentDelta,
    DialectToolCall,
    ReasoningDelta,
    ToolCallEnd,
    ToolCallStart,
    dialect_named,
    split_reasoning,
)
from sgl.runtime.dialects.model_output_parser import joined
from sgl.runtime.dialects.parsing.incremental_text import IncrementalText
from sgl.runtime.dialects.parsing.json_value_parser import value

NAMES = ["hermes", "llama", "mistral", "pythonic", "nano"]
TOOLS = ["get", "get_more", "x"]
PARTS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]abc",
    "; ",
    ", ",
    '{"name": "',
    '"parameters": ',
    '"arguments": ',
    '"id": "q"',
    '{"name": "get", "arguments": ',
    '{"name": "x", "parameters": {}',
    "get(",
    "[get(",
    "[x()",
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
    " ",
    "<think>",
    "</think>",
    "<|python_tag|>",
    "{",
    "}",
    "[",
    "]",
    '{"a": 1}',
    "a(",
    "\\u12",
    "1e",
    "\u3000",
]
often = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
keys = st.from_regex(r"[a-z][a-z_0-9]{0,5}", fullmatch=True)
calls = st.lists(
    st.builds(DialectToolCall, st.sampled_from(TOOLS), st.dictionaries(keys, json_values, max_size=3)),
    min_size=1,
    max_size=3,
)
said = st.from_regex(r"([a-zA-Z,.!]+ ?){0,4}", fullmatch=True).map(str.strip)
messy = st.lists(st.one_of(st.sampled_from(PARTS), text, json_values.map(json.dumps)), max_size=12).map("".join)


def reader(name, names=TOOLS, marks=None):
    return dialect_named(name).read(names, marks)


def whole(text, *about):
    return reader(*about).feed(text, last=True)


def split(text, cuts, *about):
    found, one = [], reader(*about)
    edges = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    for start, stop in pairwise(edges):
        found += one.feed(text[start:stop])
    return joined(found + one.feed("", last=True))


marks = st.sampled_from([None, MARKS["qwen3"], MARKS["deepseek-r1"], MARKS["gpt-oss"], MARKS["mistral"]])


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
@given(text=messy, cuts=st.lists(st.integers(0, 150), max_size=8), names=st.sampled_from([[], TOOLS]), marks=marks)
@often
def test_any_split_gives_the_same_events(name, text, cuts, names, marks):
    expected = joined(whole(text, name, names, marks))
    assert split(text, cuts, name, names, marks) == expected
    assert split(text, range(len(text)), name, names, marks) == expected


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
@given(text=messy, names=st.sampled_from([[], TOOLS]))
@often
@example(text='<tool_call>{"name": "get", "arguments": {"a": 1 oops', names=[])
def test_events_are_well_formed_and_nothing_is_lost(name, text, names):
    open_call, kept, arguments = None, "", ""
    for event in whole(text, name, names):
        match event:
            case ContentDelta(more):
                assert more and open_call is None
                kept += more
            case ToolCallStart(index, _, called):
                assert open_call is None and called and (not names or name in ("hermes", "mistral") or called in names)
                open_call, arguments = index, ""
            case ArgumentsDelta(index, more):
                assert index == open_call
                arguments += more
            case ToolCallEnd(index, complete, _, written):
                assert index == open_call
                open_call = None
                if complete:
                    assert isinstance(json.loads(arguments), dict) and not written
                    kept += "\0"
                kept += written
    assert open_call is None
    if "\0" not in kept and name != "nano":
        assert "".join(kept.split()) == "".join(text.split())


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
@given(said, calls)
@often
def test_what_is_written_is_read(name, text, calls):
    dialect = dialect_named(name)
    written = dialect.write(text, calls)
    found_text, found = dialect.parse(written, TOOLS)
    assert (found_text, [(c.name, c.arguments) for c in found]) == (text, [(c.name, c.arguments) for c in calls])
    events = split(written, range(len(written)), name)
    begun = [event.name for event in events if isinstance(event, ToolCallStart)]
    given = [
        json.loads("".join(e.text for e in events if isinstance(e, ArgumentsDelta) and e.index == i))
        for i in range(len(begun))
    ]
    assert list(zip(begun, given, strict=True)) == [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "pythonic"])
@given(st.dictionaries(keys, st.text("abc ", min_size=1, max_size=30), min_size=1, max_size=3))
@often
def test_arguments_are_told_as_they_are_written_and_at_once(name, arguments):
    dumped = json.dumps(arguments)
    before, _, behind = dialect_named(name).write("", [DialectToolCall("get", arguments)]).partition(dumped)
    one = reader(name)
    events = one.feed(before)
    for place, char in enumerate(dumped, 1):
        events += one.feed(char)
        assert joined(events)[1:2] == [ArgumentsDelta(0, dumped[:place])]
    assert joined(events + one.feed(behind, last=True))[2:] == [ToolCallEnd(0)]


@pytest.mark.parametrize("name", NAMES)
@given(st.from_regex(r"[A-Za-z ,.!?]{1,60}", fullmatch=True))
@often
def test_plain_text_is_not_held_back(name, text):
    one, told = reader(name, ["zz_tool"]), ""
    for place, char in enumerate(text):
        told += "".join(event.text for event in one.feed(char))
        held = text[len(told) : place + 1]
        assert text.startswith(told) and (
            not held.strip() or "zz_tool".startswith(held.strip()) or "answer".startswith(held.strip())
        )
    assert told + "".join(event.text for event in one.feed("", last=True)) == text or (
        name == "nano" and text.strip() == "answer"
    )


@pytest.mark.whole
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "part",
    [
        "[",
        "{",
        '{"a":',
        '{"id":',
        "<tool_call>{",
        '<tool_call>{"id":',
        "[get(a=",
        "[get(a=[",
        "(",
        "[TOOL_CALLS][{",
        "[TOOL_CALLS]",
        "get<|end|><|assistant|>",
        "answer<|end|><|assistant|>",
        "[get(a='x ",
        '{"name": "get", "parameters": {"a": "',
        "[get(",
        "; ",
    ],
)
def test_the_time_is_linear(name, part):
    assert dialect_named(name).parse(part * 1500, ["get"])[1] == []

    def seconds(text):
        start = time.thread_time()
        for at in range(0, len(text), 4):
            one.feed(text[at : at + 4])
        one.feed("", last=True)
        return time.thread_time() - start

    one = reader(name, ["get"])
    assert seconds(part * 1500) < 5  # a reader that looks at everything twice takes minutes


# --- thoughts ------------------------------------------------------------------------------------------------


def divided(events):
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    return thought, "".join(event.text for event in events if isinstance(event, ContentDelta)).strip()


@pytest.mark.few(12)
@pytest.mark.parametrize("family", sorted(MARKS))
@given(before=said, thought=said, answer=said, ended=st.booleans())
@settings(max_examples=10, deadline=None)
def test_thoughts_are_those_of_the_whole_text(family, before, thought, answer, ended):
    marks = MARKS[family]
    before = "" if marks.open else before
    text = f"{before}{marks.begin} {thought}\n{marks.end * ended}\n{''.join(marks.silent)} {answer}"
    expected = split_reasoning(text, marks)
    found = divided(split(text, range(len(text)), "hermes", TOOLS, marks))
    assert found[0] == expected[0]
    assert "".join(found[1].split()) == "".join(expected[1].split())


def test_a_template_may_have_begun_the_thought():
    opened, plain = MARKS["deepseek-r1"], MARKS["qwen3"]
    assert whole("so\n</think>\n\nyes", "hermes", TOOLS, opened) == [ReasoningDelta("so"), ContentDelta("yes")]
    assert whole("<think>\nso</think>yes", "hermes", TOOLS, opened) == [ReasoningDelta("so"), ContentDelta("yes")]
    assert whole("never ends", "hermes", TOOLS, opened) == [ReasoningDelta("never ends")]
    assert whole("no marks", "hermes", TOOLS, plain) == [ContentDelta("no marks")]
    assert whole("<think>\n\n</think>\n\nyes", "hermes", TOOLS, plain) == [ContentDelta("yes")]


def test_calls_in_thoughts_are_thoughts_and_those_behind_are_calls():
    call = '{"name": "get", "arguments": {}}'
    found = whole(
        f"<think><tool_call>{call}</tool_call></think>\nWell.\n<tool_call>{call}</tool_call>",
        "hermes",
        TOOLS,
        MARKS["qwen3"],
    )
    assert found == [
        ReasoningDelta(f"<tool_call>{call}</tool_call>"),
        ContentDelta("Well."),
        ToolCallStart(0, "", "get"),
        ArgumentsDelta(0, "{}"),
        ToolCallEnd(0),
    ]
    listed = f"[THINK]hm[/THINK][{call}]"
    assert ToolCallStart(0, "", "get") in whole(listed, "mistral", TOOLS, MARKS["mistral"])


# --- calls as models write them ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "hermes",
            '<tool_call>{"name": "get", "arguments": {"a": "</tool_call>"}}',
            ("", [DialectToolCall("get", {"a": "</tool_call>"})]),
        ),
        (
            "hermes",
            '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "get"}</tool_call> ok',
            ("ok", [DialectToolCall("get", {"a": 1})]),
        ),
        (
            "hermes",
            '<tool_call>{"name": "get", "arguments": {"a": 1}</tool_call>',
            ("", [DialectToolCall("get", {"a": 1})]),
        ),
        (
            "hermes",
            '<tool_call>{"type": "function", "id": "i", "function": {"name": "new", "arguments": {}}}',
            ("", [DialectToolCall("new", {}, "i")]),
        ),
        ("hermes", "<tool_call>oops</tool_call>", ("<tool_call>oops</tool_call>", [])),
        (
            "hermes",
            'a <tool_call> <tool_call>{"name": "x", "arguments": {}}',
            ("a <tool_call>", [DialectToolCall("x", {})]),
        ),
        (
            "hermes",
            '<tool_call>{"name": "get", "arguments": {"a": NaN}}',
            ('<tool_call>{"name": "get", "arguments": {"a": NaN}}', []),
        ),
        ("llama", '<|python_tag|>{"name": "get", "parameters": {}}', ("", [DialectToolCall("get", {})])),
        (
            "llama",
            'So {"name": "get", "parameters": {"a": 1}}; {"name": "x", "parameters": {}} ok',
            ("So\nok", [DialectToolCall("get", {"a": 1}), DialectToolCall("x", {})]),
        ),
        (
            "llama",
            'The object {"name": "Bob", "parameters": {}} is JSON',
            ('The object {"name": "Bob", "parameters": {}} is JSON', []),
        ),
        ("llama", '{"a": {"name": "get", "parameters": {}}}', ('{"a": {"name": "get", "parameters": {}}}', [])),
        ("mistral", '[{"name": "get", "arguments": {}}]', ("", [DialectToolCall("get", {})])),
        ("mistral", "[1] [THINK] [TOOL", ("[1] [THINK] [TOOL", [])),
        (
            "mistral",
            'Hi[TOOL_CALLS][{"name": "get", "arguments": {}, "id": "abc"}]',
            ("Hi", [DialectToolCall("get", {}, "abc")]),
        ),
        (
            "mistral",
            '[TOOL_CALLS]get[CALL_ID]q[ARGS]{"a": 1}[TOOL_CALLS]x[ARGS]{}',
            ("", [DialectToolCall("get", {"a": 1}, "q"), DialectToolCall("x", {})]),
        ),
        ("nano", 'get\n{"a": 1}', ("", [DialectToolCall("get", {"a": 1})])),
        ("nano", "answer<|end|><|assistant|>get it", ("get it", [])),
        ("nano", "answer", ("", [])),
        ("nano", "answers are many", ("answers are many", [])),
        (
            "pythonic",
            "[get(a='it\\'s', b=[True, (1, None)]), x( )] ok",
            ("ok", [DialectToolCall("get", {"a": "it's", "b": [True, [1, None]]}), DialectToolCall("x", {})]),
        ),
        ("pythonic", "see [1] and [a(b)]", ("see [1] and [a(b)]", [])),
        ("pythonic", "[get(a=1, b)] [get(a=1,)]", ("[get(a=1, b)]", [DialectToolCall("get", {"a": 1})])),
        ("pythonic", "[get(a=1), no()] [get(b)]", (", no()] [get(b)]", [DialectToolCall("get", {"a": 1})])),
        ("pythonic", "[get(a=open('x'))]", ("[get(a=open('x'))]", [])),
    ],
)
def test_what_models_really_write(name, text, expected):
    assert dialect_named(name).parse(text, TOOLS) == expected


def test_numbers_that_python_cannot_hold_stay_text():
    text = f'<tool_call>{{"name": "get", "arguments": {{"a": {"9" * 5000}}}}}</tool_call>'
    assert dialect_named("hermes").parse(text, TOOLS) == (text, [])


def test_a_call_that_is_cut_says_so_and_keeps_its_text():
    events = split('So. <tool_call>{"name": "get", "arguments": {"a": "Ro', range(99), "hermes")
    assert events == [
        ContentDelta("So."),
        ToolCallStart(0, "", "get"),
        ArgumentsDelta(0, '{"a": "Ro'),
        ToolCallEnd(0, False, "", ' <tool_call>{"name": "get", "arguments": {"a": "Ro'),
    ]


def test_marks_do_not_overlap():
    """What `IncrementalText.until` relies on: the mark that is found first is the one that begins first."""
    for dialect in DIALECTS.values():
        own = {"functionary-v3.2": [], "minimax-m3": [MARKS["minimax-m3"]]}  # their marks are no words between < and >
        for thoughts in own.get(dialect.name, MARKS.values()):
            texts = [*dialect.form.marks, thoughts.begin, *thoughts.silent]
            for one in texts:
                for other in texts:
                    assert other not in one[1:]
                    assert not any(other.startswith(one[i:]) for i in range(1, len(one)))


# --- JSON ------------------------------------------------------------------------------------------------------


def passes(text):
    tape = IncrementalText()
    run = value(tape)
    tape.add(text, True)
    try:
        next(run)
    except StopIteration as stop:
        return stop.value and not tape.text[tape.at :].strip(" \t\r\n")
    raise AssertionError("it waits for more than there is")


def strict(text):
    try:
        json.loads(text, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return False
    return True


JSON_PARTS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    '"a"',
    "\\",
    "\\u12aF",
    "1",
    "-",
    "01",
    "1.5e+3",
    ".",
    "true",
    "nul",
    " ",
    "\n",
    "\x01",
    "é",
]


@given(st.one_of(json_values.map(json.dumps), st.lists(st.sampled_from(JSON_PARTS), max_size=10).map("".join)))
@settings(max_examples=300, deadline=None)
@example('{"a": 1,}')
@example('{"a" : [ ], "b":{ } }')
def test_json_is_what_the_library_takes_for_it(text):
    assert passes(text) == strict(text)
