"""Kernels that keep states with all that stands around them, in Triton's interpreter, against torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

import state_checks as checks

from sgl.runtime.kernels.gemv import gemv_conv
from sgl.runtime.kernels.gemv.gemv_launch import GemvLaunch
from sgl.runtime.kernels.recurrent import chunked_linear_attention


@pytest.mark.parametrize("lens", checks.LENS[:3], ids=str)
@pytest.mark.parametrize("sizes", checks.SIZES)
@pytest.mark.parametrize("kind", checks.KINDS)
def test_states_advance_as_by_torch(kind: str, sizes: tuple[int, int, int, int], lens: tuple[int, ...]) -> None:
    checks.check_advance(kind, sizes, lens, "cpu")


@pytest.mark.parametrize("lens", [(5,), (64, 1, 70)], ids=str)
@pytest.mark.parametrize("kind", checks.KINDS)
def test_chunks_are_those_of_torch(kind: str, lens: tuple[int, ...]) -> None:
    checks.check_chunks(kind, (2, 2, 16, 20), lens, "cpu")


@pytest.mark.parametrize("room, keys, stages", [(True, 128, 3), (True, 256, 1), (False, 128, 1)])
def test_fewer_chunks_are_under_way_where_three_have_no_room(
    room: bool, keys: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_linear_attention, "has_room", lambda device: room)
    assert chunked_linear_attention.stages_for(keys, torch.device("cpu")) == stages


def test_chunks_of_equal_keys() -> None:
    for kind in ("delta", "kda"):
        checks.check_chunks(kind, (2, 1, 16, 20), (70,), "cpu", alike=True)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", checks.KINDS)
def test_bits_do_not_depend_on_cuts(kind: str) -> None:
    checks.check_cuts(kind, "cpu")


@pytest.mark.parametrize("channels, width, name", [(40, 4, "silu"), (5, 3, None), (600, 2, "silu")])
@pytest.mark.parametrize("lens", [(1, 1, 1), (4, 1, 40), (2,)], ids=str)
def test_convolutions_are_those_of_torch(lens: tuple[int, ...], channels: int, width: int, name: str | None) -> None:
    checks.check_convolve(lens, channels, width, name, "cpu")


@pytest.mark.parametrize("lens", [(1, 1), (4, 1, 40)], ids=str)
def test_a_convolution_between_gates(lens: tuple[int, ...]) -> None:
    checks.check_gated_convolution(lens, 40, torch.float32, "cpu")


@pytest.mark.parametrize("first, channels, width", [(0, 40, 4), (17, 30, 3), (16, 48, 2)])
def test_a_row_through_product_and_convolution(
    first: int, channels: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemv_conv, "best_launch", lambda *shape: GemvLaunch(16, 64, 1))
    checks.check_convolved(64, 48, first, channels, width, torch.float32, "cpu")


def test_gates() -> None:
    checks.check_gates(3, torch.float32, "cpu")
