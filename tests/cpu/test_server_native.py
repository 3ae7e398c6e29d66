"""The native protocol: requests as clients write them, and our own language on a real server."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import httpx
import pytest
from server_rig import await_true, serving

import sgl
from sgl.runtime.errors import ConfigError
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences.generation import Chunk
from sgl.runtime.server.protocols.native.generate_request_reader import PromptRequest, read_request
from sgl.runtime.server.protocols.native.generate_response import GenerateResponseWriter

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}  # the small model likes to end at once


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine(threads=1, dtype="float32") as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine):
    with serving(engine, max_prompt_tokens=2000) as found:
        yield found


@pytest.fixture(scope="module")
def client(url):
    with httpx.Client(base_url=url, timeout=60) as opened:
        yield opened


@pytest.fixture
def ask(client):
    def call(sampling: Any = None, **fields: Any) -> Any:
        answer = client.post("/generate", json={**fields, "sampling_params": GREEDY if sampling is None else sampling})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return call


@pytest.fixture
def refused(client):
    """The words of the 400 that a body gets."""

    def call(body: dict[str, Any]) -> str:
        answer = client.post("/generate", content=json.dumps(body), headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
        assert answer.json().keys() == {"error"}
        return answer.json()["error"]["message"]

    return call


def greedy(engine, prompt: str, **options: Any):
    return engine.generate(prompt, temperature=0, ignore_eos=True, **{"max_tokens": 8, **options})


def ids_of(engine, text: str) -> list[int]:
    return engine.tokenizer.encode(text, special_prefix=True).tolist()


def events_of(client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, whose end mark was seen."""
    answer = client.post("/generate", json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *lines, last = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert last == "[DONE]"
    return [json.loads(line) for line in lines]


# one text


def test_a_text_is_completed_as_the_engine_does_it(engine, ask):
    answer, expected = ask(text=PROMPT, rid="mine"), greedy(engine, PROMPT)
    assert (answer["text"], answer["output_ids"]) == (expected.text, expected.token_ids)
    meta = answer["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == expected.finish_reason
    assert meta["prompt_tokens"] == len(ids_of(engine, PROMPT))
    assert meta["completion_tokens"] == len(expected.token_ids)
    assert meta["e2e_latency"] > 0
    assert "output_token_logprobs" not in meta


def test_both_names_of_the_limits_are_taken(engine, ask, refused):
    short = {"temperature": 0, "ignore_eos": True, "max_tokens": 3, "min_tokens": 3}
    assert ask(text=PROMPT, sampling=short)["text"] == greedy(engine, PROMPT, max_tokens=3).text
    assert ask(text=PROMPT, sampling={**short, "max_new_tokens": 3})["meta_info"]["completion_tokens"] == 3
    told = "max_tokens is 3 and max_new_tokens is 8, but they are the same option; give one of them"
    assert (
        refused({"text": PROMPT, "sampling_params": {"max_tokens": 3, "max_new_tokens": 8}})
        == f"in sampling_params, {told}"
    )
    assert engine.generate(PROMPT, max_new_tokens=3, min_new_tokens=3).completion_tokens == 3
    with pytest.raises(ConfigError, match=told):
        engine.generate(PROMPT, max_tokens=3, max_new_tokens=8)


def test_token_ids_are_a_prompt_too(engine, ask):
    assert ask(input_ids=ids_of(engine, PROMPT))["text"] == greedy(engine, PROMPT).text


def test_cached_tokens_tell_what_was_there_before_the_call(client, engine, ask):
    text = "A text that nobody has sent before, with some words in it so that there is something to keep."
    assert client.post("/flush_cache").status_code == 200
    scored = {"return_logprob": True, "logprob_start_len": 0}
    assert ask(text=text, **scored)["meta_info"]["cached_tokens"] == 0
    assert ask(text=text, **scored)["meta_info"]["cached_tokens"] > 10


def test_a_stop_is_cut_off_and_named(engine, ask):
    whole = greedy(engine, PROMPT, max_tokens=24).text
    stop = whole[len(whole) // 2 :][:3]
    sampling = {**GREEDY, "max_new_tokens": 24}
    answer = ask({**sampling, "stop": stop}, text=PROMPT)
    assert answer["text"] == whole[: whole.index(stop)]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    kept = ask({**sampling, "stop": [stop], "no_stop_trim": True}, text=PROMPT)
    assert kept["text"] == whole[: whole.index(stop)] + stop


def test_a_special_token_as_a_stop_is_found_among_the_tokens(engine, ask):
    end = engine.tokenizer.special_tokens["eos_token"]
    token = engine.tokenizer.token_id(end)
    sampling = {"temperature": 0, "max_new_tokens": 8, "logit_bias": {str(token): 100.0}, "stop": [end]}
    answer = ask(sampling, text=PROMPT)
    assert answer["text"] == ""
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}


def test_an_empty_text_begins_as_in_the_engine(engine, ask):
    tokenizer = engine.tokenizer
    start = list(tokenizer.prefix_ids) or [tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_ids[0]]
    answer = ask(text="")
    assert answer["text"] == ask(input_ids=start)["text"]
    assert answer["meta_info"]["prompt_tokens"] == len(start)


# several texts


def test_a_batch_keeps_its_order(engine, ask):
    texts = [PROMPT, "Water boils at", "One, two,"]
    answers = ask(text=texts, rid="all")
    assert [answer["text"] for answer in answers] == [greedy(engine, text).text for text in texts]
    assert [answer["meta_info"]["id"] for answer in answers] == ["all_0", "all_1", "all_2"]


def test_each_prompt_of_a_batch_has_its_own_options(engine, ask):
    answers = ask(
        [{**GREEDY, "max_new_tokens": 2}, {**GREEDY, "max_new_tokens": 5}],
        text=[PROMPT, PROMPT],
        return_logprob=[False, True],
        top_logprobs_num=[0, 2],
        rid=["a", "b"],
    )
    assert [answer["meta_info"]["id"] for answer in answers] == ["a", "b"]
    assert [answer["text"] for answer in answers] == [greedy(engine, PROMPT, max_tokens=n).text for n in (2, 5)]
    assert "output_token_logprobs" not in answers[0]["meta_info"]
    assert [len(row) for row in answers[1]["meta_info"]["output_top_logprobs"]] == [2] * len(answers[1]["output_ids"])


def test_a_batch_of_one_answers_with_a_list(engine, ask):
    assert [answer["text"] for answer in ask(text=[PROMPT])] == [greedy(engine, PROMPT).text]


def test_samples_come_prompt_by_prompt_and_a_seed_repeats_them(ask):
    sampling = {**GREEDY, "temperature": 1.5, "n": 3, "sampling_seed": 7}
    answers = ask(sampling, text=[PROMPT, "Once upon a time"], rid=["x", "y"])
    assert [answer["meta_info"]["id"] for answer in answers] == ["x_0", "x_1", "x_2", "y_0", "y_1", "y_2"]
    texts = [answer["text"] for answer in answers]
    assert len(set(texts[:3])) > 1
    assert [answer["text"] for answer in ask(sampling, text=[PROMPT, "Once upon a time"])] == texts
    assert ask({**sampling, "n": 1}, text=PROMPT)["text"] == texts[0]


# log-probabilities


def test_the_logprobs_of_the_output(engine, ask):
    meta = ask(text=PROMPT, return_logprob=True, top_logprobs_num=3, return_text_in_logprobs=True)["meta_info"]
    expected = greedy(engine, PROMPT, logprobs=True, top_logprobs=3)
    rows = meta["output_token_logprobs"]
    assert [row[1] for row in rows] == expected.token_ids
    assert [row[0] for row in rows] == pytest.approx([value for value, _ in expected.logprobs], abs=1e-4)
    assert "".join(row[2] for row in rows) == engine.tokenizer.decode(expected.token_ids, skip_special_tokens=False)
    assert meta["output_token_logprobs_length"] == len(rows)
    assert [[entry[1] for entry in row] for row in meta["output_top_logprobs"]] == [
        [token for _, token in row] for row in expected.top_logprobs
    ]
    assert "input_token_logprobs" not in meta


@pytest.mark.parametrize("start", [0, 2, -1])
def test_the_logprobs_of_the_prompt(engine, ask, start):
    ids = ids_of(engine, PROMPT)
    place = len(ids) - 1 if start == -1 else start
    meta = ask(text=PROMPT, return_logprob=True, logprob_start_len=place, top_logprobs_num=2)["meta_info"]
    rows = meta["input_token_logprobs"]
    assert [row[1] for row in rows] == ids[place:]
    assert rows[0] == [None, ids[place], None]
    sequence = engine.open()
    sequence.extend(ids)
    expected = sequence.logprobs(place + 1).result(30)[0]
    assert [row[0] for row in rows[1:]] == pytest.approx([value for value, _ in expected], abs=1e-4)
    assert meta["input_top_logprobs"][0] is None
    assert [len(row) for row in meta["input_top_logprobs"][1:]] == [2] * len(expected)


def test_no_new_tokens_give_the_likeliest_next_ones(engine, ask):
    answer = ask({"max_new_tokens": 0, "temperature": 0}, text=PROMPT, return_logprob=True, top_logprobs_num=4)
    assert (answer["text"], answer["output_ids"]) == ("", [])
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert len(answer["meta_info"]["output_token_logprobs"]) == 1
    [best] = answer["meta_info"]["output_top_logprobs"]
    assert best[0][1] == greedy(engine, PROMPT).token_ids[0]
    assert len(best) == 4


def test_tokens_that_a_grammar_rules_out_are_still_json(ask):
    meta = ask({**GREEDY, "regex": "(yes|no)"}, text=PROMPT, return_logprob=True, top_logprobs_num=50)["meta_info"]
    values = [entry[0] for row in meta["output_top_logprobs"] for entry in row]
    assert values and all(math.isfinite(value) for value in values)


# constraints


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": r"[0-9]{3}-[0-9]{2}"},
        {
            "json_schema": '{"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": '
            '0}}, "required": ["a"]}'
        },
        {"json_schema": {"enum": ["red", "green"]}},
        {"ebnf": 'root ::= "left" | "right"'},
        {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "exactly"}}},
    ],
    ids=lambda constraint: next(iter(constraint)),
)
def test_a_constrained_text_is_the_engines_own(engine, ask, constraint):
    from sgl.grammars import compile_ebnf, compile_json_schema, compile_regex, compile_structural

    [(kind, source)] = constraint.items()
    makers = {
        "regex": compile_regex,
        "json_schema": compile_json_schema,
        "ebnf": compile_ebnf,
        "structural_tag": compile_structural,
    }
    grammar = makers[kind](source, engine.vocabulary)
    expected = engine.generate(PROMPT, SamplingParams(max_tokens=40, temperature=0), grammar=grammar)
    answer = ask({"temperature": 0, "max_new_tokens": 40, **constraint}, text=PROMPT)
    assert answer["text"] == expected.text
    assert answer["meta_info"]["truncated"] is expected.truncated is False


