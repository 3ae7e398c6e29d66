"""Tens to hundreds of rows with weights of four and eight bits by Hopper's wide instructions, against the
definition, with all that may stand around a product.
"""

from __future__ import annotations

import pytest
import torch
from test_skinny_gemm_cuda import drawn, near

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not hopper, reason="needs a Hopper GPU")]

FORMS = (
    "plain",
    "zeros",
    "broken zeros",
    "offset",
    "offset, factor",
    "floats",
    "table",
    "fine table",
    "order",
    "bytes",
    "byte zeros",
    "float8",
)
TILES = [
    (128, 64),
    (128, 128),
    (128, 256),
    (256, 64),
    (256, 128),
    (64, 64, 1, 4),
    (64, 256, 1, 4),
    (128, 64, 2),
    (128, 128, 3),
    (256, 128, 2),
    (64, 64, 4, 4),
    (128, 64, 4, 8, 2),
]


def tile_of(found, rows: int, outputs: int, inputs: int):
    """Of the numbers, whole inputs where so many programs would not run at the same time; None: the chosen one."""
    from sgl.runtime.kernels.batch_invariant_matmul import processors
    from sgl.runtime.kernels.quantized.wgmma_gemm import WgmmaTile, tile_for

    device = torch.device("cuda", torch.cuda.current_device())
    if found is None:
        return tile_for(rows, outputs, inputs, device)
    tile = WgmmaTile(*found)
    return tile if tile.programs(rows, outputs) <= tile.full * processors(device) else tile._replace(split=1)


def check(
    form: str,
    group: int,
    rows: int,
    tile=None,
    dtype: torch.dtype = torch.bfloat16,
    size: tuple[int, int] = (1032, 1056),
) -> None:
    from test_quantized_gemm_cuda import on_gpu
    from test_quantized_kernels import draw

    from sgl.runtime.kernels.quantized import quantized_gemm, wgmma_gemm
    from sgl.runtime.quantization.gpu_weight_packing import pack_for_gpu

    grouped = on_gpu(draw(form, *size, group))
    weight, dense = pack_for_gpu(grouped, dtype), grouped.dense().double()
    assert wgmma_gemm.supports_shape(weight)
    x, bias = torch.randn(rows, size[1], device="cuda").to(dtype), torch.randn(size[0], device="cuda").to(dtype)
    expected, sizes = x.double() @ dense.T + bias.double(), x.double().abs() @ dense.abs().T
    found = quantized_gemm.matmul(x, weight, bias, tile=tile_of(tile, rows, *size))
    step = torch.finfo(dtype).eps
    assert ((found.double() - expected).abs() <= step * (expected.abs() + sizes / 2)).all()


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlapped"])
@pytest.mark.parametrize("tile", [None, (64, 128, 2, 4), (128, 256)], ids=str)
@pytest.mark.parametrize("rows", [33, 200])
def test_what_surrounds_a_product(rows: int, tile, overlap: bool) -> None:
    """A branch's end leaves x times a norm's weight and squares; the product behind divides by them, and gates."""
    from sgl.runtime.kernels.quantized import quantized_gemm

    hidden, inner = 1024 + 128, 736
    down, w_down = drawn("plain", hidden, inner, 64, 1)
    up, _ = drawn("zeros", 2 * inner, hidden, 32)
    w_up = quantized_gemm.dequantized(up, slice(None)).double()  # its rounding is what the kernel's is
    norm = (torch.rand(hidden, device="cuda") + 0.5).bfloat16()
    x, y = torch.randn(rows, hidden, device="cuda").bfloat16(), torch.randn(rows, inner, device="cuda").bfloat16()
    expected, size = x.double() + y.double() @ w_down.T, y.double().abs() @ w_down.abs().T
    first, second = (tile_of(tile, rows, *sides) for sides in ((hidden, inner), (2 * inner, hidden)))
    readied = quantized_gemm.matmul(y, down, added_to=x, ready=(norm, 1e-6), tile=first, overlap=overlap)
    near(x, expected, size)
    assert torch.allclose(readied.squares.sum(0).double(), x.double().square().sum(1), rtol=1e-4)
    assert torch.equal(readied.y, (x.float() * norm.float()).bfloat16())
    found = quantized_gemm.matmul(readied, up, name="silu", tile=second, overlap=overlap)
    normed = readied.y.double() * torch.rsqrt(x.double().square().mean(1, keepdim=True) + 1e-6)
    gate, above = (normed @ w_up.T).chunk(2, 1)
    wanted = torch.nn.functional.silu(gate) * above
    assert ((found.double() - wanted).abs() <= 0.01 * (wanted.abs() + wanted.abs().mean())).all()


