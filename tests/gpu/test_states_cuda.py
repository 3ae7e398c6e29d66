"""Recurrent layers on a GPU: their kernels against torch, and engines of hybrids against the law on the CPU."""

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
sys.path.insert(0, str(Path(__file__).parent))

import state_checks as checks  # noqa: E402
from checkpoints import write_tokenizer  # noqa: E402
from family_cases import write_family  # noqa: E402
from family_checks import prompt  # noqa: E402
from test_families_cuda import texts_of, texts_of_the_law  # noqa: E402

from sgl.runtime import Engine, SamplingParams  # noqa: E402

HALF = torch.bfloat16
HYBRIDS = ["qwen 3.5", "olmo hybrid", "lfm2"]


@pytest.mark.parametrize("lens", [(1, 1, 1), (33, 2, 70)], ids=str)
@pytest.mark.parametrize("sizes", [checks.SIZES[1], *checks.LARGE[:2]])
@pytest.mark.parametrize("kind", checks.KINDS)
def test_states_advance_as_by_torch(kind: str, sizes: tuple[int, int, int, int], lens: tuple[int, ...]) -> None:
    checks.check_advance(kind, sizes, lens, "cuda")


@pytest.mark.parametrize("kind", checks.KINDS)
def test_states_advance_in_bfloat16(kind: str) -> None:
    checks.check_advance(kind, checks.LARGE[0], (1, 1, 1), "cuda", HALF)
    checks.check_advance(kind, checks.LARGE[0], (40, 2, 3), "cuda", HALF)


@pytest.mark.parametrize("lens", [(64, 1, 70), (1000, 33, 129)], ids=str)
@pytest.mark.parametrize("sizes", [(2, 2, 16, 20), *checks.LARGE[:2]], ids=str)
@pytest.mark.parametrize("kind", checks.KINDS)
def test_chunks_are_those_of_torch(kind: str, sizes: tuple[int, int, int, int], lens: tuple[int, ...]) -> None:
    checks.check_chunks(kind, sizes, lens, "cuda")


def test_chunks_of_equal_keys() -> None:
    for kind in ("delta", "kda"):
        checks.check_chunks(kind, checks.LARGE[0], (200,), "cuda", alike=True)


@pytest.mark.parametrize("kind", checks.KINDS)
def test_bits_do_not_depend_on_cuts(kind: str) -> None:
    checks.check_cuts(kind, "cuda")


@pytest.mark.parametrize("channels, width, name", [(40, 4, "silu"), (5, 3, None), (8192, 4, "silu")])
@pytest.mark.parametrize("lens", [(1, 1, 1), (4, 1, 40), (200, 1000, 3)], ids=str)
def test_convolutions_are_those_of_torch(lens: tuple[int, ...], channels: int, width: int, name: str | None) -> None:
    checks.check_convolve(lens, channels, width, name, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
def test_a_convolution_between_gates(dtype: torch.dtype) -> None:
    for lens in ((1, 1), (4, 1, 400)):
        checks.check_gated_convolution(lens, 2048, dtype, "cuda")


@pytest.mark.parametrize(
    "outputs, inputs, first, channels, width",
    [(64, 48, 17, 30, 3), (12352, 2560, 0, 8192, 4), (9296, 1024, 4096, 5120, 4)],
)
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
def test_a_row_through_product_and_convolution(
    outputs: int, inputs: int, first: int, channels: int, width: int, dtype: torch.dtype
) -> None:
    checks.check_convolved(outputs, inputs, first, channels, width, dtype, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
def test_gates(dtype: torch.dtype) -> None:
    checks.check_gates(70, dtype, "cuda")


@pytest.fixture(params=HYBRIDS)
def hybrid(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = write_family(request.param, tmp_path)
    write_tokenizer(path)
    return path


def test_texts_are_those_of_the_law(hybrid: Path) -> None:
    """Cold, from states that were left, together and alone; in graphs and without them."""
    prompts = [prompt(320, length, seed=length) for length in (1, 3, 17, 40)]
    expected = texts_of_the_law(hybrid, prompts)
    for options in ({}, {"graphs": False, "page_size": 16, "step_tokens": 16}):
        with Engine(hybrid, device="cuda", dtype="float32", kv_tokens=2048, **options) as engine:
            for _ in range(3):
                assert texts_of(engine, prompts) == expected, options
            assert texts_of(engine, prompts[2:3]) == expected[2:3], options


def test_fixed_sums_give_one_text_however_a_prompt_is_cut(tmp_path: Path) -> None:
    path = write_family("qwen 3.5", tmp_path)
    write_tokenizer(path)
    found, text = [], prompt(320, 60, seed=3)
    for options in ({}, {"step_tokens": 16}, {"graphs": False, "step_tokens": 23}):
        with Engine(path, device="cuda", dtype="bfloat16", kv_tokens=2048, deterministic=True, **options) as engine:
            found += [
                texts_of(engine, [text]),
                texts_of(engine, [text, text[:20], text[:41]])[:1],
                texts_of(engine, [text]),
            ]
            grown = text + found[0][0][:5]
            found.append([found[0][0][:5] + texts_of(engine, [grown])[0][:-5]])
    assert all(each == found[0] for each in found)


def test_a_graph_has_the_bits_of_the_eager_step(tmp_path: Path) -> None:
    """Of one sequence and of several, in bfloat16."""
    path = write_family("qwen 3.5", tmp_path)
    write_tokenizer(path)
    prompts = [prompt(320, length, seed=5) for length in (9, 1, 30)]
    with Engine(path, device="cuda", dtype="bfloat16", kv_tokens=2048) as engine:
        alone: list[Any] = []
        several: list[Any] = []
        for _ in range(4):
            engine.flush_cache()
            alone.append(texts_of(engine, prompts[:1]))
            engine.flush_cache()
            several.append(texts_of(engine, prompts))
        assert all(texts == alone[0] for texts in alone) and all(texts == several[0] for texts in several)
        assert {row["executor"] for row in engine.info()["layers"]} == {"fused"} and all(
            row["why"] is None for row in engine.info()["layers"]
        )
        assert any(engine._core.runner._graphs._captured.values())


def test_forks_and_choices(hybrid: Path) -> None:
    """Scores of choices and texts of forks equal those of an engine on the CPU."""
    found = []
    for device in ("cpu", "cuda"):
        with Engine(hybrid, device=device, dtype="float32", kv_tokens=2048) as engine:
            sequence = engine.open()
            sequence.extend(prompt(320, 30))
            scores = [p for row in sequence.score([[7, 8], [7, 9, 10], [11]]).result(60) for p, _ in row]
            params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
            children = sequence.fork(3)
            for index, child in enumerate(children):
                child.extend([40 + index])
            texts = [child.generate(params) for child in children]
            found.append((torch.tensor(scores), [text.result(60).token_ids for text in texts]))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-4)
    assert found[0][1] == found[1][1]
