"""The journal on the bundled model: sampled runs come back token by token."""

from __future__ import annotations

import pytest

import sgl
from sgl.lang.journal import Journal, once, record, replay, resume

CITIES = ["Rome", "Bern", "Oslo", "Rome", "Lima", "Kyiv", "Rome", "Bonn"]


@pytest.fixture(scope="module")
def engine():
    with sgl.Engine(
        dtype="float32", threads=1
    ) as made:  # bfloat16 rounds a restored prefix otherwise than a written one
        yield made
        made.check()


@sgl.function
def travel(s, city):
    s += sgl.user(f"I want to go to {city}.")
    with s.assistant():
        s += "I can help. " + sgl.gen("answer", max_tokens=12, stop=".")
        forks = s.fork(2)
        for kind, child in zip(("hotel", "restaurant"), forks, strict=True):
            child += f" The {kind} is " + sgl.gen("name", max_tokens=6) + sgl.select("price", [" cheap", " expensive"])
        s["places"] = [child["name"] for child in forks]
        s += " Found " + " and ".join(s["places"]) + "; code "
        s += sgl.gen("code", regex="[A-Z]{2}[0-9]{3}") + ", " + sgl.gen("more", n=2, max_tokens=5)


def facts(state):
    executor = state.stream_executor
    return state.text(), dict(executor.variables), dict(executor.meta_info)


def texts(result):
    return [(text, variables) for text, variables, _ in result]


def run(backend, **options):
    return [facts(state) for state in travel.run_batch([{"city": city} for city in CITIES], backend=backend, **options)]


@pytest.fixture(scope="module")
def recording(engine, tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    with record(path, engine, seed=11) as backend:
        return path, run(backend)


def test_a_sampled_batch_is_replayed_without_the_model(recording):
    path, result = recording
    assert run(replay(path)) == result
    assert len({text for text, _, _ in result}) == len(CITIES)  # the three equal items differ: they were sampled
    assert len(Journal.open(path)) == 8 * len(CITIES)


def test_a_sampled_batch_is_resumed_from_anywhere(recording, engine, tmp_path):
    path, result = recording
    lines = path.read_bytes().splitlines(keepends=True)
    for count in (1, 19, len(lines) - 1):
        part = tmp_path / f"{count}.jsonl"
        part.write_bytes(b"".join(lines[:count]))
        with resume(part, engine) as backend:
            assert texts(run(backend)) == texts(result)
        there = sum(line.startswith(b'{"number"') for line in lines[:count])  # the others are turns of the template
        assert (len(backend.served), len(backend.computed)) == (there, 8 * len(CITIES) - there)


def test_a_journal_changes_nothing_about_a_run_with_a_seed(engine, tmp_path):
    with record(tmp_path / "run.jsonl", engine) as backend:
        assert texts(run(backend, seed=3)) == texts(run(engine, seed=3))


def test_restored_streams_hold_the_recorded_tokens(engine, tmp_path):
    """The tokens of the engine's row, when only the last node of each state is missing."""
    rows = []

    @sgl.function
    def chain(s):
        s += "Hello " + sgl.gen("a", max_tokens=20) + " I " + sgl.gen("b", max_tokens=9, stop="e")
        s += sgl.separate_reasoning(sgl.gen("r", regex="<think>[a-z]{4}</think>[a-z]{5}"), model_type="qwen3")
        s += sgl.select("c", [" yes", " no"]) + " so " + sgl.gen("d", max_tokens=5)
        s.sync()
        rows.append((s.stream_executor.stream._inner._sequence.tokens().tolist(), s.text()))

    for seed in range(3):
        path = tmp_path / f"{seed}.jsonl"
        with record(path, engine, seed=seed) as backend:
            chain.run(backend=backend)
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
        with resume(path, engine) as backend:
            chain.run(backend=backend)
        assert [node.name for node in backend.computed] == ["d"]
    assert rows[::2] == rows[1::2]


def test_an_edited_answer_is_read_by_what_follows(recording, engine, tmp_path):
    path, result = recording
    copy = tmp_path / "run.jsonl"
    copy.write_bytes(path.read_bytes())
    journal = Journal.open(copy)
    journal.edit(journal.find("name", path="4.1"), "The Blue Door")
    with resume(copy, engine) as backend:
        edited = run(backend)
    assert "and The Blue Door; code " in edited[4][0]
    assert texts(edited[:4] + edited[5:]) == texts(result[:4] + result[5:])
    assert sorted(node.name for node in backend.computed) == ["code", "more", "more", "price"]


def test_streams_and_tools(engine, tmp_path):
    calls = []

    @sgl.function
    def ask(s):
        s += sgl.user("What is the weather?") + sgl.assistant(sgl.gen("a", max_tokens=12))
        s += sgl.tool(once(s, "weather", lambda: calls.append(1) or "sunny")) + sgl.assistant(
            sgl.gen("b", max_tokens=12)
        )

    def pieces(backend):
        return list(ask.run(backend=backend, stream=True).text_iter())

    with record(tmp_path / "run.jsonl", engine, seed=2) as backend:
        first = pieces(backend)
    assert pieces(replay(tmp_path / "run.jsonl")) == first and len(first) > 6 and calls == [1]
