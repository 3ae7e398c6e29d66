"""Projections whose pieces are of different forms: the layers above each other, the
compiled step with them, and a Q4_K_M file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checkpoints import write_checkpoint
from rig import Rig, Row
from test_compiled_step import steps_of
from test_gguf_engine import GREEDY, file_of
from test_gguf_model import logits, pair
from test_int4 import DTYPES, as_multiplied, drawn, needs_product, normal
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from sgl.runtime import Engine
from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.layers.mixed_format_linear import MixedFormatBlockedLinear, MixedFormatLinear, kinds_of, stacked
from sgl.runtime.loading import load_model
from sgl.runtime.models.layer_executors import LayerExecutorChoice
from sgl.runtime.quantization import quantized_transform, transform_for
from sgl.runtime.quantization.cpu_int4_linear import blocked
from sgl.runtime.quantization.fused_quantized_weight import PLAIN, FusedQuantizedWeight, QuantizedPiece
from sgl.runtime.quantization.quantized_transform import keep_quantized
from sgl.runtime.quantization.quantized_weight import QuantizedWeight
from sgl.runtime.quantization.weight_rounding import nearest, round_to_int8

NANO = Path(__file__).parents[2] / "runtime" / "nano"
BESIDE = 24  # rows of a weight that stay plain


# weights of pieces


def codes_of(weight: Tensor) -> FusedQuantizedWeight:
    """Rows of three kinds: four bits, eight bits, and plain ones."""
    third = (len(weight) - BESIDE) // 2
    coded = [
        QuantizedPiece(third + BESIDE, "bytes", round_to_int8(weight[third + BESIDE :])),
        QuantizedPiece(0, "halves", nearest(weight[:third])),
    ]
    return FusedQuantizedWeight.with_dense(coded, weight)


def test_rows_that_no_piece_has_are_the_plain_ones() -> None:
    weight = normal(100, 64)
    codes = codes_of(weight)
    assert [(piece.start, piece.end, piece.format) for piece in codes.pieces] == [
        (0, 38, "halves"),
        (38, 62, PLAIN),
        (62, 100, "bytes"),
    ]
    assert codes.format == "halves and plain rows and bytes"
    assert (
        torch.equal(codes.dense(torch.float32)[38:62], weight[38:62])
        and (codes.dense(torch.float32) - weight).abs().max() < 0.4
    )
    assert [piece.format for piece in FusedQuantizedWeight.with_dense(codes.pieces[1:], weight).pieces] == [
        PLAIN,
        PLAIN,
        "bytes",
    ]


@pytest.mark.parametrize("count", [100, 60, 140])
def test_rows_in_another_order_may_cross_the_pieces(count: int) -> None:
    """Also when some are left out, or there twice, as keys that are values too."""
    codes, rows = codes_of(normal(100, 64)), torch.randint(0, 100, (count,))
    rows[10:50] = torch.arange(30, 70)
    assert torch.equal(codes.take(rows).dense(torch.float32), codes.dense(torch.float32)[rows])


def test_neighbours_of_one_form_are_one_weight() -> None:
    weight = normal(96, 64)
    halves = [QuantizedPiece(start, "x", nearest(weight[start : start + 32])) for start in (0, 32)]
    (one, other) = FusedQuantizedWeight([*halves, QuantizedPiece(64, "y", round_to_int8(weight[64:]))]).together()
    assert (
        isinstance(one, QuantizedWeight)
        and isinstance(other, QuantizedWeight)
        and (one.shape, other.shape) == ((64, 64), (32, 64))
    )
    (plain,) = FusedQuantizedWeight(
        [QuantizedPiece(0, PLAIN, weight[:30]), QuantizedPiece(30, PLAIN, weight[30:])]
    ).together()
    assert torch.equal(plain, weight) if isinstance(plain, Tensor) else False


# layers above each other


@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(8))
def test_outputs_are_those_of_the_pieces_side_by_side(seed: int, dtype: torch.dtype) -> None:
    shared = drawn(seed).shape[1]
    weights = [weight for weight in map(drawn, range(seed, 400)) if weight.shape[1] == shared][:3]
    rows = [weight.shape[0] for weight in weights]
    bias = normal(sum(rows), seed=seed).to(dtype) if seed % 2 else None
    biases = bias.split(rows) if bias is not None else [None] * 3
    pieces = [blocked(weight, part, dtype) for weight, part in zip(weights, biases, strict=True)]
    x, residual = normal(97, shared, seed=1).to(dtype), normal(97, sum(rows), seed=2).to(dtype)
    expected = torch.cat([piece(x) for piece in pieces], 1)
    of_residual = zip(pieces, residual.split(rows, 1), strict=True)
    added = torch.cat([piece.added_to(part.contiguous(), x) for piece, part in of_residual], 1)
    layer = stacked(pieces, rows, shared, dtype)
    assert isinstance(layer, MixedFormatBlockedLinear) and layer.outputs == sum(rows) and layer.seal() is layer
    for threads in (1, 3):
        cpu_kernels.set_threads(threads)
        assert torch.equal(layer(x), expected) and torch.equal(layer(x[:1]), expected[:1])
        assert torch.equal(layer.added_to(residual.clone(), x), added)
    cpu_kernels.set_threads(1)
    assert {part.data_ptr() for part in layer.tensors()} == {
        part.data_ptr() for piece in pieces for part in piece.tensors()
    }


def test_any_layers_can_stand_above_each_other() -> None:
    one, other = Linear(normal(5, 16), normal(5)), Linear(normal(7, 16, seed=1))
    layer, x = stacked([one, other], [5, 7], 16, torch.float32), normal(3, 16, seed=2)
    assert isinstance(layer, MixedFormatLinear) and layer.weight.shape == (12, 16) and layer.seal() is layer
    assert torch.equal(layer(x), torch.cat([one(x), other(x)], 1)) and len(list(layer.tensors())) == 3
    assert torch.equal(layer.added_to(torch.ones(3, 12), x), layer(x) + 1) and kinds_of(layer) == ["Linear"]


# in a model


def in_pieces(name: str, layer: Linear) -> Linear:
    """Half of its rows in four bits and half in eight, some plain between; what
    is plain is so where that has a product.
    """
    if name not in ("qkv", "gate_up"):
        return layer
    codes = codes_of(layer.weight)
    if not (cpu_kernels.kernels and cpu_kernels.can_multiply(layer.weight.dtype, layer.weight.device)):
        codes = FusedQuantizedWeight(
            [
                QuantizedPiece(0, "halves", nearest(layer.weight[:40])),
                QuantizedPiece(40, "bytes", round_to_int8(layer.weight[40:])),
            ]
        )
    found = keep_quantized(codes, layer)
    assert isinstance(found, MixedFormatBlockedLinear)
    return found


@needs_product
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_step_has_the_bits_of_the_layers_one_by_one(dtype: torch.dtype) -> None:
    rigs = [Rig(NANO, dtype, model=load_model(NANO, dtype, transform=in_pieces)) for _ in range(2)]
    if not cpu_kernels.can_multiply(dtype, torch.device("cpu")):
        pytest.skip("no compiled product of dense weights here")
    assert rigs[0].model.step is not None and all(rigs[0].model.step.claimed)
    rigs[1].model.step = None
    assert all(torch.equal(a, b) for a, b in zip(*map(steps_of, rigs), strict=True))


@needs_product
def test_pieces_that_no_compiled_product_takes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "can_multiply", lambda dtype, device: False)  # as without AVX-512
    layer = keep_quantized(codes_of(normal(100, 64)), Linear(normal(100, 64)))
    assert isinstance(layer, MixedFormatLinear) and kinds_of(layer)[1] == "TransposedLinear"
    x = normal(3, 64)
    torch.testing.assert_close(layer(x), torch.cat([piece(x) for piece in layer.pieces], 1))


# a file


def q4_k_m(name: str) -> str:
    """As llama.cpp mixes them: half of the layers have values and the way down in six bits."""
    if name in ("output.weight", "token_embd.weight"):
        return "Q6_K"
    return "Q6_K" if name.split(".")[2] in ("attn_v", "ffn_down") and int(name.split(".")[1]) % 2 == 0 else "Q4_K"


class Exact(Linear):
    """By the definition, but that states are rounded as the compiled products round them."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__(weight.dense(), bias)
        self.codes = weight

    def __call__(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.double()
        return F.linear(as_multiplied(x, self.codes), self.weight.double(), bias).to(x.dtype)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "initializer_range": 0.06,
    }
    twin = write_checkpoint(tmp_path_factory.mktemp("q4_k_m") / "model", tokenizer=True, **sizes)
    return file_of(twin, q4_k_m)


