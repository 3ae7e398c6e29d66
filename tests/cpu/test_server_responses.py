"""/v1/responses: beside the chat that it is made of, its streams folded, its store, through the official client."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from chunk_walks import walk
from pydantic import BaseModel, Field
from server_rig import await_true, serving, slow_steps

from sgl.runtime import Engine
from sgl.runtime.server.protocols.responses.response_store import ResponseStore
from sgl.runtime.server.protocols.responses.responses_writer import ResponseOutputWriter

MODEL = "nano"
SERVER: dict[str, Any] = {"served_name": MODEL, "tool_format": "hermes", "reasoning_format": "qwen3"}
FIND: Any = {
    "type": "function",
    "name": "find_contact",
    "description": "Find the phone number of a contact",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
TODO: Any = {
    "type": "function",
    "name": "add_todo",
    "description": "Add a task to the to-do list",
    "parameters": {"type": "object", "properties": {"task": {"type": "string", "maxLength": 20}}, "required": ["task"]},
}
ASKED = "What is Maria's phone number?"


class Booking(BaseModel):
    city: str = Field(max_length=12)
    nights: int = Field(ge=1, le=9)


@pytest.fixture(scope="module")
def own(bundled: Engine) -> Iterator[str]:
    """A server that speaks the bundled model's own dialect."""
    with serving(bundled, served_name=MODEL) as found:
        yield found


@pytest.fixture(scope="module")
def client(own: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{own}/v1", api_key="none", max_retries=0) as found:
        yield found


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/responses", json=body)


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Each event, called as its line says, numbered from 0."""
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == len(found)
        found.append(event)
    return found


def folded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that the deltas make, with nothing taken from what the events of an end repeat but the status."""
    items: list[dict[str, Any]] = []
    for event in events:
        item = items[event["output_index"]] if event.get("output_index", 99) < len(items) else {}
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append(json.loads(json.dumps(event["item"])))
            case "content_part.added":
                item["content"] = [dict(event["part"])]
            case "reasoning_summary_part.added":
                item["summary"] = [dict(event["part"])]
            case "output_text.delta":
                item["content"][0]["text"] += event["delta"]
                item["content"][0]["logprobs"] += event["logprobs"]
            case "reasoning_text.delta":
                item["content"][0]["text"] += event["delta"]
            case "reasoning_summary_text.delta":
                item["summary"][0]["text"] += event["delta"]
            case "function_call_arguments.delta":
                item["arguments"] += event["delta"]
            case "output_text.done":
                assert event["text"] == item["content"][0]["text"]
            case "function_call_arguments.done":
                assert event["arguments"] == item["arguments"]
            case "output_item.done":
                item["status"] = event["item"]["status"]
                assert event["item"] == item
    return items


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]


# --- streams ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("summary", [False, True])
def test_pieces_fold_to_what_is_told_whole(summary: bool) -> None:
    for seed in range(300):
        whole, pieces = walk(seed)
        one, other = ResponseOutputWriter(summary, False), ResponseOutputWriter(summary, False)
        one.write(whole)
        events = other.write(pieces)
        assert folded(events) == other.output
        assert without_ids(other.output) == without_ids(one.output), seed
        assert all(item["status"] in ("completed", "incomplete") for item in one.output) and one.output


SCHEMA: Any = {"type": "json_schema", "name": "booking", "schema": Booking.model_json_schema()}


