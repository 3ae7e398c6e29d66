"""Attention to chosen blocks by Triton's kernel on a GPU, against one query and one head at a time."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from block_checks import RAGGED, Blocks  # noqa: E402

from sgl.runtime.attention import LayerAttention  # noqa: E402
from sgl.runtime.layers.float8_reference import FP8  # noqa: E402

LAYER = LayerAttention(8, 2, 64, 64, 0.125)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [0, 9, 100])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_float32(kv_heads: int, window: int, sinks: bool) -> None:
    blocks = Blocks(RAGGED, replace(LAYER, kv_heads=kv_heads), window=window, page_size=16, pages=60, device="cuda")
    blocks.check(blocks.world.backend("triton"), sinks)


@pytest.mark.parametrize("kept", [None, FP8])
@pytest.mark.parametrize("name", ["triton", "torch_native"])
def test_bfloat16(name: str, kept: torch.dtype | None) -> None:
    blocks = Blocks([(700, 1), *RAGGED], LAYER, torch.bfloat16, window=20, kept=kept, device="cuda", pages=1200)
    blocks.check(blocks.world.backend(name), tolerance=0.03 if kept is None else 0.1)
