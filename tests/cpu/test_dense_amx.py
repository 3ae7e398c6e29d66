"""Products of bfloat16 weights by AMX, and steps with them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from rig import Rig
from test_compiled_step import layer_of, steps_of
from test_dense_avx2 import check_bits, check_products

from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.compiled_kernels import BY_AMX, BY_AVX512
from sgl.runtime.layers.linear_layers import BlockedLinear
from sgl.runtime.layers.mixed_format_linear import stacked

ROWS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 48, 64, 95, 96, 97, 130]  # about tiles, two of them, and pieces
pytestmark = pytest.mark.skipif(
    cpu_kernels.kernels is None or cpu_kernels.kernels.BFLOAT16 != BY_AMX or os.environ.get("SGL_AMX") == "0",
    reason="needs the compiled kernels and AMX",
)


@pytest.fixture(params=[BY_AVX512, BY_AMX], ids=["AVX512_BF16", "AMX"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Other tests run by AMX where it is there."""
    cpu_kernels.kernels.set_dense_way(cpu_kernels.KINDS[torch.bfloat16], request.param)
    yield
    cpu_kernels.kernels.set_dense_way(cpu_kernels.KINDS[torch.bfloat16], BY_AMX)


@pytest.mark.parametrize(
    "outputs, inputs", [(640, 384), (5, 34), (1, 8), (33, 2), (1100, 66), (64, 1000), (96, 32), (2000, 30)]
)
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_products(outputs: int, inputs: int, bias: bool, way: None) -> None:
    check_products(layer_of(outputs, inputs, bias, torch.bfloat16), ROWS)


@pytest.mark.parametrize("outputs, inputs", [(100, 200), (64, 512), (7, 30)])
@torch.inference_mode()
def test_a_row_has_the_same_bits_in_any_batch(outputs: int, inputs: int, way: None) -> None:
    check_bits(layer_of(outputs, inputs, True, torch.bfloat16), ROWS)


@torch.inference_mode()
def test_rows_that_are_not_finite_leave_others_alone(way: None) -> None:
    """Neither what lies behind the inputs nor the rows beside one are multiplied with it."""
    layer, x = layer_of(70, 90, True, torch.bfloat16), torch.randn(40, 90).bfloat16()
    blocked = BlockedLinear(layer.weight, layer.bias)
    expected = blocked(x)
    x[7], x[20] = float("nan"), float("inf")
    found, whole = blocked(x), [row for row in range(40) if row not in (7, 20)]
    assert torch.equal(found[whole], expected[whole]) and found[7].isnan().all() and not found[20].isfinite().any()


@torch.inference_mode()
def test_columns_of_a_stack(way: None) -> None:
    """Rows of y are wider than a weight's, and what lies between its columns is others'."""
    pieces = [
        BlockedLinear(layer.weight, layer.bias)
        for layer in (layer_of(outputs, 64, True, torch.bfloat16) for outputs in (40, 96, 5))
    ]
    whole, x, residual = (
        stacked(pieces, [40, 96, 5], 64, torch.bfloat16),
        torch.randn(50, 64).bfloat16(),
        torch.randn(50, 141).bfloat16(),
    )
    assert torch.equal(whole(x), torch.cat([piece(x) for piece in pieces], 1))
    parts = [
        piece.added_to(part.contiguous(), x) for piece, part in zip(pieces, residual.split([40, 96, 5], 1), strict=True)
    ]
    assert torch.equal(whole.added_to(residual.clone(), x), torch.cat(parts, 1))


def test_steps_have_the_bits_of_the_same_layer_by_layer(tmp_path: Path, way: None) -> None:
    path = write_checkpoint(tmp_path)
    exact, rig = Rig(path, torch.bfloat16), Rig(path, torch.bfloat16)
    assert rig.model.step is not None and all(rig.model.step.claimed)
    exact.model.step = None
    assert all(torch.equal(a, b) for a, b in zip(steps_of(rig), steps_of(exact), strict=True))


@pytest.mark.whole
def test_it_can_be_left_aside() -> None:
    """With SGL_AMX=0 the products are those of AVX512_BF16, whose sums have another order."""
    code = (
        "import torch; from sgl.runtime.layers.linear_layers import BlockedLinear as B; torch.manual_seed(0); b "
        "= B(torch.randn(99, 800).bfloat16(), None); print(b(torch.randn(40, 800).bfloat16()).float().sum(1).tolist())"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"SGL_AMX": value},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for value in "011"
    ]
    assert told[1] == told[2] != told[0]
    assert [float(each) for each in told[0].strip("[]\n").split(",")] == pytest.approx(
        [float(each) for each in told[1].strip("[]\n").split(",")], rel=0.1, abs=20
    )


@pytest.mark.whole
@pytest.mark.parametrize("amx, by", [("0", "AVX-512"), ("1", "AMX")])
def test_doctor_says_what_multiplies(amx: str, by: str) -> None:
    told = subprocess.run(
        [sys.executable, "-P", "-m", "sgl.cli", "doctor"],
        env=os.environ | {"SGL_AMX": amx},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"products by AVX-512 (float32), {by} (bfloat16)" in told
