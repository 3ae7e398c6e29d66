"""Few rows with weights as they are, by Triton's interpreter (which multiplies no bfloat16), and layers that fold around them."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a GPU tests/gpu/test_few_rows_plain_cuda.py has these", allow_module_level=True)

import numpy as np
import torch
import torch.nn.functional as F

from sgl.runtime.kernels import few_rows_plain
from sgl.runtime.kernels.few_rows_parts import Readied
from sgl.runtime.kernels.few_rows_plain import PlainTile
from sgl.runtime.layers.linear import Linear

EPS = 1e-6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tile", [None, PlainTile(64, 32, 2), PlainTile(32, 64, 2)], ids=str)
@pytest.mark.parametrize("rows", [2, 17, 40])
def test_a_chain_of_products_and_what_stands_around_them(rows: int, tile: PlainTile | None) -> None:
    """A branch's end is added to x and leaves it times a norm's weight; the next product divides by the norm, and gates."""
    hidden, inner = 136, 72  # tiles end inside the outputs, steps inside the inputs
    down, up, bias, above = random(hidden, inner), random(2 * inner, hidden, seed=1), random(hidden, seed=2), random(2 * inner, seed=3)
    x, y, norm = random(rows, hidden, seed=4), random(rows, inner, seed=5), random(hidden, seed=6)
    expected = x + F.linear(y, down, bias)
    readied = few_rows_plain.matmul(y, down, bias, added_to=x, ready=(norm, EPS), tile=tile)
    assert isinstance(readied, Readied)
    torch.testing.assert_close(x, expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(readied.y, x * norm)
    torch.testing.assert_close(readied.squares.sum(0), x.square().sum(1))
    found = few_rows_plain.matmul(readied, up, above, name="silu", tile=tile)
    gate, other = F.linear(F.rms_norm(x, (hidden,), norm, EPS), up, above).chunk(2, 1)
    torch.testing.assert_close(found, F.silu(gate) * other, atol=1e-3, rtol=1e-4)


def test_rows_that_lie_apart_and_too_many() -> None:
    weight, wide = random(40, 64), random(3, 128, seed=1)
    torch.testing.assert_close(few_rows_plain.matmul(wide[:, :64], weight), F.linear(wide[:, :64], weight), atol=1e-4, rtol=1e-5)
    assert few_rows_plain.matmul(wide[:0, :64], weight).shape == (0, 40)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="up to 64 rows, not 65"):
        few_rows_plain.matmul(random(65, 64), weight)


def test_layers_that_fold_around_weights_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Steps of two to sixty-four rows of a model write what the ordinary layers write."""
    import piecewise_checks as checks
    from checkpoints import write_checkpoint

    from sgl.runtime.models import decoder, few_rows
    from sgl.runtime.models.products import products_of

    monkeypatch.setattr(decoder, "_can_fuse", lambda device: True)
    path = write_checkpoint(tmp_path, num_hidden_layers=2)
    pair = checks.Pair(path, "cpu", attention="torch_native")
    assert pair.mixed.model.course.few is None
    monkeypatch.setattr(few_rows_plain, "takes", lambda weight: True)
    monkeypatch.setattr(Linear, "seal", lambda self, keep_plain: self)  # as on a GPU
    monkeypatch.setattr(few_rows, "DTYPE", torch.float32)
    pair.mixed = checks.Half(path, "cpu", torch.float32, "torch_native", None)
    assert len(pair.mixed.model.course.few or ()) == 2
    rows = [checks.Row(np.random.default_rng(seed).integers(4, 60, 60)) for seed in range(3)]
    for counts, wanted in (([1, 7, 9], 1), ([1, 1], None), ([1, 1, 1], 1), ([2, 30], 2), ([1, 20], 0)):
        pair.check(rows[: len(counts)], counts, wanted, bound=2e-5)
    products = {row.name: row.few_rows for row in products_of(pair.mixed.model)}
    assert products["qkv"] == products["head"] == "few_rows_plain, norms and additions folded in"
