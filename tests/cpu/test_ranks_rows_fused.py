"""Latent attention over ranks by rows as GPUs run it, kernels interpreted: the layers, and the runners of two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

from checkpoints import write_tokenizer
from family_cases import write_family
from family_checks import close, prompt
from interpreted import products_as_on_a_tensor_core
from ranks_rig import drawn
from rig import Rig
from test_ranks_fused import steps_of_ranks
from test_ranks_rows import walk
from test_ranks_runner_states import OPTIONS, forks, texts
from two_gpu_rig import cards

from sgl.runtime import Engine
from sgl.runtime.attention import triton_mla_attention
from sgl.runtime.kernels.attention.attention_latent import LatentTile
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.models import decoder
from sgl.runtime.models.gpu.gpu_latent_attention import FusedLatentLayer


@pytest.fixture(autouse=True, scope="module")
def tensor_core():
    with products_as_on_a_tensor_core():
        yield


@pytest.mark.whole
@pytest.mark.parametrize("case, ranks", [("deepseek v3, plain", 3), ("mistral 4", 2)])
def test_ranks_attend_for_rows_as_one_attends_for_all(
    case: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_family(case, tmp_path, moe_intermediate_size=24, intermediate_size=96)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    monkeypatch.setattr(triton_mla_attention, "tiles_for", lambda pool: (LatentTile(16, 16, 16, 6),) * 2)
    found, model = steps_of_ranks(path, walk(tokens), ranks=ranks, by_rows=True, attention="triton")
    for ours, asked in zip(found, expected, strict=True):
        close(ours.float(), asked, 5e-5, case)
    assert all(isinstance(layer, FusedLatentLayer) for layer in model.execution_plan.layers)


@pytest.mark.whole
def test_both_cards_run_ahead_and_as_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that are cut, forks, and a sleep, with a pool that is too small for all of them."""
    path = write_tokenizer(
        write_family("deepseek v3", tmp_path, max_position_embeddings=512, num_hidden_layers=2, first_k_dense_replace=2)
    )
    prompts, options = [*drawn(2, 21), *drawn(1, 3), *drawn(2, 21)], OPTIONS | {"step_tokens": 16}
    with Engine(path, **options | {"kv_tokens": 2048}) as roomy:
        expected = texts(roomy, prompts, 3) + forks(roomy)
    made = cards(path, monkeypatch, by_rows=True)
    with Engine(path, **options) as engine:
        engine._core.after_step = engine._core.check
        assert texts(engine, prompts, 3) + forks(engine) == expected
        card, leader = made
        assert all(isinstance(layer, FusedLatentLayer) for layer in leader.model.execution_plan.layers)
        assert card.follower.runner._graphs._runs == leader._graphs._runs and len(leader._graphs)
        assert engine.sleep() > 0
        engine.wake()
        assert texts(engine, prompts[:3], 3) == expected[:3]
