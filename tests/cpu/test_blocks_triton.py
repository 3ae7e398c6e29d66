"""Attention to chosen blocks by Triton's kernel in Triton's interpreter, against one query and one head at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("tests/gpu does this on the device", allow_module_level=True)

from attention_cases import Work
from block_checks import Blocks
from interpreted import products_as_on_a_tensor_core
from layer_checks import check_decoder
from part_models import MODELS, LawRig, PartsRig
from test_attention_triton import small

from sgl.runtime.attention import LayerAttention
from sgl.runtime.attention.triton_attention import TritonAttention
from sgl.runtime.layers.float8_reference import FP8
from sgl.runtime.models import decoder

LAYER = LayerAttention(6, 2, 24, 24, 0.2)
DECODES: Work = [(40, 1), (0, 1), (33, 1)]


@pytest.fixture(autouse=True, scope="module")
def tensor_core():
    with products_as_on_a_tensor_core():
        yield


def check(blocks: Blocks, sinks: bool = False, tolerance: float = 1e-4) -> None:
    blocks.check(small(cast(TritonAttention, blocks.world.backend("triton"))), sinks, tolerance)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("window", [0, 9])
def test_decodes(window: int, sinks: bool) -> None:
    check(
        Blocks(DECODES, replace(LAYER, softcap=2.0 if window else None), window=window, page_size=16, pages=60), sinks
    )


@pytest.mark.parametrize("kv_heads", [1, 6])
def test_more_tokens_than_a_launch_takes(kv_heads: int) -> None:
    check(Blocks([(30, 1), (9, 8), (0, 6)], replace(LAYER, kv_heads=kv_heads), window=5))


@pytest.mark.parametrize("kept", [None, FP8])
def test_other_types(kept: torch.dtype | None) -> None:
    check(Blocks(DECODES, LAYER, torch.bfloat16, window=20, kept=kept), tolerance=0.03 if kept is None else 0.1)


def test_steps_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the GPU's executor: layers with three branches, and one of another width of heads."""
    spec = MODELS["three branches"]
    law = LawRig(spec)
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    rig = PartsRig(spec, attention="triton")
    for backend in rig.attention._backends:
        small(backend)
    assert not rig.model.capturable
    check_decoder(
        law, rig, 1e-5, [((1, 9, 0, 0), False), ((0, 3, 2, 5), True), ((0, 1, 0, 1), False), ((0, 1, 1, 0), True)]
    )
