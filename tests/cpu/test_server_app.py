"""The server around its routes: who may come in, what is refused and how, who leaves, how it starts and ends."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
from server_rig import await_true, serving

from sgl.cli import _parser, main
from sgl.commands.model_arguments import model_and_options
from sgl.grammars import Grammar, InvalidGrammarError, UnsupportedGrammarError, Vocabulary
from sgl.grammars.compile import GrammarRecipe
from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError, ContextLengthError, EngineClosed, OutOfPages, RequestAborted, RuntimeFailure
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.sequences import grammar_compile_pool
from sgl.runtime.sequences.generation import Generation
from sgl.runtime.server.engine_bridge import EngineBridge, sample_seed
from sgl.runtime.server.grammar_compiler import RequestGrammarCompiler
from sgl.runtime.server.http.http_errors import RequestError, problem
from sgl.runtime.server.http.validation_errors import validation_message
from sgl.runtime.server.request_context import calling
from sgl.runtime.server.server_app import create_app
from sgl.runtime.server.server_settings import ServerSettings

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
ENDLESS = {"max_new_tokens": 1500, "ignore_eos": True, "temperature": 0}
LONG = SamplingParams(max_tokens=1500, ignore_eos=True, temperature=0.0)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(kv_tokens=8192, threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine) -> Iterator[str]:
    with serving(engine, served_name="some/model", max_body_bytes=2000) as url:
        yield url


@pytest.fixture(autouse=True)
def nothing_is_left(engine) -> Iterator[None]:
    yield
    await_true(lambda: engine.stats().running == engine.stats().waiting == 0)
    engine.flush_cache()
    engine.check()
    assert engine.stats().pages_free == engine.stats().pages_total


# the bridge


async def samples_of(
    bridge: EngineBridge, prompt: Any, params: SamplingParams, grammar: Any = None, n: int = 1
) -> list[Generation]:
    async with aclosing(bridge.stream(prompt, params, grammar, n, streamed=False)) as chunks:
        found = {index: chunk.generation async for index, chunk in chunks}
    return [found[index] for index in range(n)]


def test_texts_are_the_engines(engine):
    found = asyncio.run(samples_of(EngineBridge(engine), "The capital of France is", GREEDY))
    assert [g.text for g in found] == [engine.generate("The capital of France is", GREEDY).text]


def test_the_first_of_many_samples_is_the_single_one(engine):
    params = SamplingParams(max_tokens=12, seed=7)
    single, many = (asyncio.run(samples_of(EngineBridge(engine), "Book a table", params, n=n)) for n in (1, 4))
    assert many[0].text == single[0].text
    assert len({g.text for g in many}) > 1
    assert sample_seed(7, 0) == 7 and len({sample_seed(7, i) for i in range(9)}) == 9


def test_the_prompt_of_many_samples_is_computed_once(engine):
    ids = list(range(300, 400))
    before = engine.stats()
    found = asyncio.run(samples_of(EngineBridge(engine), ids, SamplingParams(max_tokens=1), n=8))
    assert (engine.stats() - before).computed_tokens <= 100 + 8
    assert [(g.prompt_tokens, g.cached_tokens) for g in found] == [(100, 0)] * 8
    again = asyncio.run(samples_of(EngineBridge(engine), [*ids, 500, 501], SamplingParams(max_tokens=1), n=2))
    assert [g.cached_tokens for g in again] == [100] * 2


def test_many_samples_of_a_prompt_that_is_too_long(engine):
    with pytest.raises(RequestError, match="3000 tokens"):
        asyncio.run(samples_of(EngineBridge(engine), [300] * 3000, GREEDY, n=3))


def test_chunks_add_up_to_the_generation(engine):
    async def collect() -> list[Any]:
        return [item async for item in EngineBridge(engine).stream("Hello", GREEDY, n=3)]

    items = asyncio.run(collect())
    for index in range(3):
        chunks = [chunk for i, chunk in items if i == index]
        assert [chunk.finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text


def test_one_bridge_on_two_event_loops(engine):
    bridge = EngineBridge(engine)
    first, second = (asyncio.run(samples_of(bridge, "Hello", GREEDY))[0].text for _ in range(2))
    assert first == second


def test_loops_that_ended_are_forgotten(engine):
    async def one() -> weakref.ref[Any]:
        await samples_of(bridge, "Hello", GREEDY)
        return weakref.ref(asyncio.get_running_loop())

    bridge = EngineBridge(engine)
    loop = asyncio.run(one())
    await_true(lambda: gc.collect() >= 0 and loop() is None)


def test_one_bridge_on_two_loops_at_once(engine):
    bridge, texts = EngineBridge(engine), []
    run = lambda: texts.append(asyncio.run(samples_of(bridge, "Hello", GREEDY))[0].text)  # noqa: E731
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [engine.generate("Hello", GREEDY).text] * 2


@pytest.mark.parametrize("n", [1, 3])
def test_cancelling_a_call_frees_its_pages(engine, n):
    async def cancel() -> None:
        task = asyncio.ensure_future(samples_of(EngineBridge(engine), "Hello", LONG, n=n))
        while engine.stats().running < n:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    aborts = engine.stats().aborts
    asyncio.run(cancel())
    assert engine.stats().aborts == aborts + n


def test_closing_a_stream_frees_its_pages(engine):
    async def leave() -> None:
        async with aclosing(EngineBridge(engine).stream("Hello", LONG, n=2)) as chunks:
            await anext(chunks)

    asyncio.run(leave())


def test_time_runs_out(engine):
    bridge = EngineBridge(engine, ServerSettings(request_timeout=0.05))
    with pytest.raises(TimeoutError, match=r"0\.05 seconds"):
        asyncio.run(samples_of(bridge, "Hello", LONG))


def test_one_failing_sample_ends_the_call(engine):
    with pytest.raises(ConfigError, match="temperature"):
        asyncio.run(samples_of(EngineBridge(engine), "Hello", SamplingParams(temperature=-1.0), n=2))


def test_limits_of_the_settings(engine):
    bridge = EngineBridge(engine, ServerSettings(max_prompt_tokens=4, max_new_tokens=3, max_choices=2))
    [found] = asyncio.run(samples_of(bridge, [300, 301], LONG))
    assert found.completion_tokens == 3 and found.finish_reason["type"] == "length"
    for prompt, n, words in [([300] * 5, 1, "5 tokens"), ([300], 3, r"n=3 must be in 1\.\.2"), ([], 1, "empty")]:
        with pytest.raises(RequestError, match=words):
            asyncio.run(samples_of(bridge, prompt, GREEDY, n=n))


@pytest.mark.parametrize("ids", [[1, -1], [10**9], [1 << 80], [True], [1.5], ["1"]])
def test_token_ids_are_checked(engine, ids):
    with pytest.raises(RequestError, match="token ids must be whole numbers"):
        asyncio.run(samples_of(EngineBridge(engine), ids, GREEDY))


def test_long_texts_are_encoded_alike(engine):
    text = "one two three " * 1000
    assert (
        asyncio.run(EngineBridge(engine).encode(text)).tolist()
        == engine.tokenizer.encode(text, special_prefix=True).tolist()
    )


def test_scores_are_the_sequences(engine):
    sequence = engine.open()
    sequence.extend([300, 301])
    expected = sequence.score([[302, 303], [304]]).result()
    sequence.close()
    found = asyncio.run(EngineBridge(engine).score([300, 301], [[302, 303], [304]]))
    assert [[token for _, token in choice] for choice in found] == [[302, 303], [304]]
    for mine, theirs in zip(found, expected, strict=True):
        assert [logprob for logprob, _ in mine] == pytest.approx([logprob for logprob, _ in theirs], abs=1e-3)


# grammars


def test_equal_sources_are_compiled_once(engine):
    async def compile_all() -> list[Any]:
        compiler = RequestGrammarCompiler(engine)
        return await asyncio.gather(*[compiler.compile("json_schema", {"type": "integer"}) for _ in range(8)])

    assert len({id(grammar) for grammar in asyncio.run(compile_all())}) == 1


@pytest.mark.parametrize(
    ("kind", "source", "text"),
    [
        ("regex", "a{3}", "aaa"),
        ("json_schema", '{"const": "x"}', '"x"'),
        ("json_schema", {"const": 5}, "5"),
        ("ebnf", 'root ::= "yes" "no"', "yesno"),
        ("structural_tag", {"type": "const_string", "value": "hm"}, "hm"),
    ],
)
def test_kinds_of_grammars(engine, kind, source, text):
    grammar = asyncio.run(RequestGrammarCompiler(engine).compile(kind, source))
    assert asyncio.run(samples_of(EngineBridge(engine), "Hello", GREEDY, grammar))[0].text == text


def test_other_documents_belong_to_the_source(engine):
    compiler, schema = RequestGrammarCompiler(engine), {"$ref": "http://x.org/y"}
    for value in (5, 6):
        grammar = asyncio.run(compiler.compile("json_schema", schema, {"http://x.org/y": {"const": value}}))
        assert asyncio.run(samples_of(EngineBridge(engine), "Hello", GREEDY, grammar))[0].text == str(value)
    with pytest.raises(InvalidGrammarError, match="resources"):
        asyncio.run(compiler.compile("regex", "a", {"http://x.org/y": {}}))
    with pytest.raises(UnsupportedGrammarError, match="resources"):
        asyncio.run(compiler.compile("json_schema", schema))


def test_first_masks_are_worked_out_where_a_grammar_is_compiled(engine):
    wide = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(899)}, "minProperties": 299}
    grammar = asyncio.run(
        RequestGrammarCompiler(engine).compile("json_schema", {**wide, "additionalProperties": False})
    )
    built = len(grammar.automaton.network)
    matcher = grammar.matcher()
    assert matcher.known_mask() is not None
    matcher.forced()
    assert len(grammar.automaton.network) == built


def test_a_failed_compilation_fails_again_on_another_loop(engine):
    compiler = RequestGrammarCompiler(engine)
    for _ in range(2):
        with pytest.raises(InvalidGrammarError):
            asyncio.run(compiler.compile("regex", "(a"))
    with pytest.raises(UnsupportedGrammarError, match="#/not/pattern"):
        asyncio.run(compiler.compile("json_schema", {"not": {"type": "string", "pattern": "a(?=b)"}}))


@pytest.fixture
def slowly(engine, monkeypatch) -> tuple[RequestGrammarCompiler, list[str], threading.Event]:
    """A compiler with one thread, the sources that it has begun, and what lets it go on."""
    monkeypatch.setattr(grammar_compile_pool, "THREADS", 1)
    engine.vocabulary.compiled.clear()
    compiler, begun, go_on = RequestGrammarCompiler(engine), [], threading.Event()
    make = GrammarRecipe.make

    def noting(recipe: GrammarRecipe, vocabulary: Vocabulary) -> Any:
        begun.append(recipe.source)
        assert go_on.wait(10)
        return make(recipe, vocabulary)

    monkeypatch.setattr(GrammarRecipe, "make", noting)
    yield compiler, begun, go_on
    go_on.set()


def _asking(
    compiler: RequestGrammarCompiler, source: str, tenant: str = "", timeout: float | None = None
) -> asyncio.Task[Any]:
    with calling(tenant, ServerSettings(request_timeout=timeout)):
        return asyncio.ensure_future(compiler.compile("regex", source))


async def _await_begun(begun: list[str], count: int) -> None:
    while len(begun) < count:
        await asyncio.sleep(0.001)


def test_a_compilation_that_another_server_gave_up_is_begun_again(engine, slowly):
    first, begun, go_on = slowly
    second = RequestGrammarCompiler(engine)

    async def both() -> Grammar:
        blocking = _asking(first, "blocks")
        await _await_begun(begun, 1)
        leaving, staying = _asking(first, "a+"), _asking(second, "a+")
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await _await_begun(begun, 2)
        go_on.set()
        await blocking
        return await staying

    assert isinstance(asyncio.run(both()), Grammar)
    assert len(begun) == 2


def test_tenants_take_turns_with_compiling(slowly):
    compiler, begun, go_on = slowly

    async def ask() -> None:
        tasks = [_asking(compiler, f"a{i}", "anna") for i in range(4)]
        await _await_begun(begun, 1)
        tasks += [_asking(compiler, f"b{i}", "ben") for i in range(2)]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*tasks)

    asyncio.run(ask())
    assert begun == ["a0", "a1", "b0", "a2", "b1", "a3"]


def test_what_nobody_waits_for_is_not_compiled(slowly):
    compiler, begun, go_on = slowly

    async def ask() -> None:
        first = _asking(compiler, "a")
        await _await_begun(begun, 1)
        left, stays, shared = _asking(compiler, "b"), _asking(compiler, "c"), _asking(compiler, "c")
        await asyncio.sleep(0)
        left.cancel()
        shared.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, stays)
        assert left.cancelled() and shared.cancelled()
        await compiler.compile("regex", "b")

    asyncio.run(ask())
    assert begun == ["a", "c", "b"] and not compiler._waiting


def test_deadlines_hold_while_a_grammar_is_compiled(slowly):
    compiler, *_ = slowly

    async def ask() -> None:
        with pytest.raises(TimeoutError, match=r"its 0\.05 seconds"):
            await _asking(compiler, "a", timeout=0.05)

    asyncio.run(ask())


def test_huge_grammars_are_refused(engine):
    with pytest.raises(InvalidGrammarError, match="at most 1000000"):
        asyncio.run(RequestGrammarCompiler(engine).compile("json_schema", {"enum": ["x" * 100] * 10_000}))


@pytest.mark.parametrize(
    "prompt", ["a" * 5_000_000, [7] * 3_000_000, np.full(3_000_000, 7, np.int32)], ids=["text", "ids", "array"]
)
def test_what_is_much_too_long_is_not_looked_at(engine, monkeypatch, prompt):
    monkeypatch.setattr(EngineBridge, "_tokenize", None)
    monkeypatch.setattr(EngineBridge, "_checked_ids", None)
    with pytest.raises(RequestError, match="shorten it") as caught:
        asyncio.run(EngineBridge(engine).encode(prompt))
    assert caught.value.code == "context_length_exceeded"


# errors


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ConfigError("top_p must lie in (0, 1], got 7"), 400, "got 7"),
        (InvalidGrammarError("bad", "/x"), 400, "/x"),
        (ContextLengthError("9 tokens"), 400, "9 tokens"),
        (OutOfPages("9 pages"), 400, "9 pages"),
        (EngineClosed("closed"), 503, "closed"),
        (RequestAborted("aborted"), 499, "aborted"),
        (TimeoutError(), 504, "too long"),
        (RequestError("no", "field", "odd", 418), 418, "no"),
        (RuntimeFailure("the engine failed: /secret/path"), 500, "internal error"),
        (KeyError("/secret/path"), 500, "internal error"),
    ],
)
def test_statuses(error, status, words):
    told = problem(error)
    assert told.status == status and words in told.message and "secret" not in told.message
    assert (told.type == "server_error") == (status >= 500)


def test_shapes_of_errors(url):
    wrong = {"text": "Hello", "sampling_params": {"temperature": -1}}
    native = httpx.post(f"{url}/generate", json=wrong)
    assert native.status_code == 400 and native.json()["error"].keys() == {"message"}
    assert "temperature" in native.json()["error"]["message"] and "-1" in native.json()["error"]["message"]
    other = httpx.post(f"{url}/v1/completions", json={"model": "some/model", "prompt": "Hello", "temperature": "hot"})
    assert other.status_code == 400
    error = other.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", "temperature") and "'hot'" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/v1/completions", {"prompt": "a", "temprature": 1}, "temprature", "did you mean 'temperature'?"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a", "nmae": "b"}]},
            "messages.0.nmae",
            "'messages.0.nmae'",
        ),
        ("/v1/completions", {"temperature": 1}, "prompt", "missing"),
    ],
)
def test_fields_at_fault_are_named(url, path, body, param, words):
    answer = httpx.post(url + path, json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and words in error["message"]


def test_the_nearest_field_is_found_inside_of_lists():
    from pydantic import BaseModel, ConfigDict, ValidationError

    class Inner(BaseModel):
        model_config = ConfigDict(extra="forbid")
        content: str = ""

    class Outer(BaseModel):
        messages: list[Inner] | None = None

    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"messages": [{"contents": 1}]})
    errors = [dict(error, loc=("body", *error["loc"])) for error in caught.value.errors()]
    assert "did you mean 'content'?" in validation_message(errors, Outer).message


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"{", "application/json", "no JSON"),
        (b"[1]", "application/json", "got [1]"),
        (b'{"text": "a"}', "text/plain", "Content-Type: application/json"),
        (b"", "application/json", "body is missing"),
        (b"[" * 1999, "application/json", "body"),
        (b'{"\\ud800": 1, "text": "a"}', "application/json", "ud800"),
    ],
)
@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_bodies_that_are_none(url, path, content, kind, words):
    answer = httpx.post(url + path, content=content, headers={"Content-Type": kind})
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]


def test_unknown_paths_and_methods(url):
    assert httpx.get(f"{url}/v2/models").status_code == 404
    answer = httpx.get(f"{url}/v1/completions")
    assert answer.status_code == 405 and "takes no GET" in answer.json()["error"]["message"]


def test_the_unexpected_is_told_to_nobody(engine, caplog):
    app = create_app(engine)

    @app.get("/breaks")
    async def breaks() -> None:
        raise KeyError("/secret/path")

    answer = asyncio.run(_get(app, "/breaks"))
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.json()["error"]["code"] == "internal_error"
    assert "/secret/path" in caplog.text


async def _get(app: Any, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.get(path)


# who comes in


def test_api_keys(engine):
    with serving(engine, api_keys=frozenset({"one", "two"})) as url:
        assert httpx.get(f"{url}/health").status_code == 200
        for key in ("one", "two"):
            assert httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        for value in ("Bearer three", "Bearer", "Basic one", "one", "Bearer one two", "Bearer öne"):
            answer = httpx.get(f"{url}/v1/models", headers={"Authorization": value.encode()})
            assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
        assert httpx.post(f"{url}/generate", json={"text": "a"}).json()["error"].keys() == {"message"}
        assert httpx.get(f"{url}/nothing").status_code == 401


def test_no_origin_is_let_in(url):
    answer = httpx.options(
        f"{url}/generate", headers={"Origin": "http://evil", "Access-Control-Request-Method": "POST"}
    )
    assert answer.status_code == 405 and "access-control-allow-origin" not in answer.headers


def test_long_bodies_are_refused(url):
    long = b'{"text": "' + b"a" * 2000 + b'"}'
    declared = httpx.post(f"{url}/generate", content=long)
    chunked = httpx.post(f"{url}/generate", content=(long[i : i + 100] for i in range(0, len(long), 100)))
    for answer in (declared, chunked):
        assert answer.status_code == 413 and "2000 bytes" in answer.json()["error"]["message"]


def test_bodies_are_not_waited_for_for_ever(engine, monkeypatch):
    monkeypatch.setattr("sgl.runtime.server.http.middleware.BODY_SECONDS", 0.1)
    with serving(engine) as url, socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as client:
        client.sendall(
            b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n{"
        )
        answer = b"".join(iter(partial(client.recv, 4096), b""))
    assert answer.startswith(b"HTTP/1.1 408 ") and b"did not come within 0.1 seconds" in answer


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1.0 for i in range(5000)}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "stop_token_ids": [7] * 5000}),
        ("/generate", {"text": "a", "sampling_params": {"logit_bias": {str(i): 1.0 for i in range(5000)}}}),
    ],
)
def test_what_would_make_each_step_slow_is_refused(engine, path, body):
    with serving(engine) as url:
        answer = httpx.post(url + path, json=body)
    assert answer.status_code == 400 and "names 5000 tokens; give at most 4096" in answer.json()["error"]["message"]


def test_request_ids(url):
    assert httpx.get(f"{url}/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    made = {httpx.get(f"{url}/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2 and all(re.fullmatch("[0-9a-f]{32}", name) for name in made)


# who leaves


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_leaves_frees_its_pages(url, engine, stream, n):
    body = {"text": "Hello", "stream": stream, "sampling_params": {**ENDLESS, "n": n}}
    generations = engine.stats().generations
    with _asked(url, body) as connection:
        await_true(lambda: engine.stats().running == n)
        if stream:
            assert connection.recv(100)
    await_true(lambda: engine.stats().running == 0, 2.0)
    assert engine.stats().generations == generations


def test_clients_that_come_and_go(url, engine):
    async def leave(client: httpx.AsyncClient, number: int) -> None:
        body = {"text": f"Hello {number}", "sampling_params": {**ENDLESS, "n": 1 + number % 3}}
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{url}/generate", json=body, timeout=httpx.Timeout(10, read=0.02 + 0.01 * (number % 7)))

    async def stay(client: httpx.AsyncClient) -> str:
        body = {"text": "Hello", "sampling_params": {"max_new_tokens": 12, "temperature": 0}}
        return (await client.post(f"{url}/generate", json=body, timeout=30)).json()["text"]

    async def come() -> list[Any]:
        async with httpx.AsyncClient() as client:
            return await asyncio.gather(*[leave(client, i) for i in range(12)], *[stay(client) for _ in range(6)])

    assert asyncio.run(come())[12:] == [engine.generate("Hello", GREEDY).text] * 6


def test_a_client_that_leaves_while_it_sends(url, engine):
    before = engine.stats().generations
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
    assert httpx.get(f"{url}/health").status_code == 200 and engine.stats().generations == before


def test_requests_that_take_too_long(engine):
    with serving(engine, request_timeout=0.05) as url:
        for path, body in [
            ("/generate", {"text": "Hello", "sampling_params": ENDLESS}),
            ("/v1/completions", {"prompt": "Hello", "max_tokens": 1500, "ignore_eos": True}),
        ]:
            answer = httpx.post(url + path, json=body)
            assert answer.status_code == 504 and "0.05 seconds" in answer.json()["error"]["message"]


@contextmanager
def _asked(url: str, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A connection on which a request was sent; it breaks at the end."""
    request = httpx.Request("POST", f"{url}/generate", json=body)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((request.url.host, request.url.port)) as connection:
        connection.sendall(f"POST /generate HTTP/1.1\r\n{head}\r\n".encode() + request.content)
        yield connection


