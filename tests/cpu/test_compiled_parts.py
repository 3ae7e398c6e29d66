"""The compiled step over every part that it takes: random layers, families, runs of layers between others, reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from family_cases import FAMILIES, write_family
from family_cover import covered
from random_models import VOCABULARY, RandomRig, random_model
from rig import Rig, Row

from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.activation_functions import ACTIVATIONS, activated, add_scaled, gated
from sgl.runtime.layers.norm_layers import LayerNorm, PerHeadNorm
from sgl.runtime.layers.rope_parameters import RopeParameters
from sgl.runtime.models.cpu.cpu_expert_structs import EXPERTS
from sgl.runtime.models.cpu.cpu_recurrent_structs import RECURRENT
from sgl.runtime.models.cpu.cpu_step_structs import LAYER, MODEL
from sgl.runtime.models.cpu.cpu_support import cpu_refusal
from sgl.runtime.models.spec.model_spec import (
    AttentionSpec,
    ExpertsSpec,
    GatedFFNSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    NormSpec,
    PlainFFNSpec,
    QueryTemperature,
    RouterSpec,
)
from sgl.runtime.step.step_batch import StepBatch

CPU = torch.device("cpu")
DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if cpu_kernels.can_multiply(dtype, CPU)]
pytestmark = pytest.mark.skipif(not DTYPES, reason="needs the compiled kernels and AVX-512")
BY_TORCH = {
    "attention in parallel with Mamba is none of its parts",
    "latent attention is none of its parts",
    "products are kept as PackedLinear",
    "experts without a gate, or with multipliers inside",
    "experts after a projection",
    "experts with latent",
    "experts chosen one after the other (PhiMoE)",
    "experts whose inputs are weighed (Llama 4)",
    "attention with alibi",
    "attention with value_scale",
    "values of width 12 with keys of width 24",
    "attention with temperature",
    "activation 'xielu'",
    "per-layer embeddings",
}
RMS = NormSpec(1e-5)


@pytest.fixture(autouse=True)
def threads() -> Iterator[Callable[[int], None]]:
    yield cpu_kernels.set_threads
    cpu_kernels.set_threads(1)


def steps_of(rig: Rig) -> list[torch.Tensor]:
    """Small prefills, decodes of several, of one, steps of both, and one whose every token's logits are wanted."""
    generator = torch.Generator().manual_seed(0)
    rows = [Row(torch.randint(4, VOCABULARY, (40,), generator=generator).tolist()) for _ in range(15)]
    work = [
        [(row, 5 + index % 11) for index, row in enumerate(rows)],
        [(row, 1) for row in rows],
        [(rows[3], 1)],
        [(row, 1 + index % 3) for index, row in enumerate(rows[:7])],
    ]
    return [*(rig.step(each) for each in work), rig.step([(row, 2) for row in rows[:3]], every_row=True)]


def by_torch(rig: Rig) -> Rig:
    rig.model.step = None
    return rig


def assert_same(one: Rig, other: Rig) -> None:
    """Bit by bit: all logits, and what is stored."""
    assert all(torch.equal(a, b) for a, b in zip(steps_of(one), steps_of(other), strict=True))
    for a, b in zip(one.pool.parts, other.pool.parts, strict=True):
        assert torch.equal(a.k.nan_to_num(), b.k.nan_to_num()) and torch.equal(a.v.nan_to_num(), b.v.nan_to_num())
    for ours, theirs in zip(*([] if rig.memory is None else rig.memory.tensors for rig in (one, other)), strict=True):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.few(10)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_random_layers_have_the_bits_of_the_same_one_by_one(
    seed: int, dtype: torch.dtype, threads: Callable[[int], None]
) -> None:
    spec = random_model(seed)
    rig = RandomRig(spec, dtype)
    assert [ran.by for ran in rig.model.executors()] == ["compiled"] * len(spec.layers)
    threads(1 + seed % 3)
    assert_same(rig, by_torch(RandomRig(spec, dtype)))


