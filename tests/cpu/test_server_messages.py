"""/v1/messages: beside the chat that it is made of, its streams folded, through Anthropic's own client."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from chunk_walks import walk
from server_rig import await_true, serving, slow_steps

from sgl.runtime import Engine
from sgl.runtime.server.protocols.messages.messages_writer import ContentBlockWriter

MODEL = "nano"
SERVER: dict[str, Any] = {
    "served_name": MODEL,
    "tool_format": "hermes",
    "reasoning_format": "qwen3",
    "api_keys": frozenset({"k"}),
}
ASKED = "What is Maria's phone number?"
USER: Any = {"role": "user", "content": "Hello"}
FIND: Any = {
    "name": "find_contact",
    "description": "Find the phone number of a contact",
    "input_schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
TODO: Any = {
    "name": "add_todo",
    "description": "Add a task to the to-do list",
    "input_schema": {
        "type": "object",
        "properties": {"task": {"type": "string", "maxLength": 20}},
        "required": ["task"],
    },
}
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@pytest.fixture(scope="module")
def own(bundled: Engine) -> Iterator[str]:
    """A server that speaks the bundled model's own dialect."""
    with serving(bundled, served_name=MODEL, api_keys=frozenset({"k"})) as found:
        yield found


@pytest.fixture(scope="module")
def client(own: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=own, api_key="k", max_retries=0) as found:
        yield found


