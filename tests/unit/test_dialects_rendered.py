"""Dialects that are read off what a chat template writes, or off a response_template."""

from __future__ import annotations

import time

import pytest

from sgl.grammars import Vocabulary, compile_structural
from sgl.runtime.dialects import (
    MARKS,
    ContentDelta,
    DialectStep,
    DialectToolCall,
    ReasoningDelta,
    ReasoningMarks,
    Tool,
    dialect_for,
    dialect_named,
)
from sgl.runtime.dialects.parsing.unquoted_values import json_of
from sgl.runtime.dialects.rendered import probe_template
from sgl.runtime.dialects.rendered.response_template import NotLiteralPattern, pieces_of
from sgl.runtime.server.protocols.chat import chat_readers

BYTES = Vocabulary.from_bytes([bytes([i]) for i in range(256)] + [b""], [256])
TOOL = Tool(
    "f", "", {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]}
)
CALLS = [DialectToolCall("f", {"a": "x <y>", "b": 3}), DialectToolCall("f", {"a": "z"})]
TURN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}CALL{% endfor "
    "%}<|end|>{% endfor %}"
)


def template(call: str, before: str = "", behind: str = "") -> str:
    inside = (
        f"{{% if m.tool_calls %}}{before}{{% endif %}}{{% for c in m.tool_calls or [] %}}{call}{{% endfor "
        f"%}}{{% if m.tool_calls %}}{behind}{{% endif %}}"
    )
    return TURN.replace("{% for c in m.tool_calls or [] %}CALL{% endfor %}", inside)


def accepts(dialect, text, choice="auto"):
    matcher = compile_structural(dialect.plan([TOOL], choice).constraint[1], BYTES).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.can_end


ARGUMENTS = "{% for k, v in c.function.arguments.items() %}"
NEW = {  # formats that no table has
    "objects": (
        template('<do>{"tool": "{{ c.function.name }}", "with": {{ c.function.arguments | tojson }}}</do>'),
        '<do>{"tool": "f", "with": {"a": "x <y>", "b": 3}}</do><do>{"tool": "f", "with": {"a": "z"}}</do>',
    ),
    "a section": (
        template("<one>{{ c.function.name }}:{{ c.function.arguments | tojson }}</one>", "<all>", "</all>"),
        '<all><one>f:{"a": "x <y>", "b": 3}</one><one>f:{"a": "z"}</one></all>',
    ),
    "a list": (
        template(
            '{"{{ c.function.name }}": {{ c.function.arguments | tojson }}}{% if not loop.last %}, {% endif %}',
            "<go>[",
            "]</go>",
        ),
        '<go>[{"f": {"a": "x <y>", "b": 3}}, {"f": {"a": "z"}}]</go>',
    ),
    "parameters": (
        template(
            f'<use n="{{{{ c.function.name }}}}">{ARGUMENTS}<p k="{{{{ k }}}}">{{{{ v }}}}</p>{{% endfor %}}</use>'
        ),
        '<use n="f"><p k="a">x <y></p><p k="b">3</p></use><use n="f"><p k="a">z</p></use>',
    ),
    "ids": (
        template(
            "<id>{{ c.id }}</id><call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>", "<x>", "</x>"
        ),
        '<x><id>call-0</id><call>f {"a": "x <y>", "b": 3}</call><id>call-1</id><call>f {"a": "z"}</call></x>',
    ),
    "numbers": (
        template("<c{{ loop.index }}>{{ c.function.name }} {{ c.function.arguments | tojson }}</c>", "<x>", "</x>"),
        '<x><c1>f {"a": "x <y>", "b": 3}</c><c2>f {"a": "z"}</c></x>',
    ),
}


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("model", ["some/model", "meta-llama/Llama-3.2-1B", "Qwen/Qwen3-Coder"])
def test_a_new_format_needs_no_entry_in_a_table(name, model):
    source, written = NEW[name]
    dialect = dialect_for(model, source)
    assert dialect.name == "template" and not dialect.note
    assert dialect.write("", CALLS) == written
    assert [(call.name, call.arguments) for call in dialect.parse(written, {"f": TOOL.parameters})[1]] == [
        (c.name, c.arguments) for c in CALLS
    ]
    assert dialect.parse(f"Well. {written}", {"f": TOOL.parameters})[0] == "Well."
    assert accepts(dialect, f"Well. {written}") and accepts(dialect, written, "required")
    assert not accepts(dialect, written.replace("3", "three"), "required")


