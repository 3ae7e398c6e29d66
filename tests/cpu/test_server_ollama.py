"""Ollama's routes: beside the chat that they are made of, their streams folded, calls and refusals."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest
from server_rig import await_true, serving

from sgl.runtime import Engine

MODEL = "nano"
SERVER: dict[str, Any] = {"served_name": MODEL}
USER: Any = {"role": "user", "content": "Hello"}
ASKED: Any = {"role": "user", "content": "What is Maria's phone number?"}
FIND: Any = {
    "type": "function",
    "function": {
        "name": "find_contact",
        "description": "Find the phone number of a contact",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
COUNTS = ("done", "done_reason", "prompt_eval_count", "eval_count")


def post(url: str, path: str = "/api/chat", **body: Any) -> httpx.Response:
    given: dict[str, Any] = {"model": MODEL, "messages": [USER]} if path == "/api/chat" else {"model": MODEL}
    return httpx.post(f"{url}{path}", json=given | body)


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def folded(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that all lines make."""
    *pieces, last = lines
    assert last["done"] and not any(piece["done"] for piece in pieces)
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in lines:
        part = line["message"]
        message["content"] += part["content"]
        for name in ("thinking", "tool_calls"):
            if name in part:
                message[name] = message.get(name, type(part[name])()) + part[name]
    return message


def random_request(chance: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        "seed": chance.randrange(1000),
        "temperature": chance.choice([0, 1, 1.5]),
        "num_predict": chance.choice([1, 3, 40]),
    }
    if chance.random() < 0.4:
        options["stop"] = chance.choice(["e", [" "], ["ou", "a"]])
    body: dict[str, Any] = {"messages": [chance.choice([USER, ASKED])], "options": options}
    if chance.random() < 0.5:
        body["tools"] = [FIND]
    elif chance.random() < 0.6:
        body["format"] = chance.choice(["json", SCHEMA])
    return body


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", [{}, {"tool_format": "hermes", "reasoning_format": "deepseek-r1"}])
def test_streams_fold_to_the_whole_answer_which_is_the_chats(bundled: Engine, settings: dict[str, Any]) -> None:
    with serving(bundled, served_name=MODEL, **settings) as url:
        for seed in range(8):
            body = random_request(random.Random(seed))
            whole, lines = post(url, **body, stream=False).json(), lines_of(post(url, **body))
            assert folded(lines) == whole["message"], body
            assert {name: lines[-1][name] for name in COUNTS} == {name: whole[name] for name in COUNTS}
            _check_beside_chat(url, body, whole)


def _check_beside_chat(url: str, body: dict[str, Any], whole: dict[str, Any]) -> None:
    options = dict(body["options"])
    chat = {
        "messages": body["messages"],
        "tools": body.get("tools", []),
        "max_tokens": options.pop("num_predict"),
        **options,
    }
    if "format" in body:
        schema = {"name": "a", "schema": SCHEMA}
        chat["response_format"] = (
            {"type": "json_object"} if body["format"] == "json" else {"type": "json_schema", "json_schema": schema}
        )
    answer = httpx.post(f"{url}/v1/chat/completions", json=chat).json()
    [choice] = answer["choices"]
    message = whole["message"]
    assert message["content"] == (choice["message"]["content"] or "")
    assert message.get("thinking") == choice["message"].get("reasoning_content")
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in choice["message"].get("tool_calls", ())
    ]
    assert [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())
    ] == calls
    assert (whole["done_reason"] == "length") == (choice["finish_reason"] == "length")
    assert (whole["prompt_eval_count"], whole["eval_count"]) == (
        answer["usage"]["prompt_tokens"],
        answer["usage"]["completion_tokens"],
    )


def test_calls_are_answered_without_ids(url: str) -> None:
    first = post(url, messages=[ASKED], tools=[FIND], stream=False, options={"temperature": 0}).json()["message"]
    assert first["tool_calls"] == [{"function": {"name": "find_contact", "arguments": {"name": "Maria"}}}]
    answered = {"role": "tool", "content": '{"phone": "+49 30"}', "tool_name": "find_contact"}
    second = post(url, messages=[ASKED, first, answered], tools=[FIND], stream=False, options={"temperature": 0}).json()
    assert "+49 30" in second["message"]["content"]


def test_a_prompt_is_a_users_message(url: str) -> None:
    greedy = {"temperature": 0}
    system = {"role": "system", "content": "Be short."}
    chat = post(url, messages=[system, USER], options=greedy, stream=False).json()["message"]["content"]
    asked: dict[str, Any] = {"prompt": "Hello", "system": "Be short.", "options": greedy}
    assert post(url, "/api/generate", **asked, stream=False).json()["response"] == chat
    assert "".join(line["response"] for line in lines_of(post(url, "/api/generate", **asked))) == chat


def test_what_clients_ask_first(url: str) -> None:
    assert httpx.get(f"{url}/api/version").json()["version"]
    [model] = httpx.get(f"{url}/api/tags").json()["models"]
    about = post(url, "/api/show", model=f"{model['name']}:latest").json()
    assert "tools" in about["capabilities"] and any(name.endswith("context_length") for name in about["model_info"])
    assert post(url, "/api/generate", keep_alive=0).json()["done_reason"] == "load"
    assert post(url, messages=[]).json()["done"] is True


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "other"}, 404, "'other'"),
        ({"messages": [{**USER, "images": ["aaaa"]}]}, 400, "messages.0.images"),
        ({"options": {"num_predikt": 3}}, 400, "num_predict"),
        ({"options": {"temperature": -1}}, 400, "options.temperature"),
        ({"options": {"num_predict": 10**310}}, 400, "options.num_predict"),
        ({"format": {"type": "x"}}, 400, "format: "),
        ({"format": "xml"}, 400, "format"),
        ({"messages": [USER, {"role": "tool", "content": "a"}]}, 400, "messages.1"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, USER]},
            400,
            "no answer",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_have_ollamas_shape(url: str, body: dict[str, Any], status: int, words: str, stream: bool) -> None:
    answer = post(url, **body, stream=stream)
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error"} and words in answer.json()["error"]


def test_a_client_that_leaves_ends_what_runs(url: str, bundled: Engine) -> None:
    body = {"messages": [USER], "format": {"type": "string", "minLength": 900}}
    with httpx.stream("POST", f"{url}/api/chat", json=body) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["done"] is False
        await_true(lambda: bundled.stats().running == 1)
    await_true(lambda: bundled.stats().running == 0)
