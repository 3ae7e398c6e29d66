"""Adapters in programs: the text of a state under an adapter is the engine's text under it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
import transformers
from peft_adapters import make_adapter

import sgl
from sgl.lang.backends.scripted.scripted_backend import Scripted
from sgl.lang.errors import BadValueError, ReplayMismatch, UnknownOptionError, UnsupportedByBackendError
from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError
from sgl.runtime.sampling.sampling_params import SamplingParams

NAMES = ["sql", "law", "med"]
GREEDY = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
PROMPT = "Say what the weather is like: "


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("skills")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    for i, name in enumerate(NAMES):
        make_adapter(model, path / name, seed=i)
    return {name: path / name for name in NAMES}


@pytest.fixture(scope="module")
def engine(tiny, folders):
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=4096, adapters=folders) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine) -> dict[str | None, str]:
    """What the engine itself writes after the prompt."""
    texts: dict[str | None, str] = {}
    for name in [None, *NAMES]:
        sequence = engine.open(adapter=name)
        sequence.extend(engine.tokenizer.encode(PROMPT, special_prefix=True))
        texts[name] = sequence.generate(SamplingParams(**GREEDY)).result().text
    assert len(set(texts.values())) == 4
    return texts


@sgl.function
def ask(s, prompt):
    s += prompt + sgl.gen("answer", **GREEDY)


@sgl.function
async def ask_async(s, prompt):
    s += prompt
    for fork in s.fork(2, adapter=["sql", "law"]):
        fork += sgl.gen("answer", **GREEDY)
        s[f"of {fork.stream_executor.branch.adapter}"] = await fork.get("answer")


@sgl.function
def branch(s, prompt):
    s += prompt
    mixed = s.fork(4, adapter=["sql", None, "law", "med"])
    mixed += sgl.gen("answer", **GREEDY)
    back = mixed[0].fork(1, adapter=None)[0]
    mixed.join()
    s["back"] = back.text()


def test_a_run_under_an_adapter_is_the_engines_text(engine, expected):
    for name in [None, *NAMES]:
        state = ask.run(PROMPT, backend=engine, adapter=name)
        assert state["answer"] == expected[name]


def test_a_batch_takes_one_adapter_for_all_or_one_for_each_item(engine, expected):
    items = [{"prompt": PROMPT}] * 4
    for adapter in (NAMES[1], [None, *NAMES]):
        wanted = [expected[name] for name in ([adapter] * 4 if isinstance(adapter, str) else adapter)]
        assert [state["answer"] for state in ask.run_batch(items, backend=engine, adapter=adapter)] == wanted
        states = asyncio.run(ask.arun_batch(items, backend=engine, adapter=adapter))
        assert [state["answer"] for state in states] == wanted
        compiled = ask.compile(engine)
        assert [state["answer"] for state in compiled.run_batch(items, backend=engine, adapter=adapter)] == wanted


def test_forks_under_other_adapters_are_each_of_them_alone(engine, expected):
    state = branch.run(PROMPT, backend=engine)
    assert state["answer"] == [expected[name] for name in ("sql", None, "law", "med")]
    assert state["back"] == PROMPT + expected["sql"]
    compiled = branch.compile(engine).run(PROMPT, backend=engine)
    assert compiled["answer"] == state["answer"]


def test_what_is_computed_again_is_said_in_the_usage(engine, expected):
    engine.flush_cache()

    @sgl.function
    def again(s):
        s += PROMPT + sgl.gen("first", **GREEDY)
        (fork,) = s.fork(1, adapter="med")
        fork += sgl.gen("second", **GREEDY)
        s["second"] = fork["second"]

    usage = again.run(backend=engine).usage()
    assert usage.reread_tokens > 0 and "again under another adapter" in str(usage)
    assert ask.run(PROMPT, backend=engine).usage().reread_tokens == 0


def test_forks_inherit_the_adapter_also_of_an_empty_state_and_in_samples(engine, expected):
    @sgl.function
    def late(s):
        for fork in s.fork(2):
            fork += PROMPT + sgl.gen("answer", **GREEDY)
            s[f"{fork.stream_executor.branch.label}"] = fork["answer"]
        s += PROMPT + sgl.gen("both", n=2, **GREEDY)

    state = late.run(backend=engine, adapter="law")
    assert state["0.1"] == state["0.2"] == expected["law"]
    assert state["both"] == [expected["law"]] * 2


def test_selects_score_under_the_adapter(engine):
    @sgl.function
    def choose(s):
        s += PROMPT + sgl.select("x", ["rain", "sun", "snow"], choices_method=sgl.unconditional_likelihood_normalized)

    probabilities = {name: choose.run(backend=engine, adapter=name).probs("x")["rain"] for name in [None, "sql"]}
    assert probabilities[None] != probabilities["sql"]


def test_async_states(engine, expected):
    state = ask_async.run(PROMPT, backend=engine)
    assert [state["of sql"], state["of law"]] == [expected["sql"], expected["law"]]


def test_a_journal_keeps_adapters_apart(engine, expected, tmp_path):
    path = tmp_path / "run.jsonl"
    for name in [None, "sql"]:
        assert ask.run(PROMPT, backend=engine, journal=path, adapter=name)["answer"] == expected[name]
    assert branch.run(PROMPT, backend=engine, journal=path)["answer"] == [
        expected[n] for n in ("sql", None, "law", "med")
    ]
    replayed = sgl.replay(path)
    assert ask.run(PROMPT, backend=replayed, adapter="sql")["answer"] == expected["sql"]
    assert branch.run(PROMPT, backend=replayed)["answer"][3] == expected["med"]
    assert {node.adapter for node in replayed.journal.nodes} == {None, *NAMES}
    with pytest.raises(ReplayMismatch, match=r"recorded under .* and is asked under adapter 'law'"):
        ask.run(PROMPT, backend=replayed, adapter="law")["answer"]


def test_what_comes_behind_recorded_nodes_is_computed_under_the_same_adapter(engine, tmp_path):
    @sgl.function
    def two(s, more):
        s += PROMPT + sgl.gen("a", **GREEDY)
        (fork,) = s.fork(1, adapter="law")
        fork += sgl.gen("b", **GREEDY)
        if more:
            fork += " and" + sgl.gen("c", **GREEDY)
        s["text"] = fork.text()

    whole = two.run(True, backend=engine, adapter="sql")["text"]
    two.run(False, backend=engine, adapter="sql", journal=tmp_path / "j").sync()
    with sgl.resume(tmp_path / "j", engine) as resumed:
        assert two.run(True, backend=resumed, adapter="sql")["text"] == whole
    assert resumed.counts == (2, 1)


def test_reports_and_traces_show_the_adapter_of_a_branch(engine):
    state = branch.run(PROMPT, backend=engine, adapter="sql")
    shown = [b.get("adapter") for b in state.report().data["runs"][0]["branches"]]
    assert sorted(map(str, shown)) == ["None", "None", "law", "med", "sql", "sql"]
    assert "adapter law" in state.picture().svg
    graph = branch.compile(engine).graph()
    assert "adapter=['sql', None, 'law', 'med']" in graph.print()


def test_a_scripted_backend_tells_the_adapter_of_each_call():
    backend = Scripted({"answer": "yes"})
    branch.run(PROMPT, backend=backend)
    assert [call.adapter for call in backend.calls] == ["sql", None, "law", "med"]


def test_what_is_wrong_is_said_at_once(engine):
    with pytest.raises(UnknownOptionError, match=r"s\.fork\(1, adapter='sql'\)"):
        sgl.gen("x", adapter="sql")
    with pytest.raises(ConfigError, match="no adapter 'sq'; loaded are 'law', 'med', 'sql'; did you mean 'sql'"):
        ask.run(PROMPT, backend=engine, adapter="sq")
    with pytest.raises(BadValueError, match="list of 2 for 1 items"):
        ask.run_batch([(PROMPT,)], backend=engine, adapter=["sql", "law"])
    with pytest.raises(BadValueError, match="adapter is 3"):
        ask.run(PROMPT, backend=engine, adapter=3)

    @sgl.function
    def bad(s):
        s.fork(2, adapter=["sql", "nope"])

    with pytest.raises(ConfigError, match="no adapter 'nope'"):
        bad.run(backend=engine)
    openai = sgl.OpenAI("gpt-4o", api_key="none")
    with pytest.raises(UnsupportedByBackendError, match=r"OpenAI has no adapters .*'sql'"):
        ask.run(PROMPT, backend=openai, adapter="sql")