def test_any_json_is_a_schema(ask):
    text = ask({"temperature": 0, "max_new_tokens": 60, "json_schema": "$$ANY$$", "logit_bias": {}}, text="Write: 5 =")[
        "text"
    ]
    assert text.lstrip()[:1] in '{["tfn-0123456789'


# streams


def test_long_streams_do_not_tell_everything_with_every_token():
    """All of it each time would be a number of bytes that grows with the square of the length."""
    writer = GenerateResponseWriter(PromptRequest("x", "", SamplingParams(), None), [])
    events = [event for i in range(20_000) if (event := writer.take(Chunk("a", [i]))) is not None]
    lengths = [len(event["output_ids"]) for event in events]
    assert lengths[:256] == list(range(1, 257)) and len(lengths) < 1500
    assert all(len(event["text"]) == length for event, length in zip(events, lengths, strict=True))
    assert all(after <= before * (1 + 1 / 256) + 1 for before, after in pairwise(lengths))
    assert writer.aborted()["output_ids"] == list(range(20_000))


def test_a_stream_tells_the_whole_text_so_far(engine, client):
    body = {"text": PROMPT, "sampling_params": GREEDY, "return_logprob": True, "logprob_start_len": 0, "rid": "s"}
    events, expected = events_of(client, body), greedy(engine, PROMPT)
    assert len(events) > 2
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in pairwise(events))
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    last = events[-1]
    assert (last["text"], last["output_ids"]) == (expected.text, expected.token_ids)
    assert last["meta_info"]["finish_reason"] == expected.finish_reason
    assert [row[1] for row in last["meta_info"]["input_token_logprobs"]] == ids_of(engine, PROMPT)
    for event in events:
        assert event["meta_info"]["completion_tokens"] == len(event["output_ids"])
        assert [row[1] for row in event["meta_info"]["output_token_logprobs"]] == event["output_ids"]
        assert event["meta_info"]["id"] == "s"
        assert "index" not in event


