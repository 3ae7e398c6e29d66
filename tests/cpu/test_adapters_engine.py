"""Adapters in a running engine: sequences that have one, two tiers of memory, and prefixes that are kept apart."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft_adapters import make_adapter

from sgl import grammars
from sgl.runtime import Engine
from sgl.runtime.errors import ConfigError, RuntimeFailure
from sgl.runtime.sampling.sampling_params import SamplingParams
from sgl.runtime.server.observability.request_record import RequestRecord

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
NAMES = [f"a{i}" for i in range(10)]
PROMPT = list(range(40, 90))


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory) -> dict[str, Path]:
    """Adapters of the tiny model by name."""
    path = tmp_path_factory.mktemp("adapters")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    for i, name in enumerate(NAMES):
        make_adapter(model, path / name, seed=i, r=4 + 4 * (i % 2))
    return {name: path / name for name in NAMES}


@pytest.fixture
def engine(open_engine, folders) -> Engine:
    made = open_engine(adapters=folders)
    return made


def text_of(engine: Engine, adapter: str | None, prompt: list[int] = PROMPT, **options: Any) -> list[int]:
    sequence = engine.open(adapter=adapter, **options)
    sequence.extend(prompt)
    return sequence.generate(GREEDY).result().token_ids


def alone(engine: Engine) -> dict[str | None, list[int]]:
    return {name: text_of(engine, name) for name in [None, *NAMES]}


def test_a_batch_of_many_adapters_is_each_of_them_alone(engine):
    expected = alone(engine)
    assert len({tuple(tokens) for tokens in expected.values()}) > 8
    engine.flush_cache()
    sequences = [(name, engine.open(adapter=name)) for name in [None, *NAMES] * 6]
    for _, sequence in sequences:
        sequence.extend(PROMPT)
    futures = [(name, sequence.generate(GREEDY)) for name, sequence in sequences]
    assert all(future.result().token_ids == expected[name] for name, future in futures)
    stats = engine.stats().adapters
    assert stats["slots"] == 8 and stats["slot_evictions"] > 0 and stats["slots_held"] == 0
    assert stats["by_name"]["a3"]["opened"] >= 7


def test_forced_eviction_at_every_step_changes_nothing(open_engine, folders):
    plain = open_engine(adapters=folders)
    expected = {name: text_of(plain, name) for name in (None, "a0", "a1", "a2")}
    engine = open_engine(adapters=folders, adapter_slots=1, adapter_memory=0)
    check = engine._core.after_step

    def evict() -> None:
        engine._core.adapters.slots.evict_all()
        check()

    engine._core.after_step = evict
    for name, tokens in expected.items():
        assert text_of(engine, name) == tokens
    futures = []
    for name in (*expected, *expected):
        sequence = engine.open(adapter=name)
        sequence.extend(PROMPT)
        futures.append((name, sequence, sequence.generate(GREEDY)))
    assert all(future.result().token_ids == expected[name] for name, _, future in futures)
    stats = engine.stats().adapters
    assert stats["slot_loads"] >= 6 and stats["reads"] > len(folders)


def test_prefixes_are_kept_apart_by_contents_and_names_do_not_matter(engine, folders, tmp_path):
    first = text_of(engine, "a0")
    sequence = engine.open(adapter="a0")
    sequence.extend(PROMPT)
    assert sequence.generate(GREEDY).result().cached_tokens == len(PROMPT) - 1
    engine.adapters.load("other name", folders["a0"])
    again = engine.open(adapter="other name")
    again.extend(PROMPT)
    assert again.generate(GREEDY).result().cached_tokens == len(PROMPT) - 1
    base = engine.open()
    base.extend(PROMPT)
    assert base.generate(GREEDY).result().cached_tokens == 0
    shutil.copytree(folders["a1"], tmp_path / "it")
    engine.adapters.load("a0", tmp_path / "it")  # under the same name another one
    replaced = engine.open(adapter="a0")
    replaced.extend(PROMPT)
    found = replaced.generate(GREEDY).result()
    assert found.cached_tokens == 0 and found.token_ids != first
    assert sequence.generate(GREEDY).result() and engine.adapters.get("a0").digest == engine.adapters.get("a1").digest


def test_a_namespace_that_looks_like_a_digest_is_another_one(engine):
    digest = engine.adapters.get("a0").digest
    text_of(engine, "a0", namespace="x")
    for namespace in (f"x{digest}", f"('x', '{digest}')", "x"):
        sequence = engine.open(namespace=namespace)
        sequence.extend(PROMPT)
        assert sequence.generate(GREEDY).result().cached_tokens == 0
    assert f"adapter {digest[:8]}" in str(engine.cache_tree())


def test_forks_inherit_and_may_take_another_adapter_which_reads_the_text_again(engine):
    expected = alone(engine)
    engine.flush_cache()
    parent = engine.open(adapter="a0")
    parent.extend(PROMPT)
    parent.prefill().result()
    (same,), (other,), (base,) = parent.fork(1), parent.fork(1, adapter="a1"), parent.fork(1, adapter=None)
    results = [each.generate(GREEDY).result() for each in (same, other, base)]
    assert [result.token_ids for result in results] == [expected["a0"], expected["a1"], expected[None]]
    assert [result.reread_tokens for result in results] == [0, len(PROMPT), len(PROMPT)]
    assert results[1].cached_tokens == 0 and engine.stats().reread_tokens == 2 * len(PROMPT)
    with pytest.raises(ConfigError, match="no adapter 'nobody'"):
        parent.fork(1, adapter="nobody")


@pytest.mark.few(1)
@pytest.mark.parametrize("process", [False, True])
def test_children_of_one_fork_take_adapters_of_their_own(tiny, folders, process):
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=4096, adapters=folders, process=process) as engine:
        expected = alone(engine)
        engine.flush_cache()
        parent = engine.open(adapter="a0")
        parent.extend(PROMPT)
        names = ["a1", None, "a0", "a3", "a1"]
        results = [child.generate(GREEDY) for child in parent.fork(5, adapter=names)]
        assert [result.result().token_ids for result in results] == [expected[name] for name in names]
        assert [result.result().reread_tokens for result in results] == [
            0 if name == "a0" else len(PROMPT) for name in names
        ]
        for wrong in (["a1"], ["a1", None, "a2"]):
            with pytest.raises(ConfigError, match=f"{len(wrong)} names for n=2"):
                parent.fork(2, adapter=wrong)
        with pytest.raises(ConfigError, match="no adapter 'nobody'"):
            parent.fork(2, adapter=["a1", "nobody"])
        assert engine.adapters.get("a1").opened == 3


def test_unknown_names_are_told_with_those_that_are_loaded(engine):
    with pytest.raises(ConfigError, match=r"no adapter 'a99'; loaded are 'a0', 'a1'.*did you mean 'a9'"):
        engine.open(adapter="a99")
    for name in ("", 3, "x" * 300):
        with pytest.raises(ConfigError, match="must be a text"):
            engine.adapters.load(name, "/nowhere")


def test_an_adapter_is_unloaded_as_soon_as_who_had_it_is_closed(engine, folders):
    for turn in range(20):
        sequence = engine.open(adapter="a1")
        sequence.extend(PROMPT)
        future = sequence.generate(SamplingParams(max_tokens=500 if turn % 2 else 3, temperature=0, ignore_eos=True))
        if turn % 2:
            sequence.abort()
        else:
            future.result()
        sequence.close()
        engine.adapters.unload("a1")
        assert future.done()
        engine.adapters.load("a1", folders["a1"])


def test_an_adapter_in_use_is_not_unloaded(engine):
    sequence = engine.open(adapter="a0")
    assert engine.adapters.get("a0").uses == 1
    with pytest.raises(ConfigError, match="in use by 1 open sequence;"):
        engine.adapters.unload("a0")
    sequence.extend(PROMPT)
    children = sequence.fork(3)
    sequence.close()
    assert [child.generate(GREEDY).result().token_ids for child in children]
    for child in children:
        child.close()
    engine.stats()
    engine.adapters.unload("a0")
    assert "a0" not in [info.name for info in engine.adapters.list()]
    with pytest.raises(ConfigError, match="no adapter 'a0'"):
        engine.adapters.unload("a0")


def test_the_host_keeps_pinned_ones_and_what_was_used_last(open_engine, folders):
    engine = open_engine(adapters=folders)
    size = engine.adapters.get("a1").bytes
    engine = open_engine(adapter_memory=3 * size)
    for name in NAMES:
        engine.adapters.load(name, folders[name], pin=name == "a0")
    where = {info.name: info.where for info in engine.adapters.list()}
    assert where["a0"] == where["a9"] == "host" and where["a1"] == "disk" and engine.adapters.get("a0").pinned
    assert text_of(engine, "a1") == text_of(engine, "a1") and engine.adapters.get("a1").where == "device"
    assert not engine.adapters.pin("a0", False).pinned


def test_files_that_are_others_by_now_fail_those_who_ask_for_them(open_engine, folders, tmp_path):
    engine = open_engine(adapter_memory=0)
    shutil.copytree(folders["a0"], tmp_path / "it")
    engine.adapters.load("it", tmp_path / "it")
    engine.adapters.load("a2", folders["a2"])
    shutil.rmtree(tmp_path / "it")
    shutil.copytree(folders["a1"], tmp_path / "it")
    sequence = engine.open(adapter="it")
    sequence.extend(PROMPT)
    with pytest.raises(RuntimeFailure, match="holds another adapter"):
        sequence.generate(GREEDY).result(30)
    assert text_of(engine, "a2")


def test_scores_and_embeddings_are_the_adapters(engine):
    scores = {}
    for name in (None, "a0"):
        sequence = engine.open(adapter=name)
        sequence.extend(PROMPT)
        scores[name] = sequence.score([[5, 6, 7], [5, 8], [9]]).result()
    assert (
        scores[None].logprobs != scores["a0"].logprobs
        if hasattr(scores[None], "logprobs")
        else scores[None] != scores["a0"]
    )
    found = []
    for name in (None, "a0"):
        sequence = engine.open(adapter=name)
        sequence.extend(PROMPT)
        found.append(sequence.embed().result())
    assert not np.allclose(found[0], found[1])
    text, params = "the quick brown fox", SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    assert engine.generate(text, params, adapter="a0").token_ids != engine.generate(text, params).token_ids
    assert not np.allclose(engine.embed(text, adapter="a0"), engine.embed(text))


def test_preemption_sleep_and_new_weights_go_well_with_adapters(open_engine, folders, tiny):
    engine = open_engine(adapters=folders, kv_tokens=200, page_size=4)
    expected = {name: text_of(engine, name) for name in (None, "a0", "a1")}
    sequences = [(name, engine.open(adapter=name, namespace=str(i))) for i, name in enumerate((*expected, *expected))]
    for _, sequence in sequences:
        sequence.extend(PROMPT)
    futures = [(name, sequence.generate(GREEDY)) for name, sequence in sequences]
    assert all(future.result().token_ids == expected[name] for name, future in futures)
    del sequences, sequence
    engine.sleep()
    engine.wake()
    assert text_of(engine, "a0") == expected["a0"]
    engine.update_weights(tiny)
    assert text_of(engine, "a0") == expected["a0"]


PROMPTS = [list(range(30 + 9 * i, 90 + 9 * i)) for i in range(4)]
AGE = r'\{"name": "[a-z]{2,3}", "age": [0-9]\}'


def works(engine: Engine) -> list[list[int]]:
    """Plain texts and those of a grammar that forces much, by the base and two adapters."""
    grammar = grammars.compile_regex(AGE, engine.vocabulary)
    params = SamplingParams(max_tokens=30, temperature=0)
    plain = [text_of(engine, name, prompt) for name in (None, "a0", "a1") for prompt in PROMPTS]
    return plain + [
        engine.generate("x", params, grammar=grammar, adapter=name).token_ids for name in (None, "a0", "a1")
    ]


def test_drafts_and_jumps_and_the_tier_in_main_memory_are_exact_with_adapters(tiny, folders):
    options: dict[str, Any] = {
        "dtype": "float32",
        "threads": 1,
        "adapters": {name: folders[name] for name in ("a0", "a1")},
    }
    with Engine(tiny, kv_tokens=4096, jump_forward=False, **options) as engine:
        expected = works(engine)
    for more in (
        {},
        {"speculation": "auto"},
        {"speculation": "auto", "draft": tiny},
        {"kv_tokens": 160, "page_size": 4, "host_kv": "20MB"},
    ):
        with Engine(tiny, **({"kv_tokens": 4096} | options | more)) as engine:
            engine._core.after_step = engine._core.check
            assert (
                works(engine)[: len(PROMPTS) * 3] == works(engine)[: len(PROMPTS) * 3] == expected[: len(PROMPTS) * 3]
            )
            if "host_kv" in more:
                assert engine.stats().host_hits > 0


def test_steps_without_adapters_take_the_present_path(engine):
    calls: list[int] = []
    shadow = engine._core.runner.model.adapted
    forward = shadow.forward
    shadow.forward = lambda batch, *rest: calls.append(len(batch.token_ids)) or forward(batch, *rest)
    text_of(engine, None)
    assert not calls
    text_of(engine, "a0")
    assert calls and engine.info()["adapters"]["executor"] in ("torch", "compiled")


def test_bits_do_not_depend_on_the_batch_where_they_are_not_to(open_engine, folders):
    engine = open_engine(adapters=folders, deterministic=True)
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, logprobs=True)

    def found(names: list[str | None]) -> list[Any]:
        engine.flush_cache()
        sequences = [engine.open(adapter=name) for name in names]
        for sequence in sequences:
            sequence.extend(PROMPT)
        return [future.result().logprobs for future in [sequence.generate(params) for sequence in sequences]]

    together = found(["a0", "a1", None, "a2"])
    assert together == [found([name])[0] for name in ("a0", "a1", None, "a2")]


@pytest.mark.parametrize(
    "options, what",
    [
        ({"adapter_slots": "x"}, "adapter_slots"),
        ({"adapter_slots": {0: 3}}, "a rank"),
        ({"adapter_memory": "x"}, "adapter_memory"),
        ({"adapters": ["x"]}, "adapters"),
    ],
)
def test_options_are_checked(tiny, options, what):
    with pytest.raises(ConfigError, match=what):
        Engine(tiny, **options)


def test_wider_adapters_than_there_are_slots_for_are_refused(open_engine, tiny, folders, tmp_path):
    make_adapter(transformers.AutoModelForCausalLM.from_pretrained(tiny), tmp_path, r=12)
    engine = open_engine(adapter_slots={8: 2})
    assert engine.info()["memory"]["adapters"] == engine.info()["adapters"]["slot_bytes"] > 0
    engine.adapters.load("narrow", folders["a1"])
    with pytest.raises(
        ConfigError, match=r"'wide' has rank 16, slots here take ranks up to 8: .*adapter_slots=\{16: 8\}"
    ):
        engine.adapters.load("wide", tmp_path)


@pytest.mark.whole
def test_an_engine_in_a_process_of_its_own_has_adapters_too(tiny, folders):
    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "kv_tokens": 4096}
    with Engine(tiny, adapters={"a0": folders["a0"]}, **options) as engine:
        expected = {name: text_of(engine, name) for name in (None, "a0")}
    with Engine(tiny, process=True, **options) as engine:
        info = engine.adapters.load("a0", folders["a0"], pin=True)
        assert (info.rank, info.padded) == (4, 8)
        assert {name: text_of(engine, name) for name in expected} == expected
        parent = engine.open()
        parent.extend(PROMPT)
        (child,) = parent.fork(1, adapter="a0")
        assert child.generate(GREEDY).result().token_ids == expected["a0"]
        assert [info.name for info in engine.adapters.list()] == ["a0"] and engine.stats().adapters["loaded"] == 1
        with pytest.raises(ConfigError, match="no adapter 'b'; loaded are 'a0'"):
            engine.open(adapter="b")
        with pytest.raises(ConfigError, match="in use by 1"):
            engine.adapters.unload("a0")


def test_metrics_tell_of_adapters_by_name(tiny, folders):
    metrics = pytest.importorskip("sgl.runtime.server.observability.prometheus_metrics")
    with Engine(tiny, dtype="float32", threads=1, kv_tokens=1024, adapters={"a0": folders["a0"]}) as engine:
        text_of(engine, "a0")
        made = metrics.ServerMetrics(engine)
        made.finished(RequestRecord(route="/generate", status=200, adapter="a0", prompt_tokens=3))
        page = made.page()[0].decode()
    documented = re.findall(r"`(sgl_adapter_[a-z_]+)`", (Path(__file__).parents[2] / "docs/watching.md").read_text())
    assert set(documented) == set(re.findall(r"^(sgl_adapter_[a-z_]+)[ {]", page, re.MULTILINE))
    assert 'sgl_adapter_sequences_total{adapter="a0"} 1.0' in page and "sgl_adapter_slot_misses_total 1.0" in page
