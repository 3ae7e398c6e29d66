"""OpenAI's routes, driven by the official client."""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import openai
import pytest
from pydantic import BaseModel, Field
from server_rig import await_true, serving

import sgl
from sgl.runtime import Engine

MODEL = "nano"
PROMPT = "The cat"
USER = {"role": "user", "content": "Hello"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(engine, served_name=MODEL, max_choices=8, max_new_tokens=512) as found:
        yield found


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


def chat_prompt(engine: Engine, *messages: dict[str, Any]) -> str:
    return engine.tokenizer.render_chat(messages, add_generation_prompt=True)


# --- text completions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [PROMPT, "Once upon a time", "1, 2, 3,"])
def test_greedy_texts_are_the_engines(engine: Engine, client: openai.OpenAI, prompt: str) -> None:
    expected = engine.generate(prompt, max_tokens=20, temperature=0)
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=20, temperature=0)
    assert answer.choices[0].text == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason["type"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.prompt_tokens
    assert answer.usage.completion_tokens == expected.completion_tokens
    assert answer.usage.total_tokens == expected.prompt_tokens + expected.completion_tokens


def test_every_form_of_a_prompt_gives_the_same_text(engine: Engine, client: openai.OpenAI) -> None:
    ids = engine.tokenizer.encode(PROMPT, special_prefix=True).tolist()
    forms: list[Any] = [PROMPT, [PROMPT], ids, [ids]]
    answers = [client.completions.create(model=MODEL, prompt=form, max_tokens=8, temperature=0) for form in forms]
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert len({answer.id for answer in answers}) == len(forms)
    assert len({answer.system_fingerprint for answer in answers}) == 1


def test_choices_of_a_batch_are_in_order_and_count_a_prompt_once(engine: Engine, client: openai.OpenAI) -> None:
    prompts = [PROMPT, "Once upon a time"]
    answer = client.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=6, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    expected = engine.generate(prompts, max_tokens=6, temperature=0)
    assert [choice.text for choice in answer.choices] == [g.text for g in expected for _ in range(2)]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(g.prompt_tokens for g in expected)
    assert answer.usage.completion_tokens == 2 * sum(g.completion_tokens for g in expected)


def test_a_stream_says_what_the_whole_says(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "prompt": [PROMPT, "Hello"],
        "n": 2,
        "seed": 7,
        "max_tokens": 12,
        "logprobs": 2,
    }
    whole = client.completions.create(**body)
    parts = list(client.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        own = [part.choices[0] for part in parts if part.choices and part.choices[0].index == choice.index]
        assert "".join(part.text for part in own) == choice.text
        assert [part.finish_reason for part in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        assert choice.logprobs is not None
        for name in ("tokens", "text_offset"):
            assert [x for part in own for x in getattr(part.logprobs, name)] == getattr(choice.logprobs, name)
        assert choice.logprobs.token_logprobs == pytest.approx(
            [x for part in own for x in part.logprobs.token_logprobs], abs=1e-3
        )
    assert parts[-1].choices == [] and parts[-1].usage is not None and whole.usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(part.usage is None for part in parts[:-1])


def test_logprobs_name_tokens_and_where_they_stand(engine: Engine, client: openai.OpenAI) -> None:
    expected = engine.generate(PROMPT, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=6, temperature=0, logprobs=3)
    found = answer.choices[0].logprobs
    assert found is not None and found.tokens and found.top_logprobs
    assert "".join(found.tokens) == answer.choices[0].text
    assert found.token_logprobs == pytest.approx([value for value, _ in expected.logprobs], abs=1e-3)
    text = PROMPT + answer.choices[0].text
    for token, offset, value, best in zip(
        found.tokens, found.text_offset, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert text[offset:].startswith(token)
        assert best[token] == value == max(best.values())
        assert len(best) == 3


def test_an_echo_scores_the_prompt_without_what_the_tokenizer_puts_before_it(
    engine: Engine, client: openai.OpenAI
) -> None:
    ids = engine.tokenizer.encode(PROMPT, special_prefix=True)
    sequence = engine.open()
    sequence.extend(ids)
    scores, _ = sequence.logprobs(1).result()
    sequence.close()
    as_text = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=0, echo=True, logprobs=1).choices[0]
    as_ids = client.completions.create(model=MODEL, prompt=ids.tolist(), max_tokens=0, echo=True, logprobs=0).choices[0]
    assert as_text.text == PROMPT
    assert as_text.logprobs is not None and as_ids.logprobs is not None
    assert "".join(as_text.logprobs.tokens or []) == PROMPT
    assert as_text.logprobs.token_logprobs == pytest.approx([value for value, _ in scores], abs=1e-3)
    assert as_ids.logprobs.token_logprobs is not None
    assert as_ids.logprobs.token_logprobs[0] is None
    assert as_ids.logprobs.token_logprobs[1:] == pytest.approx(as_text.logprobs.token_logprobs, abs=1e-3)
    assert as_ids.logprobs.top_logprobs is None


def test_an_echo_comes_first_in_a_stream(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "echo": True}
    text = "".join(part.choices[0].text for part in client.completions.create(**body, stream=True))
    assert text == client.completions.create(**body).choices[0].text
    assert text.startswith(PROMPT) and len(text) > len(PROMPT)


def test_seeds_repeat_and_samples_differ(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": "My name is", "n": 4, "max_tokens": 12, "seed": 11}
    first, again = (client.completions.create(**body) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) > 1
    alone = client.completions.create(**{**body, "n": 1})
    assert alone.choices[0].text == texts[0]


def test_stops_and_bias_reach_the_engine(engine: Engine, client: openai.OpenAI) -> None:
    free = engine.generate(PROMPT, max_tokens=10, temperature=0)
    stop = free.text[3:6]
    body: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 10, "temperature": 0}
    stopped = client.completions.create(**body, stop=stop).choices[0]
    assert stopped.text == free.text[: free.text.index(stop)] and stopped.finish_reason == "stop"
    banned = client.completions.create(**body, logit_bias={str(free.token_ids[0]): -100}).choices[0]
    assert banned.text != free.text
    chosen = client.completions.create(**{**body, "max_tokens": 1}, logit_bias={"300": 100}, logprobs=0).choices[0]
    assert chosen.text == engine.tokenizer.decode([300])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("constraint", "accepts"),
    [
        ({"regex": "[a-c]{5}"}, lambda text: len(text) == 5 and set(text) <= set("abc")),
        ({"ebnf": 'root ::= "yes" | "no"'}, lambda text: text in ("yes", "no")),
        ({"json_schema": {"enum": [12, 13]}}, lambda text: json.loads(text) in (12, 13)),
        ({"json_schema": '{"const": "x"}'}, lambda text: json.loads(text) == "x"),
        (
            {"json_schema": {"$ref": "http://x.org/y"}, "resources": {"http://x.org/y": {"const": "z"}}},
            lambda text: json.loads(text) == "z",
        ),
    ],
)
def test_constraints_hold(client: openai.OpenAI, constraint: dict[str, Any], accepts: Any, stream: bool) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "extra_body": constraint, "seed": 3}
    if stream:
        text = "".join(part.choices[0].text for part in client.completions.create(**body, stream=True))
    else:
        text = client.completions.create(**body).choices[0].text
    assert accepts(text)


def test_a_second_request_finds_the_prompt_in_the_cache(engine: Engine, client: openai.OpenAI) -> None:
    engine.flush_cache()
    prompt = "A sentence that nobody has asked for before, long enough for a page or two of the cache."
    first, second = (client.completions.create(model=MODEL, prompt=prompt, max_tokens=1) for _ in range(2))
    cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in (first, second)]  # type: ignore[union-attr]
    assert cached[0] == 0 < cached[1] < second.usage.prompt_tokens  # type: ignore[union-attr]