def test_the_events_of_a_batch_tell_whose_they_are(engine, client):
    texts = [PROMPT, "Water boils at"]
    sampling = [{**GREEDY, "n": 2}, {**GREEDY, "max_new_tokens": 5}]
    events = events_of(client, {"text": texts, "sampling_params": sampling})
    last = {event["index"]: event for event in events if event["meta_info"]["finish_reason"]}
    expected = [greedy(engine, PROMPT).text] * 2 + [greedy(engine, texts[1], max_tokens=5).text]
    assert [last[index]["text"] for index in range(3)] == expected
    assert len(last) == 3


def test_what_fails_before_the_first_event_has_a_status(client):
    body = {"text": PROMPT, "sampling_params": {"regex": "(unclosed"}, "stream": True}
    answer = client.post("/generate", json=body)
    assert (answer.status_code, "unclosed" in answer.json()["error"]["message"]) == (400, True)


def test_what_fails_in_the_middle_is_the_last_event(engine):
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    with serving(engine, request_timeout=0.3) as url, httpx.Client(base_url=url, timeout=60) as client:
        events = events_of(client, body)
    assert events[0]["text"]
    assert events[-1]["error"]["code"] == 504
    await_true(lambda: engine.stats().running == 0)


def test_a_client_that_leaves_frees_its_sequences(client, engine):
    body = {
        "text": [PROMPT] * 3,
        "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True, "n": 2},
        "stream": True,
    }
    with client.stream("POST", "/generate", json=body) as answer:
        lines = answer.iter_lines()  # dropping it would leave the stream
        next(lines)
        assert engine.stats().running > 0
    await_true(lambda: engine.stats().running == 0)
    with pytest.raises(httpx.ReadTimeout):
        client.post("/generate", json={**body, "stream": False}, timeout=0.5)
    await_true(lambda: engine.stats().running == 0)
    engine.check()


