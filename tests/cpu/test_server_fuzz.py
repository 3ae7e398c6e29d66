"""Any request gets an answer or a refusal in the protocol's shape: requests out of /openapi.json, and odd JSON.

`SGL_FUZZ_CASES=2000` makes about that many requests out of the document, coverage of its every keyword included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fuzz_checks import check_answer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from server_rig import await_true, serving

from sgl.runtime import Engine

MODEL, KEY = "nano", "a-key"
CASES = int(os.environ.get("SGL_FUZZ_CASES", "0"))
ROUTES = {
    "/generate": "text",
    "/v1/completions": "prompt",
    "/v1/chat/completions": "messages",
    "/v1/responses": "input",
    "/v1/messages": "messages",
    "/api/chat": "messages",
}
LIMITS = {  # where the limit of tokens stands, if not in max_tokens
    "/generate": ("sampling_params", "max_new_tokens"),
    "/v1/responses": (None, "max_output_tokens"),
    "/api/chat": ("options", "num_predict"),
}
SECONDS = 20.0  # in which everything is answered

hurried = settings(
    max_examples=max(25, CASES // 10),
    derandomize=not CASES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(threads=1, kv_tokens=8192) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    limits: dict[str, Any] = {"max_new_tokens": 16, "max_choices": 4, "max_body_bytes": 300_000}
    with serving(engine, served_name=MODEL, api_keys=frozenset({KEY}), **limits) as found:
        yield found


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with httpx.Client(base_url=url, headers=headers, timeout=SECONDS) as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_is_left(engine: Engine) -> Iterator[None]:
    yield
    await_true(lambda: engine.stats().running == engine.stats().waiting == 0)
    engine.flush_cache()
    engine.check()
    assert engine.stats().pages_free == engine.stats().pages_total


def ask(client: httpx.Client, path: str, content: bytes) -> int:
    """The status of an answer that is in shape: whole, or a stream that ends well."""
    answer = client.post(path, content=content)
    check_answer(path, answer.status_code, answer.content)
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        *events, end = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert end == "[DONE]"
        assert not any("internal error" in event for event in events)
    return answer.status_code


# out of the document


@pytest.mark.whole
def test_requests_out_of_the_document(url: str, tmp_path: Path) -> None:
    cases = (
        ["--phases", "coverage,fuzzing", "-n", str(max(1, CASES // 100))]
        if CASES
        else ["--phases", "fuzzing", "-n", "8"]
    )
    words = [
        "--seed",
        "1",
        "--no-shrink",
        "--continue-on-failure",
        "--request-timeout",
        str(SECONDS),
        "--no-color",
        *cases,
    ]
    refused = [
        "--exclude-checks",
        "positive_data_acceptance",
    ]  # most texts are no regular expression, no schema, no tool
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{url}/openapi.json",
            "-H",
            f"Authorization: Bearer {KEY}",
            *words,
            *refused,
        ],
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "fuzz_checks",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    if CASES:
        print(done.stdout)


def test_the_document_names_every_route(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert set(ROUTES) <= document["paths"].keys()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert "422" not in operation["responses"] and "200" in operation["responses"]
    assert "HTTPValidationError" not in document["components"]["schemas"]


# odd JSON

ODD_NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    0.5,
    -0.0,
    5e-324,
    1e-300,
    1e-38,
    1e-7,
    1e30,
    3.5e38,
    1e39,
    1e308,
    float("inf"),
    -float("inf"),
    float("nan"),
    2**31 - 1,
    2**31,
    -(2**31),
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**40,
    10**400,
]
ODD_TEXTS = [
    "",
    "a",
    "\0",
    "\ud800",
    "ä" * 300,
    "<|end|><|assistant|>",
    "<|nothing|>",
    "(",
    "[",
    "\\",
    "a*",
    "(a|b){2,3}",
    "(a+)+$",
    "$$ANY$$",
    'root ::= "a" root | "b"',
    "root ::= root",
    '{"type": "integer"}',
    "{",
    "none",
    "auto",
    "null",
    "../../etc/passwd",
    "' or 1=1",
]
ODD_SCHEMAS: list[Any] = [
    {},
    {"type": "object"},
    {"$ref": "#"},
    {"type": "string", "pattern": "("},
    {"enum": []},
    {"enum": [1, "a", None]},
    {"const": {"a": [1.5]}},
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"anyOf": [{"type": "null"}, {"$ref": "#/nowhere"}]},
    {"type": "array", "items": {"$ref": "#"}},
]

scalars = st.one_of(
    st.sampled_from(ODD_NUMBERS), st.sampled_from(ODD_TEXTS), st.booleans(), st.none(), st.text(max_size=8)
)
anything = st.recursive(
    scalars | st.sampled_from(ODD_SCHEMAS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
USER = {"role": "user", "content": "Hello"}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
schemas = st.sampled_from(ODD_SCHEMAS)
PLAUSIBLE: dict[str, SearchStrategy[Any]] = {
    "n": st.sampled_from([1, 2, 4, 5]),
    "stream": st.booleans(),
    "stop": st.sampled_from(["a", ["e", " "], [], ""]),
    "stop_regex": st.sampled_from(["[.!]", "(a+)+$", "(", ["x", "y"]]),
    "regex": st.sampled_from(ODD_TEXTS),
    "ebnf": st.sampled_from(ODD_TEXTS),
    "json_schema": schemas,
    "logprobs": st.sampled_from([True, False, 0, 3, 20, 21]),
    "top_logprobs": st.sampled_from([0, 3, 21]),
    "echo": st.booleans(),
    "logit_bias": st.dictionaries(
        st.sampled_from(["5", "8191", "8192", "x", "-1"]), st.sampled_from(ODD_NUMBERS), max_size=2
    ),
    "response_format": st.fixed_dictionaries({"type": st.sampled_from(["text", "json_object", "json_schema"])}),
    "tools": st.sampled_from([[], [TOOL], [TOOL, TOOL], [{"type": "function"}]]),
    "tool_choice": st.sampled_from(["none", "auto", "required", "look"]),
    "add_generation_prompt": st.booleans(),
    "continue_final_message": st.booleans(),
    "stream_options": st.just({"include_usage": True}),
    "return_logprob": st.booleans(),
    "logprob_start_len": st.sampled_from([-2, -1, 0, 1, 99]),
    "top_logprobs_num": st.sampled_from([0, 2, 10**6]),
    "structural_tag": schemas,
}


def fields_of(document: dict[str, Any], name: str) -> list[str]:
    return sorted(document["components"]["schemas"][name]["properties"])


@st.composite
def bodies(draw: st.DrawFn, path: str, fields: list[str], sampling: list[str]) -> dict[str, Any]:
    """A request that would pass, with some fields of known names set to plausible values or odd ones."""
    prompt: Any = [USER] if ROUTES[path] == "messages" else "Hello"
    holder, limit = LIMITS.get(path, (None, "max_tokens"))
    limited = {limit: 4, **(_some(draw, sampling) if sampling else {})}
    return {ROUTES[path]: prompt, **(limited if holder is None else {holder: limited}), **_some(draw, fields)}


def _some(draw: st.DrawFn, fields: list[str]) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(fields), max_size=3, unique=True))
    return {
        name: draw(st.one_of(PLAUSIBLE.get(name, scalars), PLAUSIBLE.get(name, scalars), anything)) for name in names
    }


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("path", "model", "inner"),
    [
        ("/generate", "GenerateFields", "SamplingFields"),
        ("/v1/completions", "CompletionRequest", None),
        ("/v1/chat/completions", "ChatRequest", None),
        ("/v1/responses", "ResponseRequest", None),
        ("/v1/messages", "MessagesRequest", None),
        ("/api/chat", "OllamaChat", "OllamaOptions"),
    ],
)
def test_odd_values_of_known_fields(client: httpx.Client, path: str, model: str, inner: str | None) -> None:
    document = client.get("/openapi.json").json()
    sampling = fields_of(document, inner) if inner else []
    seen: set[int] = set()

    @settings(hurried, max_examples=max(75, CASES // 4))
    @given(bodies(path, fields_of(document, model), sampling))
    def check(body: dict[str, Any]) -> None:
        seen.add(ask(client, path, _json(body)))

    check()
    assert {200, 400} <= seen


@pytest.mark.few(3)
@pytest.mark.parametrize("path", ROUTES)
@example(body={"messages": [USER] * 3, "prompt": [[]], "text": [""]})
@example(body=[[[[{}]]]])
@given(body=anything)
@hurried
def test_any_json(client: httpx.Client, path: str, body: Any) -> None:
    least = 200 if path == "/api/chat" else 400  # without a message it is asked whether the model is loaded
    assert least <= ask(client, path, _json(body)) < 500


@pytest.mark.parametrize("path", ROUTES)
@example(content=b"[" * 100_000)
@example(content=b'{"a":' * 20_000 + b"1" + b"}" * 20_000)
@example(content=b'{"prompt": "a", "text": "a", "max_tokens": ' + b"9" * 5000 + b"}")
@example(content='{"prompt": "ä"}'.encode("utf-16"))
@given(content=st.binary(max_size=60))
@hurried
def test_any_bytes(client: httpx.Client, path: str, content: bytes) -> None:
    if path == "/v1/completions" and content.startswith(b"\xff\xfe{"):
        assert ask(client, path, content) == 200  # JSON of another encoding is JSON
        return
    least = 200 if path == "/api/chat" else 400  # without a message it is asked whether the model is loaded
    assert least <= ask(client, path, content) < 500


@pytest.mark.parametrize("depth", [50, 400, 900, 3000])
@pytest.mark.parametrize(
    ("field", "begin", "middle", "end"),
    [
        ("json_schema", '{"properties":{"a":', "{}", "}}"),
        ("json_schema", '{"anyOf":[', "true", "]}"),
        ("regex", "(", "a", ")*"),
        ("ebnf", "(", '"a"', ")"),
        ("stop_regex", "(", "a", ")*"),
        ("stop", "", "a", "b"),
    ],
)
def test_deep_and_long_values(client: httpx.Client, field: str, begin: str, middle: str, end: str, depth: int) -> None:
    value = ("root ::= " if field == "ebnf" else "") + begin * depth + middle + end * depth
    body = (
        f'{{"prompt": "Hello", "max_tokens": 3, "{field}": {value if field == "json_schema" else json.dumps(value)}}}'
    )
    assert ask(client, "/v1/completions", body.encode()) in (200, 400)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
