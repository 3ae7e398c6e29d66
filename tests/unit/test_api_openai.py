"""OpenAI's protocol: what is sent, what comes back, what is refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading

import pytest
from alone import alone
from api_toy import TOKENIZER, logprob, score_tokens, write
from openai_server import OpenAIServer

import sgl
from sgl.lang.backend import SelectRequest
from sgl.lang.backends.openai.openai_backend import Crusoe, OpenAI
from sgl.lang.errors import BadValueError, ProgramError
from sgl.lang.sampling.choices import (
    answer_likelihood,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)


@pytest.fixture(scope="module")
def openai_like():
    with OpenAIServer(echo_scores=False) as running:
        yield running


@pytest.fixture(scope="module")
def vllm_like():
    with OpenAIServer(compatible=True) as running:
        yield running


@pytest.fixture(autouse=True)
def clean(openai_like, vllm_like):
    openai_like.reset()
    vllm_like.reset()


@pytest.fixture(scope="module")
def make():
    made = []

    def make(server, model="gpt-4o", **options):
        made.append(OpenAI(model, base_url=server.base_url, timeout=20, backoff=0.01, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.shutdown()


@pytest.fixture(scope="module")
def chat(make, openai_like):
    return make(openai_like)


@pytest.fixture(scope="module")
def text(make, vllm_like):
    return make(vllm_like, "davinci-002", tokenizer=TOKENIZER)


@sgl.function
def talk(s, **options):
    s += sgl.system("Be brief.") + sgl.user("Hi")
    s += sgl.assistant(sgl.gen("a", **options))


@sgl.function
def story(s, start="Once ", **options):
    s += start + sgl.gen("a", **options)


def fails(state, match):
    with pytest.raises(ProgramError, match=match) as caught:
        state["a"]
    assert "test_api_openai.py:" in str(caught.value)


# --- chat ------------------------------------------------------------------------------------------------


def test_a_conversation(openai_like, chat):
    @sgl.function
    def two(s):
        s += sgl.system("Be brief.") + sgl.user("Hi") + sgl.assistant(sgl.gen("a", 6, stop=["\n", "."]))
        s += sgl.user("And?") + sgl.assistant(sgl.gen("b", 4, temperature=0.5, top_p=0.9, seed=7))

    state = two.run(backend=chat, presence_penalty=0.5)
    first, second = openai_like.requests if state["b"] is not None else ()
    expected = write("[system]Be brief.\n[user]Hi\n[assistant]", 6, ["\n", "."])
    assert state["a"] == expected.text
    assert first["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert first["stop"] == ["\n", "."] and first["max_tokens"] == 6 and first["presence_penalty"] == 0.5
    assert second["messages"][2:] == [
        {"role": "assistant", "content": state["a"].lstrip()},
        {"role": "user", "content": "And?"},
    ]
    assert (second["temperature"], second["top_p"], second["seed"]) == (0.5, 0.9, 7)
    assert state.text().startswith("SYSTEM:Be brief.\nUSER:Hi\nASSISTANT:")
    meta = state.get_meta_info("a")
    assert meta["completion_tokens"] == expected.completion_tokens and meta["prompt_tokens"] > 0


@pytest.mark.parametrize("streaming", [False, True])
def test_usage_is_counted_exactly(openai_like, chat, streaming):
    chat.token_usage.reset()
    for index in range(3):
        talk.run(backend=chat, max_tokens=5 + index, stream=streaming).text()
    usage = chat.token_usage
    assert [usage.prompt_tokens, usage.completion_tokens] == openai_like.usage and usage.calls == 3
    usage.reset()
    assert (usage.prompt_tokens, usage.completion_tokens) == (0, 0)


@pytest.mark.parametrize("model", ["gpt-4o", "davinci-002"])
def test_a_stream_is_the_same_text_in_pieces(make, vllm_like, model):
    backend, program = make(vllm_like, model), talk if model == "gpt-4o" else story
    options = {"max_tokens": 30, "stop": ["e", "zz", "qq", "xx", "a,"], "return_logprob": True}
    vllm_like.script = lambda prompt, body: "one two, thr ba, xe"
    whole = program.run(backend=backend, **options)
    state = program.run(backend=backend, stream=True, **options)
    pieces = list(state.text_iter("a"))
    assert whole["a"] == "on" and "".join(pieces) == state["a"] == "on"
    assert all(body.get("stream_options") == {"include_usage": True} for body in vllm_like.requests[1:])
    for name in ("finish_reason", "prompt_tokens", "completion_tokens", "output_token_logprobs"):
        assert whole.get_meta_info("a")[name] == state.get_meta_info("a")[name]


def test_stops_beyond_the_fourth_are_cut_here(openai_like, chat):
    openai_like.script = lambda prompt, body: "one two; three"
    for streaming in (False, True):
        state = talk.run(backend=chat, stop=["!", "?", ":", "|", "; ", "wo"], stream=streaming)
        assert "".join(state.text_iter("a")) == "one t"
        assert state.get_meta_info("a")["finish_reason"] == {"type": "stop", "matched": "wo"}
    assert openai_like.requests[0]["stop"] == ["!", "?", ":", "|"]


def test_logprobs(openai_like, chat, text):
    for backend, program, start in (
        (chat, talk, "[system]Be brief.\n[user]Hi\n[assistant]"),
        (text, story, "Once "),
    ):
        state = program.run(backend=backend, max_tokens=3, return_logprob=True, top_logprobs_num=2)
        meta = state.get_meta_info("a")
        rows = meta["output_token_logprobs"]
        assert "".join(row[2] for row in rows) == state["a"]
        assert rows[0][0] == pytest.approx(logprob(start, rows[0][2]))
        assert [len(row) for row in meta["output_top_logprobs"]] == [2] * len(rows)


def test_no_tokens_need_no_call(openai_like, text, vllm_like, chat):
    assert talk.run(backend=chat, max_tokens=0)["a"] == "" and not openai_like.requests
    state = story.run(backend=text, max_tokens=0, return_logprob=True, top_logprobs_num=2)
    assert state["a"] == "" and len(state.get_meta_info("a")["output_top_logprobs"][0]) == 2


@pytest.mark.whole
@alone
def test_samples_and_batches(openai_like, chat):
    state = talk.run(backend=chat, n=3, max_tokens=4)
    assert len(state["a"]) == 3 and len(openai_like.requests) == 3
    chat.token_usage.reset()
    openai_like.reset()

    @sgl.function
    def ask(s, number):
        s += sgl.user(f"number {number}") + sgl.assistant(sgl.gen("a", 6))

    openai_like.delay = 0.5
    states = ask.run_batch([{"number": index} for index in range(200)], backend=chat)
    assert [state["a"] for state in states] == [
        write(f"[user]number {index}\n[assistant]", 6).text for index in range(200)
    ]
    assert openai_like.most_running > 50
    assert [chat.token_usage.prompt_tokens, chat.token_usage.completion_tokens] == openai_like.usage
    assert threading.active_count() < 120


def test_pictures_are_parts_of_the_message(openai_like, chat, text):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, format="PNG")

    @sgl.function
    def look(s):
        s += sgl.user("What is " + sgl.image(buffer.getvalue()) + " this and " + sgl.image("http://x/y.png") + "?")
        s += sgl.assistant(sgl.gen("a", 4))

    state = look.run(backend=chat)
    assert state["a"] is not None
    parts = openai_like.requests[0]["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "text", "image_url", "text"]
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert parts[3]["image_url"]["url"] == "http://x/y.png"
    with pytest.raises(Exception, match="does not accept images"):
        look.run(backend=text)["a"]


def test_plain_text_is_one_turn_of_the_user(openai_like, chat):
    @sgl.function
    def plain(s):
        s += "Once " + sgl.gen("a", 4)
        s += " then " + sgl.gen("b", 4)

    state = plain.run(backend=chat)
    assert state.text() == f"Once {state['a']} then {state['b']}"
    asked = [request["messages"] for request in openai_like.requests]
    assert asked == [[{"role": "user", "content": text}] for text in ("Once ", f"Once {state['a']} then ")]


def test_what_a_chat_model_is_not_for(openai_like, chat):
    @sgl.function
    def outside(s):
        s += sgl.user("Hi") + sgl.gen("a")

    @sgl.function
    def inside_user(s):
        s += sgl.user("Hi " + sgl.gen("a"))

    @sgl.function
    def prefilled(s):
        s += sgl.user("Hi") + sgl.assistant("Well, " + sgl.gen("a"))

    @sgl.function
    def beside(s):
        s += sgl.user("Hi") + "Once " + sgl.assistant(sgl.gen("a"))

    fails(beside.run(backend=chat), r"stands outside of all: 'Once '.*sgl.assistant\(sgl.gen")
    fails(outside.run(backend=chat), r"the gen stands outside of all turns; write s \+= sgl.user")
    fails(inside_user.run(backend=chat), "the gen stands inside the turn of 'user'")
    fails(prefilled.run(backend=chat), "has text already: 'Well, '.*prefill=True")
    assert not openai_like.requests


def test_prefilled_turns_go_on_where_the_server_can(make, vllm_like):
    @sgl.function
    def prefilled(s):
        s += sgl.user("Hi") + sgl.assistant("Well, " + sgl.gen("a", 3, stop=",") + ", so " + sgl.gen("b", 3))

    state = prefilled.run(backend=make(vllm_like, prefill=True))
    assert state["a"] == write("[user]Hi\n[assistant]Well, ", 3, [","]).text
    assert state["b"] == write(f"[user]Hi\n[assistant]Well, {state['a']}, so ", 3).text
    assert vllm_like.requests[0]["continue_final_message"] is True


def test_reasoning_models(make, openai_like):
    backend = make(openai_like, "o3-mini")
    openai_like.script = lambda prompt, body: "thinking is done. Yes"
    state = talk.run(backend=backend, stop=".", max_tokens=50)
    assert state["a"] == "thinking is done"
    assert openai_like.requests[0]["max_completion_tokens"] == 50
    with pytest.raises(ProgramError, match=r"takes no temperature \(given: 0.5\)"):
        talk.run(backend=backend, temperature=0.5)


def test_azure(openai_like):
    backend = OpenAI(
        "gpt-4o",
        is_azure=True,
        api_key="k",
        api_version="2024-06-01",
        azure_endpoint=openai_like.url,
        timeout=10,
    )
    assert talk.run(backend=backend, max_tokens=3)["a"] == write("[system]Be brief.\n[user]Hi\n[assistant]", 3).text
    assert openai_like.headers[0]["api-key"] == "k"
    backend.shutdown()


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 5},
        {"min_p": 0.1},
        {"stop_token_ids": [3]},
        {"min_tokens": 2},
        {"ignore_eos": True},
        {"stop_regex": "a+"},
        {"keep_stop": True},
        {"repetition_penalty": 1.1},
        {"regex": "a+"},
        {"ebnf": "root ::= 'a'"},
        {"structural_tag": {}},
    ],
)
def test_options_that_openai_has_not(chat, openai_like, options):
    name = next(iter(options)).replace("min_tokens", "min_new_tokens").replace("ebnf", "grammar")
    with pytest.raises(ProgramError, match=f"Gen\\('a'\\) failed: .*gpt-4o.*{name}"):
        talk.run(backend=chat, **options)
    assert not openai_like.requests


def test_declared_servers_get_the_options(make, vllm_like):
    backend = make(vllm_like, constrained=True)
    vllm_like.script = lambda prompt, body: "aaa"
    state = talk.run(backend=backend, top_k=5, min_p=0.1, stop_token_ids=[3], regex="a+", min_tokens=1)
    assert state["a"] == "aaa"
    body = vllm_like.requests[0]
    assert (body["top_k"], body["min_p"], body["stop_token_ids"], body["min_tokens"]) == (5, 0.1, [3], 1)
    assert body["regex"] == "a+" and body["structured_outputs"] == {"regex": "a+"}
    talk.run(backend=make(vllm_like, constrained="vllm"), ebnf="root ::= 'a'").text()
    assert vllm_like.requests[1]["structured_outputs"] == {"grammar": "root ::= 'a'"}
    assert "ebnf" not in vllm_like.requests[1]
    with pytest.raises(BadValueError, match="constrained is 'tgi'"):
        make(vllm_like, constrained="tgi")


def test_a_server_that_keeps_to_no_regex_is_found_out(make, vllm_like):
    vllm_like.script = lambda prompt, body: "no"
    fails(
        talk.run(backend=make(vllm_like, constrained="sglang"), regex="[0-9]+"),
        r"'no' does not match '\[0-9\]\+'",
    )


# --- forms -----------------------------------------------------------------------------------------------


def test_json_schema_is_strict(openai_like, chat):
    schema = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}, "n": {"type": "integer", "default": 3}},
        "$defs": {"City": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }
    for streaming in (False, True):
        state = talk.run(backend=chat, json_schema=schema, stream=streaming)
        value = json.loads(state["a"])
        assert isinstance(value["city"]["name"], str) and isinstance(value["n"], int)
    form = openai_like.requests[0]["response_format"]
    assert form["type"] == "json_schema" and form["json_schema"]["strict"] is True
    sent = form["json_schema"]["schema"]
    assert sent["required"] == ["city", "n"] and sent["additionalProperties"] is False
    assert sent["$defs"]["City"]["required"] == ["name"]


def test_schemas_of_plain_values_travel_in_an_object(openai_like, chat):
    state = talk.run(
        backend=chat,
        json_schema={"type": "array", "items": {"$ref": "#/$defs/N"}, "$defs": {"N": {"type": "integer"}}},
    )
    assert all(isinstance(item, int) for item in json.loads(state["a"]))
    sent = openai_like.requests[0]["response_format"]["json_schema"]["schema"]
    assert sent["properties"]["value"]["items"] == {"$ref": "#/$defs/N"} and "N" in sent["$defs"]


@pytest.mark.parametrize(
    ("dtype", "check"), [(int, int), (float, float), (bool, ("True", "False").index), (str, json.loads)]
)
def test_types_on_chat_models(chat, dtype, check):
    for streaming in (False, True):
        state = talk.run(backend=chat, dtype=dtype, stream=streaming)
        check(state["a"])
        assert "".join(state.text_iter("a")) == state["a"]


def test_answers_that_break_the_form(openai_like, chat):
    openai_like.script = lambda prompt, body: "no JSON"
    fails(talk.run(backend=chat, json_schema={"type": "object"}), "the answer 'no JSON' is not JSON")
    fails(talk.run(backend=chat, dtype=int), "the answer 'no JSON' is not JSON")
    openai_like.script = lambda prompt, body: '{"value": "x"}'
    fails(talk.run(backend=chat, dtype=int), "has no int")
    openai_like.script = lambda prompt, body: '{"a": 1, "b": 2}'
    state = talk.run(backend=chat, json_schema={"type": "object"}, max_tokens=5)
    assert state["a"] == '{"a":'[:6] and state.get_meta_info("a")["truncated"] is True
    fails(
        talk.run(backend=chat, json_schema={"type": "object"}, max_tokens=5, error_on_truncation=True),
        'max_tokens=5 was reached before the text was complete, after \'{"a":',
    )


def test_types_on_completion_models(vllm_like, text):
    state = story.run(backend=text, dtype=int, max_tokens=4)
    assert int(state["a"]) >= 0
    bias = vllm_like.requests[0]["logit_bias"]
    assert {TOKENIZER.decode([int(token)]) for token in bias} >= {"7", "42", " ", "-"}
    vllm_like.script = lambda prompt, body: 'a b" and more'
    state = story.run(backend=text, dtype=str)
    assert state["a"] == '"a b"' and vllm_like.requests[-1]["prompt"] == 'Once "'
    fails(story.run(backend=text, dtype=int), "is not a whole number")
    with pytest.raises(ProgramError, match="without dtype float"):
        story.run(backend=text, dtype=float)
    with pytest.raises(ProgramError, match="keeps to no json_schema"):
        story.run(backend=text, json_schema={"type": "object"})


# --- select ----------------------------------------------------------------------------------------------


@sgl.function
def pick(s, choices, method=token_length_normalized, start="Pick: "):
    s += start + sgl.select("a", choices, choices_method=method) + "!"


@sgl.function
def pick_in_chat(s, choices):
    s += sgl.user("Pick") + sgl.assistant(sgl.select("a", choices))


CHOICES = ["ab cd", "ab", "ab ce x", "7"]


def scores(prompt, choices):
    return [
        [value for _, value in score_tokens(prompt + choice)[len(TOKENIZER.encode(prompt)) :]] for choice in choices
    ]


def test_select_by_scores(vllm_like, text):
    state = pick.run(CHOICES, backend=text)
    rows = scores("Pick: ", CHOICES)
    means = [sum(row) / len(row) for row in rows]
    assert state["a"] == CHOICES[means.index(max(means))] and state.text() == f"Pick: {state['a']}!"
    meta = state.get_meta_info("a")
    assert meta["normalized_prompt_logprobs"] == pytest.approx(means)
    assert sum(meta["choice_probs"]) == pytest.approx(1)
    assert len(vllm_like.requests) == 1
    assert pick.run(CHOICES, greedy_token_selection, backend=text)["a"] in CHOICES


def test_select_by_unconditional_scores(text):
    state = pick.run(CHOICES, unconditional_likelihood_normalized, backend=text)
    alone = [[value or 0.0 for _, value in score_tokens(choice)] for choice in CHOICES]
    expected = [
        sum(a - b for a, b in zip(row, prior, strict=True)) / len(row)
        for row, prior in zip(scores("Pick: ", CHOICES), alone, strict=True)
    ]
    assert state["a"] == CHOICES[expected.index(max(expected))]


def test_choices_that_melt_into_the_prompt_are_scored_from_the_same_place(text):
    state = pick.run(["b c", "bc"], backend=text, start="a")
    rows = state.get_meta_info("a")["input_token_logprobs"]
    assert [[entry[2] for entry in row] for row in rows] == [["ab", " ", "c"], ["abc"]]


def test_the_end_of_a_turn_is_scored_after_each_choice(text):
    stream = text.open()
    stream.append("Pick: ")
    decision = stream.select(SelectRequest(CHOICES, answer_likelihood, end=" end")).result(10)
    rows = scores("Pick: ", [choice + " end" for choice in CHOICES])
    assert decision.decision == CHOICES[max(range(len(rows)), key=lambda index: sum(rows[index]))]
    found = [[entry[0] for entry in row] for row in decision.meta_info["input_token_logprobs"]]
    assert found == [pytest.approx(row) for row in rows]


def test_select_by_bias_where_no_scores_are_given(make, openai_like):
    backend = make(openai_like, "davinci-002", tokenizer=TOKENIZER)
    state = pick.run(CHOICES, backend=backend)
    assert state["a"] in CHOICES and max(state.get_meta_info("a")["scores"]) >= 1
    asked = [body for body in openai_like.requests if "logit_bias" in body]
    assert asked[0]["max_tokens"] == 1 and asked[0]["logit_bias"] == {
        str(TOKENIZER.id("ab")): 100,
        str(TOKENIZER.id("7")): 100,
    }
    count = len(openai_like.requests)
    pick.run(CHOICES, backend=backend).text()
    assert not any(body.get("echo") for body in openai_like.requests[count:])  # it does not ask twice
    fails(pick.run(CHOICES, greedy_token_selection, backend=backend), "gives no scores for")
    fails(pick.run(CHOICES, backend=make(openai_like, "some-model", is_chat_model=False)), "tokenizer=")


@pytest.mark.parametrize("chosen", ["ab", "ab cd"])
def test_select_by_bias_walks_to_choices_that_begin_alike(make, openai_like, chosen):
    backend = make(openai_like, "davinci-002", tokenizer=TOKENIZER)
    text = f"{chosen}; "
    openai_like.script = lambda prompt, body: text[len(prompt) - 6 :]
    assert pick.run(["ab", "ab cd", "ab ce"], backend=backend)["a"] == chosen


def test_select_in_chat(openai_like, chat, make, vllm_like):
    state = pick_in_chat.run(["yes", "no", 'it\'s "so"'], backend=chat)
    assert state["a"] in ("yes", "no", 'it\'s "so"') and len(openai_like.requests) == 1
    openai_like.script = lambda prompt, body: '{"choice": "maybe"}'
    fails(pick_in_chat.run(["yes", "no"], backend=chat), "none of")
    vllm_like.script = lambda prompt, body: "no"
    assert pick_in_chat.run(["yes", "no"], backend=make(vllm_like, constrained="sglang"))["a"] == "no"
    assert vllm_like.requests[-1]["regex"] == "(yes)|(no)"


# --- clients ---------------------------------------------------------------------------------------------


def test_kinds_of_models():
    kinds = {
        name: OpenAI(name, api_key="k").is_chat_model
        for name in ("gpt-3.5-turbo-instruct", "gpt-4o", "davinci-002", "meta/llama")
    }
    assert kinds == {
        "gpt-3.5-turbo-instruct": False,
        "gpt-4o": True,
        "davinci-002": False,
        "meta/llama": True,
    }
    assert OpenAI("gpt-4o", False, api_key="k").is_chat_model is False
    assert OpenAI("meta-llama/Llama-3.1-8B-Instruct", api_key="k").chat_template.name == "llama-3-instruct"
    assert OpenAI("gpt-4o", chat_template="chatml", api_key="k").chat_template.name == "chatml"


def test_clients_that_cannot_be_made(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("CRUSOE_API_KEY", raising=False)
    with pytest.raises(BadValueError, match=r"OpenAI\('gpt-4o'\): .*OPENAI_API_KEY"):
        OpenAI("gpt-4o")
    with pytest.raises(BadValueError, match="no_such"):
        OpenAI("gpt-4o", api_key="k", no_such=1)
    with pytest.raises(BadValueError, match="CRUSOE_API_KEY"):
        Crusoe("m")


def test_crusoe(openai_like, monkeypatch):
    monkeypatch.setenv("CRUSOE_API_KEY", "secret")
    assert Crusoe("m")._new_client().base_url.host == "api.inference.crusoecloud.com"
    backend = Crusoe("m", base_url=openai_like.base_url)
    assert talk.run(backend=backend, max_tokens=3)["a"]
    assert openai_like.headers[0]["authorization"] == "Bearer secret"
    backend.shutdown()


def test_a_closed_backend_can_be_used_again(make, openai_like):
    backend = make(openai_like)
    for _ in range(2):
        assert talk.run(backend=backend, max_tokens=3)["a"]
        backend.shutdown()


def test_a_missing_package_names_the_extra():
    code = """
import sys
sys.modules.update(dict.fromkeys(("openai", "anthropic", "litellm")))
from sgl.lang.backends.openai.openai_backend import OpenAI
from sgl.lang.backends.apis.anthropic_backend import Anthropic
from sgl.lang.backends.apis.litellm_backend import LiteLLM
for make, extra in ((OpenAI, "openai"), (Anthropic, "anthropic"), (LiteLLM, "litellm")):
    try:
        make("m")
    except ImportError as error:
        assert f"pip install 'sgl[{extra}]'" in str(error), error
    else:
        raise SystemExit(f"{make} needs nothing?")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
