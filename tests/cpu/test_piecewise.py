"""Mixed steps cut at attention, in Triton's interpreter: the logits and the pool of the decoder that is not cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import write_checkpoint
from test_models import VARIANTS

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

import piecewise_checks as checks
from part_models import BY_LAW, MIXER_BY_LAW, MODELS

from sgl.runtime.executor import piecewise_graphs
from sgl.runtime.executor.cuda_graphs import EAGER_RUNS_OF_MANY, FEW, sizes_up_to
from sgl.runtime.models import decoder


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders run by the kernels."""
    monkeypatch.setattr(decoder, "_can_fuse", lambda device: True)


@pytest.mark.few(1)
@pytest.mark.parametrize("variant", ["llama biases", "qwen3"])
def test_mixed_steps_equal_whole_ones(variant: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    checks.check_random_steps(write_checkpoint(tmp_path, family, num_hidden_layers=2, **overrides), "cpu", steps=8)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["cohere", "gemma 4", "olmo 2", "opt", "sinks"])
def test_mixed_steps_of_other_parts_equal_whole_ones(name: str) -> None:
    checks.check_random_steps(MODELS[name], "cpu", steps=5)


@pytest.mark.parametrize("name", sorted(BY_LAW | MIXER_BY_LAW))
def test_steps_with_layers_by_the_law_are_not_cut(name: str) -> None:
    layer = (BY_LAW | MIXER_BY_LAW)[name][0]
    why = refused(name)
    assert why is not None and (
        why.startswith(f"torch's operations compute layer {layer}: ") or why == "layer 0 keeps a state"
    )


@pytest.mark.parametrize(
    "name, why",
    [
        ("gated delta net", "layer 0 keeps a state"),
        ("kda", "layer 1 keeps a state"),
        ("gated heads", "layer 0 has gated heads"),
        ("latent attention", "layer 0 attends to latents"),
    ],
)
def test_steps_with_states_latents_or_gated_heads_are_not_cut(name: str, why: str) -> None:
    assert refused(name) == why


def refused(name: str) -> str | None:
    half = checks.Half(MODELS[name], "cpu", torch.float32, "oracle", None)
    return piecewise_graphs.refusal(half.model, half.attention)


def test_a_size_is_captured_when_it_comes_again_and_runs_without_if_that_fails(tmp_path: Path) -> None:
    """Replays that cannot be made leave the step as it was; sizes that can are replayed from then on."""
    captured: list[Any] = []

    def refusing(piece: Any) -> Any:
        captured.append(piece)
        if len(captured) == 2:
            raise RuntimeError("not this one")
        return piece

    pair = checks.Pair(write_checkpoint(tmp_path, num_hidden_layers=2), "cpu", graph_for=refusing)
    for counts, seen in [((2, 3), 0), ((1, 7), 2), ((3, 4), 2), ((2,), 2), ((1, 1), 4), ((1, 1), 4)]:
        pair.check([checks.Row(range(5, 5 + count)) for count in counts], counts)
        assert len(captured) == seen, counts


@pytest.mark.whole
def test_while_many_run_a_step_captures_one_piece(tmp_path: Path) -> None:
    captured: list[Any] = []

    def graph_for(piece: Any) -> Any:
        captured.append(piece)
        return lambda: (replayed.append(piece), piece())

    replayed: list[Any] = []
    pair = checks.Pair(write_checkpoint(tmp_path, num_hidden_layers=2), "cpu", graph_for=graph_for)
    counts = (1,) * (FEW + 1)
    for step in range(EAGER_RUNS_OF_MANY + 5):
        pair.check([checks.Row(range(5, 5 + count)) for count in counts], counts)
        assert len(captured) == min(2, max(0, step + 1 - EAGER_RUNS_OF_MANY)), step
    assert len(replayed) == 2 * 3, "all pieces, in each step since both are there"


def test_padding_writes_nothing(tmp_path: Path) -> None:
    """Neither slots nor pages: the padding row of the table and slot 0 stay zero, free slots stay NaN."""
    pair = checks.Pair(write_checkpoint(tmp_path, num_hidden_layers=1), "cpu")
    pair.check([checks.Row(range(5, 14))], (9,))
    mixed = pair.mixed
    used = {int(slot) for row in pair.rows for slot in row.slots}
    kept = [slot for slot in range(1, mixed.pool.slots) if slot not in used]
    assert not mixed.table.pages[mixed.table.padding].any()
    assert not mixed.pool.k[:, 0].any() and not mixed.pool.v[:, 0].any()
    assert mixed.pool.k[:, kept].isnan().all() and mixed.pool.v[:, kept].isnan().all()


def test_sequences_beyond_the_table_are_refused(tmp_path: Path) -> None:
    pair = checks.Pair(write_checkpoint(tmp_path, max_position_embeddings=16), "cpu")
    row = checks.Row([5] * 17)
    row.slots = np.arange(1, 18, dtype=np.int32)
    with pytest.raises(ValueError, match="a sequence of 17 tokens is beyond the 16 positions"):
        pair.mixed.step([row], (17,), None)


def test_sizes() -> None:
    sizes = piecewise_graphs.SIZES
    assert (
        list(sizes) == sorted(set(sizes))
        and piecewise_graphs.PiecewiseCudaGraphs.most == sizes[-1] < piecewise_graphs.WIDTH
    )
    assert all(b <= max(2 * a, a + 64) for a, b in pairwise(sizes))
    assert sizes_up_to(100) == [1, 2, 4, 8, 16, 32, 64, 96, 100] and sizes_up_to(1) == [1]


def test_arrays_of_a_step() -> None:
    """Positions, rows and places of wanted logits, and a token that only the device knows."""
    from sgl.runtime.executor.step_arrays import StepArrays

    first, second = checks.state([4, 5, 6], [10, 11, 12, 13], wanted=1), checks.state([7, 8, 9], [3, 2, 1], wanted=2)
    step = StepArrays.of([checks.ScheduledWork(first, 3, 4), checks.ScheduledWork(second, 0, 3)], [6, 2])
    expected = [[-7, 7, 8, 9], [3, 0, 1, 2], [13, 3, 2, 1], [6, 2, 2, 2], [6, 2], [0, 1, 4], [4, 3], [0, 2, 3]]
    assert [array.tolist() for array in step.arrays] == expected
    assert all(array.dtype == np.int32 for array in step.arrays)
    assert (step.tokens, step.sizes) == (4, [4, 4, 4, 4, 2, 3, 2, 3])
    assert (step.query_lens, step.context_lens) == ([1, 3], [4, 3])
