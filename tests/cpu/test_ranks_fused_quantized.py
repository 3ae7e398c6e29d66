"""Weights that a checkpoint brings in few bits, over two ranks of a GPU's kernels,
interpreted: what the restored twin computes by the law.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

import layer_checks as checks
from family_checks import prompt, reference
from interpreted import products_as_on_a_tensor_core
from ranks_rig import CPU
from rig import Rig, Row
from test_experts import in_mxfp4
from test_quantized_loading import FORMATS, write
from test_ranks_fused import steps_of_ranks
from test_ranks_quantized import without_order

from sgl.runtime.errors import CheckpointError
from sgl.runtime.kernels.quantized import quantized_gemm
from sgl.runtime.layers.linear_layers import BlockedLinear, Linear
from sgl.runtime.loading import load_model
from sgl.runtime.models import decoder
from sgl.runtime.models.gpu import gpu_step
from sgl.runtime.models.gpu.gpu_layers import FusedLayer
from sgl.runtime.models.reference.reference_experts import ReferenceExperts
from sgl.runtime.models.reference.tensor_parallel_linear import local_product
from sgl.runtime.parallel.ep.expert_parallel_split import ExpertParallelSplit
from sgl.runtime.parallel.workers.rank_weights import RankWeights
from sgl.runtime.parallel.workers.worker_channel import RankStart
from sgl.runtime.quantization import GpuQuantizedLinear, quantized_transform
from sgl.runtime.quantization.fp8_linear import Fp8Linear

HALF = torch.bfloat16
SOME = ("k_proj.weight", "mlp.down_proj.weight")


def lay(model: Any) -> None:
    """As a GPU keeps them: what is not in few bits is plain."""
    places = [*((holder, name) for layer in model.layers for holder, name in layer.products()), (model.head, "product")]
    for holder, name in places:
        if isinstance(found := getattr(holder, name), BlockedLinear):
            setattr(holder, name, Linear(checks.loaded_weight(found), found.bias))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = quantized_transform._kept
    monkeypatch.setattr(
        quantized_transform,
        "_kept",
        lambda weight, *rest: (
            usual(weight, *rest) if isinstance(weight, torch.Tensor) else quantized_transform._on_gpu(weight, *rest)
        ),
    )
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    monkeypatch.setattr(
        Fp8Linear, "__call__", lambda self, x: quantized_gemm.product(x, self.packed, self.bias)
    )  # of few rows
    monkeypatch.setattr(gpu_step, "small_batch_layers", lambda *parts: None)  # one card would fold, and round otherwise


def walk(tokens: list[int]) -> list[list[tuple[Row, int]]]:
    one, other = Row(tokens[:20]), Row(tokens[20:33])
    return [[(one, 17), (other, 12)], [(other, 1), (one, 2)], [(one, 1)]]


def kinds(model: Any) -> set[type]:
    return {type(local_product(getattr(holder, name))) for layer in model.layers for holder, name in layer.products()}


def restored_rig(path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    with monkeypatch.context() as patch:
        patch.setattr(quantized_transform, "keep_quantized", lambda codes, layer: "the test restores them")
        return Rig(path, attention="torch_native")


def one_card(path: Path) -> checks.FusedRig:
    model = load_model(path, HALF)
    lay(model)
    return checks.FusedRig(path, HALF, model=model, attention="torch_native")


def check(path: Path, by_reference: Rig, tokens: list[int]) -> Any:
    """Two ranks are about as near to the law as one is; rank 0's model."""
    asked = [by_reference.step(step, every_row=True) for step in walk(tokens)]
    with products_as_on_a_tensor_core():
        rig = one_card(path)
        alone = [rig.step(step, every_row=True) for step in walk(tokens)]
        found, model = steps_of_ranks(path, walk(tokens), dtype=HALF, lay=lay)
    errors = [
        [float((each.float() - law).norm() / law.norm()) for each, law in zip(logits, asked, strict=True)]
        for logits in (alone, found)
    ]
    assert max(errors[1]) < 1.3 * max(errors[0]) + 0.01 and max(errors[0]) < 0.1, errors
    return model


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name, leave", [*((name, SOME if name == "nf4" else ()) for name in FORMATS), ("awq", SOME)], ids=str
)
def test_two_ranks_compute_what_the_restored_twin_computes(
    name: str, leave: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    few, whole = write(tmp_path, *FORMATS[name], leave=leave, num_hidden_layers=1)
    few, whole = (without_order(few), few) if name == "gptq" else (few, whole)
    by_reference = restored_rig(whole, monkeypatch)
    request.getfixturevalue("as_on_a_gpu")
    model = check(few, by_reference, [*range(40, 73)])
    assert all(isinstance(layer, FusedLayer) for layer in model.execution_plan.layers)
    assert any(issubclass(kind, GpuQuantizedLinear | Fp8Linear) for kind in kinds(model))
    assert [str(kept) for kept in model.few_bits]


def test_experts_in_mxfp4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    keys = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "intermediate_size": 64,
        "hidden_size": 64,
        "num_hidden_layers": 1,
    }
    written = reference("GptOssForCausalLM", **keys)
    written.save_pretrained(tmp_path)
    in_mxfp4(tmp_path, written)
    by_reference = restored_rig(tmp_path, monkeypatch)
    request.getfixturevalue("as_on_a_gpu")
    model = check(tmp_path, by_reference, prompt(320))
    experts = [
        expert for layer in model.layers if isinstance(layer.ffn, ReferenceExperts) for expert in layer.ffn.experts
    ]
    assert experts and all(isinstance(expert.down, GpuQuantizedLinear) for expert in experts)
    assert all(layer.experts is not None for layer in model.execution_plan.layers)
    part = RankWeights(
        RankStart(
            0, 2, "", str(tmp_path), torch.float32, CPU, 1, None, "auto", None, "auto", False, 1, ExpertParallelSplit()
        ),
        None,
    )
    with pytest.raises(CheckpointError, match="is quantized, which expert_parallel does not take on GPUs"):
        part.plan(part.load(), part.opened(tmp_path))
