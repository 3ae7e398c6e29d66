"""How much a server takes on: queues, shares of keys, deadlines, priorities,
prefixes that are nobody else's, the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from server_rig import await_true, serving, serving_app

from sgl.cli import _parser
from sgl.commands.serve_command import _settings
from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError, EngineClosed, EngineDied
from sgl.runtime.sequences.sequence_options import SequenceOptions
from sgl.runtime.server import admission_control as admission_module
from sgl.runtime.server import server_socket
from sgl.runtime.server.admission_control import AdmissionControl
from sgl.runtime.server.http.http_errors import RequestError, problem
from sgl.runtime.server.request_context import calling, tenant_of
from sgl.runtime.server.server_app import create_app
from sgl.runtime.server.server_settings import ServerSettings

ENDLESS = {"max_new_tokens": 1500, "ignore_eos": True, "temperature": 0}
SHORT = {"max_new_tokens": 4, "temperature": 0}
KEYS = frozenset({"key-of-anna", "key-of-ben"})
PROMPT = "The capital of France is Paris, and the capital of Italy is Rome, as everybody knows who has been there."


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(kv_tokens=8192, threads=1, max_running=2) as engine:
        yield engine


@pytest.fixture(autouse=True)
def nothing_is_left(engine) -> Iterator[None]:
    yield
    await_true(lambda: engine.stats().running == engine.stats().waiting == 0)
    engine.flush_cache()
    engine.check()
    assert engine.stats().pages_free == engine.stats().pages_total


# the counts


class Clock:
    """A `time.monotonic` that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture()
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(admission_module.time, "monotonic", clock)
    return clock


def _refused(admission: AdmissionControl, samples: int, tenant: str = "") -> RequestError:
    with calling_as(tenant), pytest.raises(RequestError) as caught:
        admission.check(samples)
    return caught.value


@contextmanager
def calling_as(tenant: str) -> Iterator[None]:
    with calling(tenant, ServerSettings()):
        yield


def test_room_is_given_back_however_it_ends():
    admission = AdmissionControl(3)
    with pytest.raises(KeyError), admission.admit(2):
        assert admission.held == 2
        raise KeyError
    with pytest.raises(RequestError), admission.admit(2), admission.admit(2):
        raise AssertionError("there was no room")
    assert admission.held == 0
    with admission.admit(2), admission.admit(5, refuse=False):
        assert admission.held == 7
    assert admission.held == 0


def test_the_wait_follows_the_rate_of_completions(clock):
    admission = AdmissionControl(10)
    with admission.admit(10):
        clock.now += 20
        with admission.admit(
            40, refuse=False
        ):  # 40 end within the last half minute: one in 0.5 s, as the server is 20 s old
            pass
        error = _refused(admission, 4)
        assert (error.status, error.code, error.retry_after) == (429, "rate_limited", 2)
        assert "10 samples run or wait, of at most 10" in error.message and "in 2 s" in error.message
        clock.now += 29
        assert _refused(admission, 4).retry_after == 3  # the window is full: 40 in 30 s
        clock.now += 10
        assert _refused(admission, 4).retry_after == 60  # nothing has ended in it


def test_a_young_server_has_people_back_soon(clock):
    admission = AdmissionControl(1)
    clock.now += 0.2
    with admission.admit(1):
        assert _refused(admission, 1).retry_after == 1


def test_a_tenant_has_its_share():
    admission = AdmissionControl(8, 0.5)
    with calling_as("anna"), admission.admit(3):
        assert "3 samples run or wait for this API key, of at most 4" in _refused(admission, 2, "anna").message
        with calling_as("ben"), admission.admit(4):
            assert "the server is full" not in _refused(admission, 1, "ben").message
            assert "the server is full" in _refused(admission, 2, "carl").message
    assert admission.held == 0


def test_what_can_never_fit_is_told_so():
    error = _refused(AdmissionControl(8, 0.5), 5)
    assert error.status == 400 and "5 samples in one request are more than the 4" in error.message


def test_the_command_line_says_all_of_it():
    words = (
        "--max-queue 9 --tenant-share 0.25 --no-isolate --allow-priority --no-metrics --open-metrics "
        "--log-requests x --log-content --trace"
    )
    told = _settings(_parser().parse_args(["serve", *words.split()]))
    assert (told.max_queue, told.tenant_share, told.isolate, told.log_requests) == (9, 0.25, False, "x")
    assert (told.allow_priority, told.metrics, told.open_metrics, told.log_content, told.trace) == (
        True,
        False,
        True,
        True,
        True,
    )
    assert _settings(_parser().parse_args(["serve"])) == ServerSettings()


