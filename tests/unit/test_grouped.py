"""Few-bit weights in their one form, against the definition number by number."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from sgl.runtime.quantization.quantized_weight import E2M1, DoubleQuantized, QuantizedWeight, e4m3_values, stacked


def drawn(seed: int, outputs: int | None = None) -> QuantizedWeight:
    """Every optional part is there or not; the last group is often shorter."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    outputs, inputs, group, levels = (
        outputs or rng.randint(1, 9),
        rng.randint(1, 70),
        rng.choice([1, 3, 16, 32, 100]),
        rng.choice([16, 256]),
    )
    shape = (outputs, -(-inputs // group))
    return QuantizedWeight(
        torch.randint(0, levels, (outputs, inputs), generator=generator, dtype=torch.uint8),
        torch.randn(shape, generator=generator).to(rng.choice([torch.float32, torch.float16, torch.bfloat16])),
        group,
        levels,
        zero=rng.choice([0.0, 8.0, torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8)]),
        offset=torch.randn(shape, generator=generator) if rng.random() < 0.3 else None,
        factor=torch.rand(outputs, generator=generator) if rng.random() < 0.3 else None,
        table=torch.randn(levels, generator=generator) if rng.random() < 0.3 else None,
        order=torch.randperm(inputs, generator=generator) if rng.random() < 0.3 else None,
    )


def one_by_one(w: QuantizedWeight) -> torch.Tensor:
    out = torch.empty(w.shape)
    for o in range(w.shape[0]):
        for i in range(w.shape[1]):
            g, q = i // w.group, int(w.codes[o, i])
            value = torch.tensor(float(q)) if w.table is None else w.table[q]
            value = (value - (w.zero[o, g].float() if isinstance(w.zero, torch.Tensor) else w.zero)) * w.scale[
                o, g
            ].float()
            value = value if w.factor is None else value * w.factor[o]
            value = value if w.offset is None else value + w.offset[o, g].float()
            out[o, i if w.order is None else int(w.order[i])] = value
    return out


@pytest.mark.parametrize("seed", range(30))
def test_the_dense_weight_is_what_the_formula_says(seed: int) -> None:
    w = drawn(seed)
    assert torch.equal(w.dense(), one_by_one(w))
    assert torch.equal(w.dense(torch.bfloat16), one_by_one(w).bfloat16())


@pytest.mark.parametrize("seed", range(30))
def test_rows_and_stacks_keep_the_weight(seed: int) -> None:
    w = drawn(seed, 8)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(w.take(order).dense(), w.dense()[order])
    again = stacked([w.take(slice(0, 3)), w.take(slice(3, 8))])
    assert again is not None and torch.equal(again.dense(), w.dense())


def test_numbers_of_two_factors_follow_their_rows() -> None:
    scale = DoubleQuantized(torch.randint(-9, 9, (8, 5)).to(torch.int8), torch.randn(8, 3).half(), 2)
    w = QuantizedWeight(torch.randint(0, 16, (8, 40), dtype=torch.uint8), scale.numbers(), 8, fine_scale=scale)
    again = stacked([w.take(torch.tensor([3, 1])), w.take(slice(4, 8))])
    assert again is not None and again.fine_scale is not None and torch.equal(again.fine_scale.numbers(), again.scale)
    assert again.fine_offset is None and torch.equal(again.scale, scale.numbers()[[3, 1, 4, 5, 6, 7]])
    other = stacked([w, replace(w, fine_scale=None)])
    assert other is not None and other.fine_scale is None


def test_weights_of_two_forms_are_not_stacked() -> None:
    forms = [
        QuantizedWeight(torch.zeros(2, 8, dtype=torch.uint8), torch.ones(2, 8 // group), group, zero=zero)
        for group, zero in ((4, 8.0), (4, 0.0), (8, 8.0))
    ]
    assert stacked(forms[:2]) is None and stacked(forms[::2]) is None and stacked([forms[0], forms[0]]) is not None


def test_a_float8_weight_is_its_bytes_under_a_table() -> None:
    weight = torch.randn(5, 300).to(torch.float8_e4m3fn)
    scale = torch.rand(5, 3)
    w = QuantizedWeight.float8(weight, scale, 128)
    assert (
        stacked([w, w]) is not None
        and w.is_float8
        and torch.equal(w.dense(), weight.float() * scale.repeat_interleave(128, 1)[:, :300])
    )
    assert e4m3_values()[0x7E] == 448 and len(E2M1) == 16


def test_numbers_of_another_shape_than_the_groups_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scale has shape \[2, 3\], \[2, 2\] go with codes \[2, 8\] in groups of 4"):
        QuantizedWeight(torch.zeros(2, 8, dtype=torch.uint8), torch.ones(2, 3), 4)
