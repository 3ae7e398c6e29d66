"""Programs as OpenTelemetry sees them, and what calls cost."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

import sgl
from sgl.lang.errors import BadValueError, BudgetExceeded, ProgramError
from sgl.lang.tools import ToolCall

sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
pytestmark = pytest.mark.filterwarnings("ignore:.*is outside of all turns")
SCRIPT = {"plan": "walk far", "mood": "good", "side": ["a b", "c"], "word": "inside"}


@pytest.fixture
def provider():
    provider = sdk.TracerProvider()
    yield provider
    sgl.uninstrument()
    provider.shutdown()


@pytest.fixture
def spans(provider):
    exporter = memory.InMemorySpanExporter()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))

    def finished(**by):
        found = exporter.get_finished_spans()
        return [span for span in found if all(span.attributes.get(k.replace("__", ".")) == v for k, v in by.items())]

    return finished


@sgl.function
def inner(s):
    s += sgl.gen("word")


@sgl.function
def plan(s, topic):
    s += sgl.user("Plan " + topic)
    s += sgl.assistant(sgl.gen("plan", max_tokens=9, temperature=0.5) + sgl.select("mood", ["good", "bad"]))
    s.call(inner)
    forks = s.fork(2)
    for fork in forks:
        fork += sgl.gen("side")
    forks.join()
    return s["plan"]


def add(a: int, b: int) -> int:
    """The sum."""
    return a // b


def run(backend=None, **options):
    state = plan.run("day", backend=backend or sgl.Scripted(SCRIPT), **options)
    state.sync()
    return state


def test_a_run_has_a_span_and_its_gens_are_parts_of_it(spans, provider):
    sgl.instrument(provider)
    run()
    (whole,) = spans(gen_ai__workflow__name="plan")
    assert (whole.name, whole.parent, whole.status.status_code.name) == ("invoke_workflow plan", None, "UNSET")
    (called,) = spans(gen_ai__workflow__name="inner")
    assert called.parent.span_id == whole.context.span_id
    parents = {
        span.attributes["sgl.variable"]: span.parent.span_id for span in spans() if "sgl.variable" in span.attributes
    }
    assert parents.pop("word") == called.context.span_id
    assert set(parents) == {"plan", "mood", "side"} and set(parents.values()) == {whole.context.span_id}
    assert [span.attributes["sgl.branch"] for span in spans(sgl__variable="side")] == ["0.1", "0.2"]


def test_what_the_span_of_a_gen_tells(spans, provider):
    sgl.instrument(provider)
    state = run(seed=3)
    (span,) = spans(sgl__variable="plan")
    usage = state.get_meta_info("plan")
    assert span.name == "chat scripted" and span.start_time <= span.end_time
    told = dict(span.attributes)
    assert told.pop("code.file.path") == __file__ and told.pop("code.line.number") > 40
    assert told.pop("sgl.branch") == "0" and told.pop("sgl.variable") == "plan"
    told.pop("sgl.computing_seconds", None)
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sgl",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 3,
        "gen_ai.output.type": "text",
        "gen_ai.response.finish_reasons": (usage["finish_reason"]["type"],),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        **{k: v for k, v in told.items() if k in ("gen_ai.usage.cache_read.input_tokens", "sgl.forced_tokens")},
    }
    (choice,) = spans(sgl__variable="mood")
    assert choice.attributes["sgl.choices"] == ("good", "bad")
    (outside,) = spans(sgl__variable="word")
    assert outside.name == "text_completion scripted"


def test_texts_are_left_out_unless_they_are_asked_for(spans, provider):
    sgl.instrument(provider)
    run()
    assert "walk" not in json.dumps([dict(span.attributes) for span in spans()])
    sgl.instrument(provider, content=True)
    run()
    assert json.loads(spans(sgl__variable="plan")[-1].attributes["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "walk far"}]}
    ]


def test_spans_of_others_are_around_and_inside(spans, provider):
    tracer = provider.get_tracer("mine")

    @sgl.function
    def with_own(s):
        with tracer.start_as_current_span("own"):
            s += sgl.gen("word")

    sgl.instrument(provider)
    with tracer.start_as_current_span("outer") as outer:
        with_own.run(backend=sgl.Scripted(SCRIPT)).sync()
    by_name = {span.name: span for span in spans()}
    assert by_name["invoke_workflow with_own"].parent.span_id == outer.get_span_context().span_id
    assert by_name["own"].parent.span_id == by_name["invoke_workflow with_own"].context.span_id
    assert by_name["text_completion scripted"].parent.span_id == by_name["own"].context.span_id


def test_errors_of_a_gen_of_a_body_and_of_a_tool(spans, provider):
    @sgl.function
    def breaks(s):
        s += sgl.gen("word")
        raise LookupError("nothing there")

    sgl.instrument(provider)
    with pytest.raises(ProgramError):
        run(sgl.Scripted({"plan": "x", "mood": "good"}))
    (gen,) = spans(sgl__variable="word")
    assert (gen.attributes["error.type"], gen.status.status_code.name) == ("ScriptError", "ERROR")
    assert spans(gen_ai__workflow__name="plan")[0].attributes["error.type"] == "ProgramError"
    with pytest.raises(LookupError):
        breaks.run(backend=sgl.Scripted(SCRIPT))
    assert spans(gen_ai__workflow__name="breaks")[0].attributes["error.type"] == "LookupError"
    toolbox = sgl.tools([add])
    assert toolbox.run(ToolCall("add", {"a": 1, "b": 0}))["error"]
    assert spans(gen_ai__tool__name="add")[0].attributes["error.type"] == "ZeroDivisionError"


def test_a_tool_has_a_span(spans, provider):
    sgl.instrument(provider, content=True)
    toolbox = sgl.tools([add])
    assert toolbox.run(ToolCall("add", {"a": 6, "b": 2}, "call_7")) == 3
    assert asyncio.run(toolbox.arun(ToolCall("add", {"a": 6, "b": 3}))) == 2
    first, second = spans(gen_ai__tool__name="add")
    assert first.name == "execute_tool add" and first.attributes["gen_ai.tool.call.id"] == "call_7"
    assert json.loads(first.attributes["gen_ai.tool.call.arguments"]) == {"a": 6, "b": 2}
    assert (first.attributes["gen_ai.tool.call.result"], second.attributes["gen_ai.tool.call.result"]) == ("3", "2")


def test_programs_on_an_event_loop_in_batches_and_streamed(spans, provider):
    @sgl.function
    async def later(s, topic):
        s += topic + sgl.gen("word")
        return await s.get("word")

    sgl.instrument(provider)
    asyncio.run(later.arun("x", backend=sgl.Scripted(SCRIPT)))
    assert len(spans(gen_ai__workflow__name="later")) == 1
    inner.run_batch([{}] * 3, backend=sgl.Scripted(SCRIPT))
    assert len(spans(gen_ai__workflow__name="inner")) == 3
    assert "".join(inner.run(stream=True, backend=sgl.Scripted(SCRIPT)).text_iter()) == "inside"
    whole, parts = spans(gen_ai__workflow__name="inner"), spans(sgl__variable="word")
    assert len(whole) == 4 and {part.parent.span_id for part in parts} == {
        span.context.span_id for span in [*whole, *spans(gen_ai__workflow__name="later")]
    }


def test_nothing_is_sent_before_and_after(spans, provider):
    run()
    sgl.instrument(provider)
    sgl.uninstrument()
    run()
    assert spans() == []


def test_without_opentelemetry(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(BadValueError, match=r"pip install 'sgl\[otel\]'"):
        sgl.instrument()


# what calls cost


class Priced(sgl.Scripted):
    prices = sgl.Prices(input=2.0, output=10.0)


def test_what_a_million_tokens_cost():
    assert sgl.Prices(1.0, 2.0).cost(3_000_000, 1_000_000, 500_000) == 4.0
    assert sgl.Prices(1.0, 2.0, cached_input=0.5).cost(3_000_000, 1_000_000, 500_000) == 3.5
    for wrong in ({"input": -1, "output": 1}, {"input": 1, "output": float("nan")}, {"input": True, "output": 1}):
        with pytest.raises(BadValueError, match=r"price (input|output)="):
            sgl.Prices(**wrong)


def test_the_cost_of_a_run_is_that_of_its_operations():
    usage = run(Priced(SCRIPT)).usage()
    assert usage.cost == pytest.approx((usage.prompt_tokens * 2 + usage.generated_tokens * 10) / 1e6)
    assert f"cost {usage.cost:.4g}" in str(usage)
    free = run().usage()
    assert free.cost is None and "cost" not in str(free)
    assert (usage + free).cost is None and sgl.Usage.total([]).cost == 0.0


def test_a_budget_limits_the_cost():
    with pytest.raises((BudgetExceeded, ProgramError)):
        run(Priced(SCRIPT), budget=sgl.Budget(cost=1e-9))["side"]
    run(Priced(SCRIPT), budget=sgl.Budget(cost=1.0))
    with pytest.raises(BadValueError, match=r"Scripted has no prices; give it prices=sgl\.Prices"):
        run(budget=sgl.Budget(cost=1.0))
    with pytest.raises(BadValueError, match="cost is -1"):
        sgl.Budget(cost=-1)


def test_a_remote_backend_takes_prices():
    with pytest.raises(BadValueError, match=r"prices=0\.5: give sgl\.Prices"):
        sgl.OpenAI("gpt-4o", api_key="none", prices=0.5)
    backend = sgl.OpenAI("gpt-4o", api_key="none", prices=sgl.Prices(1, 2))
    assert (backend.prices, backend.provider) == (sgl.Prices(1, 2), "openai")


def test_a_journal_has_the_prices_of_its_backend(tmp_path):
    with sgl.journal(tmp_path / "runs.jsonl", Priced(SCRIPT)) as journal:
        first = run(journal).usage()
    with sgl.journal(tmp_path / "runs.jsonl", Priced(SCRIPT)) as journal:
        assert run(journal).usage().cost == first.cost > 0


def test_what_is_no_provider_is_refused():
    with pytest.raises(BadValueError, match=r"instrument\(5\): give a TracerProvider"):
        sgl.instrument(5)