@pytest.mark.few(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(40))
def test_random_layers_with_states_have_the_bits_of_the_same_one_by_one(
    seed: int, dtype: torch.dtype, threads: Callable[[int], None]
) -> None:
    spec = random_model(seed, states=True)
    rig = RandomRig(spec, dtype)
    assert [ran.by for ran in rig.model.executors()] == ["compiled"] * len(spec.layers)
    threads(1 + seed % 3)
    assert_same(rig, by_torch(RandomRig(spec, dtype)))


@pytest.mark.few(5)
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_random_layers_are_those_of_torch_without_kernels(
    seed: int, states: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = random_model(seed, states=states)
    found = steps_of(RandomRig(spec, torch.float32))
    monkeypatch.setattr(cpu_kernels, "kernels", None)
    plain = RandomRig(spec, torch.float32, "torch_native")
    assert plain.model.step is None
    for ours, expected in zip(found, steps_of(plain), strict=True):
        assert (ours - expected).abs().max() < (
            2e-3 if states else 1e-4
        ) * expected.abs().max()  # states carry rounding along


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", covered(FAMILIES))
def test_families_have_the_bits_of_their_layers_one_by_one(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    rig = Rig(write_family(case, tmp_path), dtype)
    left = {ran.why for ran in rig.model.executors() if ran.by != "compiled"}
    assert left <= BY_TORCH
    if not left:
        assert_same(rig, by_torch(Rig(tmp_path, dtype)))


def layers_of(*kinds: str) -> ModelSpec:
    """ "c": a layer that the kernels take; "t": one that they leave."""
    mixer = AttentionSpec(4, 2, 16, 0.25, rope=RopeParameters(1e4, 16, 16))
    known = {
        "c": LayerSpec(LayerNorms.pre(RMS), mixer, GatedFFNSpec(64)),
        "t": LayerSpec(LayerNorms.pre(RMS), mixer, PlainFFNSpec(64, "xielu")),
    }
    return ModelSpec("Test", VOCABULARY, 48, 512, tuple(known[kind] for kind in kinds), RMS, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kinds", ["tcc", "cct", "ctc", "tct", "cttcctc", "ttt"])
def test_runs_of_layers_stand_between_others(kinds: str, dtype: torch.dtype) -> None:
    rig = RandomRig(layers_of(*kinds), dtype)
    assert [ran.by for ran in rig.model.executors()] == [{"c": "compiled", "t": "torch"}[kind] for kind in kinds]
    assert (rig.model.step is None) == ("c" not in kinds)
    assert_same(rig, by_torch(RandomRig(layers_of(*kinds), dtype)))


def test_layers_that_the_kernels_do_not_attend_run_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = layers_of(*"cccc")
    windowed = [
        replace(layer, mixer=replace(layer.mixer, window=7 if index in (1, 2) else None))
        for index, layer in enumerate(spec.layers)
    ]
    spec = replace(spec, layers=tuple(windowed))
    rig, cut = RandomRig(spec, torch.float32), []
    seen, run = rig.attention.seen, rig.model.step.run
    monkeypatch.setattr(rig.attention, "seen", lambda layer, batch: None if layer in (1, 2) else seen(layer, batch))
    monkeypatch.setattr(
        rig.model.step, "run", lambda model, span, *rest: cut.append(tuple(span)) or run(model, span, *rest)
    )
    assert_same(rig, by_torch(RandomRig(spec, torch.float32)))
    assert set(cut) == {(0, 1, True), (3, 4, True)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kinds", ["cc", "ct"])
def test_a_step_of_any_size_has_the_bits_of_the_same_layer_by_layer(kinds: str, dtype: torch.dtype) -> None:
    """Its rows go through the layers some at a time: the wanted ones lie in
    the first, the last, and in none but keys.
    """
    spec = wider(layers_of(*kinds))
    rigs = RandomRig(spec, dtype, slots=4096), by_torch(RandomRig(spec, dtype, slots=4096))
    long, short = [5 + index % 40 for index in range(1300)], [7 + index % 30 for index in range(40)]
    for every_row in (False, True):
        found, expected = (rig.step([(Row(short), 40), (Row(long), 1300), (Row(short), 39)], every_row) for rig in rigs)
        assert torch.equal(found, expected) and len(found) == (1379 if every_row else 3)
        rigs = RandomRig(spec, dtype, slots=4096), by_torch(RandomRig(spec, dtype, slots=4096))


def wider(spec: ModelSpec) -> ModelSpec:
    """With heads of which the kernels attend many tokens."""
    return replace(
        spec,
        layers=tuple(
            replace(layer, mixer=replace(layer.mixer, dim=32, rope=RopeParameters(1e4, 32, 32)))
            for layer in spec.layers
        ),
    )


def test_a_long_prefill_is_left_to_torch_where_heads_have_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = RandomRig(layers_of(*"cc"), torch.float32)
    monkeypatch.setattr(rig.model.step, "run", lambda *rest: pytest.fail("compiled"))
    tokens = [5 + index % 40 for index in range(70)]
    assert rig.step([(Row(tokens), 70)]).shape == (1, VOCABULARY)


@pytest.mark.parametrize("kinds", ["ccc", "cct", "tcc"])
@pytest.mark.parametrize("rows", [[], [1, 4], [0, 1, 2, 3, 4, 5]])
def test_sums_and_rows_that_are_wanted(kinds: str, rows: list[int]) -> None:
    """Pools keep all rows to the end; without them and without logits only keys and values are computed."""
    for pools in ([], [(0, 2), (2, 6)]):
        rigs = RandomRig(layers_of(*kinds), torch.float32), by_torch(RandomRig(layers_of(*kinds), torch.float32))
        done = [_run(rig, rows, pools) for rig in rigs]
        (logits, sums), (expected, expected_sums) = done
        assert torch.equal(logits, expected) and logits.shape == (len(rows), VOCABULARY)
        assert torch.equal(sums, expected_sums) if pools else sums is None
        assert torch.equal(rigs[0].pool.k.nan_to_num(), rigs[1].pool.k.nan_to_num())


def _run(rig: Rig, rows: list[int], pools: list[tuple[int, int]]) -> tuple[torch.Tensor, Any]:
    run, seen = rig.run, []

    def changed(batch: StepBatch) -> torch.Tensor:
        batch.logit_rows, batch.pools = torch.tensor(rows, dtype=torch.int64), pools
        seen.append(batch)
        return run(batch)

    rig.run = changed  # type: ignore[method-assign]
    return rig.step([(Row([7, 8, 9, 10]), 4), (Row([20, 21]), 2)]), seen[0].sums


def test_a_new_pool_is_found() -> None:
    """A backend built anew stands for new memory, as after a sleep."""
    rig, other = RandomRig(random_model(3), torch.float32), RandomRig(random_model(3), torch.float32, slots=900)
    before = rig.step([(Row([7, 8, 9]), 3)])
    rig.pool.release()
    rig.pool, rig.attention, rig.free = other.pool, other.attention, other.free
    assert torch.equal(rig.step([(Row([7, 8, 9]), 3)]), before)


def test_reasons_name_what_is_left() -> None:
    layer = layers_of("c").layers[0]

    def why(**changes: Any) -> str | None:
        mixer = replace(layer.mixer, **changes)
        spec = replace(layers_of("c"), layers=(replace(layer, mixer=mixer),))
        return cpu_refusal(spec.layers[0])

    assert why() is None
    assert why(dim=640, rope=None) == "head dimension 640; the compiled kernels take up to 512"
    assert why(value_dim=8) == "values of width 8 with keys of width 16"
    assert why(alibi=(0.1, 0.2, 0.3, 0.4)) == "attention with alibi"
    assert why(temperature=QueryTemperature(0.1, 8.0)) == "attention with temperature"


def test_reasons_of_feedforward_networks() -> None:
    def why(ffn: Any) -> str | None:
        layer = layers_of("c").layers[0]
        spec = replace(layers_of("c"), layers=(replace(layer, ffn=ffn),))
        return cpu_refusal(spec.layers[0])

    mixture = ExpertsSpec(4, 2, GatedFFNSpec(20), shared=GatedFFNSpec(30))
    assert why(mixture) is None
    assert why(GatedFFNSpec(20, limit=2.0)) == "a clamped gate without experts"
    assert why(replace(mixture, weighs_input=True)) == "experts whose inputs are weighed (Llama 4)"
    assert why(replace(mixture, router=RouterSpec("mixer"))) == "experts chosen one after the other (PhiMoE)"


def test_both_sides_lay_out_the_same_structs() -> None:
    sizes = (
        cpu_kernels.kernels.LAYER_BYTES,
        cpu_kernels.kernels.MODEL_BYTES,
        cpu_kernels.kernels.EXPERTS_BYTES,
        cpu_kernels.kernels.RECURRENT_BYTES,
    )
    assert (LAYER.itemsize, MODEL.itemsize, EXPERTS.itemsize, RECURRENT.itemsize) == sizes


# ----- the kernels of rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", cpu_kernels.ACTIVATIONS)
def test_activations(name: str, dtype: torch.dtype) -> None:
    x = torch.cat(
        [torch.linspace(-30, 30, 20001), torch.logspace(-30, 0, 500), -torch.logspace(-30, 0, 500), torch.zeros(1)]
    ).to(dtype)[None]
    exact = ACTIVATIONS[name](x.double())
    bound = 2e-6 if dtype == torch.float32 else 5e-3
    assert ((activated(name, x).double() - exact).abs() <= bound * exact.abs() + 2e-7 * x.abs().clamp(max=1)).all()
    up = torch.randn(x.shape).to(dtype)
    both = gated(name, torch.cat([x, up], 1)).double()
    assert ((both - exact * up).abs() <= (bound * exact.abs() + 2e-7 * x.abs().clamp(max=1)) * up.abs()).all()


@pytest.mark.parametrize("name", cpu_kernels.ACTIVATIONS)
def test_activations_of_extremes(name: str) -> None:
    found = activated(name, torch.tensor([[math.nan, math.inf, 1e30, -1e30]]))
    assert found[0, 0].isnan() and found[0, 1] == math.inf and found[0, 2] > 1e29 and abs(found[0, 3]) < 1e-6


@pytest.mark.parametrize("name, function", [("gelu", torch.erf), ("gelu_tanh", torch.tanh)])
def test_what_activations_are_made_of_is_right_to_the_last_bits(
    name: str, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """gelu(x) / (x / 2) - 1 for x below zero shows the function's own error, where nothing cancels."""
    x = torch.linspace(0.5, 5, 50001)
    inner = x * 2**-0.5 if name == "gelu" else (2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)
    found = activated(name, x[None])[0].double() / (0.5 * x.double()) - 1
    exact = function(inner.double())
    assert ((found - exact) / exact).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_norms(bias: bool, dtype: torch.dtype) -> None:
    bounds = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 1e-2}
    for rows, size in ((1, 384), (7, 50), (3, 1)):
        norm, x = LayerNorm(size, 1e-5, CPU, bias=bias), (torch.randn(rows, size) * 3 + 2).to(dtype)
        for part in (norm.weight, norm.bias):
            if part is not None:
                part.normal_()
        expected = F.layer_norm(x.float(), (size,), norm.weight, norm.bias, 1e-5).to(dtype)
        torch.testing.assert_close(norm(x), expected, **bounds)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("bias", [False, True])
def test_norms_of_heads(bias: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = PerHeadNorm(torch.randn(5, 24), 1e-5, kind, torch.randn(5, 24) if bias else None)
    heads = torch.randn(3, 7, 24)
    found = norm(heads.clone()[:, :5])
    monkeypatch.setattr(cpu_kernels, "kernels", None)
    torch.testing.assert_close(found, norm(heads[:, :5]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums(dtype: torch.dtype) -> None:
    x, y = torch.randn(3, 50).to(dtype), torch.randn(3, 50).to(dtype)
    expected = (x.double() + y.double() * 0.3).to(dtype)
    torch.testing.assert_close(
        add_scaled(x, y, 0.3),
        expected,
        atol=1e-6 if dtype == torch.float32 else 1e-2,
        rtol=1e-6 if dtype == torch.float32 else 1e-2,
    )
