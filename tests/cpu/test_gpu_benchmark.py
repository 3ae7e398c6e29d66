"""The GPU benchmark's own logic, run on the CPU with a tiny shape: what it counts is what the engine did."""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

import pytest
import torch

from sgl.runtime import Engine
from sgl.runtime.sampling.sampling_params import SamplingParams

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OPTIONS = {"device": "cpu", "dtype": "float32", "threads": 1, "kv_tokens": 20_000, "dummy": True}


@pytest.fixture(scope="module")
def parts():
    """The benchmark's modules by name, without their prefix."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(BENCHMARKS))
    names = (
        "cases",
        "constrained",
        "demo",
        "peer",
        "profile",
        "programs",
        "ready",
        "report",
        "rooflines",
        "session",
        "shapes",
        "work",
    )
    yield argparse.Namespace(**{name: importlib.import_module(f"gpu_{name}") for name in names})
    patch.undo()


@pytest.fixture(scope="module")
def model(parts, tmp_path_factory):
    return parts.shapes.write_model(tmp_path_factory.mktemp("tiny8b"), parts.shapes.SHAPES["tiny"])


@pytest.fixture(scope="module")
def bench(parts, model):
    roof = parts.rooflines.Rooflines(1e10, 1e10, {1: 1e-3, 8: 2e-3})
    with Engine(model, **OPTIONS) as engine:
        yield parts.cases.Bench(engine, parts.shapes.SHAPES["tiny"], parts.cases.TINY, roof, anchored=False)


def test_prompts_share_what_they_are_asked_to(parts):
    rows = parts.work.prompts(3, 8, 9000, seed=1, shared=20)
    assert {tuple(row[:20]) for row in rows} == {tuple(rows[0][:20])}
    assert len({tuple(row[20:]) for row in rows}) == 3
    assert all(len(row) == 28 and row.min() >= parts.work.FIRST_PLAIN_ID and row.max() < 9000 for row in rows)


@pytest.mark.parametrize("case", ["2", "3", "4", "5"])
def test_a_plain_case_gives_a_figure_with_its_roofline_and_no_foreign_anchor(parts, bench, case):
    for figure in parts.cases.PLAIN[case](bench):
        assert figure.value > 0 and figure.roof > 0
        assert figure.anchor is None and figure.target is None


def test_a_run_is_cold_and_counts_what_came_back(parts, bench):
    rows = parts.work.prompts(3, 40, bench.shape.vocab, seed=5)
    before = bench.engine.stats()
    for _ in range(2):
        run = parts.work.generate(bench.engine, rows, 6)
        assert run.tokens == 18 and run.forced == 0
    spent = bench.engine.stats() - before
    assert spent.generated_tokens == 36
    assert spent.computed_tokens == 2 * 3 * (40 + 5)  # nothing came from the cache of the run before


def test_all_vocabulary_columns_can_be_sampled(bench):
    assert bench.engine.tokenizer.vocab_size == bench.shape.vocab


def test_constrained_texts_last_until_they_are_cut(parts, bench):
    grammars, _ = parts.constrained.compiled(bench.engine)
    run = parts.work.generate(bench.engine, parts.work.prompts(12, 8, bench.shape.vocab, 0), 24, 1.0, grammars)
    assert run.tokens == 12 * 24


def test_the_constrained_ratio_is_of_all_tokens_and_tells_the_sampled_ones(parts):
    figure = parts.constrained.ratio("x", parts.work.Run(2.0, 200), parts.work.Run(2.0, 180, 30))
    assert figure.value == pytest.approx(90.0)
    assert figure.more["sampled"] == pytest.approx(75.0)
    assert figure.reached is False


def test_trees_of_thought_make_all_their_tokens(parts, bench):
    figure = parts.programs.programs(bench)[0]
    sizes = bench.sizes
    assert figure.more["stats"]["generated_tokens"] == sizes.programs * sizes.thought * (3 + 9 + 1)


def test_profiling_leaves_the_engine_as_it_was(parts, bench):
    found = parts.profile.profile(bench.engine, 2, bench.shape.vocab, length=16, steps=5)
    assert found.step_ms > 0 and found.steps >= 1
    bench.engine.check()
    stats = bench.engine.stats()
    assert stats.running == stats.waiting == 0


def test_recorded_times_are_on_the_clock_that_the_window_is_cut_with(parts):
    x = torch.randn(64, 64)
    first = time.time_ns()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as traced:
        x @ x
    products = [k for k in parts.profile.kernels_of(traced, torch.autograd.DeviceType.CPU) if k.name == "aten::mm"]
    assert len(products) == 1
    assert first < products[0].start < products[0].end < time.time_ns()


def test_the_profile_s_table_adds_up(parts):
    profile, gaps = parts.profile, importlib.import_module("gpu_gaps")
    kernels = [gaps.Kernel("attention", 10_000 * i, 10_000 * i + 4_000) for i in range(10)]
    text = profile.Profile(1, 0.01, 10, gaps.busy(kernels), kernels).text()
    window = 9 * 10_000 + 4_000
    assert f"idle {100 * 54_000 / window:.2f}% in all gaps, {100 * 54_000 / window:.2f}% in gaps over 5 us" in text
    assert f"{100 * 40_000 / window:.1f}%" in text


def test_the_written_checkpoint_is_one_that_the_engine_loads(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(parts.ready, "SHARD", 200_000)
    shape = parts.shapes.SHAPES["tiny"]
    parts.ready.write_checkpoint(tmp_path, shape, torch.device("cpu"))
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert parts.ready.write_checkpoint(tmp_path, shape, torch.device("cpu")) == 0.0
    with Engine(tmp_path, **OPTIONS | {"dummy": False}) as engine:
        sequence = engine.open()
        sequence.extend([400, 401])
        assert len(sequence.generate(SamplingParams(max_tokens=3, ignore_eos=True)).result().token_ids) == 3
        assert parts.ready.size_of(tmp_path) == pytest.approx(2 * engine.info()["parameters"], rel=0.02)


@pytest.mark.parametrize("name", ["tiny-gemma3", "tiny-qwen3"])
def test_other_shapes_are_those_of_their_config(parts, tmp_path, name):
    shape = parts.shapes.SHAPES[name]
    with Engine(parts.shapes.write_model(tmp_path, shape), **OPTIONS) as engine:
        model = engine._core.runner.model
        rows = [
            [next(iter(getattr(*place).tensors())).numel() for place in list(block.products())[:4]]
            for block in model.layers
        ]
        assert rows == [[outputs * inputs for outputs, inputs in shape.linears]] * shape.layers
        assert model.config.attention.bytes_per_slot(torch.bfloat16) == shape.kv_bytes
        assert engine.generate(["a"], SamplingParams(max_tokens=3, ignore_eos=True))[0].token_ids


def test_keys_and_values_that_sequences_see(parts):
    shape = parts.shapes.SHAPES["tiny-gemma3"]  # two layers of three see 64 tokens
    third = shape.kv_bytes / 3
    assert shape.seen_bytes(1, 0, 60) == pytest.approx(60 * shape.kv_bytes)
    assert shape.seen_bytes(2, 0, 100) == pytest.approx(third * 200 + 2 * third * 128)
    assert shape.seen_bytes(2, 1000, 10) == pytest.approx(third * 1020 + 2 * third * (54 + 20))


def test_phases_are_the_times_between_the_marks(parts):
    assert parts.ready.phases(10.0, {"a": 11.0, "b": 13.5}) == {"a": 1.0, "b": 2.5}


def test_a_failing_case_is_told_and_the_next_one_runs(parts, model, capsys, tmp_path):
    shape = parts.shapes.SHAPES["tiny"]
    args = argparse.Namespace(
        cases=["2", "3"],
        attention="",
        quick=True,
        layers=None,
        out=tmp_path / "out.json",
        keep=False,
        temperature=0.0,
        checkpoint=None,
    )
    session = parts.session.Session(args, shape, parts.cases.TINY, model, OPTIONS, torch.device("cpu"))
    session.attempt("broken", lambda: 1 / 0)
    session._with("default", {}, lambda bench: parts.cases.single(bench))
    session._with("odd", {"no_such_option": 1}, lambda bench: [])
    out = capsys.readouterr().out
    assert "[broken] FAILED" in out and "ZeroDivisionError" in out
    assert "this engine has no option no_such_option" in out
    assert [f.case for f in session.figures] == ["2", "2"]
    assert "ZeroDivisionError" in (tmp_path / "out.json").read_text()


def test_an_engine_that_dies_is_replaced_for_the_cases_behind(parts, model):
    args = argparse.Namespace(
        cases=["2", "3"], attention="", quick=True, layers=None, out=None, keep=False, temperature=0.0, checkpoint=None
    )
    session = parts.session.Session(
        args, parts.shapes.SHAPES["tiny"], parts.cases.TINY, model, OPTIONS, torch.device("cpu")
    )
    usual = session._tasks({})

    def deadly(bench):
        bench.engine.close()
        return []

    session._tasks = lambda mine: [("deadly", deadly), *usual]
    session._default_engine()
    assert [f.case for f in session.figures] == ["2", "2", "3"]
    assert not session.failures


def test_answers_that_differ_are_found(parts):
    one = {("d", "a"): ("x", "{}"), ("d", "b"): ("y", "{}")}
    assert parts.demo.differing(one, dict(one)) == []
    assert parts.demo.differing(one, one | {("d", "b"): ("y", '{"k": "v"}')}) == [("d", "b")]
    with pytest.raises(ValueError, match="not to the same questions"):
        parts.demo.differing(one, {})