def post(url: str, path: str = "/v1/messages", **body: Any) -> httpx.Response:
    given = {"messages": [USER], **({"max_tokens": 20} if path == "/v1/messages" else {}), **body}
    return httpx.post(f"{url}{path}", json=given, headers={"x-api-key": "k"})


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def folded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content that the deltas make; blocks begin and end one after the other."""
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    opened = False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not opened and event["index"] == len(blocks)
                opened = True
                blocks.append(dict(event["content_block"]))
                texts.append("")
            case "content_block_delta":
                assert opened and event["index"] == len(blocks) - 1
                delta = event["delta"]
                if delta["type"] == "signature_delta":
                    blocks[-1]["signature"] += delta["signature"]
                else:
                    texts[-1] += delta[
                        {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[
                            delta["type"]
                        ]
                    ]
            case "content_block_stop":
                assert opened
                opened = False
                block = blocks[-1]
                if block["type"] != "tool_use":
                    block[block["type"]] = texts[-1]
                    continue
                try:
                    block["input"] = json.loads(texts[-1])
                except ValueError:
                    block["input"] = {}
    assert not opened
    return blocks


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.items() if key != "id"} for block in blocks]


# --- streams ---------------------------------------------------------------------------------------------


def test_pieces_fold_to_what_is_told_whole() -> None:
    for seed in range(300):
        whole, pieces = walk(seed)
        one, other = ContentBlockWriter(), ContentBlockWriter()
        one.write(whole)
        assert folded(other.write(pieces)) == other.content == one.content, seed


def random_request(chance: random.Random) -> dict[str, Any]:
    content = chance.choice(["Hello", ASKED, "Remind me to buy milk."])
    body: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "seed": chance.randrange(1000)}
    body |= {"temperature": chance.choice([0, 1, 1.5]), "max_tokens": chance.choice([1, 3, 40])}
    if chance.random() < 0.5:
        body |= {
            "tools": [FIND, TODO],
            "tool_choice": chance.choice(
                [{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "add_todo"}]
            ),
        }
    elif chance.random() < 0.4:
        body["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
    if chance.random() < 0.4:
        body["stop_sequences"] = chance.choice([["e"], [" "], ["ou", "a"]])
    return body


@pytest.mark.few(1)
@pytest.mark.parametrize("served", ["url", "own"])
def test_streams_fold_to_the_whole_answer_which_is_the_chats(served: str, request: pytest.FixtureRequest) -> None:
    base = request.getfixturevalue(served)
    for seed in range(8):
        body = random_request(random.Random(seed))
        whole, events = post(base, **body).json(), events_of(post(base, **body, stream=True))
        assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
        assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
        assert without_ids(folded(events)) == without_ids(whole["content"]), body
        end, start = events[-2], events[0]["message"]["usage"]
        assert end["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
        assert end["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
        assert {**start, "output_tokens": 0} == {**end["usage"], "output_tokens": 0}, body
        _check_beside_chat(base, body, whole)


def _object(arguments: str, cut: bool) -> Any:
    """What was written of a call that is cut may be no JSON, and this protocol has no place for it."""
    try:
        return json.loads(arguments)
    except ValueError:
        assert cut
        return {}


def _check_beside_chat(base: str, body: dict[str, Any], whole: dict[str, Any]) -> None:
    chat: dict[str, Any] = {key: body[key] for key in ("messages", "seed", "temperature", "max_tokens")} | {
        "stop": body.get("stop_sequences", [])
    }
    if "tools" in body:
        about = [
            {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}
            for tool in body["tools"]
        ]
        chat["tools"] = [{"type": "function", "function": function} for function in about]
        choice = body["tool_choice"]
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = named if "name" in choice else {"any": "required"}.get(choice["type"], choice["type"])
    if "output_config" in body:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    answer = httpx.post(f"{base}/v1/chat/completions", json=chat, headers={"Authorization": "Bearer k"}).json()
    [one] = answer["choices"]
    assert "".join(block["text"] for block in whole["content"] if block["type"] == "text") == (
        one["message"]["content"] or ""
    )
    calls = [(block["name"], block["input"]) for block in whole["content"] if block["type"] == "tool_use"]
    written = [
        (call["function"]["name"], call["function"]["arguments"]) for call in one["message"].get("tool_calls", ())
    ]
    assert calls == [(name, _object(arguments, one["finish_reason"] == "length")) for name, arguments in written]
    stopped = whole["stop_reason"] == "stop_sequence"
    assert (whole["stop_sequence"] in body.get("stop_sequences", ())) == stopped
    assert whole["stop_reason"] == REASONS[one["finish_reason"]] or (stopped and one["finish_reason"] == "stop")
    usage = whole["usage"]
    assert usage["output_tokens"] == answer["usage"]["completion_tokens"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == answer["usage"]["prompt_tokens"]


# --- Anthropic's client ----------------------------------------------------------------------------------


def test_the_client_calls_tools_and_goes_on(client: anthropic.Anthropic) -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": ASKED, "cache_control": {"type": "ephemeral"}}]}
    ]
    shared: Any = {
        "model": MODEL,
        "max_tokens": 60,
        "tools": [{**FIND, "cache_control": {"type": "ephemeral"}}],
        "extra_body": {"temperature": 0},
    }
    first = client.messages.create(messages=messages, **shared)
    assert first.stop_reason == "tool_use"
    [call] = first.content
    assert call.type == "tool_use" and call.input == {"name": "Maria"}
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": '{"phone": "+49 30"}'}],
    }
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(messages=messages, **shared)
    assert second.stop_reason == "end_turn" and "+49 30" in second.content[0].text
    with client.messages.stream(messages=messages, **shared) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == second.content[0].text
    count = client.messages.count_tokens(model=MODEL, messages=messages, tools=[FIND])
    assert count.input_tokens == second.usage.input_tokens + second.usage.cache_read_input_tokens
    with client.messages.stream(messages=messages[:1], **shared) as stream:
        assert stream.get_final_message().content[0].input == {"name": "Maria"}


def test_the_client_reads_its_errors(client: anthropic.Anthropic, own: str) -> None:
    with pytest.raises(anthropic.NotFoundError, match="no model"):
        client.messages.create(model="other", max_tokens=3, messages=[USER])
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(model=MODEL, max_tokens=0, messages=[USER])
    with (
        anthropic.Anthropic(base_url=own, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model=MODEL, max_tokens=3, messages=[USER])


# --- conversations ---------------------------------------------------------------------------------------


def count(url: str, **body: Any) -> int:
    return post(url, "/v1/messages/count_tokens", **body).json()["input_tokens"]


def test_conversations_are_those_of_a_chat(own: str, bundled: Engine) -> None:
    said = [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    expected = len(
        bundled.tokenizer.encode_chat([{"role": "system", "content": "s\nt"}, *said], add_generation_prompt=True)
    )
    texts = [{"type": "text", "text": "s"}, {"type": "text", "text": "t"}]
    split = [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}, *said[1:]]
    assert count(own, system="s\nt", messages=said) == count(own, system=texts, messages=split) == expected
    thoughts = [
        {"type": "thinking", "thinking": "x", "signature": "y"},
        {"type": "redacted_thinking", "data": "z"},
        {"type": "text", "text": "c"},
    ]
    assert (
        count(own, system="s\nt", messages=[said[0], {"role": "assistant", "content": thoughts}, said[2]]) == expected
    )


def test_an_assistants_beginning_is_gone_on_with(own: str) -> None:
    whole = post(own, temperature=0).json()["content"][0]["text"]
    begun = [USER, {"role": "assistant", "content": "Hi! What"}]
    assert post(own, temperature=0, messages=begun).json()["content"][0]["text"] == whole[8:]
    assert post(own, messages=begun, tools=[FIND]).json()["content"][0]["type"] == "text"


def test_thoughts_are_blocks(bundled: Engine) -> None:
    with serving(bundled, served_name=MODEL, reasoning_format="deepseek-r1") as url:
        whole = post(url, temperature=0, max_tokens=4, thinking={"type": "enabled", "budget_tokens": 1024}).json()
        events = events_of(post(url, temperature=0, max_tokens=4, stream=True))
    [thought] = whole["content"]
    assert thought["type"] == "thinking" and thought["thinking"] and thought["signature"]
    assert folded(events) == whole["content"] and whole["stop_reason"] == "max_tokens"


def use(*ids: str) -> Any:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in ids]}


def result(*ids: str) -> Any:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": id} for id in ids]}


def test_parallel_results_come_in_any_order(url: str) -> None:
    late = {"role": "user", "content": [{"type": "text", "text": "Go"}, *result("b", "a")["content"]]}
    early = {"role": "user", "content": [*result("a", "b")["content"], {"type": "text", "text": "Go"}]}
    assert count(url, messages=[USER, use("a", "b"), late]) == count(url, messages=[USER, use("a", "b"), early])


@pytest.mark.few(12)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": ["a"]}, "messages.0"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages.0.content.0: .*'image'.*text alone",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "txt": "a"}]}]}, "messages.0.content.0.txt"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]},
            "tool_use",
        ),
        ({"messages": [USER, use("a")]}, "'a' has no tool_result"),
        ({"messages": [USER, use("a"), USER]}, "messages.2: .*'a'"),
        ({"messages": [USER, result("a")]}, "'a' is not a tool_use"),
        ({"messages": [USER, use("a"), result("a", "a")]}, "answered already"),
        ({"messages": [USER, use("a", "a"), result("a")]}, "'a'"),
        ({"messages": [USER, use("a"), USER, result("a")], "x": 1}, "'x'"),
        ({"stop_sequence": ["a"]}, "did you mean 'stop_sequences'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.*web_search_20250305"),
        ({"tools": [FIND, FIND]}, "tools.1.name"),
        (
            {"tools": [{**FIND, "input_schema": {"type": "object", "properties": {"a": {"type": "x"}}}}]},
            "tools.0.input_schema",
        ),
        ({"tools": [FIND], "tool_choice": {"type": "tool", "name": "x"}}, "'x'"),
        ({"tools": [FIND], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "no tools"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "output_config.format"),
        (
            {
                "messages": [USER, {"role": "assistant", "content": "a"}],
                "tools": [FIND],
                "tool_choice": {"type": "any"},
            },
            "tool_choice",
        ),
        ({"messages": [{"role": "user", "content": "a " * 9000}]}, "tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_have_anthropics_shape_and_name_the_field(
    url: str, body: dict[str, Any], words: str, stream: bool
) -> None:
    answer = post(url, **body, stream=stream)
    assert answer.status_code == 400, answer.text
    told = answer.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert re.search(words, told["error"]["message"]), told


def test_a_stream_that_fails_says_so(url: str, bundled: Engine) -> None:
    long = {"format": {"type": "json_schema", "schema": {"type": "string", "minLength": 900}}}
    with slow_steps(bundled, 0.005):
        events = events_of(post(url, max_tokens=900, stream=True, timeout=0.2, output_config=long))
        whole = post(url, max_tokens=900, timeout=0.2, output_config=long)
    assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "timeout_error"
    assert events[0]["type"] == "message_start" and events[-1]["request_id"]
    assert whole.status_code == 504 and whole.json()["error"]["type"] == "timeout_error"


def test_a_client_that_leaves_ends_what_runs(url: str, bundled: Engine) -> None:
    long = {"format": {"type": "json_schema", "schema": {"type": "string", "minLength": 900}}}
    body = {"messages": [USER], "max_tokens": 900, "stream": True, "output_config": long}
    with httpx.stream("POST", f"{url}/v1/messages", json=body, headers={"x-api-key": "k"}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: message_start"
        await_true(lambda: bundled.stats().running == 1)
    await_true(lambda: bundled.stats().running == 0)


def test_what_is_of_no_effect_is_taken(url: str) -> None:
    nothing = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "high"},
        "cache_control": {"type": "ephemeral"},
        "system": [{"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}],
    }
    answer = post(url, temperature=0, **nothing)
    assert answer.status_code == 200, answer.text
