"""Where a web server may send who reads a model: decided without a network, by addresses alone."""

from __future__ import annotations

import socket

import httpx
import pytest

from sgl.runtime.errors import CheckpointError
from sgl.runtime.loading.remote.http_store import require_allowed

NAMES = {
    "models.example": ["93.184.216.34"],
    "cdn.example": ["8.8.8.8", "2606:4700:4700::1111"],
    "inner.example": ["8.8.8.8", "10.0.0.7"],
}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if host == "unknown.example":
            raise socket.gaierror("not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in NAMES.get(host, [host])]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.parametrize(
    ("first", "to"),
    [
        ("http://127.0.0.1:80/a", "http://127.0.0.1/b"),
        ("http://10.0.0.7/a", "https://10.0.0.7/a"),
        ("https://models.example/a", "https://cdn.example/x?signed=1"),
        ("http://models.example/a", "https://cdn.example/x"),
        ("https://models.example/a", "https://models.example:8443/x"),
        ("https://models.example/a", "https://unknown.example/x"),
    ],
)
def test_what_is_followed(first: str, to: str) -> None:
    require_allowed(httpx.URL(first), httpx.URL(to))


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("http://169.254.169.254/latest", "169.254.169.254"),
        ("https://10.0.0.7/x", "10.0.0.7"),
        ("https://inner.example/x", "10.0.0.7"),
        ("https://127.0.0.1:6379/", "127.0.0.1"),
        ("https://[::1]/", "::1"),
        ("https://[::ffff:10.0.0.7]/", "not public"),
        ("https://[2002:0a00:0007::]/", "not public"),
        ("https://100.64.0.1/", "100.64.0.1"),
        ("https://0.0.0.0/", "0.0.0.0"),
        ("http://cdn.example/x", "http:// instead of https://"),
        ("ftp://cdn.example/x", "ftp:// instead"),
        ("file:///etc/passwd", "file:// instead"),
    ],
)
def test_what_is_not(to: str, words: str) -> None:
    first = "http://models.example/a" if to.startswith("http://169") else "https://models.example/a"
    with pytest.raises(CheckpointError, match="is not followed; give this address yourself") as caught:
        require_allowed(httpx.URL(first), httpx.URL(to))
    assert words in str(caught.value)


def test_of_an_inner_server_no_other_is_asked() -> None:
    for to in ("http://10.0.0.7:8080/x", "http://10.0.0.8/x", "http://127.0.0.1/x"):
        with pytest.raises(CheckpointError, match="not public"):
            require_allowed(httpx.URL("http://10.0.0.7/a"), httpx.URL(to))
