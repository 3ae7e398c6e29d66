"""Other people's clients on a real server: curl, LangChain's and LiteLLM's
OpenAI adapters, OpenAI's asynchronous one.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Literal

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network for its prices

import litellm
import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
from server_rig import await_true, serving

from sgl.runtime import Engine

MODEL, KEY = "nano", "a-key"
QUESTION = "Hello"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
ASKED = "Book a hotel in Paris for 3 nights."
TOKENS = 20


class Booking(BaseModel):
    """A booking that a guest asks for."""

    city: str = Field(max_length=20)
    kind: Literal["hotel", "flight"]
    nights: int = Field(ge=1, le=9)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(engine, served_name=MODEL, api_keys=frozenset({KEY}), max_body_bytes=3_000_000) as found:
        yield found


@pytest.fixture(scope="module")
def expected(engine: Engine) -> str:
    """The greedy answer to the question."""
    prompt = engine.tokenizer.render_chat(MESSAGES, add_generation_prompt=True)
    return engine.generate(prompt, max_tokens=TOKENS, temperature=0).text


@pytest.fixture(autouse=True)
def nothing_is_left(engine: Engine) -> Iterator[None]:
    yield
    await_true(lambda: engine.stats().running == engine.stats().waiting == 0)
    engine.flush_cache()
    engine.check()
    assert engine.stats().pages_free == engine.stats().pages_total


# curl


@pytest.fixture
def curl(url: str) -> Any:
    """Runs curl on a path; returns (exit status, what it wrote)."""
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")

    def run(path: str, *options: str, body: Any = None, key: str = KEY) -> tuple[int, str]:
        words = ["--silent", "--max-time", "30", "--header", f"Authorization: Bearer {key}", *options]
        if body is not None:
            words += ["--header", "Content-Type: application/json", "--data-binary", "@-"]
        text = body if isinstance(body, str) else json.dumps(body)
        done = subprocess.run([program, *words, url + path], input=text, capture_output=True, text=True)
        return done.returncode, done.stdout

    return run


def test_curl_asks(curl: Any, expected: str) -> None:
    status, text = curl("/v1/chat/completions", body={"messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0})
    assert status == 0 and json.loads(text)["choices"][0]["message"]["content"] == expected


def test_curl_streams(curl: Any, expected: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    status, text = curl("/v1/chat/completions", "--no-buffer", "--include", body=body)
    head, *events = text.replace("\r\n", "\n").split("\n\n")
    assert status == 0 and "content-type: text/event-stream" in head.lower()
    assert events[-2:] == ["data: [DONE]", ""]
    entries = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]
    assert "".join(entry["delta"].get("content", "") for entry in entries) == expected
    assert entries[-1]["finish_reason"] == "stop"


def test_curl_asks_in_old_http(curl: Any) -> None:
    body = {"text": QUESTION, "stream": True, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    status, text = curl("/generate", "--http1.0", body=body)
    assert status == 0 and text.endswith("data: [DONE]\n\n")


def test_curl_waits_for_leave_to_send_a_long_body(curl: Any) -> None:
    options = ("--header", "Expect: 100-continue", "--include", "--output", "-")
    status, text = curl("/generate", *options, body={"text": "a" * 1_500_000})
    assert status == 0 and "HTTP/1.1 100" in text and "HTTP/1.1 400" in text and "tokens" in text
    status, text = curl("/generate", *options, body={"text": "a" * 3_500_000})
    assert "HTTP/1.1 413" in text and "3000000 bytes" in text


@pytest.mark.parametrize(
    ("path", "body", "key", "answer"),
    [
        ("/v1/models", None, "wrong", 401),
        ("/v1/nothing", None, KEY, 404),
        ("/v1/completions", None, KEY, 405),
        ("/v1/completions", "{", KEY, 400),
        ("/v1/completions", "", KEY, 400),
        ("/health", None, "wrong", 200),
    ],
)
def test_curl_is_told_by_a_status(curl: Any, path: str, body: Any, key: str, answer: int) -> None:
    status, text = curl(path, "--write-out", "%{http_code}", body=body, key=key)
    assert status == 0 and text.endswith(str(answer))
    assert curl(path, "--fail", body=body, key=key)[0] == (0 if answer == 200 else 22)


def test_curl_that_is_interrupted_frees_its_pages(url: str, engine: Engine, curl: Any) -> None:
    body = {"text": QUESTION, "stream": True, "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}}
    words = ["curl", "--silent", "--no-buffer", "--header", f"Authorization: Bearer {KEY}", "--json", json.dumps(body)]
    with subprocess.Popen([*words, f"{url}/generate"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline().startswith(b"data: ")
        generations = engine.stats().generations
        process.terminate()
    await_true(lambda: engine.stats().running == 0)
    assert engine.stats().generations == generations


# LangChain


@pytest.fixture
def chat(url: str) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL, base_url=f"{url}/v1", api_key=KEY, temperature=0, max_tokens=TOKENS, max_retries=0, timeout=30
    )


def test_langchain_asks(chat: ChatOpenAI, expected: str) -> None:
    answer = chat.invoke(QUESTION)
    assert answer.content == expected and answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 1
    assert asyncio.run(chat.ainvoke(QUESTION)).content == expected
    assert [found.content for found in chat.batch([QUESTION] * 3)] == [expected] * 3


def test_langchain_streams(chat: ChatOpenAI, expected: str) -> None:
    pieces = list(chat.stream(QUESTION, stream_usage=True))
    assert len(pieces) > 3 and "".join(str(piece.content) for piece in pieces) == expected
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 1


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
def test_langchain_reads_an_answer_of_a_form(chat: ChatOpenAI, method: Any) -> None:
    asked = f"{ASKED} Answer in JSON."
    form: Any = Booking if method == "json_schema" else None
    found = chat.model_copy(update={"max_tokens": 120}).with_structured_output(form, method=method).invoke(asked)
    assert isinstance(found, Booking if method == "json_schema" else dict)


def test_langchain_calls_tools(chat: ChatOpenAI) -> None:
    answer = chat.model_copy(update={"max_tokens": 120}).bind_tools([Booking], tool_choice="Booking").invoke(ASKED)
    [call] = answer.tool_calls
    assert call["name"] == "Booking" and call["id"] and Booking.model_validate(call["args"])
    assert not answer.invalid_tool_calls and answer.response_metadata["finish_reason"] == "tool_calls"


def test_langchain_streams_calls_of_tools(chat: ChatOpenAI) -> None:
    bound = chat.model_copy(update={"max_tokens": 120}).bind_tools([Booking], tool_choice="required")
    pieces = list(bound.stream(ASKED))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert len(pieces) > 3 and Booking.model_validate(whole.tool_calls[0]["args"])


def test_langchain_hands_results_of_tools_back(chat: ChatOpenAI) -> None:
    bound = chat.model_copy(update={"max_tokens": 120}).bind_tools([Booking], tool_choice="required")
    asked: list[Any] = [HumanMessage(ASKED)]
    called = bound.invoke(asked)
    results = [ToolMessage("booked", tool_call_id=call["id"]) for call in called.tool_calls]
    assert chat.invoke([*asked, called, *results]).content


def test_langchain_embeds(url: str, engine: Engine) -> None:
    embeddings = OpenAIEmbeddings(
        model=MODEL, base_url=f"{url}/v1", api_key=KEY, check_embedding_ctx_length=False, max_retries=0
    )
    found = embeddings.embed_documents([QUESTION, "Goodbye"])
    assert found[0] == pytest.approx(engine.embed([QUESTION])[0].tolist(), abs=0.05) and len(found) == 2


def test_langchain_is_told_what_is_wrong(chat: ChatOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="did you mean 'temperature'"):
        chat.invoke(QUESTION, extra_body={"temprature": 1})
    with pytest.raises(openai.AuthenticationError):
        ChatOpenAI(model=MODEL, base_url=chat.openai_api_base, api_key="wrong", max_retries=0).invoke(QUESTION)


# LiteLLM


@pytest.fixture
def lite(url: str) -> dict[str, Any]:
    litellm.suppress_debug_info = True
    return {
        "model": f"openai/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": KEY,
        "temperature": 0,
        "max_tokens": TOKENS,
        "num_retries": 0,
        "timeout": 30,
    }


def test_litellm_asks(lite: dict[str, Any], expected: str) -> None:
    answer = litellm.completion(messages=MESSAGES, **lite)
    assert answer.choices[0].message.content == expected and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert asyncio.run(litellm.acompletion(messages=MESSAGES, **lite)).choices[0].message.content == expected


def test_litellm_streams(lite: dict[str, Any], expected: str) -> None:
    pieces = list(litellm.completion(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **lite))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == expected
    assert pieces[-1].usage.completion_tokens > 1


def test_litellm_reads_an_answer_of_a_form(lite: dict[str, Any]) -> None:
    asked: list[Any] = [{"role": "user", "content": ASKED}]
    answer = litellm.completion(messages=asked, response_format=Booking, **{**lite, "max_tokens": 120})
    assert Booking.model_validate_json(answer.choices[0].message.content)


def test_litellm_calls_tools(lite: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "book", "parameters": Booking.model_json_schema()}}
    asked: list[Any] = [{"role": "user", "content": ASKED}]
    answer = litellm.completion(messages=asked, tools=[tool], tool_choice="required", **{**lite, "max_tokens": 120})
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "book" and Booking.model_validate_json(call.function.arguments)


def test_litellm_embeds(lite: dict[str, Any], engine: Engine) -> None:
    words = {name: lite[name] for name in ("model", "api_base", "api_key", "num_retries", "timeout")}
    [found] = litellm.embedding(input=[QUESTION], encoding_format="float", **words).data
    assert found["embedding"] == pytest.approx(engine.embed([QUESTION])[0].tolist(), abs=0.05)


def test_litellm_goes_on_with_texts(lite: dict[str, Any], engine: Engine) -> None:
    lite |= {"model": f"text-completion-openai/{MODEL}"}
    answer = litellm.text_completion(prompt="The capital of France is", **lite)
    assert answer.choices[0].text == engine.generate("The capital of France is", max_tokens=TOKENS, temperature=0).text


def test_litellm_is_told_what_is_wrong(lite: dict[str, Any]) -> None:
    for changed, kind in [
        ({"model": "openai/other"}, litellm.NotFoundError),
        ({"api_key": "wrong"}, litellm.AuthenticationError),
        ({"top_p": 7}, litellm.BadRequestError),
    ]:
        with pytest.raises(kind):
            litellm.completion(messages=MESSAGES, **{**lite, **changed})


# OpenAI's asynchronous client


def test_many_streams_at_once(url: str, expected: str) -> None:
    async def read(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=TOKENS, temperature=0, stream=True
        )
        return "".join([event.choices[0].delta.content or "" async for event in stream])

    async def read_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*[read(client) for _ in range(24)])

    assert asyncio.run(read_all()) == [expected] * 24


def test_a_stream_that_is_left_frees_its_pages(url: str, engine: Engine) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        stream = client.completions.create(
            model=MODEL, prompt=QUESTION, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        generations = engine.stats().generations
        stream.close()
        await_true(lambda: engine.stats().running == 0)
        assert engine.stats().generations == generations
