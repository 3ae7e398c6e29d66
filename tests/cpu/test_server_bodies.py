"""Bodies that are long, wrong a million times or never whole, and answers that
nobody reads: nobody else waits for them.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
from functools import partial
from typing import Any

import httpx
import pytest
from alone import alone
from pydantic import TypeAdapter, ValidationError
from server_rig import await_true, serving, serving_app

from sgl.runtime import Engine
from sgl.runtime.server import event_loop_queue
from sgl.runtime.server.http import middleware, request_bodies, response_size_limit
from sgl.runtime.server.http.http_errors import RequestError
from sgl.runtime.server.http.request_bodies import JsonBodyRoute, parsed, values_of
from sgl.runtime.server.http.response_size_limit import written
from sgl.runtime.server.server_app import create_app
from sgl.runtime.server.server_settings import ServerSettings

JSON = {"content-type": "application/json"}
MILLION = 400_000  # wrong items: some megabytes
PIECE = b"a" * 100_000
USER = {"role": "user", "content": "Hello"}


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user"}] * MILLION}),
    ("/v1/chat/completions", {"messages": [1] * 19_999}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}] * MILLION}]}),
    ("/v1/chat/completions", {"messages": [USER], "tools": [1] * MILLION}),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [1] * MILLION}]}),
    ("/v1/chat/completions", {"messages": [USER], "stop": [1] * MILLION}),
    ("/v1/completions", {"prompt": [{}] * MILLION}),
    ("/v1/completions", {"prompt": "a", "stop_token_ids": ["x"] * MILLION}),
    ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): "x" for i in range(MILLION)}}),
    ("/v1/completions", {"prompt": "a"} | {f"f{i}": 1 for i in range(MILLION)}),
    ("/v1/embeddings", {"input": [[-1]] * MILLION}),
    ("/generate", {"text": [1] * MILLION}),
    ("/generate", {"input_ids": [["a"]] * MILLION}),
    ("/generate", {"input_ids": ["a"] * MILLION}),
    ("/generate", {"text": "a", "sampling_params": [{"x": 1}] * MILLION}),
    ("/generate", {"text": "a", "sampling_params": [1] * MILLION}),
    ("/generate", {"text": "a", "return_logprob": ["x"] * MILLION}),
    ("/generate", {"text": "a"} | {f"f{i}": 1 for i in range(MILLION)}),
    ("/generate", {"text": "a", "sampling_params": {f"f{i}": 1 for i in range(MILLION)}}),
    ("/encode", {"text": [1] * MILLION}),
]


@pytest.mark.few(4)
@pytest.mark.parametrize(("path", "body"), WRONG, ids=[f"{path[1:]}:{'+'.join([*body][:2])}" for path, body in WRONG])
def test_a_million_wrong_items_hold_nobody_up(url: str, path: str, body: dict[str, Any]) -> None:
    slowest = 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal slowest
        with httpx.Client(base_url=url, timeout=60) as client:
            while not done.is_set():
                slowest = max(slowest, client.get("/v1/models").elapsed.total_seconds())

    content = json.dumps(body).encode()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answer = httpx.post(url + path, content=content, headers=JSON, timeout=60)
    finally:
        done.set()
        watcher.join()
    assert answer.status_code in (400, 413) and len(answer.content) < 3000
    assert slowest < 3.0  # it took 6 to 60 seconds where every error was written down


def test_errors_are_not_gathered() -> None:
    from sgl.runtime.server.protocols.chat.chat_types import ChatRequest
    from sgl.runtime.server.protocols.completions.embeddings_routes import EmbeddingRequest
    from sgl.runtime.server.protocols.native.native_types import GenerateFields
    from sgl.runtime.server.protocols.openai_common.openai_request_types import CompletionRequest

    bad = {"x": 1, "y": 2}
    for form, wrong in [
        (ChatRequest, {"messages": [bad] * 50, "stop": [1] * 50, "tools": [bad] * 50} | bad),
        (CompletionRequest, {"prompt": "a", "stop": [1] * 50, "stop_token_ids": ["a"] * 50} | bad),
        (EmbeddingRequest, {"input": [1.5] * 50} | bad),
        (GenerateFields, {"input_ids": [["a"] * 50] * 50, "text": [1] * 50, "rid": [1] * 50}),
    ]:
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(form).validate_python(wrong)
        assert len(caught.value.errors()) <= 10


def test_an_unknown_field_of_every_message_is_told_once(url: str) -> None:
    body = {"messages": [USER | {"nmae": "x", "foo": 1}] * 3}
    error = httpx.post(f"{url}/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "messages.0.nmae" and "did you mean 'name'" in error["message"]


def test_every_route_with_a_body_reads_it_so(bundled: Engine) -> None:
    modules = [module for name, module in sys.modules.items() if name.startswith("sgl.runtime.server.")]
    routers = {id(router): router for module in modules if (router := getattr(module, "router", None)) is not None}
    routes = [
        route
        for router in routers.values()
        for route in router.routes
        if getattr(route, "body_field", None) is not None
    ]
    assert len(routes) >= 6 and all(isinstance(route, JsonBodyRoute) for route in routes)


# values


def slow_values(value: Any) -> int:
    """As `values_of` counts: a value for each comma and each opening bracket, and one more."""
    if isinstance(value, list | dict):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(0, len(value) - 1) + sum(slow_values(item) for item in inner)
    return 0


def some_json(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(5 if depth < 4 else 3)
    if kind == 0:
        return dice.choice([1, 2.5, None, True])
    if kind < 3:
        return "".join(dice.choice('a,[{}]"\\é\n') for _ in range(dice.randrange(12)))
    items = [some_json(dice, depth + 1) for _ in range(dice.randrange(5))]
    return items if kind == 3 else {f'{i},"[{{': item for i, item in enumerate(items)}


def test_values_are_counted_outside_of_strings() -> None:
    dice = random.Random(5)
    for _ in range(300):
        value = some_json(dice)
        for ascii_only in (True, False):
            data = json.dumps(value, ensure_ascii=ascii_only).encode()
            expected = 1 + slow_values(value)
            assert values_of(data, expected) <= expected  # exact, or a first glance that is small enough
            assert values_of(data, expected - 1) == expected  # one more than allowed


def test_long_texts_are_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "MOST_VALUES", 10)
    assert parsed(json.dumps({"prompt": ',[{\\"' * 1000}).encode()) == {"prompt": ',[{\\"' * 1000}
    with pytest.raises(RequestError, match="more than 10 values"):
        parsed(b"[" + b"[]," * 10 + b"1]")


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"a":' * 100_000, b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}"]
)
def test_what_is_nested_too_deeply_is_told_so(url: str, data: bytes) -> None:
    answer = httpx.post(f"{url}/v1/completions", content=data, headers=JSON)
    assert answer.status_code == 400 and "nested too deeply" in answer.json()["error"]["message"]


# the room of all bodies


def half_sent(url: str, sent: int, length: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 20)
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    client.settimeout(20)
    threading.Thread(target=_send, args=(client, head.encode() + b'{"text": "', sent), daemon=True).start()
    return client


def _send(client: socket.socket, head: bytes, sent: int) -> None:
    try:
        client.sendall(head)
        for start in range(0, sent, len(PIECE)):
            client.sendall(PIECE[: sent - start])
    except OSError:
        pass  # it was refused meanwhile


def test_bodies_have_a_room_together(bundled: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "WAIT_SECONDS", 0.2)
    app = create_app(bundled, ServerSettings(max_body_bytes=1_000_000, max_open_bytes=1_000_000))
    room = app.state.body_room
    with serving_app(app) as url:
        first = half_sent(url, 900_000, 1_000_000)
        await_true(lambda: room.held > 700_000)
        refused = httpx.post(f"{url}/generate", content=b'{"text": "' + b"a" * 400_000, headers=JSON)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert "ask again" in refused.json()["error"]["message"]
        small = {"text": "Hello", "sampling_params": {"max_new_tokens": 2}}
        assert httpx.post(f"{url}/generate", json=small).status_code == 200  # the small need no room
        first.close()
        await_true(lambda: room.held == 0)
        long = {"text": "a" * 400_000, "sampling_params": {"max_new_tokens": 2}}
        assert "shorten it" in httpx.post(f"{url}/generate", json=long).text
    assert room.held == 0


def test_who_waits_for_room_gets_it(bundled: Engine) -> None:
    app = create_app(bundled, ServerSettings(max_body_bytes=1_000_000, max_open_bytes=1_000_000))
    with serving_app(app) as url:
        first = half_sent(url, 900_000, 1_000_000)
        await_true(lambda: app.state.body_room.held > 700_000)
        answers: list[httpx.Response] = []
        ask = partial(httpx.post, f"{url}/generate", json={"text": "a" * 400_000}, timeout=20)
        waiting = threading.Thread(target=lambda: answers.append(ask()))
        waiting.start()
        await_true(lambda: len(app.state.body_room._waiting) == 1)
        first.close()
        waiting.join(10)
        assert answers[0].status_code == 400 and "shorten it" in answers[0].text


def test_a_body_that_stops_coming_is_not_waited_for(bundled: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "STALL_SECONDS", 0.2)
    with serving(bundled) as url, half_sent(url, 10, 100) as client:
        answer = b"".join(iter(partial(client.recv, 4096), b""))
    assert answer.startswith(b"HTTP/1.1 408 ") and b"0.2 seconds" in answer


@pytest.mark.whole
@alone
def test_a_hundred_half_sent_bodies_cost_little(tiny) -> None:
    with Engine(tiny, kv_tokens=512, threads=1) as engine, serving(engine) as url:
        httpx.get(f"{url}/health")
        before = _resident()
        clients = [half_sent(url, 2_000_000, 9_000_000) for _ in range(100)]
        threading.Event().wait(1.5)
        assert _resident() - before < 140e6  # of 200 MB that were sent
        assert httpx.get(f"{url}/health", timeout=20).status_code == 200
        for client in clients:
            client.close()


def _resident() -> float:
    """Bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096.0


