"""The layers' Triton kernels and the fused decoder, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_checkpoint
from rig import Rig
from test_models import VARIANTS

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

import layer_checks as checks
from loaded_models import GivenWeights

from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.layers.rotary_embedding import RotaryEmbedding
from sgl.runtime.loading import load_config
from sgl.runtime.models import decoder

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, size", [(1, 384), (5, 50), (3, 1), (0, 8)])
def test_norms(rows: int, size: int, dtype: torch.dtype) -> None:
    checks.check_norms(rows, size, dtype, "cpu")


@pytest.mark.whole
def test_a_form_of_each_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    """All of them: tests/slow/test_compile_kernels.py."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_DISABLE_LINE_INFO": "1"}
    environment.pop("TRITON_INTERPRET")
    script = Path(__file__).with_name("compile_layer_kernels.py")
    run = subprocess.run([sys.executable, str(script), "1"], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_norm_of_strided_rows() -> None:
    checks.check_norm_of_strided_rows("cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, size", [(7, 77), (1, 2100), (0, 4)])
def test_silu_and_mul(rows: int, size: int, dtype: torch.dtype) -> None:
    checks.check_silu(rows, size, dtype, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows, size", [(2, 50), (1, 256), (0, 8)])
def test_join(rows: int, size: int, dtype: torch.dtype) -> None:
    checks.check_join(rows, size, dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_activations(dtype: torch.dtype) -> None:
    checks.check_activations(7, 77, dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits(dtype: torch.dtype) -> None:
    checks.check_logits(3, 1500, dtype, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", checks.HEAD_OPTIONS, ids=str)
def test_other_heads(options: dict[str, Any], dtype: torch.dtype) -> None:
    for queries, keys, dim, stores in ((5, 2, 24, True), (20, 4, 6, True), (3, 1, 16, False)):
        checks.check_other_heads(5, queries, keys, dim, dtype, "cpu", stores, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "queries, keys, dim, normed", [(4, 2, 16, False), (5, 5, 24, True), (20, 4, 6, True), (1, 1, 2, False)]
)
def test_heads(queries: int, keys: int, dim: int, normed: bool, dtype: torch.dtype) -> None:
    checks.check_heads(7, queries, keys, dim, dtype, "cpu", normed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_into_a_pool_of_fp8(dtype: torch.dtype) -> None:
    checks.check_heads(6, 3, 3, 16, dtype, "cpu", True, checks.FP8, (0.5, 2**-10))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens, hidden, page_size", [(25, 48, 1), (12, 64, 4)])
def test_embed(tokens: int, hidden: int, page_size: int, dtype: torch.dtype) -> None:
    checks.check_embed(tokens, hidden, page_size, dtype, "cpu")


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders made in this test run by the kernels."""
    monkeypatch.setattr(decoder, "_can_fuse", lambda device: True)


@pytest.mark.parametrize("variant", ["llama biases", "mistral sliding", "qwen3"])
def test_fused_decoder(variant: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    family, overrides = VARIANTS[variant]
    path = write_checkpoint(tmp_path, family, num_hidden_layers=2, **overrides)
    exact = Rig(path)
    assert not exact.model.fused
    request.getfixturevalue("fused")
    rig = checks.FusedRig(path, attention="torch_native")
    assert rig.model.fused
    checks.check_decoder(exact, rig, 1e-5)


def test_the_plain_decoder_knows_what_the_device_sampled(tmp_path: Path) -> None:
    """Without Triton a GPU's batches, with ids below 0, run through torch's operations."""
    path = write_checkpoint(tmp_path, num_hidden_layers=2)
    checks.check_decoder(Rig(path), checks.FusedRig(path, attention="torch_native"), 1e-6)


def test_fused_decoder_in_half_precision(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = write_checkpoint(tmp_path, num_hidden_layers=1)
    exact = Rig(path)
    request.getfixturevalue("fused")
    checks.check_decoder(exact, checks.FusedRig(path, torch.bfloat16, attention="torch_native"), 0.08)


@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "fp8"])
@pytest.mark.parametrize("variant", ["llama biases", "qwen3"])
def test_one_row_takes_the_kernels_made_for_it(
    variant: str, fp8: bool, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sgl.runtime.kernels.gemv import gemv

    family, overrides = VARIANTS[variant]
    path = write_checkpoint(tmp_path, family, num_hidden_layers=1, **overrides)
    exact = Rig(path)
    request.getfixturevalue("fused")
    rig = checks.FusedRig(path, attention="torch_native")
    checks.lay_plain(rig.model)
    if fp8:
        checks.lay_fp8(rig.model, exact.model)
    asked = []
    monkeypatch.setattr(gemv, "supports", lambda x: len(x) == 1 and not asked.append(x))
    monkeypatch.setattr(gemv, "best_launch", lambda *shape: gemv.GemvLaunch(16, 64, 1))  # few programs
    checks.check_decoder(exact, rig, 1e-5, checks.SINGLE)
    assert len(asked) == 2  # steps


def test_only_keys_and_values_are_computed_where_no_logits_are_wanted(
    tmp_path: Path, fused: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What such a step leaves in the pool is what one with logits does; its last layer attends nothing."""
    path, tokens = write_checkpoint(tmp_path, num_hidden_layers=2), list(range(4, 9))
    with_logits, without = (checks.FusedRig(path, attention="torch_native") for _ in range(2))
    with_logits.step([(checks.Row(tokens), 5)])
    run, attended = without.attention.attend, []
    monkeypatch.setattr(without.attention, "attend", lambda *args: attended.append(args[3]) or run(*args))
    without.wanted = 0
    out = without.step([(checks.Row(tokens), 5)])
    assert out.shape == (0, without.model.config.vocab_size)
    assert attended == [0]
    assert torch.equal(with_logits.pool.k.nan_to_num(), without.pool.k.nan_to_num())
    assert torch.equal(with_logits.pool.v.nan_to_num(), without.pool.v.nan_to_num())


def test_sequences_beyond_the_table_are_refused(tmp_path: Path, fused: None) -> None:
    rig = checks.FusedRig(write_checkpoint(tmp_path, max_position_embeddings=16), attention="torch_native")
    with pytest.raises(ValueError, match="a sequence of 17 tokens is beyond the 16 positions"):
        rig.step([(checks.Row([5] * 17), 17)])


def test_a_table_built_in_pieces_is_that_built_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl.runtime.layers import rotary_embedding

    rope, cpu = RopeParameters(5e5, 24, 24, "llama3", False, 8.0, 64, 1.0, 4.0), torch.device("cpu")
    once = RotaryEmbedding(rope, torch.float32, cpu, 100).table
    monkeypatch.setattr(rotary_embedding, "PIECE", 7)
    assert torch.equal(RotaryEmbedding(rope, torch.float32, cpu, 100).table, once)


def test_loading_asks_the_transform_for_every_projection(tmp_path: Path) -> None:
    """Layers that it gives are taken as they are, those that it passes on are sealed as ever."""

    class Doubled(Linear):
        def seal(self) -> Linear:
            raise AssertionError("a given layer is sealed already")

    asked: list[str] = []
    loaded: list[torch.Tensor] = []

    def transform(name: str, layer: Linear) -> Linear:
        asked.append(name)
        loaded.append(layer.weight)
        return Doubled(layer.weight * 2) if name == "down" else layer

    config = load_config(write_checkpoint(tmp_path, num_hidden_layers=2))
    model = decoder.Decoder(config, torch.float32)
    model.load(GivenWeights(lambda name, target: target.normal_()), transform)
    assert asked == ["qkv", "output", "gate_up", "down"] * 2 + ["head"]
    assert torch.equal(model.layers[1].ffn.down.weight, loaded[7] * 2)
    assert type(model.layers[1].mixer.qkv) is not Linear and not isinstance(model.layers[1].mixer.qkv, Doubled)