# about the server


def test_models(url, engine):
    model = httpx.get(f"{url}/v1/models").json()["data"][0]
    assert (model["id"], model["object"], model["max_model_len"]) == ("some/model", "model", 2048)
    assert httpx.get(f"{url}/v1/models/some/model").json() == model
    missing = httpx.get(f"{url}/v1/models/gpt")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


def test_what_runs(url, engine):
    for path in ("/server_info", "/get_server_info"):
        info = httpx.get(url + path).json()
        assert info["model_path"] == engine.model_path and info["stats"]["pages_total"] == 8192
        assert info["options"]["threads"] == 1 and info["engine"]["device"] == "cpu"
    for path in ("/get_model_info", "/model_info"):
        info = httpx.get(url + path).json()
        assert info["model_path"] == engine.model_path and info["is_generation"] is True
        assert (info["model_type"], info["architectures"]) == ("llama", ["LlamaForCausalLM"])


def test_health(engine):
    with Engine(kv_tokens=512, threads=1) as other, serving(other) as url:
        assert [httpx.get(url + path).status_code for path in ("/health", "/health_generate")] == [200, 200]
        assert other.stats().generations == 1
        other.close()
        assert [httpx.get(url + path).status_code for path in ("/health", "/health_generate")] == [503, 503]
        answer = httpx.post(f"{url}/generate", json={"text": "Hello"})
        assert answer.status_code == 503 and "closed" in answer.json()["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_flushing(url, engine, method):
    engine.generate("The capital of France is", GREEDY)
    cached = engine.stats().pages_cached
    assert cached and f"{cached} pages" in httpx.request(method, f"{url}/flush_cache").text
    assert engine.stats().pages_cached == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1},
        {"max_body_bytes": 0},
        {"request_timeout": -1.0},
        {"request_timeout": float("nan")},
        {"api_keys": frozenset({""})},
    ],
)
def test_settings_are_checked(wrong):
    with pytest.raises(ConfigError, match=r"port|max_body_bytes|request_timeout|API key"):
        ServerSettings(**wrong)


