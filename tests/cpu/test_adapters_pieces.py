"""Steps of several tokens with adapters in pieces, by the runner of a GPU: its
kernels interpreted, its graphs functions.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from plain_adapters import write_adapter
from test_adapters_extras_gpu import opened

from sgl.runtime import Engine, SamplingParams

pretend = pytest.importorskip("gpu_runner").pretend
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, tests/gpu does the same")
piecewise = pytest.importorskip("sgl.runtime.executor.piecewise_graphs")
NAMES = [None, "0", "1", "2", "3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, dict[str, Path]]:
    path = tmp_path_factory.mktemp("pieces")
    base = write_checkpoint(path / "base", tokenizer=True, num_hidden_layers=2)
    return base, {str(i): write_adapter(base, path / str(i), i, 4 + 4 * (i % 2)) for i in range(4)}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, bool]]:
    """By pieces, how many steps ran in them, adapters or not."""
    counts: Counter[tuple[int, bool]] = Counter()
    pieces_of = piecewise.PiecewiseCudaGraphs._pieces_of

    def counting(self: Any, key: Any, running: int) -> Any:
        counts[key] += 1
        return pieces_of(self, key, running)

    monkeypatch.setattr(piecewise.PiecewiseCudaGraphs, "_pieces_of", counting)
    return counts


def walk(engine: Engine, seed: int) -> list[list[int]]:
    """Sequences that come while others write, with more adapters than slots."""
    draw, futures, sequences = random.Random(seed), [], []
    for _ in range(9):
        sequence = engine.open(adapter=draw.choice(NAMES))
        sequence.extend([draw.randrange(30, 300) for _ in range(draw.randrange(1, 14))])
        asked = SamplingParams(max_tokens=draw.randrange(1, 6), temperature=0, ignore_eos=True)
        futures.append(sequence.generate(asked))
        sequences.append(sequence)
        if draw.random() < 0.4:
            futures[-1].result(60)
    texts = [future.result(60).token_ids for future in futures]
    for sequence in sequences:
        sequence.close()
    return texts


@pytest.mark.whole
@pytest.mark.parametrize("options", [{}, {"page_size": 4, "deterministic": True}])
def test_texts_are_those_of_the_cpu(made, monkeypatch, counted, options):
    base, folders = made
    with opened(base, adapters=folders, **options) as engine:
        expected = [walk(engine, seed) for seed in range(2)]
    assert not counted
    pretend(monkeypatch)
    with opened(base, adapters=folders, **options | {"adapter_slots": {8: 3}}) as engine:
        for _ in range(2):
            assert [walk(engine, seed) for seed in range(2)] == expected
        mixed = engine._core.runner._mixed  # type: ignore[attr-defined]
        assert any(adapted for _, adapted in counted)
        assert any(adapted for _, adapted in mixed._captured)


def test_an_adapter_with_more_than_pairs_runs_its_steps_whole(made, tmp_path, monkeypatch, counted):
    base, _ = made
    dora = write_adapter(base, tmp_path / "dora", 7, dora=True)
    pretend(monkeypatch)
    with opened(base, adapters={"dora": dora}) as engine:
        for adapter in ("dora", None):
            sequence = engine.open(adapter=adapter)
            sequence.extend(list(range(30, 36)))
            sequence.generate(SamplingParams(max_tokens=2, temperature=0)).result(60)
    assert counted and not any(adapted for _, adapted in counted)
