"""What is found of a chat template by probing it, and the messages and prompts that are made of that."""

from __future__ import annotations

import logging

import pytest
import tiny_tokenizers as tiny
from tokenizers import Tokenizer as Backend

from sgl.lang.chat.tokenizer_chat_template import JinjaChatTemplate
from sgl.lang.errors import ProgramError
from sgl.runtime.dialects import dialect_named, tool_of
from sgl.runtime.errors import ConfigError
from sgl.runtime.server.http.http_errors import RequestError
from sgl.runtime.server.protocols.chat.chat_prompt import conversation
from sgl.runtime.server.protocols.chat.chat_types import ChatRequest
from sgl.runtime.server.protocols.chat.template_variables import switched, template_variables_of
from sgl.runtime.text.chat_templates import template_traits
from sgl.runtime.text.chat_templates.template_messages import with_contents, with_roles
from sgl.runtime.text.chat_templates.template_traits import (
    TemplateMessageEffect,
    TemplateTraits,
    ToolCallSupport,
    traits_of,
)
from sgl.runtime.text.tokenizer import Tokenizer

TURN = "<{{ m.role }}>{{ m.content }}</s>"
PLAIN = "{% for m in messages %}" + TURN + "{% endfor %}"
KNOWN = "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}" + TURN + "{% endif %}{% endfor %}"
FIRST = "{% for m in messages %}{% if m.role != 'system' or loop.first %}" + TURN + "{% endif %}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
    + TURN
    + "{% endfor %}"
)
LOOP = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{% if part.type == 'text' %}{{ part.text "
    "}}|{% endif %}{% endfor %}{% endfor %}"
)
BOTH = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | "
    "map(attribute='text') | join('+') }}{% endif %}{% endfor %}"
)
HEAD = "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}{% endfor %}"
CALL = "{% for c in m.tool_calls or [] %}{{ c.function.name }}ARGUMENTS{% endfor %}"
CALLED = "{% for m in messages %}<{{ m.role }}>CONTENT" + CALL + "{% endfor %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather", "parameters": {"type": "object", "properties": {}}},
}
SYSTEM, USER, SAID = ({"role": role, "content": f"The {role}."} for role in ("system", "user", "assistant"))
DEVELOPER = {"role": "developer", "content": "In French."}
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def called(arguments: str, content: str = "{{ m.content or '' }}") -> TemplateTraits:
    return traits_of(TOOLS + CALLED.replace("ARGUMENTS", arguments).replace("CONTENT", content))


# --- traits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (TOOLS + PLAIN, "tools"),
        (TOOLS.replace("tools", "xml_tools") + PLAIN, "xml_tools"),
        (PLAIN, ""),
        ("{% if tools %}There are tools.{% endif %}" + PLAIN, ""),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + PLAIN, ""),
        ("{# tools #}" + PLAIN, ""),
        ("{% if %}", ""),
    ],
)
def test_a_template_takes_tools_where_it_shows_them(source, name):
    assert traits_of(source).tools == name


@pytest.mark.parametrize(
    ("traits", "form"),
    [
        (called("{{ c.function.arguments | tojson }}"), ToolCallSupport(False, False)),
        (
            called("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"),
            ToolCallSupport(False, False),
        ),
        (called("{{ '' + c.function.arguments }}"), ToolCallSupport(True, False)),
        (
            called("{{ c.function.arguments }}"),
            ToolCallSupport(True, False),
        ),  # an object would be written as Python does
        (called("{{ c.function.arguments | tojson }}", "{{ m.content.strip() }}"), ToolCallSupport(False, True)),
        (called("{{ '' + c.function.arguments }}", "{{ '' + m.content }}"), ToolCallSupport(True, True)),
        (called(""), None),
        (called("{{ c.parameters.x }}"), None),
        (traits_of(PLAIN), None),
        (traits_of("{# tool_calls #}" + PLAIN), None),
        (
            called(
                "{{ c.function.arguments | tojson }}", "{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}"
            ),
            None,
        ),
    ],
)
def test_a_template_takes_calls_where_it_shows_them_and_their_answers(traits, form):
    assert traits.calls == form


