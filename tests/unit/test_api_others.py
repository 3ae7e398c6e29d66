"""Anthropic, LiteLLM and Vertex AI against servers on this machine."""

from __future__ import annotations

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or its import asks the network for prices

import io
import json

import pytest
from anthropic_server import AnthropicServer
from api_loopback import Fault
from api_toy import write
from openai_server import OpenAIServer

import sgl
from sgl.lang.backends.apis.anthropic_backend import Anthropic
from sgl.lang.errors import BadValueError, ProgramError


@pytest.fixture(scope="module")
def claude():
    with AnthropicServer() as running:
        yield running


@pytest.fixture(scope="module")
def openai_like():
    with OpenAIServer() as running:
        yield running


@pytest.fixture(autouse=True)
def clean(claude, openai_like):
    claude.reset()
    openai_like.reset()


@pytest.fixture(scope="module")
def anthropic(claude):
    backend = Anthropic("claude-x", base_url=claude.url, api_key="k", timeout=20, backoff=0.01)
    yield backend
    backend.shutdown()


@sgl.function
def talk(s, **options):
    s += sgl.system("Be brief.") + sgl.user("Hi")
    s += sgl.assistant(sgl.gen("a", **options))


@sgl.function
def two_turns(s):
    s += sgl.system("Be brief.") + sgl.user("Hi") + sgl.assistant(sgl.gen("a", 7))
    s += sgl.user("And?") + sgl.assistant(sgl.gen("b", 7))


def fails(state, match):
    with pytest.raises(ProgramError, match=match):
        state["a"]


# --- Anthropic -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
def test_the_system_prompt_stays(claude, anthropic, streaming):
    anthropic.token_usage.reset()
    state = two_turns.run(backend=anthropic, stream=streaming)
    assert state["b"] is not None
    assert [body["system"] for body in claude.requests] == ["Be brief.", "Be brief."]
    assert [message["role"] for message in claude.requests[1]["messages"]] == ["user", "assistant", "user"]
    assert state["a"] == write("[system]Be brief.\n[user]Hi\n[assistant]", 7).text
    assert state.messages()[0] == {"role": "system", "content": "Be brief."}
    usage = anthropic.token_usage
    assert [usage.prompt_tokens, usage.completion_tokens] == claude.usage
    metas = [state.get_meta_info(name) for name in "ab"]
    assert sum(meta["completion_tokens"] for meta in metas) == claude.usage[1]


def test_stops_and_limits(claude, anthropic):
    claude.script = lambda prompt, body: "one two\nthree four five"
    state = talk.run(backend=anthropic, stop=["\n", "four"], max_tokens=9)
    assert state["a"] == "one two"  # the API takes no blank stops: cut here
    assert claude.requests[0]["stop_sequences"] == ["four"]
    state = talk.run(backend=anthropic, stop="three", max_tokens=9)
    assert state.get_meta_info("a")["finish_reason"] == {"type": "stop", "matched": "three"}
    state = talk.run(backend=anthropic, max_tokens=2)
    assert state["a"] == "one " and state.get_meta_info("a")["finish_reason"] == {
        "type": "length",
        "length": 2,
    }
    assert talk.run(backend=anthropic, max_tokens=0)["a"] == "" and len(claude.requests) == 3


def test_turns_go_on(claude, anthropic):
    @sgl.function
    def prefilled(s):
        s += sgl.user("Hi") + sgl.assistant("The answer: " + sgl.gen("a", 4, stop=",") + ", so " + sgl.gen("b", 4))

    claude.script = lambda prompt, body: " 42, of course" if prompt.endswith("answer:") else "\nwe are done"
    for streaming in (False, True):
        state = prefilled.run(backend=anthropic, stream=streaming)
        assert "".join(state.text_iter("a")) == state["a"] == "42"
        assert state.messages()[1]["content"] == "The answer: 42, so we are"
    assert claude.requests[0]["messages"][-1] == {"role": "assistant", "content": "The answer:"}

    backend = Anthropic("claude-x", base_url=claude.url, api_key="k", prefill=False)
    fails(prefilled.run(backend=backend), "has text already: 'The answer: '")


