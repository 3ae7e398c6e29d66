"""What networks and providers do wrong: it is tried again, or it ends in an error that names the line."""

from __future__ import annotations

import threading
import time

import pytest
from anthropic_server import AnthropicServer
from api_loopback import Fault
from openai_server import OpenAIServer

import sgl
from sgl.lang.backends.apis.anthropic_backend import Anthropic
from sgl.lang.backends.openai.openai_backend import OpenAI
from sgl.lang.errors import ProgramError, RemoteError, RemoteProtocolError, RemoteStreamError, RemoteTimeoutError

KINDS = ("chat", "text", "anthropic")


@pytest.fixture(scope="module")
def servers():
    with OpenAIServer() as openai, AnthropicServer() as anthropic:
        yield {"chat": openai, "text": openai, "anthropic": anthropic}


@pytest.fixture(scope="module")
def backends(servers):
    options = {"backoff": 0.005, "timeout": 15, "retries": 2}
    made = {
        "chat": OpenAI("gpt-4o", base_url=servers["chat"].base_url, **options),
        "text": OpenAI("davinci-002", base_url=servers["text"].base_url, **options),
        "anthropic": Anthropic("claude", base_url=servers["anthropic"].url, api_key="k", **options),
    }
    yield made
    for backend in made.values():
        backend.shutdown()


@pytest.fixture(params=KINDS)
def kind(request, servers):
    servers[request.param].reset()
    servers[request.param].script = lambda prompt, body: "one two three"
    return request.param


@pytest.fixture
def server(kind, servers):
    return servers[kind]


@pytest.fixture
def backend(kind, backends):
    return backends[kind]


@sgl.function
def talk(s):
    s += sgl.user("Hi") + sgl.assistant(sgl.gen("a", 20))


@sgl.function
def story(s):
    s += "Once " + sgl.gen("a", 20)


def start(kind, backend, **options):
    return (story if kind == "text" else talk).run(backend=backend, **options)


def failure(state, match="failed"):
    """The RemoteError of a run that failed, which names the line of the gen."""
    with pytest.raises(ProgramError, match=match) as caught:
        state["a"]
    assert "test_api_faults.py:" in str(caught.value) and "Gen('a')" in str(caught.value)
    assert isinstance(caught.value.__cause__, RemoteError)
    return caught.value.__cause__


PASSING = {
    "overloaded": Fault(status=503),
    "too many": Fault(status=429, retry_after="0"),
    "broken": Fault(status=500),
    "dropped": Fault(drop=True),
}
LASTING = {"bad": Fault(status=400, message="no such option"), "key": Fault(status=401, message="wrong key")}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_tried_again(kind, server, backend, fault, streaming):
    server.faults.extend([PASSING[fault]] * 2)
    state = start(kind, backend, stream=streaming)
    assert "".join(state.text_iter("a")) == state["a"] == "one two three" and not server.faults


@pytest.mark.parametrize("fault", PASSING)
def test_what_does_not_pass_ends_in_an_error(kind, server, backend, fault):
    server.faults.extend([PASSING[fault]] * 3)
    error = failure(start(kind, backend))
    assert error.attempts == 3 and not server.faults
    if PASSING[fault].status:
        assert error.status == PASSING[fault].status and "something broke" in str(error)
    assert start(kind, backend)["a"] == "one two three"


@pytest.mark.parametrize("fault", LASTING)
def test_what_is_wrong_with_the_call_is_not_tried_again(kind, server, backend, fault):
    server.faults.append(LASTING[fault])
    error = failure(start(kind, backend), LASTING[fault].message)
    assert (error.status, error.attempts) == (LASTING[fault].status, 1) and not server.requests


def test_an_empty_purse_is_not_asked_again(backends, servers):
    server = servers["chat"]
    server.reset()
    server.error_body = lambda status, message: {
        "error": {"message": "You exceeded your quota", "code": "insufficient_quota"}
    }
    try:
        server.faults.append(Fault(status=429))
        assert failure(start("chat", backends["chat"]), "quota").attempts == 1
    finally:
        del server.error_body


def test_the_server_says_when_to_come_back(kind, server, backend):
    server.faults.append(Fault(status=429, retry_after="0.3"))
    assert start(kind, backend)["a"] == "one two three"
    first, second = server.arrivals
    assert 0.25 < second - first < 2


