"""The kernel for one token of linear attention, in Triton's interpreter, against torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

from recurrent_checks import SIZES, check_advance, check_select


@pytest.mark.parametrize("kind", ["gated delta net", "kda", "mamba 2"])
@pytest.mark.parametrize("sizes", SIZES)
def test_one_token_is_that_of_torch(kind: str, sizes: tuple[int, int, int, int]) -> None:
    check_advance(kind, *sizes, "cpu")


@pytest.mark.parametrize("channels, size", [(5, 3), (40, 16), (130, 8)])
@pytest.mark.parametrize("lens", [(1, 1, 1), (4,), (3, 1, 9)], ids=str)
def test_a_selective_scan_is_that_of_torch(lens: tuple[int, ...], channels: int, size: int) -> None:
    check_select(lens, channels, size, "cpu")
