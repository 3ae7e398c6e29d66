"""What a server writes down of its requests: lines of JSON and spans, never what was said unless that is asked for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode
from server_rig import await_true, serving, serving_app

from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError
from sgl.runtime.server.observability.otel_tracing import Tracing
from sgl.runtime.server.observability.request_log import RequestLog
from sgl.runtime.server.observability.request_record import RequestRecord
from sgl.runtime.server.request_context import tenant_of
from sgl.runtime.server.server_app import create_app
from sgl.runtime.server.server_settings import ServerSettings

SECRET = "xylophone"
GREEDY = {"temperature": 0, "max_new_tokens": 8}
ENDLESS = {"max_new_tokens": 1500, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(kv_tokens=4096, threads=1) as engine:
        yield engine


@contextmanager
def _logging(engine: Engine, path: Path, **settings: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server and the lines that it will have written when it has ended."""
    lines: list[dict[str, Any]] = []
    with serving(engine, log_requests=str(path), **settings) as url:
        yield url, lines
    lines += [json.loads(line) for line in path.read_text().splitlines()]


# the lines


def test_a_line_tells_what_a_request_cost(engine, tmp_path):
    with _logging(engine, tmp_path / "log") as (url, lines):
        answer = httpx.post(f"{url}/generate", json={"text": f"Book a {SECRET}", "sampling_params": GREEDY}, timeout=30)
        meta, name = answer.json()["meta_info"], answer.headers["x-request-id"]
    [line] = lines
    assert {key: line[key] for key in ("id", "method", "route", "status", "error", "tenant", "finish_reasons")} == {
        "id": name,
        "method": "POST",
        "route": "/generate",
        "status": 200,
        "error": None,
        "tenant": "",
        "finish_reasons": [meta["finish_reason"]["type"]],
    }
    for count in (
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "forced_tokens",
        "drafted_tokens",
        "accepted_tokens",
    ):
        assert line[count] == meta[count]
    assert 0 <= line["queue_seconds"] <= line["first_token_seconds"] <= line["seconds"] < 30
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": SECRET, "sampling_params": GREEDY, "stream": True}),
        ("/generate", {"text": "a", "sampling_params": GREEDY | {"regex": f"({SECRET}"}}),
        ("/v1/completions", {"prompt": SECRET, "max_tokens": 4}),
        ("/v1/completions", {"prompt": "a", SECRET: 4}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "stop": SECRET, "max_tokens": 4}),
        (f"/{SECRET}", {}),
    ],
)
def test_lines_hold_nothing_that_was_said(engine, tmp_path, path, body):
    key = "sk-confidential"
    with _logging(engine, tmp_path / "log", api_keys=frozenset({key})) as (url, lines):
        httpx.post(url + path, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=30)
        httpx.post(url + path, json=body, headers={"Authorization": f"Bearer {SECRET}"}, timeout=30)
    text = (tmp_path / "log").read_text()
    assert [line["tenant"] for line in lines] == [tenant_of(key), ""] and lines[1]["status"] == 401
    assert SECRET not in text and key not in text


def test_content_where_it_is_asked_for(engine, tmp_path):
    with _logging(engine, tmp_path / "log", log_content=True) as (url, lines):
        for stream in (False, True):
            body = {"prompt": ["Hello", [300, 301]], "max_tokens": 4, "temperature": 0, "stream": stream}
            httpx.post(f"{url}/v1/completions", json=body, timeout=30)
        httpx.get(f"{url}/v1/models")
    expected = engine.generate("Hello", max_tokens=4, temperature=0).text
    for line in lines[:2]:
        assert sorted(entry["prompt"] for entry in line["content"] if entry["prompt"] == "Hello") == ["Hello"]
        assert {"prompt": "Hello", "text": expected} in line["content"]
        assert [300, 301] in [entry["prompt"] for entry in line["content"]]
    assert lines[2]["content"] == []


def test_texts_that_are_only_read_count_too(engine, tmp_path):
    with _logging(engine, tmp_path / "log") as (url, lines):
        usage = httpx.post(f"{url}/v1/embeddings", json={"input": ["one", "two three"]}, timeout=30).json()["usage"]
    assert lines[0]["prompt_tokens"] == usage["prompt_tokens"] > 0 and lines[0]["completion_tokens"] == 0


