"""What OpenAI's routes refuse: by a status, naming the field and the value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from server_rig import serving

from sgl.runtime import Engine

MODEL = "nano"
USER = {"role": "user", "content": "Hello"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Engine() as engine, serving(engine, served_name=MODEL, max_choices=8, max_new_tokens=512) as found:
        yield found


TEXT, CHAT = "completions", "chat/completions"


def schema(**keywords: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": keywords}}


@pytest.mark.few(15)
@pytest.mark.parametrize(
    ("route", "body", "status", "param", "words"),
    [
        (TEXT, {"prompt": "a", "model": "other"}, 404, "model", "'nano'"),
        (TEXT, {}, 400, "prompt", "missing"),
        (TEXT, {"prompt": []}, 400, "prompt", "list"),
        (TEXT, {"prompt": ["a", 1]}, 400, "prompt", "list"),
        (TEXT, {"prompt": "\ud800"}, 400, None, "Unicode"),
        (TEXT, {"prompt": [10**9]}, 400, None, "1000000000"),
        (TEXT, {"prompt": [1] * 5000}, 400, None, "5000 tokens"),
        (TEXT, {"prompt": "a", "temprature": 1}, 400, "temprature", "'temperature'"),
        (TEXT, {"prompt": "a", "temperature": "1"}, 400, "temperature", "'1'"),
        (TEXT, {"prompt": "a", "temperature": -1}, 400, "temperature", "-1"),
        (TEXT, {"prompt": "a", "n": 9}, 400, "n", "8"),
        (TEXT, {"prompt": "a", "max_tokens": 513}, 400, "max_tokens", "512"),
        (TEXT, {"prompt": ["a"] * 257}, 400, "prompt", "256"),
        (TEXT, {"prompt": "a", "stop": ""}, 400, None, "empty string"),
        (TEXT, {"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias", "'x'"),
        (TEXT, {"prompt": "a", "logit_bias": {"9" * 5000: 1}}, 400, "logit_bias", "token ids"),
        (TEXT, {"prompt": "a", "logit_bias": {"9": 101}}, 400, "logit_bias", "101"),
        (TEXT, {"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options", "stream=true"),
        (TEXT, {"prompt": "a", "regex": "("}, 400, "regex", "'('"),
        (TEXT, {"prompt": "a", "regex": "(", "stream": True}, 400, "regex", "'('"),
        (TEXT, {"prompt": "a", "regex": "a", "ebnf": "b"}, 400, "ebnf", "combined"),
        (CHAT, {"messages": []}, 400, "messages", "at least 1"),
        (CHAT, {"messages": [{"role": "bot", "content": "x"}]}, 400, "messages.0.role", "'bot'"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "messages.0.content",
            "'image_url'",
        ),
        (CHAT, {"messages": [USER], "top_logprobs": 2}, 400, "top_logprobs", "logprobs=true"),
        (CHAT, {"messages": [USER], "continue_final_message": True}, 400, "continue_final_message", "assistant"),
        (
            CHAT,
            {"messages": [USER], "response_format": {"type": "json_schema"}},
            400,
            "response_format.json_schema",
            "json_schema",
        ),
        (CHAT, {"messages": [USER], "response_format": schema(type="nothing")}, 400, "response_format", "nothing"),
        (
            CHAT,
            {
                "messages": [USER],
                "response_format": schema(type="array", contains={"type": "string", "minLength": 3}, uniqueItems=True),
            },
            400,
            "response_format",
            "not supported",
        ),
        (CHAT, {"messages": [USER], "response_format": schema(), "regex": "a"}, 400, "response_format", "combined"),
    ],
)
def test_refusals_name_the_field_and_the_value(
    url: str, route: str, body: dict[str, Any], status: int, param: str | None, words: str
) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{url}/v1/{route}", content=json.dumps(body), headers=headers)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert words in error["message"] and "Value error" not in error["message"]


WHOLE = ["top_k", "seed", "max_tokens", "min_tokens", "n", "logprobs", "priority"]


@pytest.mark.few(10)
@pytest.mark.parametrize(
    ("field", "digits"),
    [
        (field, digits)
        for field in [*WHOLE, "timeout", "temperature"]
        for digits in (20, 400, 4200)
        if digits > 20 or field in WHOLE
    ],
)
def test_numbers_that_no_machine_holds(url: str, field: str, digits: int) -> None:
    for sign in ("", "-"):
        content = f'{{"prompt": "a", "{field}": {sign}{"9" * digits}}}'
        answer = httpx.post(f"{url}/v1/completions", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400 and field in answer.json()["error"]["message"], answer.text


def test_a_bias_that_bans_all_that_the_grammar_allows(url: str) -> None:
    biases = ",".join(f'"{token}": -Infinity' for token in range(4096))
    content = f'{{"text": "a", "sampling_params": {{"regex": "[0-9]", "logit_bias": {{{biases}}}}}}}'
    answer = httpx.post(f"{url}/generate", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "logit_bias" in answer.json()["error"]["message"], answer.text


def test_the_client_raises_its_own_errors(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with client, pytest.raises(openai.NotFoundError, match="other"):
        client.completions.create(model="other", prompt="a")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[1] * 5000)
    assert caught.value.code == "context_length_exceeded"
