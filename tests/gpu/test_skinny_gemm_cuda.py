"""Few rows with weights of four bits by the tensor cores, against the definition,
with all that may stand around a product.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TILES = [None, (16, 8, 1, 2), (32, 4, 2, 1), (64, 2, 4, 2), (64, 2, 2, 3)]


def drawn(form: str, outputs: int, inputs: int, group: int, seed: int = 0):
    from test_quantized_gemm_cuda import on_gpu
    from test_quantized_kernels import draw

    from sgl.runtime.quantization.gpu_weight_packing import pack_for_gpu

    weight = on_gpu(draw(form, outputs, inputs, group, seed))
    return pack_for_gpu(weight, torch.bfloat16), weight.dense().double()


def tile_of(found):
    from sgl.runtime.kernels.quantized.skinny_gemm import SkinnyGemmTile

    return found and SkinnyGemmTile(*found)


def near(found: torch.Tensor, expected: torch.Tensor, size: torch.Tensor, share: float = 0.5) -> None:
    step = torch.finfo(torch.bfloat16).eps
    assert ((found.double() - expected).abs() <= step * (expected.abs() + share * size)).all()


@pytest.mark.parametrize("rows", [2, 5, 8, 9, 16, 17, 33, 64])
@pytest.mark.parametrize("form, group", product(("plain", "zeros", "order"), (32, 64, 128)))
def test_a_product(form: str, group: int, rows: int) -> None:
    from sgl.runtime.kernels.quantized import quantized_gemm
    from sgl.runtime.kernels.quantized.gemm_dispatch import kernel_for

    for outputs, inputs in ((1032, 1040), (72, 208), (4096, 2048)):
        weight, dense = drawn(form, outputs, inputs, group)
        x, bias = torch.randn(rows, inputs, device="cuda").bfloat16(), torch.randn(outputs, device="cuda").bfloat16()
        assert kernel_for(rows, weight, x=x) in ("split_k_gemm", "skinny_gemm", "wgmma_gemm")
        expected, size = x.double() @ dense.T + bias.double(), x.double().abs() @ dense.abs().T
        near(quantized_gemm.matmul(x, weight, bias), expected, size)


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlapped"])
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("rows", [3, 16, 40])
def test_what_surrounds_a_product(rows: int, tile, overlap: bool) -> None:
    """A branch's end leaves x times a norm's weight and squares; the product behind divides by them, and gates."""
    from sgl.runtime.kernels.quantized import quantized_gemm
    from sgl.runtime.kernels.quantized.gemm_dispatch import kernel_for

    hidden, inner = 1024 + 128, 720
    down, w_down = drawn("plain", hidden, inner, 64, 1)
    up, w_up = drawn("zeros", 2 * inner, hidden, 32)
    norm = (torch.rand(hidden, device="cuda") + 0.5).bfloat16()
    x, y = torch.randn(rows, hidden, device="cuda").bfloat16(), torch.randn(rows, inner, device="cuda").bfloat16()
    expected, size = x.double() + y.double() @ w_down.T, y.double().abs() @ w_down.abs().T
    chosen = tile_of(tile)
    if chosen and chosen.ring(64, 32) < 2:
        pytest.skip("no room for its steps")
    readied = quantized_gemm.matmul(y, down, added_to=x, ready=(norm, 1e-6), tile=chosen, overlap=overlap)
    near(x, expected, size)
    assert torch.allclose(readied.squares.sum(0).double(), x.double().square().sum(1), rtol=1e-4)
    assert torch.equal(readied.y, (x.float() * norm.float()).bfloat16())
    found = quantized_gemm.matmul(readied, up, name="silu", tile=chosen, overlap=overlap)
    normed = readied.y.double() * torch.rsqrt(x.double().square().mean(1, keepdim=True) + 1e-6)
    if tile is None and kernel_for(rows, up, True, readied.y) == "wgmma_gemm":
        w_up = quantized_gemm.dequantized(up, slice(None)).double()  # its rounding is what the kernel's is
    gate, above = (normed @ w_up.T).chunk(2, 1)
    wanted = torch.nn.functional.silu(gate) * above
    assert ((found.double() - wanted).abs() <= 0.01 * (wanted.abs() + wanted.abs().mean())).all()


def test_the_bits_of_a_row_are_its_own() -> None:
    """Within a width of columns, whatever the other rows are."""
    from sgl.runtime.kernels.quantized import quantized_gemm

    weight, _ = drawn("zeros", 6144, 4096, 64)
    x = torch.randn(64, 4096, device="cuda").bfloat16()
    whole = quantized_gemm.matmul(x, weight)
    for rows in (33, 40, 63):
        assert torch.equal(quantized_gemm.matmul(x[:rows], weight), whole[:rows]), rows


def test_a_captured_chain_gives_the_bits_of_separate_launches() -> None:
    from sgl.runtime.kernels.quantized import quantized_gemm

    weights = [drawn("zeros", 4096, 4096, 64, seed)[0] for seed in range(4)]
    x = torch.randn(16, 4096, device="cuda").bfloat16() / 64

    def chain(overlap: bool) -> torch.Tensor:
        y = x
        for weight in weights:
            y = quantized_gemm.matmul(y, weight, overlap=overlap)
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
