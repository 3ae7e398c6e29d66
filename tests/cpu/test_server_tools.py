"""Tools in chat: the bundled model through the official client, beside sgl's own toolbox."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field
from server_rig import await_true, serving, slow_steps

import sgl
from sgl.lang.tools import ToolCall
from sgl.runtime import Engine
from sgl.runtime.nano import nano_prompts

MODEL = "nano"
CONTACTS = {"maria": "+49 30 5550 143", "john": "+1 415 555 0199"}
QUESTIONS = [
    ("What is 12 * 7?", "84"),
    ("What is Maria's phone number?", "5550 143"),
    ("Remind me to buy milk.", "buy milk"),
]


def calculator(expression: str):
    """Compute an arithmetic expression"""
    left, sign, right = expression.split()
    return {"result": int(left) * int(right) if sign == "*" else int(left) + int(right)}


def find_contact(name: str):
    """Find the phone number of a contact"""
    return {"name": name, "phone": CONTACTS[name.lower()]}


def add_todo(task: str):
    """Add a task to the to-do list"""
    return {"task": task, "open_tasks": 1}


BOX = sgl.tools([calculator, find_contact, add_todo])
TOOLS: Any = [tool.openai for tool in BOX.tools.values()]


class FindHotel(BaseModel):
    """Find a hotel in a city"""

    city: str
    stars: int = Field(ge=1, le=5)
    meals: Literal["none", "breakfast", "all"]


PARSED: Any = [openai.pydantic_function_tool(FindHotel, name="find_hotel")]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(engine, served_name=MODEL, max_choices=8) as found:
        yield found


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def ask(question: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 60} | more


@sgl.function
def one_step(s, question, choice="auto"):
    s += BOX
    s += sgl.user(question)
    s += sgl.assistant(BOX.call("step", choice, max_tokens=60))


@sgl.function
def agent(s, question):
    s += BOX
    s += sgl.user(question)
    for _ in range(3):
        s += sgl.assistant(BOX.call("step", max_tokens=60))
        for call in s.get("step"):
            s += sgl.tool(BOX.run(call))
        if not s.get("step"):
            return s.get("step").text


def merged(parts: list[Any], index: int = 0) -> dict[str, Any]:
    """The message that the deltas of one choice make, by OpenAI's rules."""
    message: dict[str, Any] = {"content": None, "tool_calls": []}
    for part in parts:
        for choice in part.choices:
            if choice.index == index:
                _merge(message, choice.delta)
    return message


def _merge(message: dict[str, Any], delta: Any) -> None:
    if delta.content:
        message["content"] = (message["content"] or "") + delta.content
    for call in delta.tool_calls or []:
        if call.index == len(message["tool_calls"]):
            assert call.id.startswith("call_") and call.type == "function" and call.function.name
            message["tool_calls"].append({"name": call.function.name, "arguments": ""})
        assert call.index == len(message["tool_calls"]) - 1
        message["tool_calls"][-1]["arguments"] += call.function.arguments or ""


def plain(message: Any) -> dict[str, Any]:
    calls = [{"name": call.function.name, "arguments": call.function.arguments} for call in message.tool_calls or []]
    return {"content": message.content, "tool_calls": calls}


# --- the same as sgl's own -------------------------------------------------------------------------------


@pytest.mark.parametrize("question", [*(question for question, _ in QUESTIONS), "Hello"])
@pytest.mark.parametrize("choice", ["auto", "required", "find_contact"])
def test_greedy_answers_are_the_toolboxes(engine: Engine, client: openai.OpenAI, question: str, choice: str) -> None:
    expected = one_step.run(question, choice, backend=engine, temperature=0).get("step")
    wanted: Any = choice if choice in ("auto", "required") else {"type": "function", "function": {"name": choice}}
    answer = client.chat.completions.create(**ask(question, tool_choice=wanted)).choices[0]
    found = [(call.function.name, json.loads(call.function.arguments)) for call in answer.message.tool_calls or []]
    assert found == [(call.name, call.arguments) for call in expected]
    assert (answer.message.content or "") == expected.text
    assert answer.finish_reason == ("tool_calls" if found else "stop")
    assert (answer.message.content is None) == bool(found)