def random_request(chance: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {
        "input": chance.choice(["Hello", ASKED, "Remind me to buy milk."]),
        "seed": chance.randrange(1000),
    }
    body |= {"temperature": chance.choice([0, 1, 1.5]), "max_output_tokens": chance.choice([1, 3, 40])}
    if chance.random() < 0.5:
        body |= {
            "tools": [FIND, TODO],
            "tool_choice": chance.choice(["auto", "required", "none", {"type": "function", "name": "add_todo"}]),
        }
    elif chance.random() < 0.5:
        body["text"] = {"format": chance.choice([SCHEMA, {"type": "json_object"}])}
    if chance.random() < 0.3:
        body["stop"] = chance.choice(["e", " ", ["ou", "a"]])
    if chance.random() < 0.3:
        body["top_logprobs"] = 2
    return body


@pytest.mark.few(1)
@pytest.mark.parametrize("served", ["url", "own"])
def test_streams_fold_to_the_whole_answer_which_is_the_chats(served: str, request: pytest.FixtureRequest) -> None:
    base = request.getfixturevalue(served)
    for seed in range(8):
        body = random_request(random.Random(seed))
        whole, events = post(base, **body).json(), events_of(post(base, **body, stream=True))
        assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
        last = events[-1]["response"]
        assert events[-1]["type"] == f"response.{whole['status']}" and folded(events) == last["output"]
        assert without_ids(last["output"]) == without_ids(whole["output"]), body
        assert {**last["usage"], "input_tokens_details": 0} == {**whole["usage"], "input_tokens_details": 0}
        _check_beside_chat(base, body, whole)


def _check_beside_chat(base: str, body: dict[str, Any], whole: dict[str, Any]) -> None:
    chat = {key: body[key] for key in ("seed", "temperature", "stop") if key in body}
    chat |= {"messages": [{"role": "user", "content": body["input"]}], "max_tokens": body["max_output_tokens"]}
    if "tools" in body:
        chat["tools"] = [{"type": "function", "function": {**tool, "type": None}} for tool in body["tools"]]
        choice = body["tool_choice"]
        chat["tool_choice"] = (
            {"type": "function", "function": {"name": choice["name"]}} if isinstance(choice, dict) else choice
        )
        for tool in chat["tools"]:
            del tool["function"]["type"]
    if "top_logprobs" in body:
        chat |= {"logprobs": True, "top_logprobs": 2}
    if "text" in body:
        format = body["text"]["format"]
        chat["response_format"] = {"type": format["type"]} | (
            {"json_schema": {"name": "b", "schema": format["schema"]}} if "schema" in format else {}
        )
    answer = httpx.post(f"{base}/v1/chat/completions", json=chat).json()
    [choice] = answer["choices"]
    said = "".join(item["content"][0]["text"] for item in whole["output"] if item["type"] == "message")
    calls = [(item["name"], item["arguments"]) for item in whole["output"] if item["type"] == "function_call"]
    assert said == (choice["message"]["content"] or "")
    assert calls == [
        (call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls", ())
    ]
    assert (whole["status"] == "incomplete") == (choice["finish_reason"] == "length")
    assert whole["usage"]["output_tokens"] == answer["usage"]["completion_tokens"]


# --- the official client ---------------------------------------------------------------------------------


def test_the_client_calls_tools_and_goes_on(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=ASKED, tools=[FIND], temperature=0)
    [call] = first.output
    assert call.type == "function_call" and json.loads(call.arguments) == {"name": "Maria"}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": '{"phone": "+49 30"}'}
    kept = client.responses.create(
        model=MODEL, input=[result], previous_response_id=first.id, tools=[FIND], temperature=0
    )
    sent: Any = [{"role": "user", "content": ASKED}, call.model_dump(), result]
    again = client.responses.create(model=MODEL, input=sent, tools=[FIND], temperature=0, store=False)
    referred: Any = [{"role": "user", "content": ASKED}, {"type": "item_reference", "id": call.id}, result]
    third = client.responses.create(model=MODEL, input=referred, tools=[FIND], temperature=0)
    assert "+49 30" in kept.output_text and kept.output_text == again.output_text == third.output_text
    items = client.responses.input_items.list(kept.id, order="asc").data
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]


def test_the_client_folds_streams_and_parses(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input="Book a hotel in Paris for 3 nights.", text_format=Booking, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    parsed = client.responses.parse(
        model=MODEL, input="Book a hotel in Paris for 3 nights.", text_format=Booking, temperature=0
    )
    assert final.output_parsed == parsed.output_parsed is not None
    assert {"response.created", "response.output_text.delta", "response.completed"} <= kinds


def test_instructions_lead_and_are_not_carried_on(url: str, bundled: Engine) -> None:
    first = post(url, input="Hello", instructions="Be short.", max_output_tokens=3).json()
    following = post(url, input="And?", previous_response_id=first["id"], max_output_tokens=3).json()
    said = first["output"][0]["content"][0]["text"]
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "And?"},
    ]
    plain = len(bundled.tokenizer.encode_chat(messages, add_generation_prompt=True))
    assert following["usage"]["input_tokens"] == plain
    system = [{"role": "system", "content": "Be short.\n\nBe kind."}, messages[0]]
    both = post(
        url,
        input=[{"role": "developer", "content": "Be kind."}, messages[0]],
        instructions="Be short.",
        max_output_tokens=3,
    ).json()
    assert both["usage"]["input_tokens"] == len(bundled.tokenizer.encode_chat(system, add_generation_prompt=True))