@pytest.mark.parametrize("form", ["zeros", "float8"])
def test_gates_of_both_forms(form: str) -> None:
    from sgl.runtime.kernels.quantized import quantized_gemm, wgmma_gemm

    up, _ = drawn(form, 2 * 736, 1024, 128)
    w_up = quantized_gemm.dequantized(up, slice(None)).double()  # its rounding is what the kernel's is
    for rows in (40, 200):
        x = torch.randn(rows, 1024, device="cuda").bfloat16()
        gate, above = (x.double() @ w_up.T).chunk(2, 1)
        wanted = torch.nn.functional.silu(gate) * above
        found = quantized_gemm.matmul(x, up, name="silu", tile=wgmma_gemm.tile_for(rows, 2 * 736, 1024, x.device))
        assert ((found.double() - wanted).abs() <= 0.01 * (wanted.abs() + wanted.abs().mean())).all()


def test_a_captured_chain_gives_the_bits_of_separate_launches() -> None:
    """Split inputs meet at the same time, whatever starts under their tail."""
    from sgl.runtime.kernels.quantized import quantized_gemm, wgmma_gemm

    weights = [drawn("zeros", 4096, 4096, 64, seed)[0] for seed in range(4)]
    x = torch.randn(64, 4096, device="cuda").bfloat16() / 64
    tile = wgmma_gemm.tile_for(64, 4096, 4096, x.device)
    assert tile.split > 1

    def chain(overlap: bool) -> torch.Tensor:
        y = x
        for weight in weights:
            y = quantized_gemm.matmul(y, weight, overlap=overlap, tile=tile)
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


@pytest.mark.parametrize("rows", [64, 256])
@pytest.mark.parametrize("outputs, inputs", [(6144, 4096), (4096, 14336)])
def test_sizes_of_a_model(outputs: int, inputs: int, rows: int) -> None:
    for _ in range(3):
        check("zeros", 64, rows, size=(outputs, inputs))


def test_float8_with_a_scale_an_output() -> None:
    from sgl.runtime.kernels.packed.packed_weight import MOST_TILES
    from sgl.runtime.kernels.quantized import quantized_gemm, wgmma_gemm
    from sgl.runtime.layers.float8_reference import quantize_weight
    from sgl.runtime.quantization.gpu_weight_packing import of_float8

    words, scale = quantize_weight(torch.randn(2048, 4096, device="cuda").bfloat16())
    weight = of_float8(words, scale, torch.zeros(MOST_TILES, dtype=torch.int32, device="cuda"))
    dense = words.double() * scale.double()[:, None]
    for rows in (33, 64, 200):
        x = torch.randn(rows, 4096, device="cuda").bfloat16()
        found = quantized_gemm.matmul(x, weight, tile=wgmma_gemm.tile_for(rows, 2048, 4096, x.device))
        near(found, x.double() @ dense.T, x.double().abs() @ dense.abs().T)


@pytest.mark.parametrize("group, rows", [(32, 33), (64, 257), (128, 65), (2**20, 200)])
@pytest.mark.parametrize("form", FORMS)
def test_each_form(form: str, group: int, rows: int) -> None:
    if form in ("bytes", "byte zeros", "float8") and group < 128:
        pytest.skip("bytes in smaller groups go by another kernel")
    check(form, group, rows)


@pytest.mark.parametrize("form", ["zeros", "float8"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_each_tile(tile, form: str) -> None:
    for rows in (33, 65, 127, 200, 257):
        check(form, 128, rows, tile)


@pytest.mark.parametrize("form", ["zeros", "floats", "float8"])
def test_float16(form: str) -> None:
    check(form, 128, 127, dtype=torch.float16)