# --- chat ------------------------------------------------------------------------------------------------


def test_greedy_messages_are_the_engines(engine: Engine, client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, USER]
    expected = engine.generate(chat_prompt(engine, *messages), max_tokens=16, temperature=0)
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=16, temperature=0)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert choice.finish_reason == expected.finish_reason["type"]
    assert answer.usage is not None and answer.usage.prompt_tokens == expected.prompt_tokens


def test_parts_of_text_are_one_text_and_answers_can_be_sent_back(client: openai.OpenAI) -> None:
    parts: Any = {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}
    options: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    whole, split = (client.chat.completions.create(messages=[message], **options) for message in (USER, parts))
    assert whole.choices[0].message.content == split.choices[0].message.content
    history: list[Any] = [USER, whole.choices[0].message, {"role": "user", "content": "Why?"}]
    assert client.chat.completions.create(messages=history, **options).usage.prompt_tokens > whole.usage.prompt_tokens  # type: ignore[union-attr]


def test_without_a_limit_the_message_ends_by_itself(engine: Engine, client: openai.OpenAI) -> None:
    expected = engine.generate(chat_prompt(engine, USER), max_tokens=512, temperature=0)
    answer = client.chat.completions.create(model=MODEL, messages=[USER], temperature=0)  # type: ignore[list-item]
    assert answer.choices[0].message.content == expected.text


def test_a_chat_stream_begins_with_the_role_and_ends_with_the_reason(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [USER],
        "n": 2,
        "seed": 5,
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**body)
    parts = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    for choice in whole.choices:
        own = [part.choices[0] for part in parts if part.choices and part.choices[0].index == choice.index]
        assert own[0].delta.role == "assistant" and all(part.delta.role is None for part in own[1:])
        assert "".join(part.delta.content or "" for part in own) == choice.message.content
        assert [part.finish_reason for part in own] == [None] * (len(own) - 1) + [choice.finish_reason]
        rows = [row for part in own if part.logprobs for row in part.logprobs.content or []]
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert [row.token for row in rows] == [row.token for row in choice.logprobs.content]
        assert all(len(row.top_logprobs) == 2 for row in rows)
    assert parts[-1].usage is not None and whole.usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_bytes_of_chat_logprobs_make_the_message(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[USER], max_tokens=10, seed=1, logprobs=True, top_logprobs=1
    )  # type: ignore[list-item]
    rows = answer.choices[0].logprobs.content  # type: ignore[union-attr]
    assert rows
    assert b"".join(bytes(row.bytes or []) for row in rows).decode() == answer.choices[0].message.content
    assert all(row.logprob <= row.top_logprobs[0].logprob <= 0 for row in rows)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Ball(BaseModel):
    color: Color
    size: Annotated[int, Field(ge=0, le=99)]
    used: bool