@pytest.mark.parametrize(
    ("keys", "isolate", "expected"),
    [
        (0, None, (False, 1.0)),
        (1, None, (False, 1.0)),
        (2, None, (True, 0.5)),
        (2, False, (False, 0.5)),
        (1, True, (True, 1.0)),
    ],
)
def test_keys_are_kept_apart_where_there_are_several(keys, isolate, expected):
    settings = ServerSettings(api_keys=frozenset(f"key{i}" for i in range(keys)), isolate=isolate)
    assert (settings.isolated, settings.share) == expected


def test_names_of_tenants():
    assert tenant_of("key-of-anna") == tenant_of("key-of-anna") != tenant_of("key-of-ben")
    assert re.fullmatch("[0-9a-f]{12}", tenant_of("key-of-anna"))


@pytest.mark.parametrize(
    "wrong", [{"max_queue": 0}, {"tenant_share": 0.0}, {"tenant_share": 1.5}, {"log_content": True}]
)
def test_settings_are_checked(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ServerSettings(**wrong)


# the queue of a server


@contextmanager
def _streams(url: str, count: int, **headers: str) -> Iterator[list[httpx.Response]]:
    """So many endless streams, all of which are in the engine."""
    with ExitStack() as stack:
        body = {"text": "Hello", "stream": True, "sampling_params": ENDLESS}
        ask = partial(httpx.stream, "POST", f"{url}/generate", json=body, headers=headers, timeout=20)
        yield [stack.enter_context(ask()) for _ in range(count)]


def _busy(url: str, key: str = "") -> httpx.Response:
    return httpx.post(
        f"{url}/generate", json={"text": "Hello", "sampling_params": SHORT}, headers=_bearer(key), timeout=20
    )


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "stream": True}),
        ("/generate", {"text": "Hello", "stream": True}),
    ],
)
def test_a_full_server_says_when_to_come_back(engine, path, body):
    app = create_app(engine, ServerSettings(max_queue=2))
    with serving_app(app) as url:
        with _streams(url, 1):
            await_true(lambda: engine.stats().running == 1)
            more = {"n": 2} if path != "/generate" else {"sampling_params": {"n": 2}}
            answer = httpx.post(url + path, json=body | more)
            assert answer.status_code == 429 and 1 <= int(answer.headers["retry-after"]) <= 60
            error = answer.json()["error"]
            assert "1 samples run or wait, of at most 2" in error["message"]
            if path != "/generate":
                assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limited")
        await_true(lambda: app.state.bridge.admission.held == 0)
        assert _busy(url).status_code == 200


def test_openais_client_comes_back_by_itself(engine):
    app = create_app(engine, ServerSettings(max_queue=1))
    with serving_app(app) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with _streams(url, 1), pytest.raises(openai.RateLimitError, match="ask again in"):
            await_true(lambda: engine.stats().running == 1)
            client.completions.create(model=engine.model_path.rsplit("/", 1)[-1], prompt="Hello", max_tokens=2)
        await_true(lambda: app.state.bridge.admission.held == 0)
        assert client.with_options(max_retries=2).completions.create(model="nano", prompt="Hello", max_tokens=2).usage


def test_a_crowd_is_answered_or_told_to_come_back(engine):
    app = create_app(engine, ServerSettings(max_queue=6))

    async def come(url: str) -> list[int]:
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=64)) as client:
            body = {"text": "Hello", "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
            return [
                r.status_code
                for r in await asyncio.gather(*[client.post(f"{url}/generate", json=body) for _ in range(40)])
            ]

    with serving_app(app) as url:
        statuses = asyncio.run(come(url))
        assert set(statuses) == {200, 429} and statuses.count(200) >= 6
        assert app.state.bridge.admission.held == 0


def test_a_key_leaves_room_for_the_others(engine):
    with serving(engine, api_keys=KEYS, max_queue=4) as url, _streams(url, 2, **_bearer("key-of-anna")):
        await_true(lambda: engine.stats().running == 2)
        assert _busy(url, "key-of-anna").status_code == 429
        body = {"text": "Hello", "sampling_params": ENDLESS, "timeout": 0.2}
        assert (
            httpx.post(f"{url}/generate", json=body, headers=_bearer("key-of-ben")).status_code == 504
        )  # it was let in


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": ["a"] * 9}), ("/generate", {"text": ["a"] * 9, "sampling_params": SHORT})],
)
def test_a_batch_that_can_never_fit(engine, path, body):
    with serving(engine) as url:
        answer = httpx.post(url + path, json=body)
        assert answer.status_code == 400 and "9 samples" in answer.json()["error"]["message"]
        fitting = {name: value[:8] if isinstance(value, list) else value for name, value in body.items()}
        assert httpx.post(url + path, json=fitting, timeout=30).status_code == 200


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "body",
    [
        {"text": "Hello", "sampling_params": SHORT},
        {"text": "Hello", "sampling_params": SHORT | {"n": 2}, "stream": True},
        {"text": "Hello", "sampling_params": ENDLESS, "timeout": 0.05},
        {"text": "Hello" * 3000, "sampling_params": SHORT},
        {"text": "Hello", "sampling_params": SHORT | {"regex": "("}},
        {"text": "Hello", "sampling_params": SHORT, "return_logprob": True, "logprob_start_len": 0},
    ],
    ids=["whole", "stream", "late", "long", "grammar", "logprobs"],
)
def test_nothing_is_held_behind_an_answer(engine, body):
    app = create_app(engine, ServerSettings(max_queue=2))
    with serving_app(app) as url:
        httpx.post(f"{url}/generate", json=body, timeout=30)
        await_true(lambda: app.state.bridge.admission.held == 0)


