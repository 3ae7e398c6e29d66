"""What models are shown of tools, the steps of their answers, and which dialect is whose."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from grammar_walks import BYTES, accepts, walk

from sgl.grammars import compile_json_schema, compile_structural
from sgl.runtime import nano
from sgl.runtime.dialects import (
    MARKS,
    DialectStep,
    DialectToolCall,
    Tool,
    ToolCallEnd,
    dialect_for,
    dialect_named,
    reasoning_named,
    reasoning_of,
    tool_of,
)
from sgl.runtime.dialects.families.mistral_tool_dialect import MARK, short_id
from sgl.runtime.dialects.families.nano_tool_dialect import TURN
from sgl.runtime.errors import ConfigError
from sgl.runtime.nano import nano_prompts
from sgl.runtime.text.chat_templates.hf_chat_template import ChatTemplate

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "sure": {"type": "boolean"}},
    "required": ["city"],
}
TOOLS = [
    Tool("weather", "The weather", SCHEMA),
    Tool("now", "The time", {"type": "object", "properties": {}}),
    Tool("pick", "One of two", {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}),
]
CALL = DialectToolCall("weather", {"city": "Rome"}, "call_abc")
OPENAI_CALL = {"id": "call_abc", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Rain?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [OPENAI_CALL], "reasoning_content": "hm"},
    {"role": "tool", "content": "no", "tool_call_id": "call_abc"},
]
SINGLE = ["hermes", "llama", "pythonic"]


# --- steps -----------------------------------------------------------------------------------------------------


def texts(step: DialectStep, seed: int) -> tuple[str, list[str]]:
    """An answer as the steps allow it: all of its text, and the names that were chosen."""
    rng = random.Random(seed)
    text, chosen = "", []
    while step is not None:
        kind, source = step.constraint or ("free", None)
        if kind == "choices":
            made = rng.choice(source)
            chosen.append(made)
        elif kind == "free":
            made = "So, " + (step.stop[0] if step.stop and rng.random() < 0.7 else "")
        else:
            compiled = compile_json_schema if kind == "json_schema" else compile_structural
            made = walk(compiled(source, BYTES), rng, rng.choice([0, 40]))
        following = step.then(made)
        text += step.prefix + (made.removesuffix(step.stop[0]) if step.stop else made)
        step = following
    return text, chosen


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("choice", ["auto", "required", "weather", "now", "pick"])
@pytest.mark.parametrize("name", [*SINGLE, "mistral", "nano"])
def test_every_answer_is_read_as_the_steps_say(name, choice, parallel):
    dialect = dialect_named(name)
    step = dialect.plan(TOOLS, choice, parallel)
    for seed in range(12):
        text, _ = texts(step, seed)
        events = dialect.reader(TOOLS, reasoning=False).feed(text, last=True)
        _, found = dialect.parse(text, [tool.name for tool in TOOLS])
        assert all(event.complete for event in events if isinstance(event, ToolCallEnd)), text
        assert choice == "auto" or found, text
        assert len(found) <= 1 or (parallel and choice in ("auto", "required")), text
        assert choice in ("auto", "required") or [call.name for call in found] == [choice]
        for call in found:
            schema = next(tool for tool in TOOLS if tool.name == call.name).arguments_schema
            assert accepts(compile_json_schema(schema, BYTES), json.dumps(call.arguments))


@pytest.mark.parametrize("name", SINGLE)
def test_several_calls_may_be_written_only_where_they_may_be(name):
    dialect = dialect_named(name)
    written = dialect.write("", [CALL, DialectToolCall("now", {})])
    for parallel in (True, False):
        for choice in ("auto", "required"):
            _, source = dialect.plan(TOOLS, choice, parallel).constraint
            assert accepts(compile_structural(source, BYTES), written) == parallel
    assert not accepts(compile_structural(dialect.plan(TOOLS, "weather").constraint[1], BYTES), written)


def test_steps_of_the_bundled_model():
    dialect = dialect_named("nano")
    first = dialect.plan(TOOLS, "auto")
    assert first.constraint == ("choices", ["weather", "now", "pick", "answer"]) and not first.free
    kind, source = first.then("weather").constraint
    assert (kind, json.loads(source)["required"], first.then("weather").prefix) == ("json_schema", ["city"], TURN)
    assert first.then("answer")[:4] == (TURN, None, (), True)
    assert dialect.plan(TOOLS, "required").constraint[1] == ["weather", "now", "pick"]
    assert dialect.plan(TOOLS, "now").prefix == "now" + TURN
    with pytest.raises(ConfigError, match=r"'answer'.*rename it"):
        dialect.plan([Tool("answer")], "auto")


def test_steps_of_mistral():
    step = dialect_named("mistral").plan(TOOLS, "auto")
    assert step[:4] == ("", None, (MARK,), True) and step.then("no calls") is None
    assert step.then("so " + MARK).prefix == MARK


@pytest.mark.parametrize("name", [*SINGLE, "mistral", "nano"])
def test_without_tools_or_with_none_the_answer_is_free(name):
    dialect = dialect_named(name)
    for step in (dialect.plan(TOOLS, "none"), dialect.plan([], "auto")):
        assert step.free and step.constraint is None and not step.stop and not step.prefix and step.then("x") is None
    with pytest.raises(ConfigError, match="no tool 'x'; there are weather, now, pick"):
        dialect.plan(TOOLS, "x")


# --- messages --------------------------------------------------------------------------------------------------


def test_hermes_messages():
    dialect = dialect_named("hermes").thinking(MARKS["qwen3"])
    system, user, called, answered = dialect.messages(
        [*TALK, {"role": "tool", "content": "2", "tool_call_id": "b"}], TOOLS
    )
    assert system["content"].startswith("Be brief.\n\n# Tools") and '"name": "pick"' in system["content"]
    assert user == TALK[1]
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert called == {"role": "assistant", "content": f"<think>\nhm\n</think>\n\nI look.\n{written}"}
    expected = "<tool_response>\nno\n</tool_response>\n<tool_response>\n2\n</tool_response>"
    assert answered == {"role": "user", "content": expected}


def test_thoughts_of_earlier_turns_are_left_out():
    dialect = dialect_named("hermes").thinking(MARKS["qwen3"])
    messages = dialect.messages(
        [*TALK, {"role": "assistant", "content": "Dry."}, {"role": "user", "content": "Sure?"}], []
    )
    assert not any("hm" in message["content"] for message in messages)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant", "user"]


@pytest.mark.parametrize("name", ["llama", "pythonic"])
def test_llama_messages(name):
    messages = dialect_named(name).messages(TALK[1:], TOOLS)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "ipython"]
    assert messages[0]["content"] == dialect_named(name).describe(TOOLS)


def test_mistral_messages_have_ids_of_nine_characters():
    messages = dialect_named("mistral").messages(TALK, TOOLS)
    id = short_id("call_abc")
    assert len(id) == 9 and id.isalnum() and short_id("abcABC123") == "abcABC123"
    assert messages[-1] == {"role": "tool", "content": "no", "tool_call_id": id}
    assert messages[2]["content"].startswith("I look.[TOOL_CALLS][") and id in messages[2]["content"]


def test_the_bundled_model_sees_what_it_was_trained_on():
    config = json.loads((Path(nano.__file__).parent / "tokenizer_config.json").read_text())
    fields = (
        nano_prompts.PromptField("city"),
        nano_prompts.PromptField("days", "integer"),
        nano_prompts.PromptField("sure", "boolean"),
    )
    trained = [
        nano_prompts.tools_system([nano_prompts.PromptTool("weather", "The weather", fields)], "Be brief."),
        nano_prompts.message("user", "Hi"),
        *nano_prompts.tool_answer("Hello."),
        nano_prompts.message("user", "Rain?"),
        *nano_prompts.tool_call("weather", {"city": "Rome"}),
        nano_prompts.tool_result({"rain": False}),
    ]
    talk = [
        TALK[0],
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        TALK[1],
        {"role": "assistant", "tool_calls": [OPENAI_CALL]},
        {"role": "tool", "content": '{"rain": false}', "tool_call_id": "call_abc"},
    ]
    messages = dialect_named("nano").messages(talk, TOOLS[:1])
    rendered = ChatTemplate(config["chat_template"], {}).render(messages, add_generation_prompt=True)
    assert rendered == nano_prompts.render(trained) + "<|assistant|>"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a":1}', '{"a": 1}'),
        ("+49 30 5550 143", '{"result": "+49 30 5550 143"}'),
        ('"Zürich"', '{"result": "Zürich"}'),
        ("41", '{"result": 41}'),
        ("[1,2]", '{"result": [1, 2]}'),
        ("NaN", '{"result": "NaN"}'),
        ('"\\ud800"', '{"result": "\\"\\\\ud800\\""}'),
        ("1e999", '{"result": "1e999"}'),
        ('{"a":-1e999}', '{"result": "{\\"a\\":-1e999}"}'),
        ("", '{"result": ""}'),
        ('{"a":', '{"result": "{\\"a\\":"}'),
    ],
)
def test_the_bundled_model_sees_every_result_as_an_object(text, shown):
    [*_, answered] = dialect_named("nano").messages(
        [*TALK[:3], {"role": "tool", "content": text, "tool_call_id": "call_abc"}], TOOLS
    )
    assert answered == {"role": "tool", "content": shown}
    [*_, answered] = dialect_named("llama").messages(
        [*TALK[:3], {"role": "tool", "content": text, "tool_call_id": "call_abc"}], TOOLS
    )
    assert answered["content"] == text


@pytest.mark.parametrize("given", ["[1]", "{", "3"])
def test_calls_whose_arguments_are_no_object_are_refused(given):
    call = {"id": "a", "function": {"name": "f", "arguments": given}}
    with pytest.raises(ConfigError, match="arguments of the call 'f'"):
        dialect_named("hermes").messages([{"role": "assistant", "tool_calls": [call]}], [])


# --- tools -----------------------------------------------------------------------------------------------------


def test_a_tool_of_chat_apis():
    tool = tool_of({"type": "function", "function": {"name": "a", "parameters": SCHEMA, "strict": True}})
    assert tool == Tool("a", "", SCHEMA)
    arguments = compile_json_schema(tool.arguments_schema, BYTES)
    assert accepts(arguments, '{"city": "Rome"}') and not accepts(arguments, '{"city": "Rome", "z": 1}')
    assert tool_of({"type": "function", "function": {"name": "a"}}).parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "a tool is"),
        ({"type": "function"}, "a tool is"),
        ({"type": "web", "function": {"name": "a"}}, "a tool is"),
        ({"function": {"name": "two words"}}, "'two words'"),
        ({"function": {}}, "called None"),
        ({"function": {"name": "a", "description": 3}}, "description of the tool 'a' is 3"),
        ({"function": {"name": "a", "parameters": {"type": "array"}}}, "parameters of the tool 'a'.*object"),
        ({"function": {"name": "a", "parameters": [1]}}, "parameters of the tool 'a'"),
    ],
)
def test_what_is_no_tool_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        tool_of(given)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"properties": {"my-arg": {}}}, "'my-arg', which is not a valid keyword argument"),
        ({"required": ["city", "b"]}, "requires 'b'"),
        ({"anyOf": [{"required": ["days"]}, {"required": ["sure"]}]}, "'anyOf', which"),
        ({"minProperties": 2}, "'minProperties', which"),
    ],
)
def test_what_keyword_arguments_cannot_keep_to_is_refused(more, message):
    with pytest.raises(ConfigError, match=message):
        dialect_named("pythonic").plan([Tool("weather", "", {**SCHEMA, **more})], "auto")


def test_keyword_arguments_that_need_a_huge_grammar_are_refused():
    many = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1000)}}
    shared = {
        "type": "object",
        "properties": {f"p{i}": {} for i in range(50)},
        "$defs": {"a": {"description": "x" * 10_000}},
    }
    for schema in (many, shared):
        with pytest.raises(ConfigError, match="2000000 characters"):
            dialect_named("pythonic").plan([Tool("f", "", schema)], "auto")
    assert dialect_named("pythonic").plan([Tool(f"f{i}", "", SCHEMA) for i in range(40)], "auto").constraint


def test_a_boolean_of_keyword_arguments_keeps_to_its_constant():
    schema = {"type": "object", "properties": {"a": {"type": "boolean", "const": True}}, "required": ["a"]}
    grammar = compile_structural(dialect_named("pythonic").plan([Tool("f", "", schema)], "f").constraint[1], BYTES)
    assert (
        accepts(grammar, "[f(a=true)]")
        and not accepts(grammar, "[f(a=false)]")
        and not accepts(grammar, "[f(a=False)]")
    )


@pytest.mark.parametrize("loop", [{"$ref": "#/$defs/a"}, {"anyOf": [{"$ref": "#/$defs/a"}]}, True, {"anyOf": [True]}])
def test_the_bundled_model_is_shown_any_schema(loop):
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}, "y": loop}, "$defs": {"a": loop}}
    assert "- f" in dialect_named("nano").describe([Tool("f", "", schema)])


def test_the_bundled_model_is_not_shown_more_than_a_prompt_can_say():
    itself = {"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/a"} for i in range(100)}}
    with pytest.raises(ConfigError, match="the tool 'f' has more than 2000 values"):
        dialect_named("nano").describe([Tool("f", "", {**itself, "$defs": {"a": itself}})])


# --- whose dialect ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "template", "name"),
    [
        ("runtime/nano", None, "nano"),
        ("sgl-nano", "x", "nano"),
        ("Qwen/Qwen3-8B", None, "hermes"),
        ("meta-llama/Llama-3.1-8B-Instruct", None, "llama"),
        ("meta-llama/Llama-3.2-1B-Instruct", None, "llama"),
        ("mistralai/Mistral-7B", None, "mistral"),
        ("my/model", "..<tool_call>..", "hermes"),
        ("my/model", "[AVAILABLE_TOOLS] ", "mistral"),
        ("my/model", "<|start_header_id|>", "llama"),
        ("my/model", "<|header_start|>", "pythonic"),
    ],
)
def test_the_dialect_follows_the_model_or_its_template(model, template, name):
    """Where no call can be read off the template that is a guess, and the dialect says so."""
    dialect = dialect_for(model, template)
    assert dialect.name == name
    assert name == "nano" or f"taken from {'the name' if template is None else 'marks'}" in dialect.note


def test_an_unknown_model_gets_hermes_and_a_note(caplog):
    assert dialect_for("something/else-1b", "{{ messages }}").name == "hermes"
    assert "something/else-1b" in caplog.text and "pythonic" in caplog.text


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="'hermas'; did you mean 'hermes'"):
        dialect_named("hermas")
    with pytest.raises(ConfigError, match="'qwen4'; did you mean 'qwen3'"):
        reasoning_named("qwen4")


@pytest.mark.parametrize(
    ("model", "template", "marks"),
    [
        ("deepseek-ai/DeepSeek-R1", None, MARKS["deepseek-r1"]),
        ("Qwen/Qwen3-8B", None, MARKS["qwen3"]),
        ("Qwen/Qwen3-4B-Instruct-2507", None, None),
        ("openai/gpt-oss-20b", None, MARKS["gpt-oss"]),
        ("Qwen/Qwen3-8B", "no marks", None),
        (
            "x",
            "{% if '</think>' in content %}{% endif %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
            "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}",
            MARKS["qwen3"],
        ),
        (
            "x",
            "{{ content.split('</think>')[-1] }}{% if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% "
            "endif %}",
            MARKS["deepseek-r1"],
        ),
        ("x", "</think> {%- if add_generation_prompt %}<|assistant|><think>\n{% endif %}", MARKS["deepseek-r1"]),
        ("x", "[THINK]{{ t }}[/THINK]", MARKS["mistral"]),
        ("x", "<|channel|>analysis<|message|>", MARKS["gpt-oss"]),
    ],
)
def test_marks_of_thoughts_come_from_the_template(model, template, marks):
    assert reasoning_of(model, template) == marks


def test_the_prompt_says_whether_a_thought_was_begun():
    dialect = dialect_named("hermes").thinking(MARKS["qwen3"])
    assert dialect.reader(TOOLS, True, "<|im_start|>assistant\n<think>\n").thinking
    assert not dialect.reader(TOOLS, True, "<think>\n\n</think>\n\n").thinking
    assert not dialect.reader(TOOLS, False, "<think>\n").thinking


def test_the_marks_that_a_reader_must_see():
    assert dialect_named("hermes").thinking(MARKS["qwen3"]).marks == (
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
    )
    assert dialect_named("llama").marks == ("<|python_tag|>",)
    assert (
        dialect_named("pythonic").marks == ("<|python_start|>", "<|python_end|>")
        and dialect_named("gemma3").marks == ()
    )
