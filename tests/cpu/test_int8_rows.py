"""Rows that are rounded to int8, and their products with weights of int8: interpreted, against the definition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from torch import Tensor

pytest.importorskip("triton")

from sgl.runtime.quantization.gpu_quantized_linear import FEW_ROWS, GpuQuantizedLinear, Int8ActivationLinear
from sgl.runtime.quantization.quantized_weight import QuantizedWeight
from sgl.runtime.quantization.readers.weight_readers import WeightReaders
from sgl.runtime.quantization.weight_rounding import round_to_int8


def defined(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(1).clamp_min(1e-12) / 127
    return (x.float() / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def weight(outputs: int, inputs: int, rounds_rows: bool = True) -> QuantizedWeight:
    from dataclasses import replace

    found = round_to_int8(torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0)))
    return replace(found, rounds_rows=rounds_rows)


def rows(count: int, inputs: int) -> Tensor:
    return (
        torch.randn(count, inputs, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, count)[:, None]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_become_int8_to_the_bit(dtype: torch.dtype) -> None:
    from sgl.runtime.kernels.quantized.quantize_activations import quantize_rows

    x = rows(5, 100).to(dtype)
    x[1] = 0
    found, expected = quantize_rows(x, torch.int8), defined(x)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    x[2, 7], x[3, 9] = torch.nan, torch.inf
    assert quantize_rows(x, torch.int8)[1].isnan().tolist() == [False, False, True, True, False]


def test_many_rows_are_rounded_and_few_are_not() -> None:
    grouped = weight(72, 208)
    layer = Int8ActivationLinear(grouped, torch.randn(72).bfloat16(), torch.bfloat16)
    assert layer.bias is not None and layer.packed.outer is not None
    x = rows(FEW_ROWS + 3, 208).clamp(-100, 100).bfloat16()
    x8, scale = defined(x)
    whole = (x8.double() @ (grouped.codes.double() - 128).T) * scale[:, None].double() * grouped.scale.T.double()
    expected = whole + layer.bias.double()
    assert (
        (layer(x).double() - expected).abs() <= 2**-7 * expected.abs() + 1e-5
    ).all()  # the interpreter cuts bits off
    few = x[:5].double() @ grouped.dense().T.double() + layer.bias.double()
    size = x[:5].double().abs() @ grouped.dense().abs().T.double()
    assert ((layer(x[:5]).double() - few).abs() <= 2**-7 * (few.abs() + size)).all()


def test_which_weights_it_takes() -> None:
    from dataclasses import replace

    taken = weight(16, 64)
    assert (
        Int8ActivationLinear.supports(taken)
        and Int8ActivationLinear.folds
        and issubclass(Int8ActivationLinear, GpuQuantizedLinear)
    )
    assert not Int8ActivationLinear.supports(weight(16, 40))
    assert not Int8ActivationLinear.supports(replace(taken, zero=taken.scale * 0 + 3))
    assert not Int8ActivationLinear.supports(replace(taken, group=32, scale=taken.scale.expand(16, 2)))


@pytest.mark.parametrize("rounds", [True, False])
def test_a_checkpoint_says_so(rounds: bool, tmp_path: Path) -> None:
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}}
    if rounds:
        group["input_activations"] = {
            "num_bits": 8,
            "type": "int",
            "symmetric": True,
            "strategy": "token",
            "dynamic": True,
        }
    asked = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
    }
    readers = WeightReaders.of(json.loads(json.dumps(asked)), str(write_checkpoint(tmp_path)))
    from sgl.runtime.quantization.readers.weight_reader_match import TensorHeader

    claim = readers.claim("a", {"weight": TensorHeader("I8", (32, 64)), "weight_scale": TensorHeader("F32", (32, 1))})
    assert claim is not None
    read = claim.read({"weight": torch.zeros(32, 64, dtype=torch.int8), "weight_scale": torch.ones(32, 1)})
    assert read.rounds_rows is rounds and ("activations" in claim.format) is rounds
