"""The server on the wire: how requests are framed, half-closed and slow clients, what browsers are made to send."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from functools import partial

import httpx
import pytest
from server_rig import await_true

from sgl.runtime.server.http import http_protocol
from sgl.runtime.server.server_settings import ServerSettings
from sgl.runtime.server.server_socket import bind

BODY = json.dumps({"text": "Hello", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}).encode()
LONG = json.dumps({"text": "Hello", "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}}).encode()
JSON = "Host: x\r\nContent-Type: application/json\r\n"


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 20)


def read(client: socket.socket) -> bytes:
    return b"".join(iter(partial(client.recv, 65536), b""))


def post(body: bytes, more: str = "") -> bytes:
    return f"POST /generate HTTP/1.1\r\n{JSON}{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_what_is_written_is_sent_at_once():
    """Head and body of an answer, and the pieces of a stream, do not wait until the
    client's system acknowledges the one before: 40 ms.
    """

    async def accepted() -> int:
        option: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        listener = bind(ServerSettings(port=0))

        def look(_: object, writer: asyncio.StreamWriter) -> None:
            option.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        async with await asyncio.start_server(look, sock=listener):
            with socket.create_connection(listener.getsockname()):
                return await asyncio.wait_for(option, 20)

    assert asyncio.run(accepted()) == 1


def test_a_half_closed_client_gets_its_answer(url):
    with connect(url) as client:
        client.sendall(post(BODY))
        client.shutdown(socket.SHUT_WR)
        head, _, body = read(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and json.loads(body)["meta_info"]["completion_tokens"] == 4


@pytest.mark.whole
def test_a_half_closed_client_that_waits_long_is_told_that_it_is_heard(url, bundled, monkeypatch):
    monkeypatch.setattr(http_protocol, "FIRST_PROBE", 0.01)
    with connect(url) as client:
        client.sendall(post(LONG))
        client.shutdown(socket.SHUT_WR)
        whole = read(client)
    assert whole.startswith(b"HTTP/1.1 100 ") and b"HTTP/1.1 200 OK" in whole
    await_true(lambda: bundled.stats().running == 0)


def test_all_that_a_half_closed_client_asked_is_answered(url):
    with connect(url) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" * 3 + post(BODY))
        client.shutdown(socket.SHUT_WR)
        whole = read(client)
    assert whole.count(b"HTTP/1.1 200 OK") == 4 and b"completion_tokens" in whole


def test_a_half_closed_stream_goes_on_to_its_end(url):
    body = BODY[:-1] + b', "stream": true}'
    with connect(url) as client:
        client.sendall(post(body))
        client.shutdown(socket.SHUT_WR)
        whole = read(client)
    assert whole.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]" in whole


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_who_closes_his_socket_has_left(url, bundled, version):
    with connect(url) as client:
        client.sendall(post(LONG).replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        await_true(lambda: bundled.stats().running == 1)
        generations = bundled.stats().generations
    await_true(lambda: bundled.stats().running == 0, 3.0)
    assert bundled.stats().generations == generations


def test_who_stops_in_the_middle_of_a_body_has_left(url):
    with connect(url) as client:
        client.sendall(post(BODY)[:-3])
        client.shutdown(socket.SHUT_WR)
        assert read(client) == b""


@pytest.mark.parametrize("sent", [b"", b"POST /generate HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_heads_are_not_waited_for_for_ever(url, monkeypatch, sent):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    with connect(url) as client:
        client.sendall(sent)
        started = time.monotonic()
        assert read(client) == b"" and time.monotonic() - started < 5


def test_the_second_head_of_a_connection_is_not_waited_for_either(url, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    with connect(url) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"GET /v1/models HT")
        assert b"HTTP/1.1 " not in read(client)


@pytest.mark.whole
def test_a_long_answer_is_not_a_slow_head(url, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.05)
    with connect(url) as client:
        client.sendall(post(LONG))
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", ["/generate", "/health"])
def test_two_lengths_are_refused(url, path):
    head = f"POST {path} HTTP/1.1\r\n{JSON}Transfer-Encoding: chunked\r\nContent-Length: {len(BODY)}\r\n\r\n"
    with connect(url) as client:
        client.sendall(head.encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY))
        answer = read(client)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"Transfer-Encoding" in answer


@pytest.mark.parametrize(
    ("path", "status"),
    [("/health", 200), ("/v1/models", 200), ("/metrics", 200), ("/nothing", 404), ("/generate", 405)],
)
def test_head_is_get_without_a_body(url, path, status):
    answer = httpx.head(url + path)
    assert answer.status_code == status and answer.content == b""
    assert answer.headers["content-type"] == httpx.get(url + path).headers["content-type"]


BROWSER = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"}


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("POST", {}, 200),
        ("GET", {"User-Agent": "python-requests/2.32"}, 200),
        ("GET", BROWSER, 403),  # an image over plain HTTP to another machine
        ("GET", BROWSER | {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", BROWSER | {"Sec-Fetch-Site": "same-site"}, 403),
        ("GET", BROWSER | {"Sec-Fetch-Site": "none"}, 200),  # typed by hand
        ("POST", BROWSER | {"Sec-Fetch-Site": "same-origin", "Origin": "http://proxy"}, 200),
        ("POST", BROWSER | {"Origin": "http://evil"}, 403),
        ("POST", {"Origin": "null"}, 403),
    ],
)
def test_another_sites_page_flushes_nothing(url, method, headers, status):
    assert httpx.request(method, f"{url}/flush_cache", headers=headers).status_code == status


def test_the_servers_own_page_may_flush(url):
    assert httpx.post(f"{url}/flush_cache", headers=BROWSER | {"Origin": url}).status_code == 200


def test_head_flushes_nothing(url):
    assert httpx.head(f"{url}/flush_cache").status_code == 405


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_what_any_page_may_send_is_not_read_as_json(url, kind):
    answer = httpx.post(f"{url}/generate", content=BODY, headers={} if kind is None else {"Content-Type": kind})
    assert answer.status_code == 400 and "Content-Type: application/json" in answer.json()["error"]["message"]