def test_white_space_is_as_the_template_has_it():
    close = template(
        '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    )
    dialect = dialect_for("some/model", close)
    assert dialect.name == "hermes" and "</tool_call><tool_call>" in dialect.write("", CALLS)


@pytest.mark.parametrize(
    "limit",
    ["{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}", ""],
)
def test_a_template_that_takes_one_call_gets_one(limit):
    listed = (
        '{% for c in (m.tool_calls or [])[:1] %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ '
        "c.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
    )
    dialect = dialect_for(
        "some/model", TURN.replace("{% for c in m.tool_calls or [] %}CALL{% endfor %}", limit + listed)
    )
    two = dialect.write("", CALLS)
    assert (
        dialect.single
        and dialect.name == "hermes"
        and not accepts(dialect, two, "required")
        and accepts(dialect, dialect.write("", CALLS[:1]), "required")
    )


@pytest.mark.parametrize(
    ("source", "name", "guessed"),
    [
        (template("<tool_calls:x>"), "hunyuan-v3", True),  # marks alone
        (
            template(
                '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{{ c.function.name }}">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'  # noqa: E501
            ),
            "deepseek-v4",
            False,
        ),
        ("{{ messages[0].content.split('<tool_sep>') }}", "hunyuan-v3", True),
        ("{{ nothing.of.this.works }}<tool_call>", "hermes", True),
        ("{% for", "hermes", True),
        (None, "hermes", True),
    ],
)
def test_what_is_guessed_is_noted(source, name, guessed):
    dialect = dialect_for("some/model", source)
    assert dialect.name == name and bool(dialect.note) == guessed
    if name == "hunyuan-v3" and "split" not in (source or ""):
        assert dialect.reasoning == ReasoningMarks("<think:x>", "</think:x>") and "<arg_key:x>" in dialect.write(
            "", CALLS
        )


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999999) %}{{ i }}{% endfor %}",
        "{{ 'a' * 99999999 }}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ messages.nothing.more }}",
    ],
)
def test_templates_that_fail_are_asked_no_longer_than_they_may(source):
    began = time.thread_time()
    assert not probe_template(source).calls
    assert time.thread_time() - began < 4  # two renderings of at most 0.8 seconds, and little else


def test_a_template_is_asked_once():
    source = template("<a>{{ c.function.name }}</a>")
    assert probe_template(source) is probe_template(source) and dialect_for("x", source) is dialect_for("x", source)


@pytest.mark.parametrize(
    ("thought", "marks"),
    [
        ("<think>\n{{ m.reasoning_content }}\n</think>\n\n", ReasoningMarks("<think>", "</think>")),
        ("<|mull|>{{ m.reasoning_content }}<|/mull|>", ReasoningMarks("<|mull|>", "<|/mull|>")),
        ("[MULL]{{ m.reasoning_content }}[/MULL]", ReasoningMarks("[MULL]", "[/MULL]")),
        ("<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>", MARKS["cohere"]),
    ],
)
def test_marks_of_thoughts_are_read_off(thought, marks):
    source = TURN.replace("{{ m.content }}", f"{{% if m.reasoning_content %}}{thought}{{% endif %}}{{{{ m.content }}}}")
    assert dialect_for("Qwen/QwQ-32B", source).reasoning == marks
    opened = source + f"{{% if add_generation_prompt %}}<|assistant|>{marks.begin}\n{{% endif %}}"
    assert dialect_for("x", opened).reasoning == marks._replace(open=True)