@pytest.mark.parametrize(("question", "part"), QUESTIONS)
def test_an_agent_over_the_wire_ends_as_a_program_does(
    engine: Engine, client: openai.OpenAI, question: str, part: str
) -> None:
    body = ask(question)
    for _ in range(3):
        message = client.chat.completions.create(**body).choices[0].message
        body["messages"].append(message)
        for call in message.tool_calls or []:
            result = BOX.run(ToolCall(call.function.name, json.loads(call.function.arguments)))
            body["messages"].append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
        if not message.tool_calls:
            break
    assert part in message.content
    assert message.content == agent.run(question, backend=engine, temperature=0).ret_value


# --- streams, samples, counts ----------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_stream_says_what_the_whole_says(client: openai.OpenAI, choice: str) -> None:
    for question in ("What is 12 * 7?", "Hello"):
        body = ask(question, n=3, seed=4, temperature=1.0, tool_choice=choice)
        whole = client.chat.completions.create(**body)
        parts = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
        for choice_ in whole.choices:
            assert merged(parts, choice_.index) == plain(choice_.message)
            own = [part.choices[0] for part in parts if part.choices and part.choices[0].index == choice_.index]
            assert [one.finish_reason for one in own] == [None] * (len(own) - 1) + [choice_.finish_reason]
            assert [one.delta.role for one in own] == ["assistant"] + [None] * (len(own) - 1)
        assert parts[-1].usage is not None and whole.usage is not None
        assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert parts[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_arguments_come_in_pieces_behind_the_name(engine: Engine, client: openai.OpenAI) -> None:
    with slow_steps(engine, 0.03):
        parts = list(client.chat.completions.create(**ask("Remind me to buy milk and bread on Friday."), stream=True))
    deltas = [call for part in parts for call in part.choices[0].delta.tool_calls or []]
    assert deltas[0].function.name == "add_todo" and deltas[0].function.arguments == ""
    assert all(one.id is None and one.function.name is None for one in deltas[1:])
    assert len(deltas) > 3


def test_any_temperature_gives_calls_that_fit(client: openai.OpenAI) -> None:
    body = ask("hello", n=8, seed=5, temperature=2.0, tools=PARSED, tool_choice="required", max_tokens=200)
    answer = client.chat.completions.create(**body)
    assert len({choice.message.tool_calls[0].function.arguments for choice in answer.choices}) > 1
    assert len({choice.message.tool_calls[0].id for choice in answer.choices}) == 8
    whole = [choice for choice in answer.choices if choice.finish_reason == "tool_calls"]
    assert whole
    for choice in whole:
        (call,) = choice.message.tool_calls
        jsonschema.validate(json.loads(call.function.arguments), PARSED[0]["function"]["parameters"])


def test_usage_counts_all_steps_and_the_prompt_once(engine: Engine, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ask("What is 12 * 7?"))
    call = answer.choices[0].message.tool_calls[0]
    state = one_step.run("What is 12 * 7?", backend=engine, temperature=0)
    written = sum(len(engine.tokenizer.encode(text)) for text in (call.function.name, call.function.arguments))
    assert answer.usage.completion_tokens == written
    prompt, _, _ = state.text().rpartition(f"{call.function.name}{nano_prompts.END}")
    assert answer.usage.prompt_tokens == len(engine.tokenizer.encode(prompt, special_prefix=True))


def test_samples_share_one_prompt_in_the_counts(engine: Engine, client: openai.OpenAI) -> None:
    engine.flush_cache()
    body = ask("What is the telephone number of somebody whom nobody has asked for yet?", tool_choice="required", n=3)
    first, second = (client.chat.completions.create(**body).usage for _ in range(2))
    assert (
        first.prompt_tokens_details.cached_tokens
        == 0
        < second.prompt_tokens_details.cached_tokens
        <= second.prompt_tokens
    )


# --- helpers of the client -------------------------------------------------------------------------------


def test_the_client_parses_tools_of_models(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "I need a 4 star hotel in Berlin with breakfast."}]
    answer = client.chat.completions.parse(
        model=MODEL, messages=messages, tools=PARSED, tool_choice="required", temperature=0
    )
    hotel = answer.choices[0].message.tool_calls[0].function.parsed_arguments
    assert isinstance(hotel, FindHotel) and hotel.city == "Berlin"
    messages += [
        answer.choices[0].message,
        {"role": "tool", "tool_call_id": answer.choices[0].message.tool_calls[0].id, "content": "Ritz"},
    ]
    again = client.chat.completions.parse(model=MODEL, messages=messages, tools=PARSED, temperature=0)
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens


