"""States that are kept for heads while Triton's kernels run the layers: those of the law."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from rig import Rig, Row

pytest.importorskip("triton")

import layer_checks as checks
from part_models import RMS, LawRig, PartsRig, attention, model

from sgl.runtime.models import decoder
from sgl.runtime.models.hidden_state_capture import HiddenStateCapture
from sgl.runtime.models.spec.model_spec import GatedFFNSpec, LayerNorms, LayerSpec

NORMS = {"post-norms": LayerNorms(RMS, RMS, RMS, RMS), "parallel": LayerNorms(before_mixer=RMS, parallel=True)}


def made(family: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Rig, Rig]:
    """A rig by the law and one by the kernels."""
    if family in NORMS:
        spec = model(*[LayerSpec(NORMS[family], attention(), GatedFFNSpec(32))] * 3)
        law: Rig = LawRig(spec)
        monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
        return law, PartsRig(spec)
    write_checkpoint(path, family, num_hidden_layers=3)
    law = Rig(path, attention="torch_native")
    law.model.step = None
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    return law, checks.FusedRig(path, attention="torch_native")


@pytest.mark.parametrize("family", ["llama", "qwen3", "post-norms", "parallel"])
@pytest.mark.parametrize("layers", [(), (0, 1, 2)], ids=["last", "of layers"])
@pytest.mark.parametrize("alone", [False, True])
def test_states_are_those_of_the_law(
    family: str, layers: tuple[int, ...], alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sgl.runtime.kernels.gemv import gemv

    law, rig = made(family, tmp_path, monkeypatch)
    width = law.model.config.hidden_size
    checks.lay_plain(rig.model)
    monkeypatch.setattr(gemv, "supports", lambda x: alone and len(x) == 1)
    monkeypatch.setattr(gemv, "best_launch", lambda *shape: gemv.GemvLaunch(16, 64, 1))
    rows: list[list[Row]] = [[], []]
    for each, own in zip((law, rig), rows, strict=True):
        each.model.capture = HiddenStateCapture(layers)
        own += [Row([5, 6, 7, 9, 11, 12]), Row([8, 9, 4])]
    for counts in ((1, 3), (4, 0), (1, 0)):
        found = []
        for each, own in zip((law, rig), rows, strict=True):
            logits = each.step([(row, count) for row, count in zip(own, counts, strict=True) if count])
            assert each.model.capture is not None and each.model.capture.newest is not None
            found.append((logits, each.model.capture.newest))
        assert found[0][1].shape == found[1][1].shape == (sum(counts), width * max(1, len(layers)))
        torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-4, atol=1e-4)
