"""Models of every part through the GPU's executor, in Triton's interpreter, against the law."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

import layer_checks as checks
from family_cases import write_family
from part_models import BY_LAW, MODELS, LawRig, PartsRig
from rig import Rig

from sgl.runtime.models import decoder
from sgl.runtime.models.gpu_layers import FusedLayer, LawLayer

STEPS = [((1, 11, 0, 0), False), ((0, 0, 2, 5), True), ((0, 1, 0, 1), False), ((0, 0, 1, 0), True)]


@pytest.fixture
def law_and_kernels(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[LawRig, PartsRig]:
    spec = MODELS[request.param]
    law = LawRig(spec)
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    return law, PartsRig(spec)


@pytest.mark.parametrize("law_and_kernels", MODELS, indirect=True, ids=str)
def test_steps_equal_those_of_the_law(law_and_kernels: tuple[LawRig, PartsRig]) -> None:
    checks.check_decoder(*law_and_kernels, 1e-5, STEPS)


@pytest.mark.parametrize("law_and_kernels", MODELS, indirect=True, ids=str)
def test_single_rows_equal_those_of_the_law(law_and_kernels: tuple[LawRig, PartsRig], monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the kernels that are made for one row, where they take it."""
    from sgl.runtime.kernels import one_row

    law, rig = law_and_kernels
    checks.lay_plain(rig.model)
    monkeypatch.setattr(one_row, "suits", lambda x: len(x) == 1)
    monkeypatch.setattr(one_row, "best_launch", lambda *shape: one_row.Launch(16, 64, 1))  # few programs
    checks.check_decoder(law, rig, 1e-5, [((0, 0, 2, 0), False), ((0, 0, 1, 0), False), ((0, 0, 1, 0), True)])


@pytest.mark.parametrize("case", ["gemma3", "olmo2", "cohere2", "gpt_neox", "granite", "stablelm, parallel", "opt", "persimmon"])
def test_checkpoints_of_families(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their last layers too, so that those of every kind of attention are there."""
    write_family(case, tmp_path)
    law = Rig(tmp_path, attention="torch_native")
    law.model.step = None
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    rig = checks.FusedRig(tmp_path, attention="torch_native")
    assert rig.model.course.whole
    checks.check_decoder(law, rig, 2e-5, STEPS[:3])


@pytest.mark.parametrize("name", MODELS)
def test_which_layers_the_kernels_take(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    layers = PartsRig(MODELS[name]).model.course.layers
    by_law = [index for index, layer in enumerate(layers) if isinstance(layer, LawLayer)]
    assert by_law == BY_LAW.get(name, [])
    assert all(isinstance(layer, FusedLayer) or layer.refusal for layer in layers)
