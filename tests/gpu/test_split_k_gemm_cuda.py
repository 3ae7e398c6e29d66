"""Few rows with weights of four and eight bits, each program with a slice of the inputs, against the definition."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from test_skinny_gemm_cuda import drawn, near

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TILES = [
    (64, 4, 2, 4, 2),
    (32, 8, 1, 2, 2, 2, 2),
    (32, 16, 1, 1, 1, 2, 2),
    (128, 2, 4, 8, 2, 1),
    (16, 8, 1, 1, 2, 3),
    (64, 4, 4, 1, 1, 2, 2),
    (64, 1, 4, 2, 2),
]
FORMS = [(form, group) for form in ("plain", "zeros", "order") for group in (32, 64, 128, 4096)]
FORMS += [(form, group) for form in ("floats", "table", "fine table") for group in (32, 128)]
BYTES = [(form, group) for form in ("bytes", "float8") for group in (64, 128, 4096)]


def tile_of(found):
    from sgl.runtime.kernels.quantized.split_k_gemm import SplitKTile

    return found and SplitKTile(*found)


def suiting(tile, rows: int, weight):
    from sgl.runtime.kernels.quantized import split_k_gemm

    chosen = tile_of(tile)
    if chosen and chosen.room(split_k_gemm.columns(rows), weight.inputs, weight.form) > 226 * 1024:
        pytest.skip("no room for x")
    return chosen


@pytest.mark.parametrize(
    "form, group, tile", [(*one, tile) for one, tile in zip(FORMS + BYTES, cycle(TILES), strict=False)], ids=str
)
def test_a_product(form: str, group: int, tile) -> None:
    from sgl.runtime.kernels.quantized import quantized_gemm

    nibbles = (form, group) in FORMS
    for outputs, inputs, counts in (
        (1032, 1040 if nibbles else 1088, (2, 9, 16, 30)),
        (72, 208 if nibbles else 192, (16,)),
        (4096, 2048, (13,)),
    ):
        weight, dense = drawn(form, outputs, inputs, min(group, inputs))
        bias = torch.randn(outputs, device="cuda").bfloat16()
        for rows in counts:
            chosen = suiting(tile, rows, weight)
            x = torch.randn(rows, inputs, device="cuda").bfloat16()
            expected, size = x.double() @ dense.T + bias.double(), x.double().abs() @ dense.abs().T
            for _ in range(2):  # the counters are back at zero
                near(quantized_gemm.matmul(x, weight, bias, tile=chosen), expected, size)


@pytest.mark.parametrize("tile, overlap", [(TILES[0], False), (None, True), *((tile, True) for tile in TILES)], ids=str)
@pytest.mark.parametrize("rows", [3, 16, 30])
@pytest.mark.parametrize("forms", [("plain", "zeros"), ("bytes", "float8")], ids=str)
def test_what_surrounds_a_product(forms, rows: int, tile, overlap: bool) -> None:
    """A branch's end leaves x times a norm's weight and squares; the product behind divides by them, and gates."""
    from sgl.runtime.kernels.quantized import quantized_gemm

    hidden, inner = 1024 + 128, 768
    down, w_down = drawn(forms[0], hidden, inner, 64, 1)
    up, w_up = drawn(forms[1], 2 * inner, hidden, 64)
    norm = (torch.rand(hidden, device="cuda") + 0.5).bfloat16()
    x, y = torch.randn(rows, hidden, device="cuda").bfloat16(), torch.randn(rows, inner, device="cuda").bfloat16()
    expected, size = x.double() + y.double() @ w_down.T, y.double().abs() @ w_down.abs().T
    chosen = suiting(tile, rows, down)
    readied = quantized_gemm.matmul(y, down, added_to=x, ready=(norm, 1e-6), tile=chosen, overlap=overlap)
    near(x, expected, size)
    assert torch.allclose(readied.squares.sum(0).double(), x.double().square().sum(1), rtol=1e-4)
    assert torch.equal(readied.y, (x.float() * norm.float()).bfloat16())
    found = quantized_gemm.matmul(readied, up, name="silu", tile=chosen, overlap=overlap)
    normed = readied.y.double() * torch.rsqrt(x.double().square().mean(1, keepdim=True) + 1e-6)
    gate, above = (normed @ w_up.T).chunk(2, 1)
    sizes, wanted = (normed.abs() @ w_up.abs().T).chunk(2, 1), torch.nn.functional.silu(gate) * above
    step = torch.finfo(torch.bfloat16).eps
    bound = 1.1 * sizes[0] * above.abs() + sizes[1] * torch.nn.functional.silu(gate).abs() + wanted.abs()
    assert ((found.double() - wanted).abs() <= step * bound + 1e-6).all()


def test_the_bits_of_a_row_are_its_own() -> None:
    """Within a width of columns, whatever the other rows are, launch after launch."""
    from sgl.runtime.kernels.quantized import quantized_gemm

    weight, _ = drawn("zeros", 6144, 4096, 64)
    x = torch.randn(16, 4096, device="cuda").bfloat16()
    tile = tile_of((64, 4, 2, 4, 2))
    whole = quantized_gemm.matmul(x, weight, tile=tile)
    for rows in (9, 12, 15, 16, 16, 16):
        assert torch.equal(quantized_gemm.matmul(x[:rows], weight, tile=tile), whole[:rows]), rows


def test_a_captured_chain_gives_the_bits_of_separate_launches() -> None:
    from sgl.runtime.kernels.quantized import quantized_gemm

    weights = [drawn("zeros", 4096, 4096, 64, seed)[0] for seed in range(4)]
    x, tile = torch.randn(16, 4096, device="cuda").bfloat16() / 64, tile_of((64, 4, 2, 4, 2))

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


@pytest.mark.parametrize(
    "tile", [None, (64, 4, 2, 4, 2), (32, 8, 1, 2, 2), (128, 4, 4, 4, 1, 1), (32, 16, 1, 1, 1)], ids=str
)
@pytest.mark.parametrize("form, pool", [("zeros", torch.bfloat16), ("float8", torch.float8_e4m3fn)], ids=str)
def test_heads_are_rotated_and_stored(form: str, pool: torch.dtype, tile) -> None:
    """As by the product, and `norm_rope_store` behind it; a row in slot 0 stores nothing."""
    from sgl.runtime.kernels.attention.qk_norm_rope_store import norm_rope_store
    from sgl.runtime.kernels.quantized import quantized_gemm, split_k_gemm
    from sgl.runtime.kernels.quantized.split_k_gemm import NormedInput, QkvStoreArguments

    queries, keys, dim, hidden, slots = 8, 2, 128, 1024, 64
    weight, _ = drawn(form, (queries + 2 * keys) * dim, hidden, 64)
    bias, angles = (
        torch.randn(weight.outputs, device="cuda").bfloat16(),
        torch.rand(512, 2 * dim, device="cuda").bfloat16(),
    )
    scales = (1.0, 1.0) if pool == torch.bfloat16 else (0.5, 2.0)
    for rows in (2, 16, 27):
        x = NormedInput(
            torch.randn(rows, hidden, device="cuda").bfloat16(), torch.rand(3, rows, device="cuda") * 1000, 1e-5
        )
        positions = torch.randint(0, 512, (rows,), device="cuda", dtype=torch.int32)
        places = torch.randperm(slots - 1, device="cuda")[:rows].int() + 1
        places[1] = 0
        pools = [torch.zeros(slots, keys, dim, device="cuda").to(pool) for _ in range(4)]
        heads = QkvStoreArguments(queries, keys, angles, positions, places, *pools[:2], *scales)
        q = split_k_gemm.qkv_rope_store(x, weight, bias, heads, overlap=True, tile=tile and tile_of(tile))
        qkv = quantized_gemm.matmul(x, weight, bias)
        expected = norm_rope_store(qkv, queries, keys, angles, positions, places, *pools[2:], None, *scales)
        assert torch.allclose(q.float(), expected.float(), rtol=0.03, atol=0.03 * float(expected.float().abs().mean()))
        for found, wanted in zip(pools[:2], pools[2:], strict=True):
            size = float(wanted.float().abs().sum()) / (keys * dim * (rows - 1))
            assert torch.allclose(
                found.float(), wanted.float(), rtol=0.15 if pool != torch.bfloat16 else 0.03, atol=0.05 * size
            )
            assert (found[0] == 0).all()