def test_how_requests_end(engine, tmp_path):
    endless = {"prompt": "Hello", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with _logging(engine, tmp_path / "log") as (url, lines):
        with httpx.stream("POST", f"{url}/v1/completions", json=endless) as answer:
            next(answer.iter_lines())
        await_true(lambda: engine.stats().running == 0)
        httpx.post(f"{url}/v1/completions", json=endless | {"timeout": 0.3}, timeout=30)
        httpx.post(f"{url}/v1/completions", json={"prompt": "Hello", "temperature": -1})
        httpx.get(f"{url}/health")
        httpx.get(f"{url}/metrics")
    assert [(line["status"], line["error"]) for line in lines] == [
        (499, "client_left"),
        (504, "timeout"),
        (400, "invalid_value"),
    ]
    assert lines[0]["completion_tokens"] > 0 and lines[0]["finish_reasons"] == []


def test_a_file_that_was_moved_is_begun_anew(engine, tmp_path):
    path = tmp_path / "log"
    with _logging(engine, path) as (url, lines):
        httpx.get(f"{url}/v1/models", headers={"X-Request-Id": "first"})
        await_true(lambda: "first" in path.read_text())
        path.rename(tmp_path / "log.1")
        httpx.get(f"{url}/v1/models", headers={"X-Request-Id": "second"})
    assert [line["id"] for line in lines] == ["second"]


def test_lines_that_do_not_fit_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("sgl.runtime.server.observability.request_log.MOST_WAITING", 2)
    log = RequestLog(str(tmp_path / "log"))
    with log._handler.lock:  # type: ignore[union-attr]  # the disk is slow
        log.finished(RequestRecord("r0"))
        await_true(lambda: log._waiting.empty())
        for number in range(1, 6):
            log.finished(RequestRecord(f"r{number}"))
    await_true(lambda: log._waiting.empty())
    log.finished(RequestRecord("last"))
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["r0", "r1", "r2", "last"] and lines[-1]["dropped_lines"] == 3
    log.close()


def test_a_folder_that_is_gone_for_a_while_ends_nothing(tmp_path, caplog):
    folder = tmp_path / "logs"
    folder.mkdir()
    log = RequestLog(str(folder / "log"))
    folder.rename(tmp_path / "moved")
    log.finished(RequestRecord(id="lost"))
    await_true(lambda: "the request log cannot be written" in caplog.text)
    folder.mkdir()
    log.finished(RequestRecord(id="kept"))
    log.close()
    assert [json.loads(line)["id"] for line in (folder / "log").read_text().splitlines()] == ["kept"]


def test_a_full_log_can_be_closed(tmp_path, monkeypatch):
    monkeypatch.setattr("sgl.runtime.server.observability.request_log.MOST_WAITING", 2)
    log = RequestLog(str(tmp_path / "log"))
    log._handler.acquire()  # the disk is slow
    try:
        while not log._dropped:
            log.finished(RequestRecord())
        closing = threading.Thread(target=log.close)
        closing.start()
        assert closing.is_alive()
    finally:
        log._handler.release()
    closing.join(10)
    assert not closing.is_alive() and log._listener._thread is None


def test_a_file_that_cannot_be_written(engine, tmp_path):
    with pytest.raises(ConfigError, match="no/such"):
        create_app(engine, ServerSettings(log_requests=str(tmp_path / "no" / "such")))


def _serve(*words: str, **environment: str) -> tuple[str, str]:
    """What `sgl serve` writes to its two outputs when it is asked for its models and ended."""
    command = [sys.executable, "-m", "sgl.cli", "serve", "--port", "0", "kv_tokens=512", "threads=1", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if "ready at" in ready:
            httpx.get(f"{ready.split()[-1]}/v1/models")
            process.terminate()
        return process.communicate(timeout=30)
    finally:
        process.kill()


@pytest.mark.whole
def test_lines_and_spans_on_the_standard_output():
    words = ("--log-requests", "-", "--log-content", "--trace")
    out, err = _serve(*words, OTEL_TRACES_EXPORTER="console", OTEL_RESOURCE_ATTRIBUTES="team=kitchen")
    found = list(_objects(out))
    [line] = [entry for entry in found if "route" in entry]
    [span] = [entry for entry in found if "kind" in entry]
    assert line["route"] == "/v1/models" and line["content"] == []
    assert "prompts and answers are written to -" in err
    assert span["name"] == "GET /v1/models" and span["kind"] == "SpanKind.SERVER"
    assert (span["resource"]["attributes"]["service.name"], span["resource"]["attributes"]["team"]) == (
        "sgl",
        "kitchen",
    )


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text that has other lines too."""
    while (start := text.find("{")) >= 0:
        entry, end = json.JSONDecoder().raw_decode(text[start:])
        text = text[start + end :]
        yield entry


# the spans


@contextmanager
def _traced(engine: Engine, **settings: Any) -> Iterator[tuple[str, list[ReadableSpan]]]:
    """A server and the spans that it will have made when it has ended."""
    exporter, spans = InMemorySpanExporter(), []
    with serving_app(create_app(engine, ServerSettings(**settings), Tracing(exporter, "mine"))) as url:
        yield url, spans
    spans += exporter.get_finished_spans()


def test_spans_of_a_request(engine):
    with _traced(engine) as (url, spans):
        body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5, "seed": 3, "temperature": 0.5}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).json()
        httpx.get(f"{url}/health")
    model, server = spans
    assert server.name == "POST /v1/chat/completions" and server.kind is SpanKind.SERVER and server.parent is None
    assert dict(server.attributes or {})["http.response.status_code"] == 200
    assert model.name == "chat mine" and model.kind is SpanKind.INTERNAL and model.parent == server.context
    found, usage = dict(model.attributes or {}), answer["usage"]
    assert found["gen_ai.operation.name"] == "chat" and found["gen_ai.request.model"] == "mine"
    assert (found["gen_ai.request.max_tokens"], found["gen_ai.request.seed"], found["gen_ai.request.temperature"]) == (
        5,
        3,
        0.5,
    )
    assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert found["gen_ai.response.finish_reasons"] == (answer["choices"][0]["finish_reason"],)
    [first] = model.events
    assert (server.start_time or 0) <= first.timestamp <= (server.end_time or 0)
    assert SECRET not in "".join(span.to_json() for span in spans)


def test_names_are_those_of_the_conventions(engine):
    with _traced(engine) as (url, spans):
        httpx.post(f"{url}/v1/completions", json={"prompt": "Hello", "max_tokens": 2}, timeout=30)
    known = {
        value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI") and isinstance(value, str)
    }
    used = {name for span in spans for name in span.attributes or {} if name.startswith("gen_ai.")}
    assert len(used) > 8 and used <= known


def test_a_trace_of_the_client_goes_on(engine):
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with _traced(engine) as (url, spans):
        httpx.get(f"{url}/v1/models", headers={"traceparent": f"00-{trace}-{parent}-01"})
        httpx.get(f"{url}/v1/models", headers={"traceparent": "nonsense"})
    assert spans[0].parent and (spans[0].parent.trace_id, spans[0].parent.span_id) == (int(trace, 16), int(parent, 16))
    assert spans[1].parent is None


def test_spans_of_failures(engine):
    with _traced(engine) as (url, spans):
        httpx.post(f"{url}/generate", json={"text": "a", "sampling_params": ENDLESS, "timeout": 0.1}, timeout=30)
        httpx.post(f"{url}/generate", json={"txt": "a"})
    late, refused = [span for span in spans if span.kind is SpanKind.SERVER]
    assert late.status.status_code is StatusCode.ERROR and dict(late.attributes or {})["error.type"] == "timeout"
    assert (
        refused.status.status_code is StatusCode.UNSET
        and dict(refused.attributes or {})["error.type"] == "invalid_request_error"
    )


def test_an_exporter_that_is_not_there(engine, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "pigeons")
    with pytest.raises(ConfigError, match=r"'pigeons'.*sgl\[otel\]"):
        create_app(engine, ServerSettings(trace=True))


def test_tracing_without_its_packages(engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "sgl.runtime.server.observability.otel_tracing", None)
    with pytest.raises(ConfigError, match=r"sgl\[otel\]"):
        create_app(engine, ServerSettings(trace=True))
