"""The GPU's layers of two ranks, kernels interpreted: steps of families give what the law gives on one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

import layer_checks as checks
from family_cases import write_family
from family_checks import close, prompt
from ranks_rig import CPU
from rig import Rig, Row
from turns import TurnRanks, Turns

from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.models import decoder
from sgl.runtime.models.gpu_layers import FusedLayer
from sgl.runtime.models.lone_layers import LoneLayer
from sgl.runtime.parallel.ranks import joined
from sgl.runtime.parallel.share import load_share
from sgl.runtime.parallel.split import Split

FAMILIES = [
    "llama", "qwen2", "qwen3", "gemma2", "gemma3", "gptj", "gpt_neox", "cohere2", "hyperclovax", "opt", "falcon-7b", "phi3",
    "olmo, clipped", "nemotron, biases", "starcoder2", "glm4", "granite", "bloom",
]  # fmt: skip


def walk(tokens: list[int]) -> list[list[tuple[Row, int]]]:
    one, other = Row(tokens[:20]), Row(tokens[20:33])
    return [[(one, 7), (other, 12)], [(other, 1), (one, 12)], [(one, 1)]]


def steps_of_ranks(path: Path, work: list[list[tuple[Row, int]]]) -> tuple[list[torch.Tensor], Any]:
    """Rank 0's logits of each step's every row, and its model."""
    turns, found, errors = Turns(2), {}, []

    def compute(rank: int) -> None:
        with turns.turn:
            try:
                model = load_share(path, torch.float32, CPU, Split(rank, 2))
                checks.lay_plain(model)
                rows: dict[int, Row] = {}
                rig = checks.FusedRig(path, model=joined(model, TurnRanks(rank, turns)), attention="torch_native")
                with torch.inference_mode():
                    found[rank] = [rig.step([(rows.setdefault(id(row), Row(row.tokens)), count) for row, count in step], every_row=True) for step in work], model
            except BaseException as error:
                errors.append(error)
                turns.turn.notify_all()
                raise

    threads = [threading.Thread(target=compute, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    return found[0]


@pytest.mark.parametrize("case", FAMILIES)
def test_two_ranks_compute_what_one_computes(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_family(case, tmp_path)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    found, model = steps_of_ranks(path, walk(tokens))
    for ours, asked in zip(found, expected, strict=True):
        close(ours.float(), asked, 5e-5, case)
    assert all(isinstance(layer, FusedLayer) for layer in model.course.layers)
    assert any(isinstance(layer, LoneLayer | FusedLayer) for layer in model.course.alone)