def test_the_client_parses_what_a_schema_shaped(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=[USER], response_format=Ball, max_tokens=100, seed=2)  # type: ignore[list-item]
    assert isinstance(answer.choices[0].message.parsed, Ball)
    loose = {
        "type": "json_schema",
        "json_schema": {"name": "ball", "schema": Ball.model_json_schema(), "strict": False},
    }
    options: Any = {"response_format": loose, "max_tokens": 100, "seed": 4}
    text = client.chat.completions.create(model=MODEL, messages=[USER], **options).choices[0].message.content
    assert Ball.model_validate_json(text)


def test_json_object_gives_objects(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_object"}
    for seed in range(3):
        choice = client.chat.completions.create(
            model=MODEL,
            messages=[USER],
            response_format=form,
            seed=seed,
            max_tokens=300,  # type: ignore[list-item]
        ).choices[0]
        assert (choice.message.content or "").startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content or ""), dict)


def test_the_last_message_can_go_on(engine: Engine, url: str) -> None:
    beginning = "The sky is"
    body = {
        "messages": [USER, {"role": "assistant", "content": beginning}],
        "continue_final_message": True,
        "temperature": 0,
        "max_tokens": 6,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    expected = engine.generate(chat_prompt(engine, USER) + beginning, max_tokens=6, temperature=0)
    assert answer["choices"][0]["message"]["content"] == expected.text


def test_the_async_client_streams_side_by_side(engine: Engine, url: str) -> None:
    prompts = [f"{number} is a number that" for number in range(6)]

    async def text(client: openai.AsyncOpenAI, prompt: str) -> str:
        stream = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0, stream=True)
        return "".join([part.choices[0].text async for part in stream])

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(text(client, prompt) for prompt in prompts))

    assert asyncio.run(run()) == [engine.generate(p, max_tokens=8, temperature=0).text for p in prompts]


LONG: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 512, "ignore_eos": True, "n": 8}


def test_a_client_that_leaves_frees_its_sequences(engine: Engine, url: str) -> None:
    before = engine.stats()
    with httpx.stream("POST", f"{url}/v1/completions", json={**LONG, "stream": True}) as answer:
        next(answer.iter_lines())
    await_true(lambda: engine.stats().running == 0)

    async def leave() -> None:
        async with httpx.AsyncClient() as client:
            call = asyncio.ensure_future(client.post(f"{url}/v1/completions", json=LONG))
            await asyncio.to_thread(await_true, lambda: engine.stats().running == LONG["n"])
            call.cancel()

    asyncio.run(leave())
    await_true(lambda: engine.stats().running == 0)
    work = engine.stats() - before
    assert work.aborts == 2 * LONG["n"] and work.generations == 0
    engine.check()


def test_what_ends_late_is_a_status_or_the_last_event(engine: Engine) -> None:
    endless = {**LONG, "max_tokens": 2000}
    with serving(engine, served_name=MODEL, request_timeout=0.5) as url:
        assert httpx.post(f"{url}/v1/completions", json=endless).status_code == 504
        with httpx.stream("POST", f"{url}/v1/completions", json={**endless, "stream": True}) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert answer.status_code == 200 and lines[-1] == "data: [DONE]"
        error = json.loads(lines[-2].removeprefix("data: "))["error"]
        assert error["code"] == "timeout" and "0.5 seconds" in error["message"]
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with client, pytest.raises(openai.APIError, match=r"0\.5 seconds"):
            list(
                client.completions.create(
                    model=MODEL, prompt=PROMPT, n=8, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
                )
            )


# --- our own language as the client ----------------------------------------------------------------------


@sgl.function
def story(s: Any) -> None:
    s += "Once there was"
    s += sgl.gen("a", max_tokens=8, stop=".")
    s += " It was"
    s += sgl.select("mood", [" good", " bad", " very strange"])
    s += " in the year "
    s += sgl.gen("year", regex="[12][0-9]{3}", max_tokens=8)


@sgl.function
def talk(s: Any) -> None:
    s += sgl.user("What is the sky?")
    s += sgl.assistant(sgl.gen("sky", max_tokens=10))


def test_programs_say_the_same_as_on_the_embedded_engine(engine: Engine, url: str) -> None:
    remote = sgl.OpenAI(MODEL, False, base_url=f"{url}/v1", api_key="none", constrained="sglang")
    mine, theirs = (story.run(backend=backend, temperature=0) for backend in (engine, remote))
    assert theirs.text() == mine.text()
    assert theirs["mood"] == mine["mood"]
    chat = sgl.OpenAI(MODEL, True, base_url=f"{url}/v1", api_key="none", constrained="sglang")
    assert talk.run(backend=chat, temperature=0)["sky"] == talk.run(backend=engine, temperature=0)["sky"]
