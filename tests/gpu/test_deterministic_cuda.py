"""On a GPU: the bits of a row do not depend on how many rows are multiplied, nor on where the row stands; and those
of a request not on what runs beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint, write_tokenizer
from family_cases import write_family
from test_deterministic import alone, preempting, scores, together

from sgl.runtime import Engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda")
SHAPES = {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
ROWS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 129, 200, 256, 300, 512, 1000, 2048, 4096)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)


def sealed(weights: str, outputs: int, inputs: int, dtype: torch.dtype = torch.bfloat16, bias: bool = False):
    from sgl.runtime.layers.linear_layers import Linear
    from sgl.runtime.quantization import transform_for

    transform = transform_for(weights, True, DEVICE)
    assert transform is not None
    weight = random(outputs, inputs, dtype=dtype, seed=1) / inputs**0.5
    return weight, transform("qkv", Linear(weight, random(outputs, dtype=dtype, seed=2) if bias else None))


@pytest.mark.parametrize("weights", ["auto", "fp8"])
@pytest.mark.parametrize("name", SHAPES)
def test_any_number_of_rows_at_any_place(name: str, weights: str) -> None:
    outputs, inputs = SHAPES[name]
    _, layer = sealed(weights, outputs, inputs)
    x = random(max(ROWS), inputs) * torch.logspace(-2, 2, max(ROWS), device=DEVICE, dtype=torch.bfloat16)[:, None]
    whole = layer(x)
    generator = torch.Generator().manual_seed(0)
    for count in ROWS:
        rows = torch.randperm(max(ROWS), generator=generator)[:count].to(DEVICE)
        differing = int((layer(x[rows]) != whole[rows]).sum())
        assert not differing, f"{count} rows: {differing} of {count * outputs} numbers differ"


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 4e-3), (torch.float32, 1e-4)])
@pytest.mark.parametrize("rows, outputs, inputs", [(1, 640, 384), (77, 6144, 4096), (700, 1000, 1024), (0, 64, 64)])
def test_is_the_product(rows: int, outputs: int, inputs: int, dtype: torch.dtype, tolerance: float) -> None:
    weight, layer = sealed("auto", outputs, inputs, dtype, bias=True)
    x = random(rows, inputs, dtype=dtype)
    expected = F.linear(x.double(), weight.double(), layer.bias.double())
    torch.testing.assert_close(layer(x).double(), expected, rtol=tolerance, atol=tolerance)


def test_float32_too() -> None:
    _, layer = sealed("auto", 640, 384, torch.float32)
    x = random(300, 384, dtype=torch.float32)
    whole = layer(x)
    for count in (1, 2, 7, 33, 200):
        assert torch.equal(layer(x[50 : 50 + count]), whole[50 : 50 + count])


def test_every_tile_that_may_be_chosen_gives_the_same_bits() -> None:
    from sgl.runtime.kernels import batch_invariant_matmul as product

    x, weight = random(300, 4096), random(1024, 4096, seed=1)
    tiles = [*product.NARROW.values(), *product.WIDE.values(), product.MANY, product.MOST]
    results = [product.matmul(x, weight, tile=tile) for tile in tiles]
    for tile, result in zip(tiles, results, strict=True):
        assert torch.equal(result, results[0]), tile


def test_in_a_graph() -> None:
    _, layer = sealed("auto", 6144, 4096)
    x = random(16, 4096)
    expected = layer(x)  # compiled before the capture
    graph, static = torch.cuda.CUDAGraph(), torch.zeros_like(x)
    with torch.cuda.graph(graph):
        found = layer(static)
    static.copy_(x)
    graph.replay()
    assert torch.equal(found, expected)


# the engine


MODELS: dict[str, dict[str, Any]] = {
    "heads of 64": {"hidden_size": 256, "head_dim": 64, "intermediate_size": 640},
    "heads of 128": {"hidden_size": 512, "head_dim": 128, "intermediate_size": 1024, "num_key_value_heads": 1},
}
ARITHMETIC: list[dict[str, Any]] = [{}, {"weights": "fp8"}, {"kv_dtype": "fp8"}]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), tokenizer=True, **MODELS[request.param])


@pytest.mark.parametrize("arithmetic", ARITHMETIC, ids=str)
def test_the_bits_of_a_request_do_not_depend_on_what_runs_beside(model: Path, arithmetic: dict[str, Any]) -> None:
    if arithmetic and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a CUDA device with float8")
    options = {"deterministic": True, "device": "cuda", "dtype": "bfloat16", "kv_tokens": 4096} | arithmetic
    with Engine(model, **options) as engine:
        assert engine.info()["attention"] == "triton" and engine.info()["graphs"]
        expected, scored = alone(engine), scores(engine)
        engine.flush_cache()
        assert together(engine) == expected
        before = engine.stats().cached_tokens
        assert together(engine) == expected and engine.stats().cached_tokens > before + 100
        assert scores(engine) == scored
    for cut in ({"graphs": False, "run_ahead": False}, {"step_tokens": 7, "max_running": 5}, {"page_size": 16}):
        with Engine(model, **options | cut) as engine:
            assert together(engine) == expected, cut
            assert scores(engine) == scored, cut
    with Engine(model, **options, step_tokens=32) as engine:
        preempting(engine)
        assert together(engine) == expected and engine.stats().preemptions > 3


@pytest.mark.parametrize("case", ["gemma3", "olmo2", "gpt_neox", "cohere2", "apertus"])
def test_other_families(case: str, tmp_path: Path) -> None:
    """Norms behind branches, layer norms, branches beside each other, and layers that torch's operations compute."""
    path = write_tokenizer(write_family(case, tmp_path, max_position_embeddings=512))
    with Engine(path, deterministic=True, device="cuda", dtype="bfloat16", kv_tokens=4096) as engine:
        expected = alone(engine)
        engine.flush_cache()
        assert together(engine) == expected
        assert together(engine) == expected


def test_flashinfer_is_refused() -> None:
    from sgl.runtime.errors import ConfigError

    with pytest.raises(ConfigError, match="attention='auto'"):
        Engine(deterministic=True, attention="flashinfer", device="cuda")
