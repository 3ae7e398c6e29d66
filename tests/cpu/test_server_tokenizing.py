"""/tokenize and /detokenize beside the tokenizer, and pages of other sites."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest
from server_rig import serving

from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError
from sgl.runtime.server.server_settings import ServerSettings

MODEL, SITE = "nano", "https://pages.example"
SERVER: dict[str, Any] = {"served_name": MODEL}
USER: Any = {"role": "user", "content": "Hello <|end|> there"}
TOOL: Any = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}


def post(url: str, path: str = "/tokenize", **body: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json=body)


@pytest.mark.whole
def test_texts_go_there_and_back(url: str, bundled: Engine) -> None:
    chance = random.Random(1)
    for _ in range(30):
        text = "".join(
            chance.choice(["a", "ß", " ", "\n", "🙂", "word ", "<|end|>", "1"]) for _ in range(chance.randrange(1, 20))
        )
        special = chance.random() < 0.5
        told = post(url, prompt=text, add_special_tokens=special, return_token_strs=True).json()
        assert told["tokens"] == bundled.tokenizer.encode(text, special_prefix=special).tolist()
        assert (
            told["count"] == len(told["tokens"]) == len(told["token_strs"])
            and told["max_model_len"] == bundled.info()["context"]
        )
        back = post(url, "/detokenize", tokens=told["tokens"]).json()["prompt"]
        assert back == bundled.tokenizer.decode(told["tokens"], skip_special_tokens=False) and back.endswith(text)
    assert post(url, prompt="", add_special_tokens=False).json()["tokens"] == []
    assert post(url, "/detokenize", tokens=[]).json() == {"prompt": ""}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tools": [TOOL]},
        {"add_generation_prompt": False},
        {"messages": [USER, {"role": "assistant", "content": "Hi"}], "continue_final_message": True},
    ],
)
def test_messages_are_as_long_as_a_chats_prompt(url: str, body: dict[str, Any]) -> None:
    body = {"messages": [USER], **body}
    asked = {**body, "max_tokens": 1, "tool_choice": "none"}
    prompt = httpx.post(f"{url}/v1/chat/completions", json=asked).json()["usage"]["prompt_tokens"]
    assert post(url, **body).json()["count"] == prompt


def test_other_apis_count_as_the_chat_does(url: str) -> None:
    count = post(url, messages=[USER]).json()["count"]
    assert post(url, "/v1/messages/count_tokens", messages=[USER]).json() == {"input_tokens": count}
    assert post(url, "/v1/responses/input_tokens", input=[USER]).json() == {
        "object": "response.input_tokens",
        "input_tokens": count,
    }


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": [USER]}, "either prompt or messages"),
        ("/tokenize", {"prompt": "a", "x": 1}, "'x'"),
        ("/tokenize", {"messages": [USER], "add_special_tokens": True}, "template"),
        ("/tokenize", {"prompt": "a" * 300_000}, "shorten"),
        ("/tokenize", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text alone"),
        ("/detokenize", {"tokens": [10**310]}, "tokens.0"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {"tokens": [10**6]}, "token ids"),
    ],
)
def test_refusals_say_what_to_do(url: str, path: str, body: dict[str, Any], words: str) -> None:
    answer = post(url, path, **body)
    assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text
    assert post(url, path, **{**body, "model": "other"}).status_code in (400, 404)


# --- pages of other sites --------------------------------------------------------------------------------


def preflight(url: str, origin: str, method: str = "POST") -> httpx.Response:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    return httpx.options(f"{url}/v1/chat/completions", headers=asked)


def allowed(answer: httpx.Response) -> str | None:
    assert "access-control-allow-credentials" not in answer.headers
    return answer.headers.get("access-control-allow-origin")


def test_pages_of_other_sites_are_let_in_by_name_only(bundled: Engine, url: str) -> None:
    assert (
        allowed(preflight(url, SITE)) is None and allowed(httpx.get(f"{url}/health", headers={"Origin": SITE})) is None
    )
    with serving(bundled, served_name=MODEL, api_keys=frozenset({"k"}), cors_origins=(SITE,)) as open_url:
        asked = preflight(open_url, SITE)
        assert (asked.status_code, allowed(asked)) == (200, SITE) and "authorization" in asked.headers[
            "access-control-allow-headers"
        ]
        assert (
            allowed(preflight(open_url, "https://pages.example.evil")) is None
            and preflight(open_url, SITE, "PUT").status_code == 400
        )
        body: dict[str, Any] = {"messages": [USER], "max_tokens": 2, "stream": True}
        where, key = f"{open_url}/v1/chat/completions", {"Authorization": "Bearer k"}
        good = httpx.post(where, json=body, headers={"Origin": SITE, **key})
        assert (good.status_code, allowed(good)) == (200, SITE) and "X-Request-Id" in good.headers[
            "access-control-expose-headers"
        ]
        refused = httpx.post(where, json=body, headers={"Origin": SITE})
        assert (refused.status_code, allowed(refused)) == (401, SITE)
        assert allowed(httpx.post(where, json=body, headers={"Origin": "https://evil.example", **key})) is None


def test_a_star_lets_all_in_and_never_with_cookies(bundled: Engine) -> None:
    with serving(bundled, served_name=MODEL, cors_origins=("*",)) as url:
        assert allowed(preflight(url, SITE)) == "*"
        assert allowed(httpx.get(f"{url}/health", headers={"Origin": SITE})) == "*"
        assert allowed(httpx.get(f"{url}/health", headers={"Origin": SITE, "Cookie": "a=b"})) in ("*", SITE)


@pytest.mark.parametrize(
    "origin", ["", "pages.example", "https://pages.example/", "https://a@b", "null", "https://*.example/x"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors_origins"):
        ServerSettings(cors_origins=(origin,))
