"""Rows rounded to int8 times weights of int8 on a GPU, against the definition."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DEVICE = torch.device("cuda")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device=DEVICE).bfloat16()


@pytest.mark.parametrize("rows", [1, 5, 16, 64, 65, 100, 300, 1024, 5000])
@pytest.mark.parametrize("outputs, inputs", [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (648, 400)])
def test_products(outputs: int, inputs: int, rows: int) -> None:
    from sgl.runtime.kernels.quantized import int8_gemm
    from sgl.runtime.kernels.quantized.quantize_activations import quantize_rows

    weight = torch.randint(
        -127, 128, (outputs, inputs), generator=torch.Generator("cuda").manual_seed(2), device=DEVICE
    ).to(torch.int8)
    scale, bias, x = random(outputs, seed=3).float().abs() / 1000, random(outputs, seed=4), random(rows, inputs)
    x8, x_scale = quantize_rows(x, torch.int8)
    largest = x.float().abs().amax(1)
    assert (
        torch.allclose(x_scale, largest / 127)
        and ((x8.float() * x_scale[:, None] - x.float()).abs() <= 0.5001 * x_scale[:, None]).all()
    )
    part = torch.arange(0, outputs, max(1, outputs // 500), device=DEVICE)
    expected = (x8.double() @ weight[part].double().T) * x_scale[:, None] * scale[part] + bias[part].double()
    found = int8_gemm.product(x, weight, scale, bias)[:, part].double()
    assert ((found - expected).abs() <= 2**-8 * expected.abs() + 1e-6).all()


@pytest.mark.parametrize("rows", [3, 64, 65, 512])
def test_a_layer_in_a_graph(rows: int) -> None:
    from dataclasses import replace

    from sgl.runtime.quantization.gpu_quantized_linear import Int8ActivationLinear
    from sgl.runtime.quantization.weight_rounding import round_to_int8

    grouped = replace(round_to_int8(random(4096, 4096, seed=1)), rounds_rows=True)
    layer, x = Int8ActivationLinear(grouped, None, torch.bfloat16), random(rows, 4096)
    expected = layer(x)
    graph, static = torch.cuda.CUDAGraph(), torch.zeros_like(x)
    with torch.cuda.graph(graph):
        found = layer(static)
    static.copy_(x)
    graph.replay()
    assert torch.equal(found, expected)
    exact = x.float() @ grouped.dense().T
    assert (expected.float() - exact).norm() < 0.02 * exact.norm()