# --- what is kept ----------------------------------------------------------------------------------------


def test_answers_are_kept_until_they_are_deleted(url: str) -> None:
    made = post(url, input="Hello", max_output_tokens=3, metadata={"a": "b"}).json()
    where = f"{url}/v1/responses/{made['id']}"
    assert httpx.get(where).json() == made
    assert httpx.delete(where).json() == {"id": made["id"], "object": "response", "deleted": True}
    for gone in (
        httpx.get(where),
        httpx.delete(where),
        httpx.get(f"{where}/input_items"),
        httpx.post(f"{where}/cancel"),
    ):
        assert gone.status_code == 404 and gone.json()["error"]["code"] == "not_found"
    assert post(url, input="And?", previous_response_id=made["id"]).status_code == 404
    unkept = post(url, input="Hello", max_output_tokens=3, store=False).json()
    assert unkept["store"] is False and httpx.get(f"{url}/v1/responses/{unkept['id']}").status_code == 404


def test_a_key_sees_nothing_of_anothers(bundled: Engine) -> None:
    with serving(bundled, served_name=MODEL, api_keys=frozenset({"one", "two"})) as url:
        mine, theirs = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        body: dict[str, Any] = {"input": "Hello", "max_output_tokens": 3}
        made = httpx.post(f"{url}/v1/responses", json=body, headers=mine).json()
        where, item = f"{url}/v1/responses/{made['id']}", made["output"][0]["id"]
        following = [
            {"input": "a", "previous_response_id": made["id"]},
            {"input": [{"type": "item_reference", "id": item}]},
        ]
        asked = [
            httpx.get(where, headers=theirs),
            httpx.delete(where, headers=theirs),
            httpx.get(f"{where}/input_items", headers=theirs),
        ]
        asked += [httpx.post(f"{where}/cancel", headers=theirs)]
        asked += [
            httpx.post(f"{url}/v1/responses", json=one | {"max_output_tokens": 3}, headers=theirs) for one in following
        ]
        assert [answer.status_code for answer in asked] == [404] * 6
        assert [
            httpx.post(f"{url}/v1/responses", json=one | {"max_output_tokens": 3}, headers=mine).status_code
            for one in following
        ] == [200, 200]
        assert httpx.get(where, headers={"X-Api-Key": "one"}).json() == made


def kept(store: ResponseStore, id: str, text: str, previous: str | None = None) -> None:
    answer = {
        "id": id,
        "previous_response_id": previous,
        "status": "completed",
        "output": [{"id": f"i{id}", "text": text}],
    }
    store.put(answer, b"[]", [], "run")


def test_the_store_has_bounds_and_its_largest_tenant_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl.runtime.server.protocols.responses import response_store as module
    from sgl.runtime.server.request_context import CALLER

    store = ResponseStore(10_000)
    moment = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: moment)
    CALLER.set(CALLER.get()._replace(tenant="small"))
    kept(store, "s", "x" * 100)
    CALLER.set(CALLER.get()._replace(tenant="large"))
    for number in range(100):
        moment += 1
        kept(store, f"r{number}", "x" * 500)
        store.get("r0")
        assert store.held <= store.most
    assert store.get("r0") and store.get("r99") and store.siblings("ir99")["ir99"]["text"] == "x" * 500
    for id in ("r1", "s"):
        with pytest.raises(Exception, match="no response"):
            store.get(id)
    kept(store, "huge", "x" * 9000)
    with pytest.raises(Exception, match="no response"):
        store.get("huge")
    CALLER.set(CALLER.get()._replace(tenant="small"))
    assert store.get("s")
    moment += module.MOST_AGE + 1
    with pytest.raises(Exception, match="no response"):
        store.get("s")
    assert store.held == 0 and not store._items


# --- ends ------------------------------------------------------------------------------------------------


def test_a_stream_is_cancelled_by_its_id(url: str, bundled: Engine) -> None:
    with httpx.stream(
        "POST", f"{url}/v1/responses", json={"input": "Hello", "stream": True, "text": {"format": LONG}}
    ) as answer:
        lines = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
        id = next(lines)["response"]["id"]
        where = f"{url}/v1/responses/{id}"
        assert httpx.get(where).json()["status"] == "in_progress"
        assert post(url, input="And?", previous_response_id=id).status_code == 400
        assert httpx.post(f"{where}/cancel").json()["status"] == "cancelled"
        events = list(lines)
    assert events[-1]["type"] == "response.incomplete" and events[-1]["response"]["status"] == "cancelled"
    assert httpx.get(where).json() == events[-1]["response"]
    assert httpx.post(f"{where}/cancel").status_code == 400
    assert post(url, input="And?", previous_response_id=id).json()["error"]["param"] == "previous_response_id"