def test_what_else_is_found_of_calls():
    every = called("{{ c.function.arguments | tojson }}")
    assert (every.text_with_calls, every.calls_with_text, every.one_call, every.short_ids, every.responses) == (
        True,
        True,
        False,
        False,
        False,
    )
    silent = called("{{ c.function.arguments | tojson }}", "{% if not m.tool_calls %}{{ m.content }}{% endif %}")
    assert not silent.text_with_calls and silent.calls_with_text
    said = traits_of(
        CALLED.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
        .replace("m.tool_calls or []", "m.tool_calls or [] if not m.content")
        .replace("CONTENT", "{{ m.content }}")
    )
    assert said.text_with_calls and not said.calls_with_text
    first = traits_of(
        CALLED.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
        .replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
        .replace("CONTENT", "{{ m.content }}")
    )
    assert first.one_call
    short = called(
        "{{ c.function.arguments | tojson }}{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    )
    assert short.short_ids


@pytest.mark.parametrize(
    ("source", "role", "first", "parts", "fate"),
    [
        (PLAIN, "developer", True, False, TemplateMessageEffect.SHOWN),
        (PLAIN, "user", True, True, TemplateMessageEffect.LEFT_OUT),
        (KNOWN, "developer", True, False, TemplateMessageEffect.LEFT_OUT),
        (KNOWN, "tool", False, False, TemplateMessageEffect.LEFT_OUT),
        (FIRST, "system", True, False, TemplateMessageEffect.SHOWN),
        (FIRST, "system", False, False, TemplateMessageEffect.LEFT_OUT),
        (STRICT, "system", True, False, TemplateMessageEffect.REFUSED),
        (LOOP, "user", True, False, TemplateMessageEffect.LEFT_OUT),
        (LOOP, "system", True, True, TemplateMessageEffect.SHOWN),
        (LOOP, "assistant", False, True, TemplateMessageEffect.SHOWN),
        (BOTH, "user", False, False, TemplateMessageEffect.SHOWN),
        (BOTH, "user", False, True, TemplateMessageEffect.SHOWN),
        (HEAD, "user", True, False, TemplateMessageEffect.SHOWN),
        (HEAD, "user", True, True, TemplateMessageEffect.LEFT_OUT),
        ("{% for m in messages %}{{ '' + m.content }}{% endfor %}", "user", True, True, TemplateMessageEffect.REFUSED),
    ],
)
def test_what_comes_of_a_message(source, role, first, parts, fate):
    assert traits_of(source).fate(role, first, parts) is fate


def test_a_template_that_takes_too_long_is_asked_no_more(monkeypatch):
    monkeypatch.setattr(template_traits, "SECONDS", 0)
    traits = TemplateTraits(TOOLS + CALLED)
    monkeypatch.setattr(traits._chat, "render", lambda *_, **__: pytest.fail("it is rendered"))
    assert (traits.tools, traits.calls, traits.fate("system", True)) == ("", None, TemplateMessageEffect.REFUSED)


def test_notes_are_written_once(caplog):
    traits = TemplateTraits(PLAIN)
    for what in ("shows no x", "shows no y", "shows no x"):
        traits.add_note(what)
    assert [record.getMessage() for record in caplog.records] == [
        f"the model's chat template shows no {one}" for one in "xy"
    ]


# --- messages ------------------------------------------------------------------------------------------------------


def shown(source: str, *messages: dict) -> list:
    traits = TemplateTraits(source)  # whose notes are not written yet
    return [(one["role"], one["content"]) for one in with_contents(with_roles(messages, traits), traits)]


def test_a_developer_is_a_system_message_where_the_role_is_not_shown(caplog):
    assert shown(PLAIN, DEVELOPER, USER) == [("developer", "In French."), ("user", "The user.")] and not caplog.text
    assert shown(KNOWN, DEVELOPER, USER) == [("system", "In French."), ("user", "The user.")]
    assert "shows no messages of the role developer" in caplog.text
    assert shown(KNOWN, SYSTEM, DEVELOPER, USER) == [("system", "The system.\n\nIn French."), ("user", "The user.")]
    assert shown(KNOWN, USER, SAID, DEVELOPER, USER)[2] == ("system", "In French.")
    assert shown(FIRST, SYSTEM, SYSTEM, USER)[0] == ("system", "The system.\n\nThe system.")
    assert [role for role, _ in shown(KNOWN, SYSTEM, SYSTEM, USER)] == ["system", "system", "user"]


def test_a_message_that_the_template_leaves_out_is_an_error():
    with pytest.raises(
        ConfigError, match=r"leaves out a message of the role 'system' after the first message \('The system.'\)"
    ):
        shown(FIRST, SYSTEM, USER, SAID, SYSTEM, USER)
    with pytest.raises(ConfigError, match="leaves out a message of the role 'tool' after the first message"):
        shown(KNOWN, USER, {"role": "tool", "content": "3"})
    assert shown(KNOWN, USER, {"role": "tool", "content": ""})[1] == ("tool", "")  # nothing is lost
    assert shown(STRICT, SYSTEM, USER)[0] == ("system", "The system.")  # the template says itself what it refuses


def test_contents_have_the_form_that_is_shown():
    sent, text = {"role": "user", "content": PARTS}, {"role": "user", "content": "ab"}
    for source, of_parts, of_text in (
        (PLAIN, "ab", "ab"),
        (HEAD, "ab", "ab"),
        (BOTH, PARTS, "ab"),
        (LOOP, PARTS, [{"type": "text", "text": "ab"}]),
    ):
        assert shown(source, sent) == [("user", of_parts)]
        assert shown(source, text) == [("user", of_text)]


# --- dialects ------------------------------------------------------------------------------------------------------


ASKED = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
}
TWO = {**ASKED, "tool_calls": [*ASKED["tool_calls"], {**ASKED["tool_calls"][0], "id": "b"}]}
ANSWERS = [{"role": "tool", "tool_call_id": id, "content": id} for id in "ab"]