def test_marks_around_what_is_said_are_no_text():
    said = "{% if m.role == 'assistant' %}<|START_TEXT|>{{ m.content }}<|END_TEXT|>{% else %}{{ m.content }}{% endif %}"
    thought = "{% if m.reasoning_content %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>{% endif %}"
    dialect = dialect_for("x", TURN.replace("{{ m.content }}", thought + said))
    events = dialect.reader([TOOL], True).feed(
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>", last=True
    )
    assert events == [ReasoningDelta("Hm."), ContentDelta("Yes.")]


# --- response_template -------------------------------------------------------------------------------------------


def declared(calls, source=None, **fields):
    return dialect_for(
        "some/model",
        source,
        response_template={"start_anchor": "<|assistant|>", "fields": {"content": {}, "tool_calls": calls, **fields}},
    )


NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
DECLARED = {
    "objects": (
        {
            "open": "<t>",
            "close": "</t>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        '<t>\n{"name": "f", "arguments": {"a": "x"}}\n</t>',
    ),
    "members": (
        {
            "open": "<|t|>",
            "close": "<|e|>",
            "content": "json",
            "transform": {"function": {"name": "{content.tool}", "arguments": "{content.args}"}},
        },
        '<|t|>{"tool": "f", "args": {"a": "x"}}<|e|>',
    ),
    "a list": (
        {
            "open": "<t>",
            "close": "</t>",
            "content": "json",
            "transform_each": True,
            "transform": {"function": {"name": "{tool_name}", "arguments": "{parameters}"}},
        },
        '<t>[{"tool_name": "f", "parameters": {"a": "x"}}]</t>',
    ),
    "a name in the mark": (
        {"open_pattern": r"<t>\s*<n=(?P<name>\w+)>", "close": "</t>", "content": "json", "transform": NAMED},
        '<t><n=f>{"a": "x"}</t>',
    ),
    "parameters": (
        {
            "open_pattern": r"<t>(?P<name>\S+)\n?",
            "close_pattern": r"</t>\s*",
            "content": "xml-inline",
            "transform": NAMED,
            "content_args": {"tag_pattern": r"<k=(?P<key>[^>]+)>\s*(?P<value>.*?)\s*</k>"},
        },
        "<t>f<k=a>x</k></t>",
    ),
    "any header": (
        {"open_pattern": r"(?:<\|m\|>)?[^<]*<\|json\|>", "close": "<|e|>", "content": "json"},
        '<|json|>{"name": "f", "arguments": {"a": "x"}}<|e|>',
    ),
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_response_template_is_the_format(name):
    calls, written = DECLARED[name]
    dialect = declared(calls, thinking={"open": "<mull>", "close": "</mull>"})
    assert (dialect.name, dialect.note, dialect.reasoning) == (
        "response_template",
        "",
        ReasoningMarks("<mull>", "</mull>"),
    )
    assert dialect.write("", [DialectToolCall("f", {"a": "x"})]) == written
    assert [(call.name, call.arguments) for call in dialect.parse(written, ["f"])[1]] == [("f", {"a": "x"})]
    assert accepts(dialect, written)


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        ({"open": "<tool_call>", "close": "</tool_call>", "content": "json"}, "hermes"),
        (
            {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                "close": "<tool_call|>",
                "content": "json",
                "transform": NAMED,
                "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            },
            "gemma4",
        ),
        (
            {
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                "close": "<|call|>",
                "content": "json",
                "transform": NAMED,
            },
            "harmony",
        ),
    ],
)
def test_a_response_template_may_name_a_known_format(calls, name):
    assert declared(calls).name == name and declared(calls).note == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"fields": {"tool_calls": {"open_pattern": "a+b", "close": "c", "content": "json"}}},
            "'a+b' is no plain text",
        ),
        ({"fields": {"tool_calls": {"open": "a", "close": "c", "content": "kv-lines"}}}, "'kv-lines' between them"),
        ({"fields": {"thinking": {"open": "<a>"}}}, "without a mark after them"),
        ({"fields": {"thinking": {"begin": "<a>"}}}, "the field 'thinking' is"),
        ({"version": 2, "fields": {}}, "version 2"),
        ({"fields": 3}, "no fields"),
        ([1], "no fields"),
        ({"fields": {"tool_calls": {"open_pattern": "(" * 5000, "content": "json"}}}, "5000 characters"),
    ],
)
def test_what_is_not_understood_of_a_response_template_is_named(given, said):
    source, _ = NEW["a section"]
    dialect = dialect_for("some/model", source, response_template=given)
    assert dialect.name == "template" and said in dialect.note