LONG: Any = {"type": "json_schema", "name": "l", "schema": {"type": "string", "minLength": 900}}


@pytest.fixture
def slowly(bundled: Engine) -> Iterator[None]:
    with slow_steps(bundled, 0.005):
        yield


@pytest.mark.usefixtures("slowly")
def test_a_stream_that_fails_says_so_and_is_kept(url: str) -> None:
    events = events_of(post(url, input="Hello", stream=True, timeout=0.5, text={"format": LONG}))
    last = events[-1]["response"]
    assert (
        events[-1]["type"] == "response.failed"
        and last["status"] == "failed"
        and last["error"]["code"] == "server_error"
    )
    assert folded(events) == last["output"] and last["output"][-1]["status"] == "incomplete"
    assert httpx.get(f"{url}/v1/responses/{last['id']}").json() == last
    assert post(url, input="And?", previous_response_id=last["id"]).json()["error"]["param"] == "previous_response_id"
    assert post(url, input="Hello", timeout=0.5, text={"format": LONG}).status_code == 504


def test_a_deleted_response_does_not_come_back(url: str) -> None:
    with httpx.stream(
        "POST", f"{url}/v1/responses", json={"input": "Hello", "stream": True, "max_output_tokens": 60}
    ) as answer:
        lines = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
        where = f"{url}/v1/responses/{next(lines)['response']['id']}"
        assert httpx.delete(where).status_code == 200
        assert list(lines)[-1]["type"] in ("response.completed", "response.incomplete")
    assert httpx.get(where).status_code == 404


def test_a_client_that_leaves_ends_what_runs(url: str, bundled: Engine) -> None:
    with httpx.stream(
        "POST", f"{url}/v1/responses", json={"input": "Hello", "stream": True, "text": {"format": LONG}}
    ) as answer:
        first = next(line for line in answer.iter_lines() if line.startswith("data: "))
    id = json.loads(first[6:])["response"]["id"]
    await_true(lambda: bundled.stats().running == 0)
    await_true(lambda: httpx.get(f"{url}/v1/responses/{id}").json()["status"] == "cancelled")


def test_a_length_is_gone_on_from(own: str) -> None:
    cut = post(own, input=ASKED, tools=[TODO], tool_choice="required", max_output_tokens=1, temperature=0).json()
    assert cut["status"] == "incomplete" and cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cut["output"][-1]["status"] == "incomplete"
    following = post(own, input="Go on.", previous_response_id=cut["id"], max_output_tokens=5)
    assert following.status_code == 200, following.text


def test_a_conversation_that_is_too_long_begins_later(url: str, bundled: Engine) -> None:
    context, room = bundled.info()["context"], 100
    words = [f"word{number} " * 40 for number in range(30)]
    said = [
        {"role": "user" if place % 2 == 0 else "assistant", "content": text}
        for place, text in enumerate([*words, "Hello"])
    ]
    body: dict[str, Any] = {"input": said, "instructions": "Be short.", "max_output_tokens": room}
    assert post(url, **body).status_code == 400
    answer = post(url, **body, truncation="auto").json()
    assert answer["truncation"] == "auto"
    system = {"role": "system", "content": "Be short."}
    lengths = [
        len(bundled.tokenizer.encode_chat([system, *said[first:]], add_generation_prompt=True))
        for first in range(0, 31, 2)
    ]
    assert answer["usage"]["input_tokens"] == max(length for length in lengths if length <= context - room)
    assert post(url, input="a " * 9000, truncation="auto").status_code == 400
    short = post(url, input="Hello", max_output_tokens=3, truncation="auto")
    assert short.status_code == 200


def test_parallel_calls_and_their_outputs_in_any_order(url: str) -> None:
    calls = [{"type": "function_call", "call_id": id, "name": "find_contact", "arguments": "{}"} for id in "ab"]
    outputs = [{"type": "function_call_output", "call_id": id, "output": id} for id in "ab"]
    user = {"role": "user", "content": ASKED}
    counts = set()
    for items in ([*calls, *outputs], [*calls, *outputs[::-1]]):
        answer = post(url, input=[user, *items, user], max_output_tokens=1, tools=[FIND])
        assert answer.status_code == 200, answer.text
        counts.add(answer.json()["usage"]["input_tokens"])
    assert len(counts) == 1
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "SG0u"}
    assert post(url, input=[user, thought, calls[0], outputs[0]], max_output_tokens=1).status_code == 200


