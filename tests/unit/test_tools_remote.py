"""Tools on remote backends: described in the text, answered in turns that the API takes."""

from __future__ import annotations

import pytest
from anthropic_server import AnthropicServer
from openai_server import OpenAIServer

import sgl
from sgl.lang.backends.apis.anthropic_backend import Anthropic
from sgl.lang.backends.openai.openai_backend import OpenAI
from sgl.lang.tools import ToolCall, ToolCalls

CALL = '<tool_call>\n{"name": "find", "arguments": {"name": "Ada"}}\n</tool_call>'


def find(name: str):
    """Find somebody."""
    return {"phone": 17}


@sgl.function
def ask(s, box):
    s += sgl.system("Be brief.\n" + box)
    s += sgl.user("Who is Ada?")
    s += sgl.assistant(box.call("step"))
    for call in s.get("step"):
        s += sgl.tool(box.run(call))
    s += sgl.assistant(box.call("answer"))


def openai(server):
    return OpenAI("gpt-4o", base_url=server.base_url, retries=0)


def vllm(server):
    return OpenAI("qwen", base_url=server.base_url, retries=0, constrained="vllm")


def anthropic(server):
    return Anthropic("claude", base_url=server.url, max_retries=0)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("start", "make", "answered"),
    [
        (OpenAIServer, openai, ("user", '<tool_response>\n{"phone": 17}\n</tool_response>')),
        (AnthropicServer, anthropic, ("user", '<tool_response>\n{"phone": 17}\n</tool_response>')),
        (lambda: OpenAIServer(compatible=True), vllm, ("tool", '{"phone": 17}')),
    ],
)
def test_an_agent_on_an_api(start, make, answered, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    seen = []

    def script(prompt, body):
        seen.append((prompt, body["messages"]))
        return "It is 17." if "17" in prompt else "I look.\n" + CALL

    with start() as server:
        server.script = script
        backend = make(server)
        state = ask.run(sgl.tools([find], format="hermes"), backend=backend)
        assert state.get("step") == ToolCalls("I look.", [ToolCall("find", {"name": "Ada"}, "call_0")])
        assert state.get("answer") == ToolCalls("It is 17.")
        backend.shutdown()
    assert "Find somebody." in seen[0][0]
    said = [(message["role"], message["content"]) for message in seen[1][1]][-2:]
    assert said == [("assistant", "I look.\n" + CALL), answered]