# sgl serve


@contextmanager
def _served(*words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "sgl.cli", "serve", "--port", "0", "kv_tokens=4096", "threads=1", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"sgl serve: ready at (http://127\.0\.0\.1:\d+)\n", line)
        assert found, (line, process.stderr and process.stderr.read())
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def test_serve_answers_and_drains(engine):
    with _served("--served-name", "mine", SGL_API_KEY="secret") as (process, url):
        headers = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers=headers).json()["data"][0]["id"] == "mine"
        body = {"text": "Hello", "stream": True, "sampling_params": {**ENDLESS, "max_new_tokens": 300}}
        with httpx.stream("POST", f"{url}/generate", json=body, headers=headers, timeout=20) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert (
            first.startswith("data: {") and rest[-1] == "data: [DONE]" and '"length":300' in rest[-2].replace(" ", "")
        )
        assert process.wait(10) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


@pytest.mark.whole
def test_serve_here_answers_to_its_own_names_only():
    with _served() as (_, url):
        port = url.rpartition(":")[2]
        for host, status in {
            "localhost": 200,
            f"127.0.0.1:{port}": 200,
            "[::1]": 200,
            f"[::1]:{port}": 200,
            "LocalHost:1": 200,
        }.items():
            assert httpx.get(f"{url}/health", headers={"Host": host}).status_code == status, host
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost@evil"):
            refused = httpx.get(f"{url}/v1/models", headers={"Host": host})
            assert refused.status_code == 403 and "--api-key" in refused.json()["error"]["message"], host