USER = {"role": "user", "content": "a"}
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUT = {"type": "function_call_output", "call_id": "a", "output": "b"}


@pytest.mark.few(15)
@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "input", "missing"),
        ({"input": []}, "input", "missing"),
        ({"input": "a", "modle": "b"}, "modle", "'model'"),
        ({"input": "a", "background": True}, "background", "True"),
        ({"input": "a", "conversation": "c"}, "conversation", "no field"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens", "0"),
        ({"input": "a", "include": ["nothing"]}, "include.0", "nothing"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools.0.type", "web_search"),
        ({"input": "a", "tools": [FIND, FIND]}, "tools.1.name", "'find_contact'"),
        ({"input": "a", "tools": [FIND], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name", "'x'"),
        ({"input": "a", "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"input": "a", "tool_choice": "always"}, "tool_choice", "always"),
        (
            {"input": "a", "tools": [{**FIND, "parameters": {"type": "object", "properties": {"a": {"type": "x"}}}}]},
            "tools.0.parameters",
            "'x'",
        ),
        (
            {"input": "a", "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}},
            "text.format",
            "'x'",
        ),
        ({"input": "a", "text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "schema"),
        ({"input": "a", "reasoning": {"effort": "high"}}, "reasoning.effort", "reasoning.effort"),
        ({"input": "a", "top_k": -7}, None, "top_k"),
        ({"input": [USER, {"type": "computer_call"}]}, "input.1.type", "computer_call"),
        ({"input": [5]}, "input.0.type", "int"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input.0.role", "robot"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]},
            "input.0.content",
            "input_image",
        ),
        ({"input": [{"role": "user", "content": ["text"]}]}, "input.0.content", "'text'"),
        ({"input": [USER, CALL]}, "input.1.call_id", "'a'"),
        ({"input": [USER, OUT]}, "input.1.call_id", "'a'"),
        ({"input": [USER, OUT, CALL]}, "input.1.call_id", "'a'"),
        ({"input": [USER, CALL, CALL, OUT]}, "input.2.call_id", "'a'"),
        ({"input": [USER, CALL, OUT, OUT]}, "input.3.call_id", "already"),
        ({"input": [USER, {**CALL, "arguments": "no"}, OUT]}, "input", "'no'"),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "?"}, USER]},
            "input.0.encrypted_content",
            "not made by this server",
        ),
        ({"input": "a", "metadata": {str(i): "a" for i in range(17)}}, "metadata", "17"),
        ({"input": "a " * 9000}, None, "tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_name_the_field_and_the_value(
    url: str, body: dict[str, Any], param: str | None, words: str, stream: bool
) -> None:
    answer = post(url, **body, stream=stream)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and words in error["message"], error


@pytest.mark.parametrize("path", ["", "/input_items"])
def test_ids_that_are_none(url: str, path: str) -> None:
    for id in ("resp_0", "%00", "..%2f..", "a" * 3000):
        answer = httpx.get(f"{url}/v1/responses/{id}{path}")
        assert answer.status_code == 404 and answer.json()["error"]["message"]
    assert post(url, input=[{"type": "item_reference", "id": "nothing"}]).status_code == 404


def test_what_is_of_no_effect_is_taken(url: str) -> None:
    nothing = {
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "service_tier": "auto",
        "max_tool_calls": 3,
        "include": ["file_search_call.results", "web_search_call.action.sources"],
        "truncation": "disabled",
        "text": {"verbosity": "low"},
        "stream_options": None,
        "background": False,
        "parallel_tool_calls": True,
    }
    plain = post(url, input="Hello", temperature=0, max_output_tokens=5).json()
    assert without_ids(
        post(url, input="Hello", temperature=0, max_output_tokens=5, **nothing).json()["output"]
    ) == without_ids(plain["output"])


def test_many_streams_at_once_keep_their_own(url: str) -> None:
    seen: list[bool] = []

    def ask(seed: int) -> None:
        body: dict[str, Any] = {"input": "Hello", "seed": seed, "max_output_tokens": 12}
        events = events_of(post(url, **body, stream=True))
        seen.append(folded(events) == events[-1]["response"]["output"])

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 12
