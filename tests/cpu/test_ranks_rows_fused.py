"""Latent attention over ranks by rows as GPUs run it, kernels interpreted: the layers, and the runners of two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

from family_cases import write_family
from family_checks import close, prompt
from interpreted import products_as_on_a_tensor_core
from rig import Rig
from test_ranks_fused import steps_of_ranks
from test_ranks_rows import walk

from sgl.runtime.attention import triton_latent
from sgl.runtime.kernels.attention_latent import LatentTile
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.models import decoder
from sgl.runtime.models.gpu_latent import LatentLayer


@pytest.fixture(autouse=True, scope="module")
def tensor_core():
    with products_as_on_a_tensor_core():
        yield


@pytest.mark.parametrize("case, ranks", [("deepseek v2", 2), ("deepseek v3, plain", 3), ("mistral 4", 2)])
def test_ranks_attend_for_rows_as_one_attends_for_all(case: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_family(case, tmp_path, moe_intermediate_size=24, intermediate_size=96)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    monkeypatch.setattr(triton_latent, "tiles_for", lambda pool: (LatentTile(16, 16, 16, 6),) * 2)
    found, model = steps_of_ranks(path, walk(tokens), ranks=ranks, by_rows=True, attention="triton")
    for ours, asked in zip(found, expected, strict=True):
        close(ours.float(), asked, 5e-5, case)
    assert all(isinstance(layer, LatentLayer) for layer in model.course.layers)
