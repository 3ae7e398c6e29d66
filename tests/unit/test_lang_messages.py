"""Lists of messages as expressions: the same nodes as roles written by hand, everywhere that nodes go."""

from __future__ import annotations

import pytest
from lang_rules import RuleBackend
from openai_server import OpenAIServer
from pydantic import BaseModel

import sgl
from sgl.lang.check import check_source
from sgl.lang.errors import BadValueError
from sgl.lang.nodes.ir import flatten
from sgl.lang.tools import ToolCall

pytestmark = pytest.mark.filterwarnings("ignore::sgl.lang.chat.DefaultTemplateWarning")

TALK = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Who is "}, {"type": "text", "text": "Ada?"}]},
    {"role": "assistant", "content": "A mathematician.", "tool_calls": None},
]
CALL = {"id": "call_7", "type": "function", "function": {"name": "find", "arguments": '{"name": "Ada"}'}}
LOOKED_UP = [
    {"role": "user", "content": "Her number?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_7", "content": '{"phone": 17}'},
]


def nodes(expression):
    return [repr(node) for node in flatten(expression)]


@sgl.function
def listed(s, talk, question):
    s += sgl.messages([*TALK, {"role": "user", "content": question}])
    s += sgl.assistant(sgl.gen("answer", max_tokens=4))


@sgl.function
def by_hand(s, talk, question):
    s += sgl.system("Be brief.") + sgl.user("Who is Ada?") + sgl.assistant("A mathematician.")
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=4))


def test_the_nodes_are_those_of_roles_written_by_hand():
    whole = [TALK[0], {"role": "user", "content": "Who is Ada?"}, TALK[2]]
    hand = sgl.system("Be brief.") + sgl.user("Who is Ada?") + sgl.assistant("A mathematician.")
    assert nodes(sgl.messages(whole)) == nodes(hand)
    shown = {"role": "user", "content": ["See ", {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}]}
    assert nodes(sgl.messages([shown])) == nodes(sgl.user("See " + sgl.image("https://a.b/c.png")))
    asked = {"role": "assistant", "content": "It is " + sgl.gen("x")}
    assert nodes(sgl.messages([asked])) == nodes(sgl.assistant("It is " + sgl.gen("x")))
    assert nodes(sgl.messages([])) == []


def test_runs_compiled_runs_and_what_a_state_tells_agree():
    backend = RuleBackend()
    runs = [program.run(None, "Why?", backend=backend) for program in (listed, by_hand, listed.compile(backend))]
    assert len({state.text() for state in runs}) == 1 and runs[0]["answer"]
    assert runs[0].messages() == runs[1].messages() == runs[2].messages()
    assert sgl.messages(runs[0].messages()).expr_list and nodes(sgl.messages(runs[0].messages()))[-3:][0].startswith(
        "RoleBegin"
    )
    assert listed.trace(talk=None).messages()[:3] == by_hand.trace(talk=None).messages()[:3]


def test_a_conversation_that_is_not_known_cannot_be_traced():
    @sgl.function
    def unknown(s, talk):
        s += sgl.messages(talk)

    with pytest.raises(sgl.lang.errors.TraceError, match="needs the value of the argument 'talk'"):
        unknown.trace()


def test_objects_with_model_dump_are_messages():
    class Said(BaseModel):
        role: str
        content: str | None
        tool_calls: list[dict] | None = None
        refusal: str | None = None

    given = Said(role="assistant", content="A mathematician.")
    assert nodes(sgl.messages([given])) == nodes(sgl.assistant("A mathematician."))


@pytest.mark.parametrize(
    ("format", "turns"),
    [
        ("hermes", [("assistant", '<tool_call>\n{"name": "find", "arguments": {"name": "Ada"}}\n</tool_call>')]),
        ("llama", [("assistant", '{"name": "find", "parameters": {"name": "Ada"}}')]),
        ("pythonic", [("assistant", '[find(name="Ada")]')]),
        ("nano", [("assistant", "find"), ("assistant", '{"name": "Ada"}')]),
    ],
)
def test_calls_are_written_in_the_format_of_the_model(format, turns):
    @sgl.function
    def ask(s):
        s += sgl.messages(LOOKED_UP, format)

    backend = RuleBackend()
    state = ask.run(backend=backend)
    said = [(turn["role"], turn["content"]) for turn in state.messages()]
    assert said == [("user", "Her number?"), *turns, ("tool", '{"phone": 17}')]
    assert ask.compile(backend).run(backend=backend).text() == state.text()