@needs_product
def test_a_q4_k_m_file_stays_in_few_bits_and_every_layer_is_compiled(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = load_model(file)
    told = {(each.count, each.format, each.by) for each in kept.few_bits}
    assert told == {
        (8, "GGUF Q4_K", "Int4BlockedLinear"),
        (3, "GGUF Q6_K", "Int8GroupedLinear"),
        (2, "GGUF Q4_K and GGUF Q6_K", "Int4BlockedLinear and Int8GroupedLinear"),
    }
    assert kept.executors() == [LayerExecutorChoice("compiled", None)] * 3
    monkeypatch.setattr(quantized_transform, "_kept", Exact)
    exact = load_model(file)
    assert isinstance(exact.layers[0].mixer.qkv, MixedFormatLinear) and isinstance(exact.head.product, Exact)
    found, expected = (
        Rig(file, model=model).step([(Row([5, 6, 7, 300, 11]), 5)], every_row=True) for model in (kept, exact)
    )
    assert (found - expected).norm() < 1e-5 * expected.norm()
    assert sum(part.nbytes for part in kept.layers[0].mixer.qkv.tensors()) < 0.3 * 4 * 512 * 256


@needs_product
def test_an_engine_says_the_same_of_such_a_file_alone_and_in_a_batch(file: Path) -> None:
    prompts = ["The quick brown", '{"name": "Zo', "1 + 1"]
    with Engine(file, device="cpu", dtype="float32", kv_tokens=512, strict=True) as engine:
        assert not engine.info()["slower"] and len(engine.info()["few_bits"]) == 3
        together = [done.token_ids for done in engine.generate(prompts, GREEDY)]
        engine.sleep()
        engine.wake()
        engine.update_weights(file)
        assert [engine.generate(prompt, GREEDY).token_ids for prompt in prompts] == together


@needs_product
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_head_that_is_an_embedding_in_few_bits_is_kept_beside_it(deterministic: bool, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 1, "tie_word_embeddings": True}
    twin = write_checkpoint(tmp_path / "model", tokenizer=True, **sizes)
    model = load_model(
        file_of(twin, lambda name: "Q6_K" if name.startswith("token") else "F32"),
        transform=transform_for("auto", deterministic, torch.device("cpu")),
    )
    (told,) = model.few_bits
    assert (told.count, told.by) == ((1, "float32") if deterministic else (1, "Int8GroupedLinear"))
    x, table = normal(3, 256), model.embedding.table
    expected = x @ table.T
    assert (
        table.abs().max() > 0
        and (model.head.product(x) - expected).norm() < (1e-5 if deterministic else 0.01) * expected.norm()
    )


@needs_product
@pytest.mark.parametrize("case", ["gemma2", "gpt2", "phi3"])
def test_weights_of_other_layouts_are_kept(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied heads, merged projections, weights that lie as [in, out]."""
    folder, _ = pair(case, tmp_path, "Q8_0")
    model = load_model(folder / "model.gguf")
    assert all(told.by == "Int8GroupedLinear" for told in model.few_bits) and model.executors() == [
        LayerExecutorChoice("compiled", None)
    ] * len(model.layers)
    monkeypatch.setattr(quantized_transform, "_kept", Exact)
    found, expected = (logits(each, folder) for each in (model, load_model(folder / "model.gguf")))
    assert (found - expected).norm() < 0.01 * expected.norm()  # one activation that is rounded otherwise is 0.3 %
