"""What published clients, notebooks and examples send: bodies without a header, threads,
some of the tools, structural tags, thoughts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from server_rig import serving

from sgl.runtime import Engine

MODEL = "nano"
USER: Any = {"role": "user", "content": "Hello"}
THOUGHT: Any = {"regex": r"<think>[ab]{3}</think>[cd]{4}", "seed": 3, "max_tokens": 40, "messages": [USER]}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(kv_tokens=4000) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(engine, served_name=MODEL, cors_origins=("https://allowed.example",)) as found:
        yield found


@pytest.fixture(scope="module")
def thinking(engine: Engine) -> Iterator[str]:
    with serving(engine, served_name=MODEL, reasoning_format="qwen3") as found:
        yield found


# --- Ollama's clients, some of which send no Content-Type
# ----------------------------------------------------------------

NAMED = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d and urllib say of any body


@pytest.mark.parametrize(
    "headers", [{}, NAMED, {**NAMED, "sec-fetch-site": "same-origin"}, {**NAMED, "origin": "https://allowed.example"}]
)
@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
def test_ollama_reads_bodies_that_are_not_called_json(url: str, path: str, headers: dict[str, str]) -> None:
    body = {"model": MODEL, "prompt": "Hi"} if path == "/api/generate" else {"model": MODEL, "messages": [USER]}
    content = json.dumps({**body, "stream": False, "options": {"num_predict": 2}}).encode()
    answer = httpx.post(url + path, content=content, headers=headers)
    assert answer.status_code == 200 and answer.json()["done"], answer.text


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null", "http://127.0.0.1:1"])
def test_pages_of_other_sites_must_call_them_json(url: str, origin: str) -> None:
    content = json.dumps({"model": MODEL, "prompt": "Hi", "stream": False}).encode()
    for headers in ({"origin": origin}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}):
        answer = httpx.post(f"{url}/api/generate", content=content, headers={**NAMED, **headers})
        assert answer.status_code == 400 and "Content-Type: application/json" in answer.json()["error"]


def test_a_page_of_the_server_itself_may_leave_it_out(url: str) -> None:
    content = json.dumps({"model": MODEL, "prompt": "Hi", "stream": False, "options": {"num_predict": 1}}).encode()
    assert httpx.post(f"{url}/api/generate", content=content, headers={**NAMED, "origin": url}).status_code == 200


# --- Anthropic's threads
# ---------------------------------------------------------------------------------------------------


def test_a_thread_is_refused_in_the_words_that_clients_act_on(url: str) -> None:
    body = {"model": MODEL, "max_tokens": 4, "messages": [USER], "thread": {"type": "create"}}
    answer = httpx.post(f"{url}/v1/messages", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }
    assert "send all messages" in error["message"]


def test_the_tool_runner_of_the_client_runs(url: str) -> None:
    called = []

    @anthropic.beta_tool
    def find_contact(name: str) -> str:
        """Find the phone number of a contact.

        Args:
            name: The contact's name.
        """
        called.append(name)
        return "555 0100"

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    question: Any = [{"role": "user", "content": "What is Maria's phone number?"}]
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=60, messages=question, tools=[find_contact], max_iterations=3
    )
    answers = list(runner)
    assert called and answers[-1].stop_reason == "end_turn"


# --- tool_choice of some tools
# ---------------------------------------------------------------------------------------------


def _tool(name: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} something",
            "parameters": {"type": "object", "properties": {}},
        },
    }


def _allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": name}} for name in names]},
    }


def test_only_allowed_tools_are_called_and_the_prompt_stays_the_same(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    tools: Any = [_tool(name) for name in ("open", "close", "turn")]
    counts = set()
    for names in (("open",), ("close", "turn"), ("open", "close", "turn")):
        choice: Any = _allowed("required", *names)
        answer = client.chat.completions.create(
            model=MODEL, messages=[USER], tools=tools, tool_choice=choice, n=8, temperature=2.0, max_tokens=60
        )
        calls = {call.function.name for one in answer.choices for call in one.message.tool_calls or ()}
        assert calls and calls <= set(names)
        assert answer.usage is not None
        counts.add(answer.usage.prompt_tokens)
    assert len(counts) == 1


@pytest.mark.parametrize(
    "choice, param, message",
    [
        (_allowed("required", "close", "shut"), "tool_choice.allowed_tools.tools", "there is no tool 'shut'"),
        (_allowed("none", "close"), "tool_choice.allowed_tools.mode", "'auto' or 'required'"),
        (_allowed("auto"), "tool_choice.allowed_tools.tools", "at least 1 item"),
        ({"type": "allowed_tools"}, "tool_choice", "allowed_tools"),
    ],
)
def test_what_is_wrong_with_a_choice_of_tools_is_named(url: str, choice: Any, param: str, message: str) -> None:
    body = {"model": MODEL, "messages": [USER], "tools": [_tool("close")], "tool_choice": choice}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text
    assert answer.json()["error"]["param"] == param


# --- response_format of a structural tag
# -----------------------------------------------------------------------------------

CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 3}},
    "required": ["city"],
    "additionalProperties": False,
}
TAG: Any = {"begin": "<f>", "end": "</f>"}
FORMS: dict[str, Any] = {
    "structures": {"structures": [{**TAG, "schema": CITY}], "triggers": ["<f>"]},
    "format": {
        "format": {
            "type": "sequence",
            "elements": [{**TAG, "type": "tag", "content": {"type": "json_schema", "json_schema": CITY}}],
        }
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_a_structural_tag_as_response_format(url: str, form: str) -> None:
    body = {"model": MODEL, "messages": [USER], "max_tokens": 60, "seed": 1}
    said = (
        {"response_format": {"type": "structural_tag", **FORMS[form]}},
        {"structured_outputs": {"structural_tag": {"type": "structural_tag", **FORMS[form]}}},
    )
    texts = [
        httpx.post(f"{url}/v1/chat/completions", json=body | one).json()["choices"][0]["message"]["content"]
        for one in said
    ]
    assert texts[0] == texts[1]
    if form == "format":
        assert texts[0].startswith("<f>{") and texts[0].endswith("}</f>")


def test_fields_of_other_formats_are_refused(url: str) -> None:
    for form, param in (
        ({"type": "text", **FORMS["format"]}, "format"),
        ({"type": "structural_tag"}, "format"),
        ({"type": "structural_tag", "json_schema": {"name": "a", "schema": CITY}}, "json_schema"),
    ):
        answer = httpx.post(
            f"{url}/v1/chat/completions", json={"model": MODEL, "messages": [USER], "response_format": form}
        )
        assert answer.status_code == 400 and answer.json()["error"]["param"] == f"response_format.{param}", answer.text


# --- thoughts
# --------------------------------------------------------------------------------------------------------------


def _deltas(url: str, **more: Any) -> list[dict[str, Any]]:
    text = httpx.post(f"{url}/v1/chat/completions", json={**THOUGHT, **more, "stream": True}).text
    return [json.loads(line[6:])["choices"][0]["delta"] for line in text.splitlines() if line.startswith("data: {")]


def test_every_delta_and_message_of_a_model_that_thinks_has_the_key(thinking: str, url: str) -> None:
    deltas = _deltas(thinking)
    assert all("reasoning_content" in delta for delta in deltas) and {
        delta["reasoning_content"] for delta in deltas
    } > {None}
    unthought = httpx.post(f"{thinking}/v1/chat/completions", json={"messages": [USER], "regex": "[ab]{3}"}).json()[
        "choices"
    ][0]["message"]
    assert unthought["reasoning_content"] is None and unthought["content"]
    assert all(
        "reasoning_content" not in delta for delta in [*_deltas(thinking, separate_reasoning=False), *_deltas(url)]
    )


def test_a_thought_may_come_at_once(thinking: str) -> None:
    pieces = [delta["reasoning_content"] for delta in _deltas(thinking) if delta["reasoning_content"]]
    whole = [
        delta["reasoning_content"] for delta in _deltas(thinking, stream_reasoning=False) if delta["reasoning_content"]
    ]
    assert len(whole) == 1 and whole[0] == "".join(pieces)
    cut = [
        delta["reasoning_content"]
        for delta in _deltas(thinking, stream_reasoning=False, max_tokens=2)
        if delta["reasoning_content"]
    ]
    assert len(cut) <= 1  # the end of the answer gives what is held back


def test_thoughts_of_a_finished_text(thinking: str, url: str) -> None:
    text = "<think>a b</think>c"
    for asked in ({"text": text}, {"text": text, "reasoning_parser": "deepseek-r1"}):
        assert httpx.post(f"{thinking}/separate_reasoning", json=asked).json() == {"reasoning_text": "a b", "text": "c"}
    refused = httpx.post(f"{url}/separate_reasoning", json={"text": text, "reasoning_parser": "deepsek-r1"})
    assert refused.status_code == 400 and "did you mean 'deepseek-r1'" in refused.json()["error"]["message"]
    assert "name one" in httpx.post(f"{url}/separate_reasoning", json={"text": text}).json()["error"]["message"]