def test_what_is_said_beside_calls_and_calls_of_a_toolbox():
    call = ToolCall("find", {"name": "Ada"})

    @sgl.function
    def ask(s):
        s += sgl.messages([{"role": "assistant", "content": "I look.", "tool_calls": [call, CALL]}], "nano")

    turns = [turn["content"] for turn in ask.run(backend=RuleBackend()).messages()]
    assert turns == ["answer", "I look.", "find", '{"name": "Ada"}', "find", '{"name": "Ada"}']


def test_journals_and_servers_see_roles(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    with sgl.record(path, RuleBackend()) as backend:
        text = listed.run(None, "Why?", backend=backend).text()
    with sgl.replay(path) as backend:
        assert by_hand.run(None, "Why?", backend=backend).text() == text
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with OpenAIServer() as server:
        backend = sgl.OpenAI("gpt-4o", base_url=server.base_url, retries=0)
        listed.run(None, "Why?", backend=backend).text()
        by_hand.run(None, "Why?", backend=backend).text()
        backend.shutdown()
        first, second = (body["messages"] for body in server.requests)
    assert first == second and [message["role"] for message in first] == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"role": "robot", "content": "x"}], "message 0 has the role 'robot'"),
        ([{"content": "x"}], "message 0 has the role None"),
        ([TALK[0], "hello"], "message 1 is 'hello'; give a dict"),
        ([{"role": "user"}], "message 0 has no content"),
        ([{"role": "user", "content": 3}], "has the content 3; give a text or a list of parts"),
        ([{"role": "user", "content": "x", "name": "Bo"}], "has 'name', which no turn of 'user' can say"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "has 'tool_calls', which no turn of 'user'"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "has the part {'type': 'input_audio'}"),
        ([{"role": "assistant", "tool_calls": [{"name": "find"}]}], "has the call {'name': 'find'}"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}],
            r"calls 'f' with '\[1'",
        ),
        ({"role": "user", "content": "x"}, "give a list of messages"),
    ],
)
def test_what_is_no_conversation_is_refused(given, message):
    with pytest.raises(BadValueError, match=message):
        sgl.messages(given)


def test_the_checker_reads_what_is_spelt_out():
    head = (
        "import sgl\n@sgl.function\ndef program(s, talk):\n    s += sgl.messages({})\n    s += "
        "sgl.assistant(sgl.gen('x'))\n"
    )
    assert check_source(head.format("talk"), "a.py") == []
    assert check_source(head.format("[{'role': 'user', 'content': 'x'}]"), "a.py") == []
    [problem] = check_source(head.format("[{'role': 'robot', 'content': 'x'}]"), "a.py")
    assert problem.rule == "SGL402" and "robot" in problem.message


@pytest.mark.parametrize("given", [None, 5, "text", {"role": "user"}])
def test_what_is_no_list_is_told(given):
    with pytest.raises(BadValueError, match="give a list of messages"):
        sgl.messages(given)


@pytest.mark.parametrize("arguments", [0, False, [], "[]", "[" * 100_000, "{", {"a": {1, 2}}, {"a": sgl.gen("x")}])
def test_arguments_that_are_no_object_are_told_with_the_message(arguments):
    calls = [{"function": {"name": "find", "arguments": arguments}}]
    with pytest.raises(BadValueError, match=r"message 1 calls 'find' with .*; give a JSON object, as text or dict"):
        sgl.messages([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": calls}])


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_calls_without_arguments(arguments):
    calls = [{"function": {"name": "now", "arguments": arguments}}]
    [_, past, _] = flatten(sgl.messages([{"role": "assistant", "tool_calls": calls}]))
    assert past.calls == [ToolCall("now", {})]


def test_a_class_in_place_of_its_object_is_told():
    class Said(BaseModel):
        role: str

    with pytest.raises(BadValueError, match=r"message 0 is <class .*; give a dict"):
        sgl.messages([Said])