@pytest.mark.parametrize("streaming", [False, True])
def test_silence_ends_with_the_timeout_of_the_gen(kind, server, backend, streaming):
    @sgl.function
    def hurried(s):
        if kind == "text":
            s += "Once " + sgl.gen("a", timeout=0.2)
        else:
            s += sgl.user("Hi") + sgl.assistant(sgl.gen("a", timeout=0.2))

    server.faults.append(Fault(hang=3))
    begun = time.monotonic()
    state = hurried.run(backend=backend, stream=streaming)
    with pytest.raises(ProgramError, match=r"test_api_faults.py:\d+"):
        state["a"]
    assert time.monotonic() - begun < 2


@pytest.mark.few(1)
def test_silence_ends_with_the_timeout_of_the_backend(kind, server, servers):
    made = {
        "chat": lambda: OpenAI("gpt-4o", base_url=server.base_url, timeout=0.3),
        "text": lambda: OpenAI("davinci-002", base_url=server.base_url, timeout=0.3),
        "anthropic": lambda: Anthropic("claude", base_url=server.url, api_key="k", timeout=0.3),
    }[kind]()
    server.faults.append(Fault(hang=3))
    assert isinstance(failure(start(kind, made), r"timeout=0.3"), RemoteTimeoutError)
    made.shutdown()


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_half_a_stream_is_an_error_with_the_text_so_far(kind, server, backend, kept):
    kept += 3 if kind == "anthropic" else 0
    server.faults.append(Fault(half=kept))
    state = start(kind, backend, stream=True)
    pieces = []
    with pytest.raises(ProgramError):
        for piece in state.text_iter("a"):
            pieces.append(piece)
    error = failure(state)
    assert isinstance(error, RemoteStreamError)
    assert "".join(pieces) == error.text == "one two three"[: len(error.text)] and error.text


def test_a_stream_that_broke_before_its_text_is_tried_again(kind, server, backend):
    server.faults.append(Fault(half=0))
    assert "".join(start(kind, backend, stream=True).text_iter("a")) == "one two three"


EVENTS = {
    "chat": b'data: {"error": {"message": "overloaded now", "type": "server_error"}}\n\n',
    "text": b'data: {"error": {"message": "overloaded now", "code": 503}}\n\n',
    "anthropic": b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", '
    b'"message": "overloaded now"}}\n\n',
}


def test_an_error_event_in_a_stream(kind, server, backend):
    server.faults.append(Fault(event=EVENTS[kind]))
    state = start(kind, backend, stream=True)
    if kind == "anthropic":  # nothing had been shown: it is tried again
        assert state["a"] == "one two three"
    else:
        assert "overloaded now" in str(failure(state, "overloaded now"))


def test_noise_instead_of_a_stream(kind, server, backend):
    name = b"event: content_block_delta\n" if kind == "anthropic" else b""
    server.faults.append(Fault(event=name + b"data: {{{ no JSON\n\n"))
    failure(start(kind, backend, stream=True), "does not follow the protocol|Part of the stream")


@pytest.mark.parametrize("fault", [Fault(status=200, page=True), Fault(status=200)])
def test_a_200_that_is_no_answer(kind, server, backend, fault):
    server.faults.append(fault)
    assert isinstance(failure(start(kind, backend)), RemoteProtocolError)


def test_a_page_instead_of_an_error(kind, server, backend):
    server.faults.extend([Fault(status=502, page=True)] * 3)
    error = failure(start(kind, backend), "a proxy")
    assert (error.status, error.attempts) == (502, 3) and len(str(error)) < 1200


def test_nobody_at_the_address(servers):
    for backend, kind in (
        (OpenAI("gpt-4o", base_url="http://127.0.0.1:9/v1", retries=1, backoff=0.01), "chat"),
        (
            Anthropic("claude", base_url="http://127.0.0.1:9", api_key="k", retries=1, backoff=0.01),
            "anthropic",
        ),
    ):
        error = failure(start(kind, backend), "127.0.0.1:9")
        assert error.attempts == 2
        backend.shutdown()


def test_cancelling_closes_the_call(kind, server, backend):
    server.delay = 1.5
    state = start(kind, backend)
    threading.Timer(0.1, state.cancel).start()
    begun = time.monotonic()
    with pytest.raises(ProgramError):
        state["a"]
    assert time.monotonic() - begun < 1


@pytest.mark.whole
def test_a_batch_survives_faults(kind, server, backend):
    faults = [Fault(status=500), Fault(drop=True), Fault(status=429, retry_after="0"), Fault(), Fault()]
    server.faults.extend(faults * 6)
    states = (story if kind == "text" else talk).run_batch([{}] * 40, backend=backend)
    assert len(states) == 40
    done = [state for state in states if state.error() is None]
    assert len(done) > 25 and all(state["a"] == "one two three" for state in done)
    assert all("test_api_faults.py" in str(state.error()) for state in states if state.error())