def test_health_needs_no_room(engine):
    with serving(engine, max_queue=1) as url, _streams(url, 1):
        await_true(lambda: engine.stats().running == 1)
        assert [httpx.get(url + path, timeout=30).status_code for path in ("/health", "/health_generate")] == [200, 200]


# deadlines and priorities


@pytest.mark.parametrize(
    ("settings", "words"), [({}, "its 0.1 seconds"), ({"request_timeout": 0.05}, "its 0.05 seconds")]
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "Hello", "sampling_params": ENDLESS}),
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 1500, "ignore_eos": True}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1500, "ignore_eos": True},
        ),
    ],
)
def test_requests_say_how_long_they_wait(engine, settings, words, path, body):
    with serving(engine, **settings) as url:
        answer = httpx.post(url + path, json=body | {"timeout": 0.1})
        assert answer.status_code == 504 and words in answer.json()["error"]["message"]


def test_who_waits_for_a_place_is_not_forgotten(engine):
    with serving(engine) as url, _streams(url, 2):
        await_true(lambda: engine.stats().running == 2)
        answer = httpx.post(f"{url}/generate", json={"text": "Another", "sampling_params": ENDLESS, "timeout": 0.2})
        assert answer.status_code == 504 and engine.stats().running == 2


@pytest.mark.few(2)
@pytest.mark.parametrize("timeout", [0, -1, "soon", True, 1e999])
def test_timeouts_that_are_none(engine, timeout):
    with serving(engine) as url:
        for path, body in [("/generate", {"text": "Hello"}), ("/v1/completions", {"prompt": "Hello"})]:
            content = httpx.Request("POST", url, json=body).content[:-1] + f',"timeout":{_json(timeout)}}}'.encode()
            answer = httpx.post(url + path, content=content, headers={"Content-Type": "application/json"})
            assert answer.status_code == 400 and "timeout" in answer.json()["error"]["message"]


def _json(value: Any) -> str:
    return {"soon": '"soon"', True: "true"}.get(value, str(value).replace("inf", "Infinity"))


@pytest.mark.parametrize(("path", "body"), [("/generate", {"text": "Hello"}), ("/v1/completions", {"prompt": "Hello"})])
def test_priorities_are_the_servers_to_allow(engine, path, body):
    with serving(engine) as url:
        answer = httpx.post(url + path, json=body | {"priority": 1})
        assert answer.status_code == 400 and "--allow-priority" in answer.json()["error"]["message"]
        assert httpx.post(url + path, json=body | {"priority": 0}, timeout=30).status_code == 200
    with serving(engine, allow_priority=True) as url:
        assert httpx.post(url + path, json=body | {"priority": 1}, timeout=30).status_code == 200
        answer = httpx.post(url + path, json=body | {"priority": 101})
        assert answer.status_code == 400 and "priority" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_requests_run_on_the_terms_that_they_ask_for(engine, monkeypatch, stream):
    opened: list[SequenceOptions] = []
    really_open = Engine.open

    def noting(self: Engine, priority: int = 0, **rest: Any) -> Any:
        sequence = really_open(self, priority, **rest)
        opened.append(SequenceOptions(priority, rest["tenant"], rest["namespace"], rest["timeout"]))
        return sequence

    monkeypatch.setattr(Engine, "open", noting)
    body = {"text": ["Hello", "Bye"], "sampling_params": SHORT, "priority": -3, "timeout": 50.0, "stream": stream}
    with serving(engine, api_keys=KEYS, allow_priority=True, request_timeout=30.0) as url:
        assert httpx.post(f"{url}/generate", json=body, headers=_bearer("key-of-ben"), timeout=30).status_code == 200
    ben = tenant_of("key-of-ben")
    assert [terms[:3] for terms in opened] == [(-3, ben, ben)] * 2
    assert all(29 < (terms.deadline or 0) <= 30 for terms in opened)


