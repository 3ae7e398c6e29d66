"""Whatever number or text stands in a field of a body, the server answers it or refuses it, and goes on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import httpx
import pytest
from extremes import some
from server_rig import await_true, serving

from sgl.runtime import Engine

SECONDS = 30.0
VALUES = [
    "0",
    "1",
    "-1",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "1" + "0" * 310,
    "-1" + "0" * 310,
    "9" * 5000,
    "1e308",
    "-1e308",
    "1e400",
    "-1e400",
    "5e-324",
    "0.5",
    "NaN",
    "Infinity",
    "-Infinity",
    "true",
    "false",
    "null",
    '""',
    '"x"',
    '"1"',
    '"\\ud800"',
    "[]",
    "[1]",
    "[null]",
    '["x"]',
    "[[1]]",
    "{}",
    '{"1": 1e308}',
    '{"1": 1e400}',
    '{"x": 1}',
    '{"5": null}',
    "[1e400]",
    "[-1]",
    '[""]',
    "[" * 500 + "]" * 500,
]
NATIVE = (
    "max_new_tokens",
    "min_new_tokens",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "ignore_eos",
    "sampling_seed",
    "regex",
    "json_schema",
    "ebnf",
)
OUTER = (
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "priority",
    "timeout",
    "rid",
    "input_ids",
    "text",
    "stream",
)
OPENAI = (
    "max_tokens",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "stop",
    "seed",
    "min_tokens",
    "stop_token_ids",
    "repetition_penalty",
    "timeout",
    "priority",
    "user",
    "stream_options",
    "response_format",
    "echo",
)
FIELDS = [
    *(("/generate", f"sampling_params {name}") for name in NATIVE),
    *(("/generate", name) for name in OUTER),
    *(("/v1/completions", name) for name in (*OPENAI, "logprobs", "prompt", "best_of")),
    *(
        ("/v1/chat/completions", name)
        for name in (*OPENAI, "top_logprobs", "max_completion_tokens", "messages", "tools", "tool_choice")
    ),
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(threads=1, kv_tokens=8192) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[httpx.Client]:
    limits = {"max_new_tokens": 4, "max_choices": 4}
    with serving(engine, served_name="nano", **limits) as url, httpx.Client(base_url=url, timeout=SECONDS) as opened:
        yield opened


def body(path: str, name: str, value: str) -> str:
    """JSON as a client may write it that knows no limits."""
    usual = {"/generate": '"text": "Hi"', "/v1/completions": '"model": "nano", "prompt": "Hi"'}
    start = usual.get(path, '"model": "nano", "messages": [{"role": "user", "content": "Hi"}]')
    within, _, inner = name.rpartition(" ")
    field = f'"{inner}": {value}'
    return f"{{{start}, {field if not within else f'{json.dumps(within)}: {{{field}}}'}}}"


@pytest.mark.few(15)
@pytest.mark.parametrize(("path", "name"), FIELDS, ids=["-".join(field) for field in FIELDS])
def test_a_field_of_a_body(client, engine, path, name):
    for value in some(VALUES, f"{path} {name}", 10):
        answer = client.post(path, content=body(path, name, value), headers={"Content-Type": "application/json"})
        assert answer.status_code < 500 or (answer.status_code == 504 and name == "timeout"), (
            value[:80],
            answer.text[:300],
        )
    assert engine.up


def test_nothing_is_left(client, engine):
    answer = client.post("/generate", json={"text": "Hi", "sampling_params": {"max_new_tokens": 2}})
    assert answer.status_code == 200
    await_true(lambda: engine.stats().running == engine.stats().waiting == 0)
    engine.flush_cache()
    engine.check()
    assert engine.stats().pages_free == engine.stats().pages_total


def test_two_fields_of_a_body(client, engine):
    for one, other in some(list(itertools.combinations(NATIVE, 2)), "two", 20):
        first, second = some(VALUES, one, 1)[0], some(VALUES, other, 1)[0]
        fields = f'"{one}": {first}, "{other}": {second}'
        answer = client.post("/generate", content=f'{{"text": "Hi", "sampling_params": {{{fields}}}}}')
        assert answer.status_code < 500, (fields[:200], answer.text[:300])
