"""The one-row kernels in Triton's interpreter against plain torch in float32."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))
from gemv_oracle import (
    BITS,
    CASES,
    Case,
    check_gate_up,
    check_head,
    check_linear,
    check_linear_add,
    check_normed_heads,
    check_qkv,
    layer,
    stored,
)

from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.kernels.gemv.gemv_launch import GemvLaunch, best_launch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs these on the device")
LAUNCHES = [None, GemvLaunch(8, 16, 1)]


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_qkv_rotate_store(case: Case, launch: GemvLaunch | None):
    check_qkv(case, "cpu", launch)
    check_qkv(case, "cpu", launch, normed=False)
    check_normed_heads(case, "cpu", launch)


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_linears(case: Case, launch: GemvLaunch | None):
    check_linear(case, "cpu", launch)
    check_linear_add(case, "cpu", launch)
    check_gate_up(case, "cpu", launch)
    check_head(case, "cpu", launch)


@pytest.mark.few(4)
@pytest.mark.parametrize("case, launch", [*((case, GemvLaunch(32, 256, 1)) for case in BITS), (BITS[3], None)], ids=str)
def test_weights_of_four_bits(case: Case, launch: GemvLaunch | None):
    assert "Packed" in type(stored(case, layer(case, "cpu", 8, 64)[0])[0]).__name__
    check_qkv(case, "cpu", launch)
    check_linear(case, "cpu", launch)
    check_linear_add(case, "cpu", launch)
    check_gate_up(case, "cpu", launch)
    check_head(case, "cpu", launch)


def test_the_padding_slot_is_not_written():
    check_qkv(CASES[2], "cpu", None, slot=0)
    check_normed_heads(CASES[2], "cpu", None, slot=0)


def test_scaled_pool():
    check_qkv(CASES[2], "cpu", None, scales=(0.5, 4.0))
    check_normed_heads(CASES[2], "cpu", None, scales=(0.5, 4.0))


@pytest.mark.parametrize("shape", [(6144, 4096), (4096, 14336), (5120, 5120), (1152, 896), (288, 96), (10, 7)])
def test_every_shape_has_a_cut(shape):
    launch = best_launch(*shape)
    assert launch.rows >= 2
    for number in launch[:3]:
        assert number & (number - 1) == 0
    assert launch.block <= max(2048, 2 * shape[1])


def test_suits_one_row_on_cuda_only():
    assert not gemv.supports(torch.zeros(1, 64))
