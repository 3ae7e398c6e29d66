"""Few rows with weights of bfloat16 as they lie, against the definition, with all that may stand around a product."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import write_checkpoint
from test_few_rows_cuda import near

from sgl.runtime import Engine, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TILES = [None, (64, 128, 4, 4, 8), (64, 64, 6, 4, 0), (64, 128, 3, 4, 16)]


def tile_of(found):
    from sgl.runtime.kernels.few_rows_plain import PlainTile

    return found and PlainTile(*found)


def drawn(outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.randn(outputs, inputs, device="cuda").bfloat16()
    return weight, weight.double()


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("rows", [2, 8, 16, 17, 33, 64])
def test_a_product(rows: int, tile) -> None:
    from sgl.runtime.kernels import few_rows_plain

    for outputs, inputs in ((1032, 1040), (72, 208), (4096, 2048), (9000, 512)):
        weight, dense = drawn(outputs, inputs)
        assert few_rows_plain.takes(weight)
        x, bias = torch.randn(rows, inputs, device="cuda").bfloat16(), torch.randn(outputs, device="cuda").bfloat16()
        expected, size = x.double() @ dense.T + bias.double(), x.double().abs() @ dense.abs().T
        near(few_rows_plain.matmul(x, weight, bias, tile=tile_of(tile)), expected, size)


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlapped"])
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("rows", [3, 16, 40])
def test_what_surrounds_a_product(rows: int, tile, overlap: bool) -> None:
    """A branch's end leaves x times a norm's weight and squares; the product behind divides by them, and gates."""
    from sgl.runtime.kernels import few_rows_plain

    hidden, inner = 1024 + 128, 720
    (down, w_down), (up, w_up), chosen = drawn(hidden, inner), drawn(2 * inner, hidden), tile_of(tile)
    norm = (torch.rand(hidden, device="cuda") + 0.5).bfloat16()
    x, y = torch.randn(rows, hidden, device="cuda").bfloat16(), torch.randn(rows, inner, device="cuda").bfloat16()
    expected, size = x.double() + y.double() @ w_down.T, y.double().abs() @ w_down.abs().T
    readied = few_rows_plain.matmul(y, down, added_to=x, ready=(norm, 1e-6), tile=chosen, overlap=overlap)
    near(x, expected, size)
    assert torch.allclose(readied.squares.sum(0).double(), x.double().square().sum(1), rtol=1e-4)
    assert torch.equal(readied.y, (x.float() * norm.float()).bfloat16())
    found = few_rows_plain.matmul(readied, up, name="silu", tile=chosen, overlap=overlap)
    normed = readied.y.double() * torch.rsqrt(x.double().square().mean(1, keepdim=True) + 1e-6)
    gate, above = (normed @ w_up.T).chunk(2, 1)
    sizes, wanted = (normed.abs() @ w_up.abs().T).chunk(2, 1), torch.nn.functional.silu(gate) * above
    step = torch.finfo(torch.bfloat16).eps
    bound = 1.1 * sizes[0] * above.abs() + sizes[1] * torch.nn.functional.silu(gate).abs() + wanted.abs()
    assert ((found.double() - wanted).abs() <= step * bound + 1e-6).all()


def test_a_captured_chain_gives_the_bits_of_separate_launches() -> None:
    from sgl.runtime.kernels import few_rows_plain

    weights = [drawn(4096, 4096)[0] for _ in range(6)]
    first = torch.randn(8, 4096, device="cuda").bfloat16() / 64

    def chain(overlap: bool) -> torch.Tensor:
        y = first
        for weight in weights:
            y = few_rows_plain.matmul(y, weight, overlap=overlap)
        return y

    apart = chain(False)
    chain(True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain(True)
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, apart)


def test_an_engine_scores_as_with_the_ordinary_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_checkpoint(tmp_path, tokenizer=True, head_dim=64, num_hidden_layers=3, hidden_size=256, intermediate_size=512)
    prompts = ["a", "The quick brown fox", "b " * 20, "c", "d e f"]

    def scores(on: bool) -> list[list[tuple[int, float]]]:
        monkeypatch.setattr("sgl.runtime.kernels.few_rows_plain.ON", on)
        with Engine(path, device="cuda", dtype="bfloat16", kv_tokens=4096, max_running=8) as engine:
            assert (engine._core.runner.model.course.few is not None) == on
            told = {row["name"]: row["few_rows"] for row in engine.info()["products"]}
            assert ("few_rows_plain" in told["down"]) == on
            done = [engine.generate(prompts, SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=True)) for _ in range(8)]
            return [[(token, score) for score, token in each.logprobs] for each in done[-1]]

    for ours, theirs in zip(scores(True), scores(False), strict=True):
        for (token, score), (other, expected) in zip(ours, theirs, strict=True):
            assert score == pytest.approx(expected, abs=0.05)
            if token != other:
                break  # a tie, decided otherwise
