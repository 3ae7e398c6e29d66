"""Why a step of few rows does not fold what stands between products in few bits: it
can be asked, and strict=True refuses it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import layer_checks as checks
from part_models import RMS, PartsRig, attention, model

from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.models import decoder
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.describe.explain_executors import slower, table
from sgl.runtime.models.layer_executors import LayerExecutorChoice
from sgl.runtime.models.reference.tensor_parallel_linear import AllReduceLinear
from sgl.runtime.models.spec.model_spec import ExpertsSpec, Feedforward, GatedFFNSpec, LayerNorms, LayerSpec, RouterSpec
from sgl.runtime.quantization.gpu_quantized_linear import DeterministicGpuQuantizedLinear, GpuQuantizedLinear
from sgl.runtime.quantization.weight_rounding import nearest

HALF = torch.bfloat16


def made(
    dtype: torch.dtype = HALF, norms: LayerNorms | None = None, ffn: Feedforward | None = None, **heads: Any
) -> Decoder:
    found = PartsRig(
        model(*[LayerSpec(norms or LayerNorms.pre(RMS), attention(**heads), ffn or GatedFFNSpec(32))] * 2), dtype
    ).model
    checks.lay_plain(found)
    return found


def packed(found: Decoder, kind: type[GpuQuantizedLinear] = GpuQuantizedLinear, but: str = "router") -> Decoder:
    """but: of this name all stay but those of the first layer; routers stay."""
    for block in found.layers:
        for holder, name in block.products():
            plain = getattr(holder, name)
            if name != "router" and not (name == but and block.index):
                bias = None if plain.bias is None else plain.bias.to(found.dtype)
                setattr(holder, name, kind(nearest(plain.weight.float(), 16), bias, found.dtype))
    vars(found).pop("execution_plan", None)
    return found


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)


def check(found: Decoder, why: str | None) -> None:
    told = (
        None if why is None else f"steps of few rows do not fold norms and additions into products of few bits: {why}"
    )
    runs = found.executors()
    assert runs == [LayerExecutorChoice("fused", told)] * 2
    rows = table(["a layer"] * 2, runs, [LayerExecutorChoice("none", None)] * 2)
    assert slower(rows) == ([] if told is None else [f"2 of 2 layers use the fused executor: {told}"])


def test_nothing_is_said_where_nothing_is_left_out() -> None:
    plain, few = made(), packed(made())
    assert plain.execution_plan.few is None and few.execution_plan.few is not None
    for each in (plain, few):
        check(each, None)


def test_other_types() -> None:
    check(packed(made(torch.float16)), "they compute in float16, and products that fold in bfloat16")


def test_products_that_are_kept_otherwise() -> None:
    found = packed(made(), but="down")
    assert type(found.layers[1].ffn.down) is Linear
    check(found, "down of layer 1 is kept as Linear")


def test_fixed_sums_leave_nothing_out() -> None:
    """Folded products would have other sums than those of many rows."""
    found = packed(made(), DeterministicGpuQuantizedLinear)
    assert found.execution_plan.few is None
    check(found, None)


def test_norms_behind_branches_and_experts() -> None:
    check(
        packed(made(norms=LayerNorms(after_mixer=RMS, after_ffn=RMS))),
        "more than RMS norms and additions stands between the products of layer 0",
    )
    check(packed(made(ffn=ExpertsSpec(3, 2, GatedFFNSpec(32), RouterSpec()))), "router of layer 0 is kept as Linear")


def test_sums_over_ranks() -> None:
    found = packed(made())
    for block in found.layers:
        block.attention.output = AllReduceLinear(block.attention.output, SimpleNamespace())  # type: ignore[arg-type]
    check(found, "the sums of layer 0 are over ranks")


def test_layers_by_torch_keep_their_own_reason() -> None:
    spec = model(
        LayerSpec(LayerNorms.pre(RMS), attention(), GatedFFNSpec(32)),
        LayerSpec(LayerNorms.pre(RMS), attention(value_dim=8), GatedFFNSpec(32)),
    )
    found = PartsRig(spec, HALF).model
    checks.lay_plain(found)
    runs = packed(found).executors()
    assert runs[0].why is not None and "torch computes layer 1 or its mixer" in runs[0].why
    assert runs[1].why is not None and runs[1].why.startswith("torch's operations compute the mixer")


def test_heads_go_where_the_attention_of_their_layer_keeps_them() -> None:
    """In layers with a window other slots than those of all layers."""
    few = packed(made()).execution_plan.few
    assert few is not None
    own = [torch.tensor([3]), torch.tensor([5])]
    step: Any = SimpleNamespace(
        batch=SimpleNamespace(positions=torch.tensor([7]), slots=torch.tensor([9])),
        attention=SimpleNamespace(slots=lambda layer, batch: own[layer]),
        keys=[torch.empty(0)] * 2,
        values=[torch.empty(0)] * 2,
        scales=[(1.0, 1.0)] * 2,
    )
    assert [int(layer._heads(step).slots) for layer in few] == [3, 5]


@pytest.mark.parametrize("gate", [False, True])
def test_heads_with_gates_behind_them_are_not_stored_by_their_product(gate: bool) -> None:
    found = packed(made(gate=gate))
    assert found.execution_plan.few is not None
    assert [layer.turns for layer in found.execution_plan.few] == [not gate] * 2
