"""Rounding with what follows made good, beside the paper's loop over columns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgl.runtime.quantization import gptq_rounding as module
from sgl.runtime.quantization.gptq_rounding import gptq
from sgl.runtime.quantization.quantized_weight import QuantizedWeight
from sgl.runtime.quantization.weight_rounding import nearest, symmetric

OPTIONS = [{}, {"whole_zeros": False}, {"ordered": True}, {"whole_zeros": False, "ordered": True}]


def correlated(inputs: int, tokens: int, seed: int = 0) -> Tensor:
    """X^T X of inputs that few directions make, of sizes far apart, float32 [in, in]."""
    generator = torch.Generator().manual_seed(seed)
    few = torch.randn(tokens, inputs // 4, generator=generator) @ torch.randn(inputs // 4, inputs, generator=generator)
    x = (few + torch.randn(tokens, inputs, generator=generator)) * torch.logspace(-1, 1, inputs)[
        torch.randperm(inputs, generator=generator)
    ]
    return x.T @ x


def loss(weight: Tensor, found: QuantizedWeight, hessian: Tensor) -> float:
    error = weight - found.dense()
    return float(((error @ hessian) * error).sum())


def column_by_column(
    weight: Tensor, hessian: Tensor, group: int, whole_zeros: bool = True, ordered: bool = False
) -> Tensor:
    """The dense weight after the textbook's loop, in float64."""
    plain, inputs = (nearest if whole_zeros else symmetric), weight.shape[1]
    damped = hessian.double() + 0.01 * hessian.double().diagonal().mean() * torch.eye(inputs, dtype=torch.float64)
    order = hessian.diagonal().argsort(descending=True, stable=True) if ordered else torch.arange(inputs)
    factor = torch.linalg.cholesky(torch.linalg.inv(damped[order][:, order]), upper=True)
    left, done = weight.double()[:, order], torch.zeros(weight.shape, dtype=torch.float64)
    first = plain(weight, group)
    for j in range(inputs):
        if not ordered and j % group == 0:
            first = plain(left[:, j : j + group].float(), group, scales=first.scale.dtype)
        g = int(order[j]) // group if ordered else 0
        scale, zero = (
            first.scale[:, g].double(),
            first.zero[:, g].double() if isinstance(first.zero, Tensor) else first.zero,
        )
        q = ((left[:, j] / scale).round() + zero).clamp(0, 15)
        done[:, j] = (q - zero) * scale
        left[:, j:] -= torch.outer((left[:, j] - done[:, j]) / factor[j, j], factor[j, j:])
    return torch.empty_like(done).index_copy_(1, order, done).float()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape, group", [((8, 128), 64), ((5, 100), 32), ((3, 96), 96), ((4, 72), 16)])
def test_it_is_the_loop_over_columns(
    shape: tuple[int, int], group: int, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 24)
    weight, hessian = torch.randn(shape, generator=torch.Generator().manual_seed(1)) / 10, correlated(shape[1], 400)
    found, expected = gptq(weight, hessian, group, **options), column_by_column(weight, hessian, group, **options)
    same = (found.dense() - expected).abs() < 1e-5
    assert (
        float(same.float().mean()) > 0.98
    )  # a number between two codes may go to the other in float32, and those behind it follow
    torch.testing.assert_close(
        loss(weight, found, hessian),
        float((((weight - expected) @ hessian) * (weight - expected)).sum()),
        rtol=0.05,
        atol=0,
    )


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_products_with_correlated_inputs_lose_less(options: dict[str, bool], seed: int) -> None:
    weight, hessian = torch.randn(32, 192, generator=torch.Generator().manual_seed(seed)), correlated(192, 1000, seed)
    plain = (nearest if options.get("whole_zeros", True) else symmetric)(weight, 64)
    assert loss(weight, gptq(weight, hessian, 64, **options), hessian) < 0.5 * loss(weight, plain, hessian)


def test_without_correlation_it_is_rounding_to_nearest() -> None:
    weight = torch.randn(6, 128)
    for hessian in (torch.eye(128), torch.zeros(128, 128)):
        found, plain = gptq(weight, hessian, 32), nearest(weight, 32)
        assert torch.equal(found.codes, plain.codes) and torch.equal(found.scale, plain.scale)


def test_scales_are_stored_as_asked() -> None:
    weight, hessian = torch.randn(6, 128).bfloat16(), correlated(128, 300)
    assert gptq(weight, hessian, scales=torch.bfloat16).scale.dtype == torch.bfloat16
    assert gptq(weight, hessian).scale.dtype == torch.float16


@pytest.mark.parametrize("hessian", [torch.eye(7), torch.full((8, 8), torch.nan)])
def test_a_hessian_that_cannot_be_is_refused(hessian: Tensor) -> None:
    with pytest.raises(ValueError, match=r"must be finite numbers \[8, 8\]"):
        gptq(torch.ones(4, 8), hessian)
