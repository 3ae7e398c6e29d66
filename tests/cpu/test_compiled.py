"""Compiled programs on the bundled model: the interpreted text to the letter, a pinned prefix, grammars ahead."""

from __future__ import annotations

import gc
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from hypothesis import HealthCheck, given, settings
from plain_adapters import write_adapter
from random_programs import operations, program_of

import sgl
from sgl.lang.backends.default_backend import as_backend
from sgl.runtime.engine import NANO


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {
        name: write_adapter(NANO, folder / name, seed) for seed, name in enumerate(("sql", "law"))
    }  # of random programs
    with sgl.Engine(dtype="float32", device="cpu", threads=1, adapters=adapters) as made:
        yield made


@pytest.fixture(autouse=True)
def default(engine):
    sgl.set_default_backend(engine)
    yield
    sgl.set_default_backend(None)
    gc.collect()
    engine.check()


def texts(state):
    state.sync()
    assert state.error() is None
    return state.text(), [part.text() for part in state.ret_value["states"]]


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=operations(1), seed=...)
def test_random_programs_give_the_interpreted_text(engine, ops, seed: int):
    program, compiled = program_of(ops), program_of(ops).compile(engine)
    for options in ({"temperature": 0, "seed": 1}, {"temperature": 1.0, "seed": abs(seed) % 1000}):
        options = {**options, "max_new_tokens": 4}
        assert texts(compiled.run("Boston", **options)) == texts(program.run("Boston", **options))


SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}


@sgl.function
def trip(s, question):
    s += sgl.system("You help people to plan their trips: be brief, be kind, and never promise what you cannot know.")
    s += sgl.user(question)
    with s.assistant():
        s += sgl.gen("answer", max_tokens=8)
    forks = s.fork(3)
    forks += lambda i: f" Thought {i}: " + sgl.gen("thought", max_tokens=6)
    forks[2] += " against " + forks[0]["thought"] + sgl.gen("more", max_tokens=4)
    forks.join()
    s += sgl.user("So: " + s["thought"][1])
    s += sgl.assistant(
        sgl.select("kind", ["train", "bus", "flight"]) + sgl.gen("city", json_schema=SCHEMA, max_tokens=24)
    )
    return s["thought"], forks[2]["more"]


def seen(state):
    return state.text(), state["thought"], state["city"], state["kind"], state.ret_value


def test_batches_give_the_interpreted_text(engine):
    items = [{"question": f"How do I get from Boston to city {i}?"} for i in range(3)]
    compiled = trip.compile(engine)
    for options in ({"temperature": 0}, {"seed": 11}):
        expected = [seen(state) for state in trip.run_batch(items, **options)]
        assert [seen(state) for state in compiled.run_batch(items, **options)] == expected


def test_the_prefix_is_computed_once_and_stays(engine):
    engine.flush_cache()
    prefix = len(engine.tokenizer.encode(trip.trace(backend=engine).constant_prefix()))
    before = engine.stats()
    compiled = trip.compile(engine)
    compiled.wait_ready()
    assert abs((engine.stats() - before).computed_tokens - prefix) <= 2
    engine.flush_cache()  # what is pinned cannot be flushed
    before = engine.stats()
    state = compiled.run("Hm?", temperature=0)
    state.sync()
    cached = state.get_meta_info("answer")["cached_tokens"]
    assert prefix > 20 and cached >= prefix - 3
    del state, compiled, before


def test_grammars_are_there_before_the_first_run(engine):
    calls = []
    backend = as_backend(engine)
    original = backend.grammar
    try:
        backend.grammar = lambda options: calls.append(options.json_schema) or original(options)
        trip.compile(engine)
    finally:
        del backend.grammar
    assert any(call and "city" in call for call in calls)


def test_the_blocks_of_the_page_run(engine, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs/compile.md").read_text()
    monkeypatch.setattr(sgl, "Engine", lambda **options: engine)
    names: dict[str, object] = {"__name__": "compile_page"}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(block, "docs/compile.md", "exec", dont_inherit=True), names)
    printed = capsys.readouterr().out
    assert "round trips" in printed and "docs/compile.md:4: " in printed and "# fork advise.3" in printed
    passes = names["compiled"].passes
    assert passes.before.round_trips > passes.after.round_trips
    drawn = ET.fromstring((Path(__file__).parents[2] / "docs/compile.svg").read_text(encoding="utf-8"))
    assert len(list(drawn.iter())) == len(list(ET.fromstring(names["compiled"].graph().svg()).iter()))
