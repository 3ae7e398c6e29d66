"""A panic of a library in Rust, which is no Exception: every route answers in its
protocol's form, and the server goes on.
"""

from __future__ import annotations

import httpx
import pytest
from server_rig import serving

from sgl.runtime import Engine
from sgl.runtime.server.engine_bridge import LONG_TEXT

LONG = "x" * (LONG_TEXT + 1)  # tokenised on another thread


class Panic(BaseException):
    """As pyo3 makes them."""


CHAT = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
ROUTES = {
    "/v1/completions": (
        {"model": "tiny", "prompt": "Hello", "max_tokens": 2, "temperature": 0},
        lambda body: body["error"]["type"] == "server_error",
    ),
    "/v1/chat/completions": (CHAT, lambda body: body["error"]["code"] == "internal_error"),
    "/v1/responses": (
        {"model": "tiny", "input": "Hello", "max_output_tokens": 2},
        lambda body: body["error"]["code"] == "internal_error",
    ),
    "/v1/embeddings": ({"model": "tiny", "input": "Hello"}, lambda body: body["error"]["code"] == "internal_error"),
    "/v1/messages": (CHAT, lambda body: body["type"] == "error" and body["error"]["type"] == "api_error"),
    "/api/generate": ({"model": "tiny", "prompt": "Hello"}, lambda body: isinstance(body["error"], str)),
    "/api/chat": ({"model": "tiny", "messages": CHAT["messages"]}, lambda body: isinstance(body["error"], str)),
    "/generate": (
        {"text": "Hello", "sampling_params": {"max_new_tokens": 2}},
        lambda body: "internal error" in str(body),
    ),
    "/tokenize": ({"prompt": "Hello"}, lambda body: "internal error" in str(body)),
}


@pytest.fixture(scope="module")
def engine(tiny):
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=4096) as engine:
        yield engine


def test_every_route_answers_in_its_form(engine, monkeypatch):
    with serving(engine, served_name="tiny") as url:
        whole = httpx.post(url + "/v1/completions", json=ROUTES["/v1/completions"][0])
        assert whole.status_code == 200
        with monkeypatch.context() as broken:
            broken.setattr(type(engine.tokenizer), "encode", _panics)
            broken.setattr(type(engine.tokenizer), "spans", _panics)
            for path, (body, is_its_form) in ROUTES.items():
                for asked in (
                    (body, {**body, "stream": True}) if "embeddings" not in path and "tokenize" not in path else (body,)
                ):
                    answer = httpx.post(url + path, json=asked)
                    assert answer.status_code == 500 and "json" in answer.headers["Content-Type"], (
                        path,
                        answer.status_code,
                        answer.text,
                    )
                    assert is_its_form(answer.json()), (path, answer.text)
            long = httpx.post(
                url + "/v1/completions", json={**ROUTES["/v1/completions"][0], "prompt": LONG}, timeout=30
            )
            assert long.status_code == 500 and long.json()["error"]["code"] == "internal_error"
        assert (
            httpx.post(url + "/v1/completions", json=ROUTES["/v1/completions"][0]).json()["choices"]
            == whole.json()["choices"]
        )


def _panics(*_, **__):
    raise Panic("index out of bounds")
