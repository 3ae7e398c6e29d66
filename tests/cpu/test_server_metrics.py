"""GET /metrics: what it counts is what happened, and it answers whatever the engine is doing."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from server_rig import await_true, serving

from sgl.runtime import Engine
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.watch.engine_stats import STEP_BOUNDS, Stats

PAGE = Path(__file__).parents[2] / "docs" / "watching.md"
GREEDY = {"temperature": 0, "max_new_tokens": 12}
ENDLESS = {"max_new_tokens": 1500, "ignore_eos": True, "temperature": 0}
Values = dict[str, float]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(kv_tokens=4096, threads=1) as engine:
        yield engine


@pytest.fixture()
def url(engine) -> Iterator[str]:
    with serving(engine) as url:
        yield url
    await_true(lambda: engine.stats().running == engine.stats().waiting == 0)


def _metrics(url: str) -> Values:
    """Every sample by its name and labels, as `name{label=value,...}`."""
    answer = httpx.get(f"{url}/metrics", timeout=5)
    assert answer.status_code == 200
    return {
        _key(sample.name, sample.labels): sample.value for family in parse(answer.text) for sample in family.samples
    }


def _key(name: str, labels: dict[str, str]) -> str:
    return f"{name}{{{','.join(f'{key}={labels[key]}' for key in sorted(labels))}}}" if labels else name


def _generate(url: str, **fields: Any) -> dict[str, Any]:
    body = {"text": "Book a table", "sampling_params": GREEDY} | fields
    return httpx.post(f"{url}/generate", json=body, timeout=30).json()


def test_the_names_are_few_documented_and_carry_their_units(url):
    _generate(url)
    families = {family.name: family for family in parse(httpx.get(f"{url}/metrics").text)}
    assert 12 <= len(families) <= 22
    assert all(re.fullmatch("sgl_[a-z_]+", name) and family.documentation for name, family in families.items())
    assert all(name.endswith("_seconds") for name, family in families.items() if family.type == "histogram")
    documented = {
        name for name in re.findall(r"`(sgl_[a-z_]+)`", PAGE.read_text()) if not name.startswith("sgl_adapter_")
    }  # of engines that have some
    shown = {name + "_total" if family.type == "counter" else name for name, family in families.items()}
    assert documented == shown


def test_counts_of_tokens_are_the_engines(url, engine):
    _generate(url)
    _generate(url, sampling_params=GREEDY | {"json_schema": '{"const": "a long enough constant"}'})
    found, stats = _metrics(url), engine.stats()
    for name in (
        "computed_tokens",
        "cached_tokens",
        "generated_tokens",
        "forced_tokens",
        "drafted_tokens",
        "accepted_tokens",
        "preemptions",
        "aborts",
    ):
        assert found[f"sgl_{name}_total"] == getattr(stats, name), name
    assert found["sgl_forced_tokens_total"] > 0
    assert found["sgl_cache_hit_ratio"] == pytest.approx(stats.hit_rate)
    assert found["sgl_step_seconds_count"] == stats.steps > 0
    assert found["sgl_step_seconds_sum"] == pytest.approx(stats.step_seconds)
    assert found["sgl_step_seconds_bucket{le=5.0}"] <= found["sgl_step_seconds_bucket{le=+Inf}"] == stats.steps


def test_what_runs_shows(url, engine):
    with httpx.stream(
        "POST", f"{url}/generate", json={"text": "Hello", "stream": True, "sampling_params": ENDLESS}
    ) as answer:
        lines = answer.iter_lines()  # which closes the answer when it is forgotten
        next(lines)
        await_true(lambda: _metrics(url)["sgl_running_sequences"] == 1)
        found = _metrics(url)
        assert (
            0 < found["sgl_kv_usage_ratio"] < 1 and found["sgl_engine_up"] == 1 and found["sgl_waiting_sequences"] == 0
        )
        assert 0 <= found["sgl_idle_ratio"] < 1
    await_true(lambda: _metrics(url)["sgl_running_sequences"] == 0)
    found = _metrics(url)
    assert found["sgl_kv_usage_ratio"] == 0
    assert found["sgl_requests_total{route=/generate,status=499}"] == 1
    assert found["sgl_refused_requests_total{reason=client_left}"] == 1


def test_times_of_a_stream(url):
    seen = 0
    with httpx.stream(
        "POST",
        f"{url}/v1/completions",
        json={"prompt": "Hello", "stream": True, "max_tokens": 20, "ignore_eos": True},
        timeout=30,
    ) as answer:
        seen = sum(line.startswith("data: {") for line in answer.iter_lines())
    found = _metrics(url)
    assert seen > 2 and found["sgl_time_to_first_token_seconds_count"] == 1 == found["sgl_queue_seconds_count"]
    assert 10 <= found["sgl_inter_token_seconds_count"] < 20
    seconds = found["sgl_request_seconds_sum{route=/v1/completions}"]
    assert found["sgl_time_to_first_token_seconds_sum"] + found["sgl_inter_token_seconds_sum"] <= seconds < 30


def test_times_of_a_whole_answer(url):
    whole = [_generate(url, sampling_params=GREEDY | {"n": n}) for n in (1, 3)]
    found = _metrics(url)
    assert len(whole[1]) == 3 and found["sgl_time_to_first_token_seconds_count"] == 2
    assert 0 < found["sgl_time_to_first_token_seconds_sum"] < found["sgl_request_seconds_sum{route=/generate}"]
    assert found["sgl_inter_token_seconds_count"] == 0


def test_answers_are_counted_by_route_and_status(url):
    _generate(url)
    for path in ("/health", "/v1/models", "/v1/models/none", "/nothing", "/v1/models/none/at/all"):
        httpx.get(url + path)
    httpx.post(f"{url}/v1/completions", json={"prompt": "Hello", "temprature": 1})
    httpx.post(f"{url}/generate", json={"text": "Hello", "timeout": 0.05, "sampling_params": ENDLESS})
    found = _metrics(url)
    counts = {key: value for key, value in found.items() if key.startswith(("sgl_requests_total", "sgl_refused"))}
    assert counts == {
        "sgl_requests_total{route=/generate,status=200}": 1,
        "sgl_requests_total{route=/generate,status=504}": 1,
        "sgl_requests_total{route=/health,status=200}": 1,
        "sgl_requests_total{route=/v1/models,status=200}": 1,
        "sgl_requests_total{route=/v1/models/{name:path},status=404}": 2,
        "sgl_requests_total{route=none,status=404}": 1,
        "sgl_requests_total{route=/v1/completions,status=400}": 1,
        "sgl_refused_requests_total{reason=model_not_found}": 2,
        "sgl_refused_requests_total{reason=invalid_request_error}": 1,
        "sgl_refused_requests_total{reason=unknown_field}": 1,
        "sgl_refused_requests_total{reason=timeout}": 1,
    }


def test_a_stream_that_fails_midway_is_counted_as_what_it_is(url):
    body = {"prompt": "Hello", "stream": True, "max_tokens": 1500, "ignore_eos": True, "timeout": 0.3}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 200 and '"code":"timeout"' in answer.text
    assert _metrics(url)["sgl_requests_total{route=/v1/completions,status=504}"] == 1


def test_grammars_are_counted_when_they_are_compiled(url):
    for _ in range(3):
        _generate(url, sampling_params=GREEDY | {"regex": "[ab]{3}"})
    assert _metrics(url)["sgl_grammar_compile_seconds_count"] == 1


# whatever the engine does


@contextmanager
def _stuck(engine: Engine) -> Iterator[None]:
    """The engine's thread is in the middle of a step that does not end."""
    entered, released = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert released.wait(60)

    engine._core.after_step = hold
    future = engine.open().prefill()
    assert entered.wait(10)
    try:
        yield
    finally:
        engine._core.after_step = None
        released.set()
        future.result(10)


