"""Triton's kernels for latent rows on a GPU, against attention one query and one head at a time, and in graphs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

from attention_cases import Work, with_padding  # noqa: E402
from attention_oracle import World  # noqa: E402
from latent_checks import MIXED, check_rows, layer, layout  # noqa: E402

from sgl.runtime.attention import attention_backend  # noqa: E402
from sgl.runtime.attention.triton_mla_attention import TritonMLAAttention  # noqa: E402
from sgl.runtime.layers.float8_reference import FP8  # noqa: E402

DECODES: Work = [(700, 1), (0, 1), (150, 1), (33, 1)]
SIZES = [(512, 64), (256, 64), (32, 16), (40, 12)]


@pytest.mark.parametrize("work", [DECODES, MIXED])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("heads", [5, 16, 40])
def test_float32(heads: int, size: tuple[int, int], work: Work) -> None:
    world = World(layout(layer(heads, *size)), work, page_size=16, device="cuda", pages=120)
    world.check(world.backend("triton"), tolerance=1e-4)


@pytest.mark.parametrize("work", [DECODES, MIXED])
@pytest.mark.parametrize("kept", [None, FP8])
@pytest.mark.parametrize("page_size", [1, 16])
def test_bfloat16(page_size: int, kept: torch.dtype | None, work: Work) -> None:
    world = World(
        layout(layer(20, 512, 64)), work, torch.bfloat16, page_size, device="cuda", pages=1600 // page_size, kept=kept
    )
    world.check(world.backend("triton"), tolerance=0.03 if kept is None else 0.1)


def test_auto_takes_triton_and_says_why_not_flashinfer() -> None:
    own = layout(layer(16, 512, 64))
    backend = attention_backend("auto", own.pool(64, torch.bfloat16, "cuda"), own)
    assert isinstance(backend, TritonMLAAttention) and "nvcc" in (backend.reasons(0)[1] or "")


def test_a_captured_decode_follows_growing_contexts() -> None:
    own = layer(16, 64, 16)
    world = World(layout(own), DECODES, torch.bfloat16, device="cuda", pages=1600)
    backend = world.backend("triton")
    q, rows = world.normal(8, 16, 80), world.normal(4, 1, 80)
    backend.plan(world.batch)
    backend.store(rows, rows[..., :64], 0, world.batch)
    batch = with_padding(world.batch, 8)
    backend.plan(batch)
    backend.attend(q, None, None, 0, batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = backend.attend(q, None, None, 0, batch)
    for contexts in ([701, 1, 151, 34], [9, 1, 100, 20]):
        batch.device.contexts[:4] = torch.tensor(contexts, dtype=torch.int32)
        graph.replay()
        torch.testing.assert_close(out, backend.attend(q, None, None, 0, batch))


@pytest.mark.parametrize("kept", [None, FP8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_and_what_turns(dtype: torch.dtype, kept: torch.dtype | None) -> None:
    check_rows(300, 16, 128, 512, 64, dtype, kept or dtype, "cuda")
    check_rows(3, 20, 8, 24, 12, dtype, kept or dtype, "cuda", turns=False)
    for own in (slice(0, 0), slice(1, 3), slice(4, 7)):
        check_rows(7, 20, 8, 24, 12, dtype, kept or dtype, "cuda", own=own)