def test_pictures(claude, anthropic):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, format="PNG")

    @sgl.function
    def look(s):
        s += sgl.user(sgl.image(buffer.getvalue()) + "and " + sgl.image("http://x/y.png") + "?")
        s += sgl.assistant(sgl.gen("a", 4))

    assert look.run(backend=anthropic)["a"] is not None
    first, _, second, _ = claude.requests[0]["messages"][0]["content"]
    assert first["source"]["type"] == "base64" and first["source"]["media_type"] == "image/png"
    assert second == {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}


def test_options_of_anthropic(claude, anthropic):
    talk.run(backend=anthropic, temperature=0.5, top_k=5, top_p=0.9).text()
    talk.run(backend=anthropic).text()
    given = [{name: body.get(name) for name in ("temperature", "top_k", "top_p")} for body in claude.requests]
    assert given == [{"temperature": 0.5, "top_k": 5, "top_p": 0.9}, dict.fromkeys(given[0])]
    for options in ({"seed": 3}, {"return_logprob": True}, {"frequency_penalty": 0.1}, {"regex": "a"}):
        with pytest.raises(ProgramError, match=f"Anthropic.*{next(iter(options))}"):
            (talk.run(backend=anthropic, seed=3) if "seed" in options else talk.run(backend=anthropic, **options))


def test_forms_and_select(claude, anthropic):
    def answer(prompt, body):
        schema = body["output_config"]["format"]["schema"]
        assert schema["additionalProperties"] is False
        return json.dumps({"choice": "no"} if "choice" in schema["properties"] else {"value": 12})

    claude.script = answer
    assert talk.run(backend=anthropic, dtype=int, stop="\n")["a"] == "12"

    @sgl.function
    def pick(s):
        s += sgl.user("Well?") + sgl.assistant(sgl.select("a", ["yes", "no"]))

    assert pick.run(backend=anthropic).messages()[-1]["content"] == "no"


def test_speculation_on_anthropic(claude, anthropic):
    @sgl.function(num_api_spec_tokens=30)
    def form(s):
        s += sgl.user("Who?")
        s += sgl.assistant("Name: " + sgl.gen("a", stop="\n") + "\nJob: " + sgl.gen("b", stop="."))

    claude.script = lambda prompt, body: "Ada\nJob: maths." if prompt.endswith("Name:") else "?"
    state = form.run(backend=anthropic)
    assert (state["a"], state["b"]) == ("Ada", "maths") and len(claude.requests) == 1


def test_thoughts_and_refusals(claude, anthropic):
    backend = Anthropic("claude-x", base_url=claude.url, api_key="k", extra_body={"thinking": {"type": "adaptive"}})
    assert talk.run(backend=backend, max_tokens=3)["a"] is not None
    assert claude.requests[0]["thinking"] == {"type": "adaptive"}
    claude.thought = "hm, hm"
    for streaming in (False, True):
        state = talk.run(backend=backend, max_tokens=3, stream=streaming)
        assert "".join(state.text_iter("a")) == write("[system]Be brief.\n[user]Hi\n[assistant]", 3).text
        assert state.get_meta_info("a")["reasoning_content"] == "hm, hm"
    claude.refuses = True
    for streaming in (False, True):
        fails(talk.run(backend=backend, stream=streaming), "refused to answer")
    backend.shutdown()