def test_patterns_are_taken_apart_and_not_matched():
    assert pieces_of(r"<a>\s*(?P<n>\w+)\n?</a>$") == ["<a>", "n", "</a>"] and pieces_of(r"(?:^|<b>\s*)") == ["<b>"]
    assert pieces_of(r"x(?P<n>(a+)+$).*?y") == ["x", "n", "", "", "y"]
    with pytest.raises(NotLiteralPattern, match="no regular expression"):
        pieces_of("(")


# --- thoughts, stops and values ----------------------------------------------------------------------------------


def test_a_model_may_think_before_it_may_call():
    dialect = dialect_named("hermes").thinking(MARKS["qwen3"])
    call = dialect.write("", CALLS[:1])
    assert accepts(dialect, f"<think>I write <tool_call> and so on.</think>{call}") and accepts(dialect, call)
    assert not accepts(dialect, "I write <tool_call> and so on.") and not accepts(
        dialect, f"<think>Hm.</think>{call}", "required"
    )


@pytest.mark.parametrize("text", ["</think>Yes.", "\n</think>\n\nYes."])
def test_a_thought_that_ends_before_it_began_is_none(text):
    assert dialect_named("hermes").thinking(MARKS["qwen3"]).reader([TOOL], True).feed(text, last=True) == [
        ContentDelta("Yes.")
    ]


def test_calls_on_either_channel_of_harmony_are_allowed_and_read():
    dialect = dialect_named("harmony").thinking(MARKS["gpt-oss"])
    for channel in ("analysis", "commentary"):
        for link in (" code<|message|>", " <|constrain|>json<|message|>", "<|message|>"):
            text = (
                f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>{channel} "
                f'to=functions.f{link}{{"a": "x"}}<|call|>'
            )
            assert accepts(dialect, text) and dialect.parse(text, ["f"])[1] == [DialectToolCall("f", {"a": "x"})]
            assert not accepts(dialect, text.replace('{"a": "x"}', "words"))


def test_stops_end_what_is_said():
    """The steps of a request with stops: the model's own thought is a step without them."""
    step = DialectStep("", None, free=True)
    first = chat_readers._or_thought(MARKS["qwen3"], step)
    assert first.stop == ("<think>",) and first.free and first.then("Yes.") is None
    thought = first.then("<think>")
    assert (thought.prefix, thought.stop, thought.free) == ("<think>", ("</think>",), False)
    said = thought.then("Hm.</think>")
    assert (said.prefix, said.stop, said.free) == ("</think>", (), True) and thought.then("Hm.") is None
    channels = chat_readers._or_thought(MARKS["gpt-oss"], step).then(MARKS["gpt-oss"].begin).then("Hm.<|end|>")
    assert channels.stop == (MARKS["gpt-oss"].begin,)  # there may be another thought


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        ("['a', \"b's\"]", {"array"}, '["a", "b\'s"]'),
        ("{'a': None, 'b': True}", {"object"}, '{"a": null, "b": true}'),
        ("True", {"boolean"}, "true"),
        ("['a'", {"array"}, "\"['a'\""),
        ("__import__('os')", {"array", "string"}, "\"__import__('os')\""),
        ("['a']", {"string"}, "\"['a']\""),
    ],
)
def test_values_as_python_writes_them(text, kinds, value):
    assert json_of(text, frozenset(kinds), python=True) == value
