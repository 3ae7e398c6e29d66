"""The layers' kernels and the fused decoder on a GPU: real shapes, eager and in captured CUDA graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytestmark = pytest.mark.gpu
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))

import layer_checks as checks  # noqa: E402
from checkpoints import write_checkpoint  # noqa: E402
from rig import Rig  # noqa: E402
from test_models import VARIANTS  # noqa: E402

from sgl.runtime.layers.rope_parameters import RopeParameters  # noqa: E402
from sgl.runtime.layers.rotary_embedding import RotaryEmbedding  # noqa: E402
from sgl.runtime.models.gpu.gpu_support import ACTIVATIONS  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "rows, size", [(1, 4096), (64, 4096), (16384, 4096), (300, 896), (33, 5120), (7, 16384), (5, 50)]
)
def test_norms(rows: int, size: int, dtype: torch.dtype) -> None:
    checks.check_norms(rows, size, dtype, "cuda")


def test_norm_of_strided_rows() -> None:
    checks.check_norm_of_strided_rows("cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, size", [(1, 14336), (256, 14336), (8192, 14336), (100, 4864), (9, 77)])
def test_silu_and_mul(rows: int, size: int, dtype: torch.dtype) -> None:
    checks.check_silu(rows, size, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, size", [(1, 2560), (300, 2560), (33, 5120), (9, 77)])
def test_join(rows: int, size: int, dtype: torch.dtype) -> None:
    checks.check_join(rows, size, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, size", [(256, 10240), (100, 4864), (9, 77)])
def test_activations(rows: int, size: int, dtype: torch.dtype) -> None:
    checks.check_activations(rows, size, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits(dtype: torch.dtype) -> None:
    checks.check_logits(64, 256_000, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", checks.HEAD_OPTIONS, ids=str)
def test_other_heads(options: dict[str, Any], dtype: torch.dtype) -> None:
    sizes = [
        (300, 8, 4, 256, True),
        (50, 32, 8, 128, True),
        (9, 5, 5, 24, True),
        (7, 8, 1, 512, True),
        (40, 8, 2, 256, False),
    ]
    for tokens, queries, keys, dim, stores in sizes:
        checks.check_other_heads(tokens, queries, keys, dim, dtype, "cuda", stores, **options)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_product(name: str) -> None:
    """Where Hopper has it; the activation stands in the product's epilogue."""
    from sgl.runtime.kernels import gate_up_gemm

    x, weight = (torch.randn(size, device="cuda").bfloat16() for size in ((700, 640), (2 * 1000, 640)))
    if not gate_up_gemm.supports(x, weight):
        pytest.skip("needs compute capability 9.0")
    weight /= 25
    gate, up = torch.nn.functional.linear(x.double(), weight.double()).chunk(2, -1)
    checks.close(gate_up_gemm.gate_up(x, weight, name), (checks.TORCH_ACTIVATIONS[name](gate) * up).bfloat16())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    "tokens, queries, keys, dim",
    [
        (1, 32, 8, 128),
        (256, 32, 8, 128),
        (8192, 32, 8, 128),
        (50, 14, 2, 64),
        (50, 32, 32, 96),
        (50, 8, 1, 256),
        (9, 5, 5, 24),
    ],
)
def test_heads(tokens: int, queries: int, keys: int, dim: int, normed: bool, dtype: torch.dtype) -> None:
    checks.check_heads(tokens, queries, keys, dim, dtype, "cuda", normed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_into_a_pool_of_fp8(dtype: torch.dtype) -> None:
    checks.check_heads(500, 32, 8, 128, dtype, "cuda", False, checks.FP8, (0.5, 2**-10))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens, hidden, page_size", [(1, 4096, 1), (3000, 4096, 1), (3000, 896, 16), (40, 50, 4)])
def test_embed(tokens: int, hidden: int, page_size: int, dtype: torch.dtype) -> None:
    checks.check_embed(tokens, hidden, page_size, dtype, "cuda")


def replayed(work: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of `work`, compiled before; run nothing yet."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    return graph, out


def test_a_captured_step_follows_its_inputs() -> None:
    """Other ids, positions, slots and sampled tokens between replays: what runs eagerly on them comes out."""
    from sgl.runtime.kernels.attention.qk_norm_rope_store import norm_rope_store
    from sgl.runtime.kernels.embed_tokens import embed
    from sgl.runtime.kernels.rms_norm import add_rms_norm, rms_norm

    tokens, dim, dtype = 8, 64, torch.bfloat16
    embedding, weight = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((90, 6 * dim), (6 * dim,)))
    angles = RotaryEmbedding(RopeParameters(1e4, dim, dim), dtype, torch.device("cuda"), 400).table
    ids, positions, slots, rows = (torch.zeros(tokens, dtype=torch.int32, device="cuda") for _ in range(4))
    table, last = (
        torch.zeros(9, 400, dtype=torch.int32, device="cuda"),
        torch.zeros(9, dtype=torch.int32, device="cuda"),
    )
    pool = torch.zeros(2, 50, 1, dim, dtype=dtype, device="cuda")
    batch = checks.device_batch(ids, positions, slots, rows, table, last, 1)

    def work() -> torch.Tensor:
        x = embed(batch, embedding)
        qkv = rms_norm(x, weight, 1e-5)
        q = norm_rope_store(qkv, 4, 1, angles, positions, slots, pool[0], pool[1])
        return add_rms_norm(q.reshape(tokens, -1), x[:, : 4 * dim], weight[: 4 * dim], 1e-5)

    graph, out = replayed(work)
    for _ in range(3):
        ids.copy_(torch.randint(-8, 90, (tokens,)))
        positions.copy_(torch.randint(0, 400, (tokens,)))
        slots.copy_(torch.randperm(50)[:tokens])
        rows.copy_(torch.randperm(8))
        last.copy_(torch.randint(0, 90, (9,)))
        graph.replay()
        kept, entered, got = pool.clone(), table.clone(), out.clone()
        assert torch.equal(got, work())
        assert torch.equal(kept, pool) and torch.equal(entered, table)
        used = slots != 0
        assert torch.equal(table[rows[used].long(), positions[used].long()], slots[used])


@pytest.mark.parametrize(
    "variant", ["llama", "llama biases", "llama head_dim", "mistral sliding", "qwen2", "qwen3", "phi3 sliding"]
)
def test_fused_decoder(variant: str, tmp_path: Path) -> None:
    """In float32; single rows take the kernels of `gemv`."""
    family, overrides = VARIANTS[variant]
    path = write_checkpoint(tmp_path, family, **overrides)
    rig = checks.FusedRig(path, device="cuda", attention="torch_native")
    assert rig.model.fused
    checks.check_decoder(Rig(path), rig, 2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", ["llama biases", "qwen3"])
def test_fused_decoder_in_half_precision(variant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    path = write_checkpoint(tmp_path, family, **overrides)
    rig = checks.FusedRig(path, dtype, device="cuda", attention="torch_native")
    checks.check_decoder(Rig(path), rig, 0.06 if dtype == torch.bfloat16 else 0.01)


def test_the_plain_decoder_still_runs_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What remains where Triton cannot be imported."""
    from sgl.runtime.models import decoder

    monkeypatch.setattr(decoder, "_can_fuse", lambda device: False)
    path = write_checkpoint(tmp_path)
    rig = checks.FusedRig(path, device="cuda", attention="torch_native")
    assert not rig.model.fused
    checks.check_decoder(Rig(path), rig, 2e-5)