def test_anthropic_without_a_key(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(BadValueError, match="no_such"):
        Anthropic("claude-x", api_key="k", no_such=1)


# --- LiteLLM ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lite(openai_like):
    from sgl.lang.backends.apis.litellm_backend import LiteLLM

    return LiteLLM(
        "openai/some-model",
        api_key="k",
        base_url=openai_like.base_url,
        timeout=20,
        max_retries=2,
        backoff=0.01,
        default_headers={"x-who": "me"},
    )


@pytest.mark.parametrize("streaming", [False, True])
def test_litellm(openai_like, lite, streaming):
    lite.token_usage.reset()
    state = two_turns.run(backend=lite, stream=streaming)
    assert "".join(state.text_iter("a")) == write("[system]Be brief.\n[user]Hi\n[assistant]", 7).text
    assert state["b"] is not None
    first, second = openai_like.requests
    assert (first["model"], first["max_tokens"]) == ("some-model", 7) and "temperature" not in first
    assert second["messages"][0] == {"role": "system", "content": "Be brief."}
    assert openai_like.headers[0]["x-who"] == "me" and openai_like.headers[0]["authorization"] == "Bearer k"
    assert [lite.token_usage.prompt_tokens, lite.token_usage.completion_tokens] == openai_like.usage


def test_litellm_tries_again_and_gives_up(openai_like, lite):
    openai_like.faults.extend([Fault(status=500), Fault(status=429, retry_after="0")])
    assert talk.run(backend=lite, max_tokens=3)["a"] is not None and not openai_like.faults
    openai_like.faults.extend([Fault(status=503, message="overloaded now")] * 3)
    with pytest.raises(ProgramError, match=r"test_api_others.py:\d+: Gen\('a'\).*overloaded now.*3 attempts"):
        talk.run(backend=lite, max_tokens=3)["a"]
    assert not openai_like.faults
    openai_like.faults.append(Fault(status=400, message="no such thing"))
    fails(talk.run(backend=lite), "no such thing")


def test_litellm_half_a_stream(openai_like, lite):
    openai_like.script = lambda prompt, body: "one two three"
    openai_like.faults.append(Fault(half=2))
    state = talk.run(backend=lite, stream=True)
    fails(state, "test_api_others.py")


def test_litellm_types_and_hurry(openai_like, lite):
    assert int(talk.run(backend=lite, dtype=int)["a"]) >= 0
    openai_like.faults.append(Fault(hang=3))
    fails(talk.run(backend=lite, timeout=0.2), "timeout of 0.2 s")


# --- Vertex AI -------------------------------------------------------------------------------------------


def test_vertex(openai_like, monkeypatch):
    from sgl.lang.backends.apis.vertex_backend import VertexAI

    monkeypatch.delenv("GCP_PROJECT_ID", raising=False)
    tokens = iter(["t1", "t2"])
    openai_like._check = lambda body: None
    try:
        settings = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
        backend = VertexAI("gemini-x", settings, token=lambda: next(tokens), base_url=openai_like.base_url)
        assert two_turns.run(backend=backend)["b"] is not None
    finally:
        del openai_like._check
    assert [head["authorization"] for head in openai_like.headers] == ["Bearer t1", "Bearer t2"]
    assert openai_like.requests[0]["model"] == "google/gemini-x"
    assert openai_like.requests[0]["google"] == {"safety_settings": settings}
    backend.shutdown()
    with pytest.raises(BadValueError, match="GCP_PROJECT_ID"):
        VertexAI("gemini-x", token=lambda: "t")
    monkeypatch.setenv("GCP_PROJECT_ID", "p")
    monkeypatch.setenv("GCP_LOCATION", "europe-west4")
    client = VertexAI("gemini-x", token=lambda: "t")._new_client()
    assert str(client.base_url) == (
        "https://europe-west4-aiplatform.googleapis.com/v1/projects/p/locations/europe-west4/endpoints/openapi/"
    )


def test_vertex_without_google_auth(openai_like, monkeypatch):
    import sys

    from sgl.lang.backends.apis.vertex_backend import VertexAI

    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(ImportError, match="google-auth"):
        VertexAI("gemini-x", base_url=openai_like.base_url)