def test_an_event_keeps_what_it_said_while_it_waits_for_a_slow_client(engine):
    request = read_request({"text": PROMPT, "return_logprob": True}, engine.tokenizer).prompts[0]
    writer = GenerateResponseWriter(request, engine.tokenizer.token_bytes)
    early = writer.take(Chunk("a", [1], [(-0.5, 1)]))
    writer.take(Chunk("b", [2], [(-0.7, 2)]))
    assert (early["text"], early["output_ids"]) == ("a", [1])
    assert early["meta_info"]["output_token_logprobs"] == [[-0.5, 1, None]]


# what is refused


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "text or input_ids"),
        ({"text": "a", "input_ids": [1]}, "one of the two"),
        ({"text": 5}, "text should be"),
        ({"text": []}, "holds 0 prompts"),
        ({"text": ["a"] * 257}, "257 prompts"),
        ({"input_ids": []}, "holds 0 prompts"),
        ({"input_ids": [[1], []]}, "empty"),
        ({"input_ids": [10**9]}, "1000000000"),
        ({"input_ids": [10**30]}, "input_ids"),
        ({"input_ids": [-4]}, "-4"),
        ({"text": "a b " * 3000}, "2000"),
        ({"text": "a", "temperatur": 1}, "temperatur"),
        ({"text": "a", "image_data": "aGk="}, "image_data"),
        ({"text": "a", "lora_path": 3}, "lora_path"),
        ({"text": "a", "lora_path": ["x"]}, "lora_path"),
        ({"text": "a", "logprob_start_len": -2, "return_logprob": True}, "-2"),
        ({"text": "a", "logprob_start_len": 99, "return_logprob": True}, "99"),
        ({"text": "a", "return_logprob": [True]}, "return_logprob"),
        ({"text": ["a", "b"], "return_logprob": [True]}, "1 entries for 2 prompts"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params has 1"),
        ({"text": "a", "top_logprobs_num": -1}, "top_logprobs_num"),
    ],
)
def test_a_bad_call_is_refused_by_name(refused, body, words):
    assert words in refused(body)


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"temperature": -1}, "-1"),
        ({"temperature": "hot"}, "hot"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_new_tokens": -1}, "sampling_params.max_new_tokens"),
        ({"max_new_tokens": True}, "sampling_params.max_new_tokens"),
        ({"max_new_tokens": 2, "min_new_tokens": 3}, "min_new_tokens is 3"),
        ({"n": 0}, "n should be"),
        ({"n": 65}, "n=65"),
        ({"sampling_seed": 2**70}, "sampling_seed"),
        ({"stop": [""]}, "stop"),
        ({"stop_regex": "("}, "stop_regex"),
        ({"stop_token_ids": [10**8]}, "100000000"),
        ({"logit_bias": {"one": 1}}, "one"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"stop": "\ud800"}, "surrogates"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "only one"),
        ({"regex": "(a"}, "(a"),
        ({"json_schema": '{"type": "objekt"}'}, "objekt"),
        ({"json_schema": "{"}, "JSON"),
        ({"structural_tag": "no json"}, "structural"),
        ({"custom_params": {"a": 1}}, "custom_params"),
    ],
)
def test_a_bad_option_is_refused_by_name(refused, sampling, words):
    assert words in refused({"text": PROMPT, "sampling_params": sampling})


def test_what_is_not_set_is_not_refused(engine, ask):
    nothing = {
        "image_data": None,
        "lora_path": None,
        "return_hidden_states": False,
        "session_params": None,
        "stream": None,
    }
    sampling = {**GREEDY, "regex": None, "custom_params": None, "stop": None, "top_p": None, "n": None}
    assert ask(sampling, text=PROMPT, **nothing)["text"] == greedy(engine, PROMPT).text


def test_one_bad_prompt_ends_the_whole_batch(client, engine):
    body = {"input_ids": [[1], [10**9]], "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    assert client.post("/generate", json=body).status_code == 400
    await_true(lambda: engine.stats().running == 0)


@pytest.mark.parametrize("body", [b"{", b"[]", b"5", b'{"text": "\\ud800"}'])
def test_a_body_that_is_no_call_is_a_400(client, body):
    answer = client.post("/generate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]