def test_it_answers_while_a_step_takes_long(url, engine):
    with _stuck(engine):
        assert _metrics(url)["sgl_engine_up"] == 1


def test_reading_costs_no_step(url, engine):
    _generate(url)
    before = engine.stats().steps
    for _ in range(5):
        _metrics(url)
    assert engine.stats().steps == before


def test_it_answers_while_the_engine_sleeps_and_when_it_is_gone():
    with Engine(kv_tokens=512, threads=1) as engine, serving(engine) as url:
        _generate(url)
        engine.sleep()
        asleep = _metrics(url)
        assert asleep["sgl_engine_up"] == 1 and asleep["sgl_generated_tokens_total"] > 0
        engine.close()
        gone = _metrics(url)
        assert gone["sgl_engine_up"] == 0 and gone["sgl_generated_tokens_total"] == asleep["sgl_generated_tokens_total"]


def test_who_may_read_them(engine):
    with serving(engine, api_keys=frozenset({"key"})) as url:
        assert httpx.get(f"{url}/metrics").status_code == 401
        assert httpx.get(f"{url}/metrics", headers={"Authorization": "Bearer key"}).status_code == 200
    with serving(engine, api_keys=frozenset({"key"}), open_metrics=True) as url:
        assert _metrics(url)["sgl_engine_up"] == 1 and httpx.get(f"{url}/v1/models").status_code == 401
    with serving(engine, metrics=False) as url:
        answer = httpx.get(f"{url}/metrics")
        assert answer.status_code == 404 and "--no-metrics" in answer.json()["error"]["message"]


def test_the_other_format(url):
    answer = httpx.get(f"{url}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(answer.text)} >= {"sgl_requests", "sgl_step_seconds"}


def test_two_servers_of_one_engine_count_for_themselves(engine):
    with serving(engine) as one, serving(engine) as other:
        _generate(one)
        assert "sgl_requests_total{route=/generate,status=200}" in _metrics(one)
        assert "sgl_requests_total{route=/generate,status=200}" not in _metrics(other)


# the engine's side


def test_steps_are_counted_by_how_long_they_took():
    stats = Stats()
    for seconds in (0.0005, 0.001, 0.0011, 4.0, 500.0):
        stats.stepped(seconds)
    counts = dict(zip((*STEP_BOUNDS, None), stats.step_counts, strict=True))
    assert (counts[0.001], counts[0.002], counts[5.0], counts[None]) == (2, 1, 1, 1)
    assert stats.steps == 5 and stats.step_seconds == pytest.approx(504.0026)


def test_differences_of_counters(engine):
    before = engine.stats()
    engine.generate("Hello", SamplingParams(max_tokens=4, ignore_eos=True))
    spent = engine.stats() - before
    assert sum(spent.step_counts) == spent.steps > 0 and spent.pages_total == 4096
    assert engine.stats().step_counts is not engine.stats().step_counts


def test_generations_tell_how_long_they_waited(engine):
    made = engine.generate("Hello", SamplingParams(max_tokens=8, ignore_eos=True))
    assert 0 < made.queue_seconds < made.first_token_seconds < made.e2e_latency


def test_a_glance_does_not_wait(engine):
    with _stuck(engine):
        assert engine.glance().pages_total == 4096
