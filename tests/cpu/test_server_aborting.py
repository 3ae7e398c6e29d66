"""Calls that are ended by name: while they wait, run, stream, and by nobody but their own client."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server_rig import await_true, serving

import sgl
from sgl.runtime.server.protocols.native.generate_request_reader import read_request

LONG = {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}
BODY = {"text": "The capital of France is", "sampling_params": LONG}


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine(threads=1, dtype="float32") as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine):
    with serving(engine, api_keys=frozenset({"mine", "other"}), max_new_tokens=1500) as found:
        yield found


def client_of(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=60, headers={"Authorization": f"Bearer {key}"})


@pytest.fixture(scope="module")
def http(url):
    with client_of(url, "mine") as opened:
        yield opened


@pytest.fixture(scope="module")
def stranger(url):
    with client_of(url, "other") as opened:
        yield opened


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(4) as opened:
        yield opened


def abort(client: httpx.Client, **body: Any) -> int:
    answer = client.post("/abort_request", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["aborted"]


@pytest.fixture
def started(engine, http, pool):
    """A call in the background, once the engine has it and has written something."""

    def start(path: str = "/generate", **body: Any) -> Future[httpx.Response]:
        made = engine.stats().computed_tokens
        future = pool.submit(http.post, path, **body)
        await_true(lambda: engine.stats().running > 0 and engine.stats().computed_tokens > made + 20)
        return future

    yield start
    await_true(lambda: engine.stats().running == 0)


def test_a_named_call_answers_what_it_has(started, http):
    future = started(json={**BODY, "rid": "a"})
    assert abort(http, rid="a") == 1
    answer = future.result().json()
    assert answer["meta_info"]["finish_reason"] == {"type": "abort", "message": "aborted by a call of /abort_request"}
    assert answer["meta_info"]["id"] == "a"
    assert 0 < len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"] < 1500


def test_a_named_call_that_is_left_alone_answers_as_any_other(http):
    body = {
        **BODY,
        "sampling_params": {**LONG, "max_new_tokens": 12, "n": 2},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    plain, named = (http.post("/generate", json=each).json() for each in (body, {**body, "rid": "left"}))
    for one, other in zip(plain, named, strict=True):
        assert (one["text"], one["output_ids"]) == (other["text"], other["output_ids"])
        assert one["meta_info"].keys() == other["meta_info"].keys()
        assert one["meta_info"]["finish_reason"] == other["meta_info"]["finish_reason"]


def test_a_stream_ends_well(engine, http):
    with http.stream("POST", "/generate", json={**BODY, "rid": "s", "stream": True}) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        first = json.loads(next(lines))
        assert abort(http, rid="s") == 1
        *events, last, done = [json.dumps(first), *lines]
    assert done == "[DONE]"
    event = json.loads(last)
    assert event["meta_info"]["finish_reason"]["type"] == "abort"
    assert event["text"].startswith(first["text"])
    assert len(event["output_ids"]) >= len(json.loads(events[-1])["output_ids"])
    await_true(lambda: engine.stats().running == 0)


def test_a_batch_goes_by_its_name_or_one_by_one(started, http):
    future = started(json={**BODY, "text": ["one", "two", "three"], "rid": "b"})
    assert abort(http, rid="b_1") == 1
    assert abort(http, rid="b") == 2
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in future.result().json()] == ["abort"] * 3


def test_a_name_with_a_number_is_no_part_of_another(started, http, pool):
    """ "R_1" is a call of its own unless it is the second prompt of the call "R"."""
    other = started(json={**BODY, "rid": "R_1"})
    mine = started(json={**BODY, "rid": "R"})
    assert abort(http, rid="R") == 1
    assert mine.result().json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert not other.done()
    assert abort(http, rid="R_1") == 1


def test_a_nameless_call_is_told(started, http):
    future = started(json=BODY)
    assert abort(http, abort_all=True) == 1
    assert future.result().status_code == 499
    assert "abort" in future.result().json()["error"]["message"]


def test_openai_requests_go_by_their_id(started, http):
    body = {"prompt": "x", "max_tokens": 1500, "ignore_eos": True}
    future = started("/v1/completions", json=body, headers={"X-Request-Id": "mine-1"})
    assert abort(http, rid="mine-1") == 1
    assert future.result().status_code == 499
    assert future.result().json()["error"]["code"] == "request_aborted"


def test_nobody_aborts_what_is_not_his(started, http, stranger):
    future = started(json={**BODY, "rid": "a"})
    assert abort(stranger, rid="a") == abort(stranger, abort_all=True) == 0
    assert not future.done()
    assert abort(http, abort_all=True) == 1
    assert future.result().status_code == 200


def test_nothing_is_left_of_it(started, engine, http):
    future = started(json={**BODY, "rid": "a"})
    abort(http, rid="a")
    future.result()
    assert abort(http, rid="a") == abort(http, rid="never") == abort(http, abort_all=True) == 0
    await_true(lambda: engine.stats().running == engine.stats().waiting == 0)
    engine.flush_cache()
    await_true(lambda: (stats := engine.stats()).pages_free == stats.pages_total)


def test_what_is_refused(http):
    for body in ({}, {"rid": ""}, {"rid": 5}, {"name": "a"}, {"abort_all": False}):
        answer = http.post("/abort_request", json=body)
        assert answer.status_code == 400 and answer.json()["error"].keys() == {"message"}


def test_one_rule_for_too_many_tokens(http, engine):
    """Who asks for more than the server gives is told so; who does not say how many gets what there may be."""
    more = 1501
    native = http.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": more}})
    text = http.post("/v1/completions", json={"prompt": "x", "max_tokens": more})
    chat = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}], "max_tokens": more})
    for answer in (native, text, chat):
        assert answer.status_code == 400 and "this server's 1500" in answer.json()["error"]["message"]
    with serving(engine, max_new_tokens=3) as small, client_of(small, "none") as guest:
        silent = guest.post("/generate", json={"text": "x", "sampling_params": {"ignore_eos": True}}).json()
        text = guest.post("/v1/completions", json={"prompt": "x", "ignore_eos": True}).json()
    assert silent["meta_info"]["completion_tokens"] == text["usage"]["completion_tokens"] == 3


def test_lists_of_options_are_read_one_by_one(engine):
    call = {"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 3}, {"max_new_tokens": 9}]}
    with pytest.raises(Exception, match=r"sampling_params\[1\].max_new_tokens is 9"):
        read_request(call, engine.tokenizer, 5)
    assert read_request(call, engine.tokenizer).prompts[1].params.max_tokens == 9