def test_the_clients_stream_helper_tells_events(client: openai.OpenAI) -> None:
    body = ask("I need a 4 star hotel in Berlin.", tools=PARSED, tool_choice="required")
    with client.chat.completions.stream(**body) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    whole = client.chat.completions.create(**body).choices[0]
    assert plain(final.message) == plain(whole.message) and final.finish_reason == "tool_calls"
    kinds = [event.type for event in events]
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds
    assert isinstance(final.message.tool_calls[0].function.parsed_arguments, FindHotel)


def test_asynchronous_clients_get_the_same(client: openai.OpenAI, url: str) -> None:
    async def run() -> list[dict[str, Any]]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as other:
            calls = [other.chat.completions.create(**ask(question)) for question, _ in QUESTIONS]
            streams = [other.chat.completions.create(**ask(question), stream=True) for question, _ in QUESTIONS]
            whole = [plain(answer.choices[0].message) for answer in await asyncio.gather(*calls)]
            return whole + [merged([part async for part in stream]) for stream in await asyncio.gather(*streams)]

    expected = [plain(client.chat.completions.create(**ask(question)).choices[0].message) for question, _ in QUESTIONS]
    assert asyncio.run(run()) == expected * 2


def test_what_the_page_shows_works(url: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "server_tools.md").read_text()
    (block,) = re.findall(r"```text\n(.*?)```", page, re.S)
    space: dict[str, Any] = {}
    exec(block.replace("http://127.0.0.1:30000", url).replace("\nclient.chat", "\nlast = client.chat"), space)
    assert space["call"].function.parsed_arguments.name == "Maria"
    assert "5550 143" in space["last"].choices[0].message.content
    space["client"].close()


# --- limits ----------------------------------------------------------------------------------------------


@pytest.mark.few(5)
@pytest.mark.parametrize("limit", range(1, 12))
def test_a_call_that_meets_the_limit_is_closed_where_that_is_asked_for(client: openai.OpenAI, limit: int) -> None:
    body = ask("I need a 4 star hotel in Berlin.", tools=PARSED, tool_choice="required", max_tokens=limit) | {
        "extra_body": {"close_at_limit": True}
    }
    whole, parts = (
        client.chat.completions.create(**body).choices[0],
        list(client.chat.completions.create(**body, stream=True)),
    )
    (call,) = whole.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), PARSED[0]["function"]["parameters"])
    assert whole.finish_reason == parts[-1].choices[0].finish_reason == "length"
    assert merged(parts) == plain(whole.message)


@pytest.mark.few(5)
@pytest.mark.parametrize("limit", range(1, 12))
def test_a_call_that_meets_the_limit_keeps_what_was_written(client: openai.OpenAI, limit: int) -> None:
    body = ask("I need a 4 star hotel in Berlin.", tools=PARSED, tool_choice="required")
    written = client.chat.completions.create(**body).choices[0].message.tool_calls[0].function
    cut, parts = (
        client.chat.completions.create(**body | {"max_tokens": limit}).choices[0],
        list(client.chat.completions.create(**body | {"max_tokens": limit}, stream=True)),
    )
    assert cut.finish_reason == parts[-1].choices[0].finish_reason == "length" and merged(parts) == plain(cut.message)
    for call in cut.message.tool_calls or ():
        assert call.function.name == written.name
        assert written.arguments.startswith(call.function.arguments) and call.function.arguments != written.arguments


def test_stops_end_texts_and_leave_calls_whole(client: openai.OpenAI) -> None:
    free = client.chat.completions.create(**ask("What is 12 * 7?")).choices[0].message.tool_calls[0].function.arguments
    stopped = client.chat.completions.create(**ask("What is 12 * 7?", stop=["*", '"'])).choices[0]
    assert stopped.message.tool_calls[0].function.arguments == free
    text = client.chat.completions.create(**ask("Hello")).choices[0].message.content
    cut = client.chat.completions.create(**ask("Hello", stop=[text[3:6]])).choices[0]
    assert cut.message.content == text[: text.index(text[3:6])] and cut.finish_reason == "stop"


