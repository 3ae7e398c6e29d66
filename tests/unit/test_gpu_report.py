"""The arithmetic of the GPU benchmark: gaps between kernels, tables, shapes, phases; no device, no torch."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def module(name):
    return importlib.import_module(name)


# gaps


def timeline(kernels):
    """The slow oracle: one flag a nanosecond."""
    first, last = min(k.start for k in kernels), max(k.end for k in kernels)
    flags = np.zeros(last - first, bool)
    for k in kernels:
        flags[k.start - first : k.end - first] = True
    return flags


def runs_of_false(flags):
    edges = np.flatnonzero(np.diff(np.concatenate([[True], flags, [True]]).astype(int)))
    return [int(b - a) for a, b in zip(edges[::2], edges[1::2], strict=True)]


@pytest.mark.parametrize("seed", range(30))
def test_busy_time_and_gaps_are_those_of_a_timeline(seed):
    gaps = module("gpu_gaps")
    draw = random.Random(seed)
    starts = [draw.randrange(300) for _ in range(draw.randint(1, 25))]
    kernels = [gaps.Kernel(f"k{i % 3}", 1000 + s, 1000 + s + draw.randint(1, 30)) for i, s in enumerate(starts)]
    flags, found = timeline(kernels), gaps.busy(kernels)
    assert (found.window, found.busy) == (len(flags), int(flags.sum()))
    assert sorted(found.gaps) == sorted(runs_of_false(flags))
    assert found.idle_share == pytest.approx(1 - flags.mean())
    longer = sum(gap for gap in runs_of_false(flags) if gap > 7) / len(flags)
    assert found.share_of_gaps(7) == pytest.approx(longer)


def test_no_kernels_are_no_window():
    found = module("gpu_gaps").busy([])
    assert (found.window, found.idle_share, found.share_of_gaps()) == (0, 0.0, 0.0)


def test_kernels_across_the_edge_of_the_window_are_left_out():
    gaps = module("gpu_gaps")
    kernels = [gaps.Kernel("a", 0, 10), gaps.Kernel("b", 10, 20), gaps.Kernel("c", 15, 31)]
    assert [k.name for k in gaps.within(kernels, 5, 30)] == ["b"]


def test_kernels_are_summed_by_name_and_the_rest_is_one_row():
    gaps = module("gpu_gaps")
    kernels = [
        gaps.Kernel(name, 100 * i, 100 * i + length)
        for i, (name, length) in enumerate([("a", 5), ("b", 9), ("a", 7), ("c", 1), ("d", 2)])
    ]
    assert gaps.by_name(kernels, 2) == [("a", 2, 12), ("b", 1, 9), ("(others)", 2, 3)]
    assert gaps.by_name(kernels, 4) == [("a", 2, 12), ("b", 1, 9), ("d", 1, 2), ("c", 1, 1)]


# figures


@pytest.mark.parametrize(
    "unit, value, reached, share",
    [("tok/s", 250.0, True, 0.5), ("tok/s", 239.0, False, 0.478), ("s", 200.0, True, 2.5), ("s", 250.0, False, 2.0)],
)
def test_target_and_share_know_which_way_is_better(unit, value, reached, share):
    figure = module("gpu_report").Figure("2", "x", value, unit, target=240.0, roof=500.0)
    assert figure.reached is reached
    assert figure.share == pytest.approx(share)


def test_a_figure_says_that_the_anchor_is_not_of_this_run():
    line = module("gpu_report").Figure("2", "one sequence", 250.0, "tok/s", 203.7, 240.0, 256.0).line()
    assert "published anchor, not this run: 203.7" in line
    assert "target 240.0: reached" in line
    assert "98% of this run's roofline" in line


def test_without_a_roofline_or_a_target_nothing_is_claimed():
    figure = module("gpu_report").Figure("8", "x", 3.0, "x", roof=float("nan"))
    assert figure.share is None and figure.reached is None
    assert figure.line() == "[8] x: 3 x"
    assert "share_of_roofline" not in figure.as_dict()


def test_the_table_has_a_row_a_figure_and_straight_columns():
    report = module("gpu_report")
    figures = [
        report.Figure("2", "one", 1234.5, "tok/s", target=2000.0),
        report.Figure("10", "another one", 0.5, "s", 1.0, 1.0, 0.25),
    ]
    lines = report.figures_table(figures).splitlines()
    assert len(lines) == 3
    ends = {line.index(word) + len(word) for line, word in zip(lines, ("ours", "1,234", "0.5"), strict=True)}
    assert len(ends) == 1
    assert lines[1].split()[-1] == "NO" and lines[2].split()[-2:] == ["yes", "50"]


# shapes and schemas


def test_the_8b_shape_does_the_work_of_its_parameters():
    shape = module("gpu_shapes").SHAPES["llama8b"]
    layer = 4096 * 6144 + 4096 * 4096 + 2 * 4096 * 14_336 + 14_336 * 4096
    assert shape.flops == 2 * 32 * layer
    assert shape.kv_bytes == 131_072


def test_a_widened_tokenizer_keeps_what_it_had_and_uses_its_new_tokens():
    from tokenizers import Tokenizer

    shapes = module("gpu_shapes")
    before = json.loads((shapes.NANO / "tokenizer.json").read_text())
    wide = shapes.widened(before, 9000)
    assert len(wide["model"]["vocab"]) == 9000 == len(set(wide["model"]["vocab"].values()))
    assert before["model"]["vocab"].items() <= wide["model"]["vocab"].items()
    backend, text = Tokenizer.from_str(json.dumps(wide)), 'Two plans: "wide" and {"narrow": 1}, für alle.'
    ids = backend.encode(text, add_special_tokens=False).ids
    assert backend.decode(ids) == text
    left, right = wide["model"]["merges"][-1]
    assert wide["model"]["vocab"][left + right] == 8999


def test_every_schema_of_the_file_compiles_for_the_bundled_vocabulary():
    from sgl.grammars import Vocabulary, compile_json_schema
    from sgl.runtime.text.tokenizer import Tokenizer

    shapes = module("gpu_shapes")
    vocabulary = Vocabulary.from_tokenizer(Tokenizer.load(shapes.NANO))
    schemas = json.loads((BENCHMARKS / "schemas.json").read_text())
    assert len(schemas) == 12
    for schema in schemas.values():
        matcher = compile_json_schema(
            json.dumps({"type": "array", "items": schema, "minItems": 64}), vocabulary
        ).matcher()
        assert matcher.mask().any()


def test_the_benchmark_s_arithmetic_needs_no_torch():
    for name in ("gpu_gaps", "gpu_report", "gpu_shapes"):
        text = (BENCHMARKS / f"{name}.py").read_text()
        assert "import torch" not in text