def test_calls_are_parted_where_the_template_shows_one():
    first = (
        CALLED.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
        .replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
        .replace("CONTENT", "{{ m.content }}")
    )
    turns = dialect_named("hermes").templated(first).messages([USER, {**TWO, "content": "Two."}, *ANSWERS, USER], [])
    assert [
        (one["role"], one.get("content"), [call["id"] for call in one.get("tool_calls", ())]) for one in turns[1:-1]
    ] == [
        ("assistant", "Two.", ["a"]),
        ("tool", "a", []),
        ("assistant", None, ["b"]),
        ("tool", "b", []),
    ]


def test_text_stands_before_calls_where_the_template_shows_one_of_the_two():
    said = (
        CALLED.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
        .replace("m.tool_calls or []", "m.tool_calls or [] if not m.content")
        .replace("CONTENT", "{{ m.content }}")
    )
    _, text, asked, _ = (
        dialect_named("hermes").templated(said).messages([USER, {**ASKED, "content": "I look."}, ANSWERS[0]], [])
    )
    assert text == {"role": "assistant", "content": "I look."} and asked["tool_calls"][0]["id"] == "a"


def test_where_the_dialect_stands_in_the_log_says_so(caplog):
    dialect, tools = dialect_named("hermes").templated(TemplateTraits(STRICT)), [tool_of(WEATHER)]
    turns = dialect.messages([USER, ASKED, ANSWERS[0]], tools)
    assert (
        [one["role"] for one in turns] == ["user", "assistant", "user"]
        and "weather" in turns[0]["content"]
        and "<tool_call>" in turns[1]["content"]
    )
    assert "shows no tools: they are described, in the format hermes" in caplog.text
    assert "takes no tool_calls: calls and their answers are written as text, in the format hermes" in caplog.text
    caplog.clear()
    dialect_named("nano").templated(PLAIN).messages([USER, ASKED, ANSWERS[0]], tools)
    assert not caplog.text  # its own messages are what the model was trained on


# --- requests ------------------------------------------------------------------------------------------------------


def tokenizer(source: str) -> Tokenizer:
    return Tokenizer(
        Backend.from_str(tiny.byte_level_backend()),
        {"bos_token": "<s>", "eos_token": "</s>", "chat_template": {"default": source}},
    )


def prompt(source: str, **body) -> str:
    request = ChatRequest.model_validate({"model": "m", "messages": [USER], **body})
    return conversation(
        tokenizer(source), request, dialect_named("hermes"), [tool_of(tool) for tool in body.get("tools", ())]
    ).text


def test_keys_without_a_value_do_not_reach_the_template():
    source = "{% for m in messages %}{% for key in m %}{{ key }}={{ m[key] }};{% endfor %}{% endfor %}"
    assert (
        tokenizer(source).render_chat([{"role": "assistant", "content": None, "name": None, "x": 0}])
        == "role=assistant;x=0;"
    )


