"""Dense weights to four bits: each rounding against its formula, number by number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgl.runtime.quantization import weight_rounding
from sgl.runtime.quantization.quantized_weight import QuantizedWeight
from sgl.runtime.quantization.weight_rounding import hqq, nearest, symmetric

EVERY = [nearest, symmetric, hqq]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def spread(part: Tensor, weight: QuantizedWeight) -> Tensor:
    return part.float().repeat_interleave(weight.group, 1)[:, : weight.shape[1]]


@pytest.mark.parametrize("shape, group", [((3, 128), 64), ((5, 100), 32), ((2, 7), 64), ((4, 130), 128), ((1, 1), 16)])
def test_each_number_is_within_half_a_step(shape: tuple[int, int], group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_rounding, "PART", 150)  # a row or two at a time
    weight = normal(*shape) * torch.logspace(-2, 2, shape[0])[:, None]
    found = nearest(weight, group)
    step = spread(found.scale, found)
    assert bool(
        ((found.dense() - weight).abs() <= 1.01 * step / 2 + 15 * step / 2048).all()
    )  # the scale is rounded to float16
    for g, part in enumerate(weight.split(group, 1)):
        low, high = part.amin(1).clamp_max(0), part.amax(1).clamp_min(0)
        torch.testing.assert_close(found.scale[:, g].float(), (high - low) / 15, rtol=1e-3, atol=1e-7)
        assert isinstance(found.zero, Tensor) and torch.equal(
            found.zero[:, g].float(), (-low / found.scale[:, g].float()).round()
        )


def test_around_eight_the_largest_is_seven_and_a_half_steps() -> None:
    weight = normal(6, 96)
    found = symmetric(weight, 32)
    torch.testing.assert_close(found.scale.float(), weight.unflatten(1, (3, 32)).abs().amax(2) / 7.5, rtol=1e-3, atol=0)
    assert found.zero == 8.0 and bool(((found.dense() - weight).abs() <= 0.51 * spread(found.scale, found)).all())


@pytest.mark.parametrize("group", [32, 64])
def test_moved_zeros_leave_fewer_errors(group: int) -> None:
    weight = normal(64, 300) / 30
    errors = {one: (one(weight, group).dense() - weight).abs().split(group, 1) for one in (nearest, hqq)}
    for before, after in zip(errors[nearest], errors[hqq], strict=True):
        assert bool((after.mean(1) <= before.mean(1) + 1e-6).all()) and after.mean() < 0.96 * before.mean()


@pytest.mark.parametrize("one", EVERY)
def test_zeros_stay_zeros_and_nothing_divides_by_them(one: object) -> None:
    weight = normal(4, 128)
    weight[1], weight[2, :64] = 0, 0
    found = one(weight).dense()  # type: ignore[operator]
    assert bool(found.isfinite().all()) and not found[1].any() and not found[2, :64].any()


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("one", EVERY)
def test_weights_of_any_size_keep_their_bits(one: object, size: float) -> None:
    weight = normal(8, 128)
    small, usual = (one(weight * scale).dense() for scale in (size, 1.0))  # type: ignore[operator]
    assert (small / size - weight).abs().mean() < 1.1 * (usual - weight).abs().mean()


@pytest.mark.parametrize("one", EVERY)
def test_bfloat16_is_rounded_as_the_same_numbers_in_float32(one: object) -> None:
    weight = normal(5, 70).bfloat16()
    assert torch.equal(one(weight).dense(), one(weight.float()).dense())  # type: ignore[operator]
