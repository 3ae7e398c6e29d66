"""Which layer computes a rounded weight, and what is said where none does."""

from __future__ import annotations

import pytest
import torch

from sgl.runtime.errors import ConfigError
from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.quantization import GroupedLinear, online_quantization
from sgl.runtime.quantization.calibration_statistics import InputHessian
from sgl.runtime.quantization.online_quantization import requantized, rounded
from sgl.runtime.quantization.weight_forms import FORMS


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def seen(x: torch.Tensor) -> InputHessian:
    found = InputHessian(x.shape[1], x.device)
    found.add(x)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_a_form_without_a_kernel_is_multiplied_by_torch_on_the_cpu(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_quantization, "keep_quantized", lambda codes, layer: "not here")
    layer, x = Linear(normal(40, 128), normal(40, seed=1)), normal(200, 128, seed=2)
    found, weight = requantized(form, layer, seen(x)), rounded(form, layer.weight, seen(x)).dense()
    assert isinstance(found, GroupedLinear) and found.weight.nbytes in (40 * 64, 40 * 128)
    torch.testing.assert_close(found(x), x @ weight.t() + layer.bias, rtol=1e-4, atol=1e-4)
    assert float((weight - layer.weight).norm() / layer.weight.norm()) < 0.15


@pytest.mark.parametrize("form", FORMS)
def test_what_no_kernel_of_another_device_takes_is_refused(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(online_quantization, "rounded", lambda form, weight, seen: rounded("int4", normal(8, 64)))
    monkeypatch.setattr(
        online_quantization, "packing_refusal", lambda weight, dtype: given.append(dtype) or "no table for it"
    )
    with pytest.raises(ConfigError, match=rf"weights='{form}'\): no table for it; set dtype='bfloat16'"):
        requantized(form, Linear(torch.empty(8, 64, device="meta")))
    assert given == [torch.float32]