@pytest.mark.parametrize(
    "content", ["Hello, my  ", [{"type": "text", "text": "Hello,"}, {"type": "text", "text": " my  "}]]
)
@pytest.mark.parametrize(
    "written", ["{{ text }}", "{{ text | trim }}", "{{ text.rstrip(' ') }}", "{{ text.lstrip() }}"]
)
def test_a_message_goes_on_where_transformers_lets_it(content, written):
    transformers = pytest.importorskip("transformers")
    text = "{% set text = m.content if m.content is string else m.content | map(attribute='text') | join %}"
    source = "{% for m in messages %}" + text + "<{{ m.role }}>" + written + "</s>{% endfor %}"
    talk = [USER, {"role": "assistant", "content": content}]
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=Backend.from_str(tiny.byte_level_backend()))
    expected = theirs.apply_chat_template(talk, chat_template=source, tokenize=False, continue_final_message=True)
    assert prompt(source, messages=talk, continue_final_message=True) == expected


def test_a_message_whose_end_is_left_out_does_not_go_on():
    with pytest.raises(RequestError, match="continue_final_message: the model's chat template leaves out the end"):
        prompt(
            "{% for m in messages %}{{ m.content[:40] }}{% endfor %}",
            messages=[USER, {"role": "assistant", "content": "Text " * 9}],
            continue_final_message=True,
        )


def variables(source: str, **body) -> dict:
    return template_variables_of(
        tokenizer(source), ChatRequest.model_validate({"model": "m", "messages": [USER], **body})
    )


def test_switches_of_thoughts_that_the_template_does_not_read_change_nothing(caplog):
    for name in ("enable_thinking", "thinking"):
        assert variables(PLAIN, chat_template_kwargs={name: False}) == {} and not caplog.text
        assert variables(PLAIN, chat_template_kwargs={name: True}) == {} and f"reads no {name}" in caplog.text
        caplog.clear()
        source = PLAIN + "{{ " + name + " }}"
        assert variables(source, chat_template_kwargs={name: True}) == {name: True} and variables(
            source, reasoning_effort="none"
        ) == {name: False}
    assert variables(PLAIN, reasoning_effort="none") == {} and variables(
        PLAIN + "{{ reasoning_effort }}", reasoning_effort="none"
    ) == {"reasoning_effort": "none"}
    assert switched(True, frozenset({"thinking"})) == {"thinking": True} and switched(True, frozenset()) == {}
    with pytest.raises(RequestError, match="knows no reasoning_effort"):
        variables(PLAIN, reasoning_effort="high")


def test_the_error_about_a_variable_names_what_can_be_given():
    source = (
        "{% if not style is defined %}{% set style = 'x' %}{% endif %}{% set depth = depth | default(1) %}{% if "
        "tools %}{% set inner = 1 %}{% endif %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set said = m.content %}{% endif %}{{ said }}{{ inner "
        "}}{{ style }}{% endfor %}"
    )
    with pytest.raises(RequestError, match=r"reads no 'colour'; it reads: depth, style$"):
        variables(source, chat_template_kwargs={"colour": 1})
    assert variables(source, chat_template_kwargs={"style": 1, "inner": 2}) == {"style": 1, "inner": 2}


def test_a_template_with_its_own_tools_and_calls_gets_them_whatever_the_dialect(caplog):
    source = TOOLS + CALLED.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}").replace(
        "CONTENT", "{{ m.content }}"
    )
    text = prompt(source, messages=[USER, {**ASKED, "content": None}, ANSWERS[0]], tools=[WEATHER])
    assert text.endswith("<user>The user.<assistant>weather{}<tool>a") and '"name": "weather"' in text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# --- the language --------------------------------------------------------------------------------------------------


def test_programs_write_turns_in_the_form_that_is_shown():
    program = JinjaChatTemplate(tokenizer(LOOP))
    assert program.get_prefix_and_suffix("user", []) == ("<user>", "|")
    assert program.get_prompt([USER]) == "<user>The user.|"
    assert JinjaChatTemplate(tokenizer(KNOWN)).get_prefix_and_suffix("developer", [])[0] == "<system>"
    with pytest.raises(ProgramError, match="does not render turns of system, user, assistant, system"):
        JinjaChatTemplate(tokenizer(FIRST)).get_prefix_and_suffix("system", [SYSTEM, USER, SAID])
