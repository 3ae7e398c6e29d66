"""Triton's kernels for chosen tokens on a GPU, against one query and one head at a time, in graphs, and in models."""

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
from family_cases import write_family  # noqa: E402
from layer_checks import FusedRig, check_decoder  # noqa: E402
from part_models import MODELS, LawRig, PartsRig  # noqa: E402
from test_families_cuda import law_of  # noqa: E402
from topk_checks import RAGGED, Choices  # noqa: E402

from sgl.runtime.attention import attention_backend  # noqa: E402
from sgl.runtime.layers.float8_reference import FP8  # noqa: E402

LONG: Work = [(5000, 1), (3, 1), (900, 1), (2000, 30), (0, 40)]


@pytest.mark.parametrize("work", [RAGGED, LONG])
@pytest.mark.parametrize("most", [9, 256])
@pytest.mark.parametrize("page_size", [1, 16])
def test_float32(page_size: int, most: int, work: Work) -> None:
    world = Choices(work, most=most, page_size=page_size, device="cuda", pages=9000 // page_size)
    world.check(world.world.backend("triton"))


@pytest.mark.parametrize("kept", [None, FP8])
def test_bfloat16(kept: torch.dtype | None) -> None:
    world = Choices(LONG, torch.bfloat16, most=256, heads=20, device="cuda", pages=9000, kept=kept)
    world.check(world.world.backend("triton"), tolerance=0.03 if kept is None else 0.1)


def test_many_tokens_and_all_of_the_published_choice() -> None:
    world = Choices([(2500, 300)], torch.bfloat16, most=2048, heads=3, device="cuda", pages=3000)
    backend = attention_backend("triton", world.world.pool, world.world.layout, max_running=16)
    world.check_choice(chosen := world.choose(backend))
    found = backend.attend_topk(world.q, chosen, 0, world.world.batch)
    expected = world.world.backend("torch_native").attend_topk(world.q, chosen, 0, world.world.batch)
    torch.testing.assert_close(found, expected, atol=0.03, rtol=0.03)


def test_a_captured_decode_follows_growing_contexts() -> None:
    world = Choices([(700, 1), (0, 1), (150, 1), (33, 1)], torch.bfloat16, device="cuda", pages=1600)
    backend = world.world.backend("triton")
    world.choose(backend)
    batch = with_padding(world.world.batch, 8)
    queries, shares, q = (torch.cat((each, each)) for each in (world.queries, world.shares, world.q))

    def run() -> torch.Tensor:
        return backend.attend_topk(q, backend.choose(queries, shares, 0, batch), 0, batch)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for contexts in ([701, 1, 151, 34], [9, 1, 100, 20]):
        batch.positions[:4] = torch.tensor(contexts, dtype=torch.int32) - 1
        graph.replay()
        torch.testing.assert_close(out, run())


def test_steps_of_a_model() -> None:
    spec = MODELS["latent attention, chosen tokens"]
    check_decoder(LawRig(spec), PartsRig(spec, device="cuda", attention="triton"), 5e-5)


@pytest.mark.parametrize("case", ["deepseek v3.2", "glm 5", "glm 5, shared"])
def test_a_family(case: str, tmp_path: Path) -> None:
    write_family(case, tmp_path)
    check_decoder(law_of(tmp_path), FusedRig(tmp_path, device="cuda", attention="triton"), 1e-4)