@pytest.mark.whole
def test_serve_with_a_key_answers_to_any_name():
    with _served(SGL_API_KEY="key") as (_, url):
        answer = httpx.get(f"{url}/v1/models", headers={"Host": "models.example", "Authorization": "Bearer key"})
        assert answer.status_code == 200


@pytest.mark.whole
def test_serve_ends_at_once_when_told_twice():
    with _served() as (process, url), _asked(url, {"text": "Hello", "sampling_params": ENDLESS}):
        await_true(lambda: httpx.get(f"{url}/server_info").json()["stats"]["running"] == 1)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert process.wait(8) == 0


@pytest.mark.whole
def test_serve_ends_well_when_nobody_reads_what_it_says():
    with _served() as (process, _):
        process.stdout.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is None or process.stderr.read() == ""


def test_serve_refuses_a_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--port", port]) == 1
    assert f"port {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [(["kv_token=5"], "did you mean 'kv_tokens'?"), (["/no/model"], "/no/model"), (["a", "b"], "a and b")],
)
def test_serve_refuses_what_it_cannot_open(words, message, capsys):
    assert main(["serve", "--port", "0", *words]) == 1
    assert message in capsys.readouterr().err


def test_serve_without_its_packages(monkeypatch, capsys):
    monkeypatch.setattr("sgl.commands.serve_command.NEEDED", ("no_such_package",))
    assert main(["serve", "--port", "0"]) == 1
    assert "pip install 'sgl[server]'" in capsys.readouterr().err


def test_words_may_stand_anywhere():
    options = _parser().parse_args(["serve", "a/model", "--port", "8", "kv_memory=2GB", "graphs=false", "context=9"])
    assert options.port == 8
    assert model_and_options(options.words) == ("a/model", {"kv_memory": "2GB", "graphs": False, "context": 9})
    objects = ['speculation={"most": 4, "control": false}', "adapters={'a': 'b'}", "draft={no"]
    assert model_and_options(objects)[1] == {
        "speculation": {"most": 4, "control": False},
        "adapters": {"a": "b"},
        "draft": "{no",
    }
