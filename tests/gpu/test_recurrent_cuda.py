"""Recurrent mixers on a GPU: the kernel for one token, scans against the CPU, and a decode step within a graph."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from recurrent_checks import SIZES, check_advance, check_select  # noqa: E402
from test_recurrent import KINDS, said, states  # noqa: E402

from sgl.runtime.kernels.recurrent.recurrent_scan import advance  # noqa: E402
from sgl.runtime.layers.recurrent import RaggedSequences  # noqa: E402

CUDA = torch.device("cuda")


def moved(all_: Any) -> Any:
    return type(all_)(*(part.cuda() if isinstance(part, torch.Tensor) else part for part in all_))


@pytest.mark.parametrize("kind", ["gated delta net", "kda", "mamba 2"])
@pytest.mark.parametrize("sizes", [*SIZES, (32, 2, 128, 128), (128, 16, 128, 64)])
def test_one_token_is_that_of_torch(kind: str, sizes: tuple[int, int, int, int]) -> None:
    check_advance(kind, *sizes, "cuda")


@pytest.mark.parametrize("lens", [(1, 1, 1), (150, 63, 16, 1), (1000,)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_scans_are_those_of_the_cpu(kind: str, lens: tuple[int, ...]) -> None:
    all_, before = said(kind, sum(lens), 1), states(kind, len(lens), 1)
    expected = all_.scan(before, RaggedSequences.of(lens, torch.device("cpu")))
    for found, wanted in zip(moved(all_).scan(before.cuda(), RaggedSequences.of(lens, CUDA)), expected, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lens", [(1, 1, 1), (300,), (3, 1, 90)], ids=str)
def test_a_selective_scan_is_that_of_torch(lens: tuple[int, ...]) -> None:
    check_select(lens, 1000, 16, "cuda")


def test_a_decode_step_may_be_a_graph() -> None:
    all_ = moved(said("gated delta net", 3, 1, 4, 16, 16)).plain()
    memory, slots = torch.zeros(8, 4, 16, 16, device=CUDA), torch.arange(2, 5, device=CUDA)
    advance(all_, memory, slots, slots)
    memory.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = advance(all_, memory, slots, slots)
    state = torch.zeros(3, 4, 16, 16, device=CUDA)
    for _ in range(3):
        graph.replay()
        expected, state = all_.advanced(state)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