# answers


@pytest.mark.parametrize("top", [129, 10**6, [1, 200]])
def test_the_likeliest_tokens_are_few(url: str, top: Any) -> None:
    text = ["a", "b"] if isinstance(top, list) else "a"
    answer = httpx.post(f"{url}/generate", json={"text": text, "return_logprob": True, "top_logprobs_num": top})
    assert answer.status_code == 400 and "128" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "Hello there", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 20}),
        (
            "/generate",
            {
                "text": "Hi",
                "return_logprob": True,
                "top_logprobs_num": 20,
                "sampling_params": {"max_new_tokens": 30, "ignore_eos": True},
            },
        ),
        ("/v1/completions", {"prompt": ["Hello there"] * 4, "echo": True, "logprobs": 5, "max_tokens": 1}),
        ("/v1/completions", {"prompt": "Hi", "logprobs": 5, "max_tokens": 30, "ignore_eos": True, "stream": True}),
        (
            "/v1/chat/completions",
            {"messages": [USER], "logprobs": True, "top_logprobs": 20, "max_tokens": 30, "ignore_eos": True},
        ),
    ],
)
def test_log_probabilities_are_counted_over_the_whole_call(
    url: str, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    assert "log-probabilities" not in httpx.post(url + path, json=body, timeout=30).text
    monkeypatch.setattr(response_size_limit, "MOST_LOGPROBS", 50)
    answer = httpx.post(url + path, json=body, timeout=30)
    assert "the answer has more than 50 log-probabilities" in answer.text
    assert answer.status_code == (200 if body.get("stream") else 400)


def test_large_answers_are_written_alike(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {
        "text": ["Hello", "Bye"],
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 3,
        "sampling_params": {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True},
    }
    plain = httpx.post(f"{url}/generate", json=body, timeout=30).json()
    monkeypatch.setattr(response_size_limit, "LARGE", 0)
    large = httpx.post(f"{url}/generate", json=body, timeout=30).json()
    for one, other in zip(plain, large, strict=True):
        assert one["text"] == other["text"] and one["meta_info"].keys() == other["meta_info"].keys()
        assert len(one["meta_info"]["output_top_logprobs"]) == len(other["meta_info"]["output_top_logprobs"]) == 40


def test_what_is_written_in_pieces_is_the_json() -> None:
    dice = random.Random(3)
    for _ in range(200):
        value = [some_json(dice) for _ in range(dice.choice([0, 2, 40]))]
        assert json.loads(written(value)) == value


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/generate",
            {
                "text": "Hello",
                "stream": True,
                "return_logprob": True,
                "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True},
            },
        ),
        (
            "/v1/completions",
            {"prompt": "Hello", "stream": True, "logprobs": 20, "max_tokens": 1900, "ignore_eos": True},
        ),
    ],
)
def test_a_stream_that_nobody_reads_ends(
    bundled: Engine, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(event_loop_queue, "MOST_WAITING", 8)
    monkeypatch.setattr(event_loop_queue, "UNTAKEN_SECONDS", 0.05)
    generations = bundled.stats().generations
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
    with serving_app(create_app(bundled), listener) as url, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        client.sendall(head.encode() + content)
        await_true(lambda: bundled.stats().running == 1)
        await_true(lambda: bundled.stats().running == 0)
        assert bundled.stats().generations == generations  # it was not finished


def test_a_stream_that_is_read_slowly_goes_on(bundled: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop_queue, "MOST_WAITING", 0)
    body = {"prompt": "Hello", "stream": True, "max_tokens": 60, "ignore_eos": True}
    with serving(bundled) as url, httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as answer:
        lines = []
        for line in answer.iter_lines():
            lines.append(line)
            threading.Event().wait(0.005)
    assert "data: [DONE]" in lines and not any("error" in line for line in lines)
