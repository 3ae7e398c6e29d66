"""Models of every part through the GPU's executor, in Triton's interpreter, against the law."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

import layer_checks as checks
from expert_checks import lay_in_few_bits
from family_cases import write_family
from interpreted import products_as_on_a_tensor_core
from part_models import BY_LAW, MIXER_BY_LAW, MODELS, RMS, LawRig, PartsRig, attention, model
from rig import Rig

from sgl.runtime.models import decoder
from sgl.runtime.models.gpu.gemv_layers import AnyFused
from sgl.runtime.models.gpu.gpu_layers import ReferenceLayer, ReferenceMixerLayer
from sgl.runtime.models.layer_executors import expected_executors
from sgl.runtime.models.reference.reference_mamba1 import ReferenceMamba1
from sgl.runtime.models.reference.reference_mamba2 import ReferenceMamba2
from sgl.runtime.models.spec.model_spec import ExpertsSpec, GatedFFNSpec, LayerNorms, LayerSpec, ModelSpec, RouterSpec
from sgl.runtime.step.step_batch import StepBatch

STEPS = [((1, 11, 0, 0), False), ((0, 0, 2, 5), True), ((0, 1, 0, 1), False), ((0, 0, 1, 0), True)]


@pytest.fixture
def law_and_kernels(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[LawRig, PartsRig]:
    spec = MODELS[request.param]
    law = LawRig(spec)
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    return law, fused_rig(spec)


def fused_rig(spec: ModelSpec) -> PartsRig:
    """With the weights of experts as a GPU has them."""
    rig = PartsRig(spec)
    if any(isinstance(layer.ffn, ExpertsSpec) for layer in spec.layers):
        checks.lay_plain(rig.model)
    return rig


@pytest.mark.few(5)
@pytest.mark.parametrize("law_and_kernels", MODELS, indirect=True, ids=str)
def test_steps_equal_those_of_the_law(law_and_kernels: tuple[LawRig, PartsRig]) -> None:
    checks.check_decoder(*law_and_kernels, 1e-5, STEPS)


@pytest.mark.few(4)
@pytest.mark.parametrize("law_and_kernels", MODELS, indirect=True, ids=str)
def test_single_rows_equal_those_of_the_law(
    law_and_kernels: tuple[LawRig, PartsRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the kernels that are made for one row, where they take it."""
    from sgl.runtime.kernels.gemv import gemv

    law, rig = law_and_kernels
    checks.lay_plain(rig.model)
    monkeypatch.setattr(gemv, "supports", lambda x: len(x) == 1)
    monkeypatch.setattr(gemv, "best_launch", lambda *shape: gemv.GemvLaunch(16, 64, 1))  # few programs
    checks.check_decoder(law, rig, 1e-5, [((0, 0, 2, 0), False), ((0, 0, 1, 0), False), ((0, 0, 1, 0), True)])


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "law_and_kernels", ["gemma", "granite", "neox", "gated delta net", "kda"], indirect=True, ids=str
)
def test_single_rows_with_float8_weights(
    law_and_kernels: tuple[LawRig, PartsRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sgl.runtime.kernels.gemv import gemv

    law, rig = law_and_kernels
    checks.lay_plain(rig.model)
    checks.lay_fp8(rig.model, law.model)
    monkeypatch.setattr(gemv, "supports", lambda x: len(x) == 1)
    monkeypatch.setattr(gemv, "best_launch", lambda *shape: gemv.GemvLaunch(16, 64, 1))
    checks.check_decoder(law, rig, 1e-5, [((0, 0, 1, 0), False), ((0, 0, 1, 0), True)])


def test_experts_in_few_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    mixtures = [ExpertsSpec(3, 2, GatedFFNSpec(32, bias=bias), RouterSpec(normalise=True)) for bias in (True, False)]
    spec = model(*[LayerSpec(LayerNorms.pre(RMS), attention(), each) for each in mixtures])
    law = LawRig(spec)
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    rig = PartsRig(spec, torch.bfloat16)
    checks.lay_plain(rig.model)
    lay_in_few_bits(rig, law, 16, "cpu")
    assert rig.model.execution_plan.whole
    with products_as_on_a_tensor_core():
        checks.check_decoder(law, rig, 0.1, STEPS[1:3])


@pytest.mark.parametrize(
    "law_and_kernels", ["gemma", "cohere", "opt, norms behind", "the last by the law"], indirect=True, ids=str
)
def test_pooled_states_and_no_logits(law_and_kernels: tuple[LawRig, PartsRig]) -> None:
    """Sums of last states are those of the law; a step that wants nothing leaves the same keys and values."""
    rigs, pooled = law_and_kernels, []
    for rig in rigs:
        ran = rig.run
        rig.run = lambda batch, ran=ran: without_logits(ran, batch)  # type: ignore[method-assign]
        row, other = checks.Row([5, 9, 31, 7, 22]), checks.Row([8, 40])
        assert rig.step([(row, 3)]).shape == (0, rig.model.config.vocab_size)
        rig.run = lambda batch, ran=ran: pooled.append(pooling(ran, batch))  # type: ignore[method-assign]
        rig.step([(row, 2), (other, 2)])
    torch.testing.assert_close(*pooled, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(*(rig.pool.parts for rig in rigs), strict=True):
        torch.testing.assert_close(ours.k, theirs.k, atol=1e-5, rtol=1e-5, equal_nan=True)
        torch.testing.assert_close(ours.v, theirs.v, atol=1e-5, rtol=1e-5, equal_nan=True)


def without_logits(run: Callable[[StepBatch], torch.Tensor], batch: StepBatch) -> torch.Tensor:
    batch.logit_rows = batch.logit_rows[:0]
    return run(batch)


def pooling(run: Callable[[StepBatch], torch.Tensor], batch: StepBatch) -> torch.Tensor:
    batch.pools, batch.logit_rows = [(0, 2), (2, 4)], batch.logit_rows[:0]
    assert not len(run(batch))
    assert batch.sums is not None
    return batch.sums


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "case", ["gemma3", "olmo2", "cohere2", "gpt_neox", "granite", "stablelm, parallel", "opt", "persimmon"]
)
def test_checkpoints_of_families(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their last layers too, so that those of every kind of attention are there."""
    write_family(case, tmp_path)
    law = Rig(tmp_path, attention="torch_native")
    law.model.step = None
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    rig = checks.FusedRig(tmp_path, attention="torch_native")
    assert rig.model.execution_plan.whole
    checks.check_decoder(law, rig, 2e-5, STEPS[:3])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "case", ["gemma4, shared keys, wide", "gemma4, values are keys, biases", "gemma4, without embeddings of layers"]
)
def test_gemma4(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of two widths, some of which read the keys of others; with embeddings of each layer's own by the law."""
    write_family(case, tmp_path)
    law = Rig(tmp_path, attention="torch_native")
    law.model.step = None
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    checks.check_decoder(law, checks.FusedRig(tmp_path, attention="torch_native"), 5e-5, STEPS[:3])


@pytest.mark.parametrize("name", MODELS)
def test_which_layers_the_kernels_take(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    found = fused_rig(MODELS[name]).model
    layers, runs = found.execution_plan.layers, expected_executors(found, torch.device("cuda"))
    by_reference, mixers = (
        [index for index, layer in enumerate(layers) if isinstance(layer, kind)]
        for kind in (ReferenceLayer, ReferenceMixerLayer)
    )
    assert by_reference == BY_LAW.get(name, []) and mixers == MIXER_BY_LAW.get(name, [])
    assert all(isinstance(layer, AnyFused) or layer.refusal for layer in layers)
    assert [run.by for run in runs] == ["torch" if index in by_reference else "fused" for index in range(len(layers))]
    assert all(
        (run.why or "").startswith("torch's operations compute the mixer: ") == (index in mixers)
        for index, run in enumerate(runs)
    )


def test_a_mixer_is_asked_whether_its_steps_can_be_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = MODELS["mamba"]
    assert all(each.capturable for each in (PartsRig(parts).model, PartsRig(MODELS["beside"]).model))
    monkeypatch.setattr(ReferenceMamba1, "capturable", False)
    assert not PartsRig(parts).model.capturable
    monkeypatch.setattr(ReferenceMamba2, "capturable", False)
    assert not PartsRig(MODELS["beside"]).model.capturable