def test_what_an_engine_took_with_it_may_be_asked_again():
    told = problem(EngineDied("killed by SIGKILL"))
    assert (told.status, told.code) == (503, "engine_restarting") and int(told.headers["Retry-After"]) >= 1
    assert problem(EngineClosed("closed")).headers == {}


@pytest.mark.whole
def test_vectors_of_many_texts_leave_room_for_others(engine):
    app = create_app(engine, ServerSettings(api_keys=KEYS, max_queue=8))
    most = 0
    with serving_app(app) as url, ThreadPoolExecutor(1) as pool:
        body = {"input": ["Every word of this is read. " * 60] * 40}
        asked = pool.submit(httpx.post, f"{url}/v1/embeddings", json=body, headers=_bearer("key-of-anna"), timeout=60)
        await_true(lambda: app.state.bridge.admission.held > 0)
        while not asked.done():
            most = max(most, app.state.bridge.admission.held)
            assert _busy(url, "key-of-ben").status_code == 200
        assert asked.result().status_code == 200 and 1 <= most <= 4
    assert app.state.bridge.admission.held == 0


def test_some_of_the_room():
    admission = AdmissionControl(16, 0.5)
    with calling_as("anna"):
        with admission.admit_some(9) as places:
            assert places == admission.held == 2  # a quarter of what one tenant may have
            with admission.admit(5), admission.admit_some(9) as left:
                assert left == 1
                assert _refused(admission, 1, "anna").status == 429
        with pytest.raises(RequestError), admission.admit(8), admission.admit_some(1):
            raise AssertionError("there was no room")
    assert admission.held == 0


# whose prefixes


@pytest.mark.parametrize(("settings", "shared"), [({}, False), ({"isolate": False}, True)])
def test_a_key_sees_no_prefixes_of_another(engine, settings, shared):
    def cached(url: str, key: str) -> int:
        body = {"text": PROMPT, "sampling_params": SHORT}
        answer = httpx.post(f"{url}/generate", json=body, headers=_bearer(key), timeout=30)
        return answer.json()["meta_info"]["cached_tokens"]

    with serving(engine, api_keys=KEYS, **settings) as url:
        assert cached(url, "key-of-anna") == 0
        assert cached(url, "key-of-anna") > 10
        assert (cached(url, "key-of-ben") > 10) == shared


@pytest.mark.parametrize(("keys", "status"), [(KEYS, 403), (frozenset({"key-of-anna"}), 200)])
def test_a_key_forgets_no_prefixes_of_another(engine, keys, status):
    body = {"text": PROMPT, "sampling_params": SHORT}
    with serving(engine, api_keys=keys) as url:
        httpx.post(f"{url}/generate", json=body, headers=_bearer("key-of-anna"), timeout=30)
        cached = engine.stats().pages_cached
        assert httpx.post(f"{url}/flush_cache", headers=_bearer("key-of-anna")).status_code == status
        assert (engine.stats().pages_cached == cached) == (status == 403)


# clients that take nothing


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux tells when a client takes nothing")
def test_who_takes_nothing_has_left(engine, monkeypatch):
    monkeypatch.setattr(server_socket, "UNREAD_SECONDS", 1)
    app = create_app(engine, ServerSettings())
    with server_socket.bind(ServerSettings(port=0)) as listener, serving_app(app, listener) as url, _deaf(url):
        await_true(lambda: app.state.bridge.admission.held == 1)
        await_true(lambda: app.state.bridge.admission.held == 0, 60)


@contextmanager
def _deaf(url: str) -> Iterator[None]:
    """A client that asks for a long stream and reads nothing of it."""
    content = json.dumps({"text": "Hello", "stream": True, "return_logprob": True, "sampling_params": ENDLESS}).encode()
    head = (
        "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
        f"{len(content)}\r\n\r\n"
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        client.sendall(head.encode() + content)
        yield


# the end


@contextmanager
def _process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "sgl.cli", "serve", "--port", "0", "kv_tokens=4096", "threads=1", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert "ready at" in line, (line, process.stderr.read())
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.whole
def test_a_server_that_ends_says_so_until_the_last_request_is_done():
    with _process() as (process, url):
        with httpx.stream(
            "POST", f"{url}/generate", json={"text": "Hello", "stream": True, "sampling_params": ENDLESS}
        ) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            await_true(lambda: httpx.get(f"{url}/health").status_code == 503)
            assert httpx.get(f"{url}/health").json() == {"status": "draining"}
            refused = httpx.post(f"{url}/v1/completions", json={"prompt": "Hello"})
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
            assert refused.json()["error"]["code"] == "shutting_down"
            assert httpx.get(f"{url}/metrics").status_code == 200
            assert any(line.startswith("data: {") for line in lines)  # it goes on
        assert process.wait(10) == 0
