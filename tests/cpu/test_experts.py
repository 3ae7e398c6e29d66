"""Mixtures of experts against a loop over tokens: routers, weights, what is
added; a row's bits whatever is beside it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_edits import Tensors, rewrite
from expert_checks import ROUTERS
from family_checks import check_checkpoint, close, logits_of, prompt, reference
from part_models import INNER, LawRig, attention, decoder, model
from rig import Rig, Row
from safetensors.torch import load_file

from sgl.runtime.layers import cpu_kernels
from sgl.runtime.layers.linear_layers import BlockedLinear
from sgl.runtime.loading import load_model
from sgl.runtime.models.reference.reference_experts import ReferenceExperts
from sgl.runtime.models.reference.reference_routing import routed
from sgl.runtime.models.spec.model_spec import ExpertsSpec, GatedFFNSpec, LayerNorms, LayerSpec, NormSpec, RouterSpec

COUNT, TOP = 8, 3


def by_hand(
    router: RouterSpec, top_k: int, logits: list[float], correction: list[float]
) -> tuple[list[int], list[float]]:
    """One token, in plain numbers."""
    if router.score == "mixer":
        return mixer_by_hand(logits, top_k, router.jitter)
    ranked = sorted(range(len(logits)), key=lambda index: -logits[index])
    if router.best_first:
        chosen = ranked[:top_k]
        scores = dict(zip(chosen, head_scores_of(router, [logits[index] for index in chosen]), strict=True))
    else:
        scores = dict(enumerate(head_scores_of(router, logits)))
        choice = groups_by_hand(router, [scores[index] + correction[index] for index in scores])
        chosen = sorted(range(len(logits)), key=lambda index: -choice[index])[:top_k]
    weights = [scores[index] for index in chosen]
    if router.normalise:
        weights = [weight / max(sum(weights), router.floor) for weight in weights]
    return chosen, [weight * router.scale for weight in weights]


def head_scores_of(router: RouterSpec, logits: list[float]) -> list[float]:
    if router.score == "sigmoid":
        return [1 / (1 + math.exp(-logit)) for logit in logits]
    powers = [math.exp(logit - max(logits)) for logit in logits]
    return [power / sum(powers) for power in powers]


def groups_by_hand(router: RouterSpec, choice: list[float]) -> list[float]:
    size = len(choice) // router.groups
    groups = [choice[start : start + size] for start in range(0, len(choice), size)]
    best = [sum(sorted(group)[-2:]) if router.group_score == "two" else max(group) for group in groups]
    kept = sorted(range(len(groups)), key=lambda index: -best[index])[: router.kept_groups]
    return [
        score if index // size in kept or router.groups == 1 else router.outside for index, score in enumerate(choice)
    ]


def mixer_by_hand(logits: list[float], top_k: int, jitter: float) -> tuple[list[int], list[float]]:
    chosen, weights = list[int](), list[float]()
    for _ in range(top_k):
        left = {index: logit for index, logit in enumerate(logits) if index not in chosen}
        most = max(left.values())
        near = {index: logit for index, logit in left.items() if (most - logit) / max(abs(logit), most) <= 2 * jitter}
        winner = max(left, key=lambda index: left[index])
        chosen.append(winner)
        weights.append(1 / sum(math.exp(logit - most) for logit in near.values()))
    return chosen, weights


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_is_that_of_one_token_by_hand(name: str) -> None:
    router, generator = ROUTERS[name], torch.Generator().manual_seed(5)
    logits = torch.randn(40, COUNT, generator=generator) * 2
    correction = torch.randn(COUNT, generator=generator) * 0.3 if router.correction else torch.zeros(COUNT)
    chosen, weights = routed(router, TOP, logits, correction if router.correction else None)
    for token in range(len(logits)):
        experts, expected = by_hand(router, TOP, logits[token].tolist(), correction.tolist())
        assert chosen[token].tolist() == experts
        np.testing.assert_allclose(weights[token], expected, rtol=1e-5)


def test_of_equal_experts_the_first_are_taken() -> None:
    for router in (
        RouterSpec(),
        RouterSpec(best_first=True),
        RouterSpec("mixer", jitter=0.1),
        RouterSpec(groups=4, kept_groups=2),
    ):
        chosen, _ = routed(router, 2, torch.zeros(3, COUNT))
        assert chosen.tolist() == [[0, 1]] * 3


PARTS: dict[str, ExpertsSpec] = {
    "plain": ExpertsSpec(COUNT, TOP, GatedFFNSpec(INNER)),
    "one expert": ExpertsSpec(3, 1, GatedFFNSpec(INNER, "gelu_tanh", bias=True), RouterSpec(normalise=True)),
    "all experts": ExpertsSpec(4, 4, GatedFFNSpec(20), ROUTERS["softmax, corrected"]),
    "clamped, biases": ExpertsSpec(COUNT, 2, GatedFFNSpec(INNER, "quick_gelu", True, 0.5), ROUTERS["best first"]),
    "shared": ExpertsSpec(COUNT, TOP, GatedFFNSpec(24), ROUTERS["groups, two best"], shared=GatedFFNSpec(40)),
    "shared, switched": ExpertsSpec(COUNT, TOP, GatedFFNSpec(24), shared=GatedFFNSpec(40), switched=True),
    "weights of the input": ExpertsSpec(
        COUNT, 2, GatedFFNSpec(24), ROUTERS["best first, sigmoid"], weighs_input=True, shared=GatedFFNSpec(24)
    ),
}


def mixture(name: str | ExpertsSpec, dtype: torch.dtype = torch.float32) -> ReferenceExperts:
    layer = LayerSpec(LayerNorms.pre(NormSpec(1e-5)), attention(), PARTS[name] if isinstance(name, str) else name)
    part = decoder(model(layer), dtype).layers[0].ffn
    assert isinstance(part, ReferenceExperts)
    return part


def one_by_one(part: ReferenceExperts, x: torch.Tensor) -> torch.Tensor:
    """float64 [T, hidden]: each token through each of its experts alone."""
    chosen, weights = routed(part.part.router, part.part.top_k, part.router(x.float()), part.correction)
    found = torch.zeros(x.shape, dtype=torch.float64)
    for token, row in enumerate(x):
        for index, weight in zip(chosen[token].tolist(), weights[token], strict=True):
            taken = row * weight if part.part.weighs_input else row
            given = part.experts[index].output(taken[None])[0].double()
            found[token] += given if part.part.weighs_input else given * weight
        if part.shared is not None:
            share = part.switch(row[None].float()).sigmoid().item() if part.switch is not None else 1.0
            found[token] += part.shared.output(row[None])[0].double() * share
    return found


@pytest.mark.parametrize("name", PARTS)
def test_tokens_together_are_those_one_by_one(name: str) -> None:
    part = mixture(name)
    for count in (1, 2, 17):
        x = torch.randn(count, 48, generator=torch.Generator().manual_seed(count))
        for found in (part.inner(x), part.by_torch(x)):
            torch.testing.assert_close(found.double(), one_by_one(part, x), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ROUTERS)
def test_compiled_mixtures_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    """Many rows, more than one piece of an expert has; several threads."""
    spec = ExpertsSpec(
        COUNT, TOP, GatedFFNSpec(70, "gelu", True), ROUTERS[name], shared=GatedFFNSpec(33), switched=True
    )
    part = mixture(spec, dtype)
    x = torch.randn(700, 48, generator=torch.Generator().manual_seed(1)).to(dtype)
    cpu_kernels.set_threads(3)
    try:
        found = part.inner(x)
    finally:
        cpu_kernels.set_threads(1)
    expected = part.by_torch(x)
    assert (found.float() - expected.float()).norm() < (
        1e-5 if dtype == torch.float32 else 1e-2
    ) * expected.float().norm()


@pytest.mark.parametrize(
    "dtype",
    [dtype for dtype in (torch.float32, torch.bfloat16) if cpu_kernels.can_multiply(dtype, torch.device("cpu"))],
)
@pytest.mark.parametrize("name", PARTS)
def test_the_bits_of_a_token_do_not_depend_on_the_others(name: str, dtype: torch.dtype) -> None:
    part = mixture(name, dtype)
    x = torch.randn(29, 48, generator=torch.Generator().manual_seed(3)).to(dtype)
    for compute in (part.inner, part.by_torch):
        together = compute(x)
        assert torch.equal(together, torch.cat([compute(row[None]) for row in x]))
        assert torch.equal(together[5:18], compute(x[5:18]))


def test_who_is_chosen_is_counted() -> None:
    part, x = mixture("shared"), torch.randn(10, 48)
    part.inner(x)
    part.by_torch(x)
    chosen, _ = routed(part.part.router, TOP, part.router(x), part.correction)
    assert part.counts is not None
    assert part.counts.tolist() == (2 * torch.bincount(chosen.flatten(), minlength=COUNT)).tolist()


def test_numbers_that_are_none_stay_in_their_row() -> None:
    part = mixture("shared")
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(4))
    expected = part.inner(x)
    for index, broken in enumerate((math.nan, math.inf)):
        x[index] = broken
    found = part.inner(x)
    assert found[:2].isnan().all() and torch.equal(found[2:], expected[2:])


def test_experts_of_a_model_of_parts_run_in_any_batch() -> None:
    layer = LayerSpec(LayerNorms.pre(NormSpec(1e-5)), attention(), PARTS["shared"])
    dense = LayerSpec(LayerNorms.pre(NormSpec(1e-5)), attention(), GatedFFNSpec(INNER))
    rig, other = (LawRig(model(layer, dense, layer)) for _ in range(2))
    assert [ran.by for ran in rig.model.executors()][1] == ("torch" if rig.model.step is None else "compiled")
    assert not rig.model.capturable and decoder(model(dense)).capturable
    rows = [Row(list(range(4, 4 + count))) for count in (5, 9, 30)]
    together = rig.step([(row, row.pending) for row in rows])
    for row, found in zip(rows, together, strict=True):
        torch.testing.assert_close(other.step([(Row(row.tokens), len(row.tokens))])[0], found, atol=1e-5, rtol=1e-5)


def test_layers_of_models_of_any_size_follow_each_other_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = model(
        LayerSpec(LayerNorms.pre(NormSpec(1e-5)), attention(), PARTS["shared, switched"]),
        LayerSpec(LayerNorms.pre(NormSpec(1e-5)), attention(), GatedFFNSpec(INNER)),
    )
    small, work = LawRig(spec), list(range(4, 40))
    expected = small.step([(Row(work), len(work))], every_row=True)
    monkeypatch.setattr("sgl.runtime.models.decoder.SMALL_MODEL", 0)
    large = LawRig(spec)
    assert torch.equal(large.step([(Row(work), len(work))], every_row=True), expected)
    for rig in (small, large):
        places = [place for layer in rig.model.layers for place in layer.products()]
        blocked = [product for place in places if isinstance(product := getattr(*place), BlockedLinear)]
        ends = [(product.weight.data_ptr(), product.weight.nbytes) for product in blocked]
        assert all(0 <= start - (before + size) < 64 for (before, size), (start, _) in pairwise(ends))


QWEN3 = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}


def stacked(tensors: Tensors) -> Tensors:
    """The experts of each layer in two tensors, gate above up."""
    found: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(4):
        experts = [
            {
                part: tensors[f"model.layers.{layer}.mlp.experts.{index}.{part}_proj.weight"]
                for part in ("gate", "up", "down")
            }
            for index in range(6)
        ]
        found[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.stack(
            [torch.cat([each["gate"], each["up"]]) for each in experts]
        )
        found[f"model.layers.{layer}.mlp.experts.down_proj"] = torch.stack([each["down"] for each in experts])
    return found


@pytest.mark.parametrize("kind", ["safetensors", "pickles"])
def test_stacked_experts_are_read_like_separate_ones(kind: str, tmp_path: Path) -> None:
    reference_ = reference("Qwen3MoeForCausalLM", **QWEN3)
    reference_.save_pretrained(tmp_path)
    rewrite(tmp_path, stacked)
    if kind == "safetensors":
        check_checkpoint(reference_, tmp_path)
        return
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    expected = Rig(tmp_path).step([(Row([5, 6, 7]), 3)])
    (tmp_path / "model.safetensors").unlink()
    found = Rig(tmp_path, model=load_model(tmp_path, load_format="pt")).step([(Row([5, 6, 7]), 3)])
    assert torch.equal(found, expected)


def in_mxfp4(path: Path, model: Any) -> None:
    """Give a saved gpt-oss' experts blocks and scales as OpenAI wrote them, and the model what these stand for."""
    generator = torch.Generator().manual_seed(2)
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    table = torch.cat([table, -table])

    def change(tensors: Tensors) -> Tensors:
        for index, layer in enumerate(model.model.layers):
            for name in ("gate_up_proj", "down_proj"):
                weight = getattr(layer.mlp.experts, name)
                experts, inputs, outputs = weight.shape
                blocks = torch.randint(
                    0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8
                )
                scales = torch.randint(
                    120, 126, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8
                )
                numbers = torch.stack([table[(blocks & 15).int()], table[(blocks >> 4).int()]], -1).flatten(3)
                dense = (numbers * torch.exp2(scales.float() - 127)[..., None]).flatten(2)
                weight.data.copy_(dense.transpose(1, 2))
                place = f"model.layers.{index}.mlp.experts.{name}"
                del tensors[place]
                tensors |= {f"{place}_blocks": blocks, f"{place}_scales": scales}
        return tensors

    rewrite(path, change, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})


def test_experts_in_mxfp4_are_read(tmp_path: Path) -> None:
    keys = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "sliding_window": 9,
        "intermediate_size": 32,
        "hidden_size": 64,
    }
    reference_ = reference("GptOssForCausalLM", **keys)
    reference_.save_pretrained(tmp_path)
    in_mxfp4(tmp_path, reference_)
    tokens = prompt(320)
    restored, expected = load_model(tmp_path, transform=lambda name, layer: layer), logits_of(reference_, tokens)
    close(Rig(tmp_path, model=restored).step([(Row(tokens), len(tokens))], every_row=True), expected, 2e-5, "restored")
    rig = Rig(tmp_path)
    assert [str(kept).partition(":")[0] for kept in rig.model.few_bits] == ["32 projections of MXFP4, groups of 32"]
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(1))
    for layer, dense in zip(rig.model.layers, restored.layers, strict=True):
        for kept, plain in zip(layer.ffn.experts, dense.ffn.experts, strict=True):
            found, wanted = kept.output(x), plain.output(x)
            assert (found - wanted).norm() < 0.02 * wanted.norm()  # the products may round their inputs to 8 bits