def test_without_choice_the_tools_are_described_and_not_called(client: openai.OpenAI) -> None:
    with_tools = client.chat.completions.create(**ask("What is 12 * 7?", tool_choice="none"))
    assert with_tools.choices[0].message.tool_calls is None and with_tools.choices[0].message.content
    without = client.chat.completions.create(**ask("What is 12 * 7?", tools=[]))
    assert with_tools.usage.prompt_tokens > without.usage.prompt_tokens + 20


def test_an_answer_beside_tools_keeps_to_its_format(client: openai.OpenAI) -> None:
    class Note(BaseModel):
        word: Literal["yes", "no"]

    body = ask("Hello")
    schema = {"type": "json_schema", "json_schema": {"name": "note", "schema": Note.model_json_schema()}}
    answer = client.chat.completions.create(**body, response_format=schema).choices[0]
    assert not answer.message.tool_calls and Note.model_validate_json(answer.message.content)
    called = client.chat.completions.create(**ask("What is 12 * 7?"), response_format=schema).choices[0]
    assert called.message.tool_calls[0].function.name == "calculator"


def test_a_tool_with_the_name_of_an_answer_is_refused(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": nano_prompts.ANSWER}}]
    with pytest.raises(openai.BadRequestError, match="rename it") as caught:
        client.chat.completions.create(**ask("Hello", tools=tools))
    assert caught.value.param == "tools"


def test_logprobs_are_those_of_the_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ask("Hello", logprobs=True, top_logprobs=1)).choices[0]
    parts = list(client.chat.completions.create(**ask("Hello", logprobs=True, top_logprobs=1), stream=True))
    rows = answer.logprobs.content
    assert b"".join(bytes(row.bytes) for row in rows).decode() == answer.message.content
    streamed = [row for part in parts if part.choices[0].logprobs for row in part.choices[0].logprobs.content]
    assert [row.token for row in streamed] == [row.token for row in rows]
    called = client.chat.completions.create(**ask("What is 12 * 7?", logprobs=True)).choices[0]
    assert called.message.tool_calls and called.logprobs.content == []


def test_a_client_that_leaves_frees_its_sequences(engine: Engine, url: str) -> None:
    body = ask("Hello", n=8, temperature=2.0, tools=PARSED, tool_choice="required", max_tokens=1000, stream=True)
    before = engine.stats()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
    await_true(lambda: engine.stats().running == 0)
    assert (engine.stats() - before).generations < 8
    engine.check()


# --- schemas of strangers ---------------------------------------------------------------------------------


def with_parameters(url: str, parameters: Any, **body: Any) -> httpx.Response:
    tool = {"type": "function", "function": {"name": "order", "parameters": parameters}}
    asked = {
        "messages": [{"role": "user", "content": "An order"}],
        "tools": [tool],
        "tool_choice": "required",
        "max_tokens": 8,
        **body,
    }
    return httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60)


@pytest.mark.parametrize("member", [True, {"anyOf": [True]}, {"$ref": "#/$defs/any"}])
def test_members_that_take_any_value(url: str, member: Any) -> None:
    schema = {"type": "object", "properties": {"a": member}, "required": ["a"], "$defs": {"any": True}}
    answer = with_parameters(url, schema)
    assert answer.status_code == 200, answer.text
    assert "a" in json.loads(answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])


def test_a_schema_that_holds_itself_many_times_is_refused(url: str) -> None:
    itself = {"type": "object", "properties": {f"p{i}": {"$ref": "#/$defs/all"} for i in range(60)}}
    answer = with_parameters(url, {**itself, "$defs": {"all": itself}})
    assert answer.status_code == 400 and "more than 2000 values" in answer.json()["error"]["message"]


def test_arguments_that_cannot_be_closed_are_cut_and_say_so(url: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 10**9}}, "required": ["a"]}
    (choice,) = with_parameters(url, schema).json()["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["tool_calls"][0]["function"]["name"] == "order"
