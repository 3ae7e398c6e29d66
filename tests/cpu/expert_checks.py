"""The kernels of mixtures of experts against the law, for any device: shared by tests/cpu and tests/gpu."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sgl.runtime.layers.activation_functions import ACTIVATIONS
from sgl.runtime.models.reference.reference_experts import ReferenceExperts, routed
from sgl.runtime.models.spec.model_spec import RouterSpec

ROUTERS: dict[str, RouterSpec] = {
    "softmax": RouterSpec(),
    "softmax, normalised": RouterSpec(normalise=True, scale=2.5),
    "best first": RouterSpec(best_first=True, bias=True),
    "best first, sigmoid": RouterSpec("sigmoid", best_first=True),
    "sigmoid, corrected": RouterSpec("sigmoid", correction=True, normalise=True, floor=1e-20, scale=1.7),
    "softmax, corrected": RouterSpec(correction=True, normalise=True, floor=0.3),
    "groups, two best": RouterSpec("sigmoid", correction=True, groups=4, kept_groups=2, normalise=True),
    "groups, the best": RouterSpec(groups=2, kept_groups=1, group_score="largest", scale=3.0),
    "groups, others zero": RouterSpec(groups=4, kept_groups=2, outside=0.0),
    "mixer": RouterSpec("mixer", jitter=0.2),
}


def choose(
    router: RouterSpec, top_k: int, logits: Tensor, correction: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor]:
    from sgl.runtime.kernels.experts import expert_routing
    from sgl.runtime.models.gpu.gpu_fused_experts import options_of

    return expert_routing.choose(logits, top_k, correction=correction, **options_of(router), **options)


def check_choice(name: str, rows: int, experts: int, top_k: int, device: str) -> None:
    """Many equal numbers among them: of these the first experts are taken."""
    router, generator = ROUTERS[name], torch.Generator().manual_seed(rows)
    logits = (torch.randn(rows, experts, generator=generator) * 3).mul(8).round().div(8).to(device)
    correction = torch.randn(experts, generator=generator).to(device) * 0.3 if router.correction else None
    found, weights = choose(router, top_k, logits, correction)
    expected, wanted = routed(router, top_k, logits, correction)
    assert torch.equal(found.long(), expected) or near_ties(router, top_k, logits, correction, found, expected)
    torch.testing.assert_close(weights, wanted, atol=1e-6, rtol=2e-5)


def near_ties(
    router: RouterSpec, top_k: int, logits: Tensor, correction: Tensor | None, found: Tensor, expected: Tensor
) -> bool:
    """Whether choices differ only where a rounding of a score decides."""
    scores = logits.sigmoid() if router.score == "sigmoid" else logits.softmax(1)
    scores = scores if correction is None else scores + correction
    return correction is not None and torch.allclose(
        scores.gather(1, found.long()), scores.gather(1, expected), rtol=0, atol=1e-6
    )


def check_broken_logits(name: str, device: str) -> None:
    """Rows of no numbers choose different experts that are there, and change no others' choice."""
    router = ROUTERS[name]
    logits = torch.randn(6, 12, device=device)
    correction = torch.randn(12, device=device) if router.correction else None
    expected = choose(router, 3, logits, correction)
    for row, broken in enumerate((math.nan, math.inf, -math.inf)):
        logits[row] = broken
    found = choose(router, 3, logits, correction)
    assert torch.equal(found[0][3:], expected[0][3:]) and torch.equal(found[1][3:], expected[1][3:])
    for row in found[0].tolist():
        assert len(set(row)) == 3 and 0 <= min(row) <= max(row) < 12


def check_counts(device: str) -> None:
    logits = torch.randn(50, 10, device=device)
    counts, slots = torch.zeros(10, dtype=torch.int64, device=device), torch.arange(50, device=device).int() % 3
    chosen, _ = choose(RouterSpec(), 4, logits, None, counts=counts, slots=slots)
    assert torch.equal(counts, torch.bincount(chosen[slots != 0].flatten().long(), minlength=10))
    choose(RouterSpec(), 4, logits, None, counts=counts)
    assert int(counts.sum()) == 4 * (50 + int((slots != 0).sum()))


def check_logits(rows: int, count: int, hidden: int, dtype: torch.dtype, device: str) -> None:
    """Logits about 1, to some of their 24 bits: a product of TF32 would be wrong by 1e-3."""
    from sgl.runtime.kernels.experts.expert_routing import logits

    x, bias = torch.randn(rows, hidden, device=device).to(dtype), torch.randn(count, device=device)
    weight = torch.randn(count, hidden, device=device) * hidden**-0.5
    for added, kept in product((None, bias), {weight.dtype: weight, dtype: weight.to(dtype)}.values()):
        expected = F.linear(x.double(), kept.double(), None if added is None else added.double()).float()
        for fixed in (False, True):
            found = logits(x, kept, added, fixed)
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def check_few_rows(
    name: str, rows: int, experts: int, hidden: int, dtype: torch.dtype, device: str, narrow: bool = False
) -> None:
    """Norm, product and choice in one kernel are those one after the other; its counters are left as they were."""
    from sgl.runtime.kernels.experts.expert_routing import FEW_ROWS, RouterWeights, choose, logits, route
    from sgl.runtime.kernels.residual_norm import NormWeights
    from sgl.runtime.kernels.rms_norm import rms_norm
    from sgl.runtime.models.gpu.gpu_fused_experts import options_of

    router, options = ROUTERS[name], options_of(ROUTERS[name])
    x, weight = torch.randn(rows, hidden, device=device).to(dtype), torch.randn(experts, hidden, device=device)
    weight = weight.to(dtype) if narrow else weight
    norm = NormWeights(torch.randn(hidden, device=device).to(dtype), None, 1e-5)
    bias, correction = (
        torch.randn(experts, device=device) if there else None for there in (router.bias, router.correction)
    )
    counts = torch.zeros(experts, dtype=torch.int64, device=device)
    routing = RouterWeights(
        weight, bias, correction, 3, options, counts, torch.zeros(FEW_ROWS, dtype=torch.int32, device=device)
    )
    for given in (None, norm):
        y, chosen, weights = route(x, routing, None, given)
        expected = x if given is None else rms_norm(x, norm.weight, norm.eps)
        torch.testing.assert_close(y, expected, atol=1e-5, rtol=2e-2 if dtype == torch.bfloat16 else 1e-2)
        wanted = choose(logits(y, weight, bias), 3, correction=correction, **options)
        assert torch.equal(chosen, wanted[0])
        torch.testing.assert_close(weights, wanted[1], atol=1e-5, rtol=1e-4)
        assert not routing.counters.any()
    assert int(counts.sum()) == 2 * 3 * rows


def check_blocks(tokens: int, top_k: int, experts: int, rows: int, device: str) -> None:
    """Each pair stands once, in a block of its expert, in order; the rest is filled up."""
    from sgl.runtime.kernels.experts.expert_align_blocks import sorted_blocks

    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).int().to(device)
    chosen[: tokens // 2] = chosen[0].clone()
    blocks = sorted_blocks(chosen, experts, rows)
    total = int(blocks.total)
    assert total <= blocks.most
    found = blocks.pairs.view(-1, rows)[:total].tolist()
    expected: list[list[int]] = []
    flat = chosen.flatten().tolist()
    for expert in range(experts):
        pairs = [pair for pair, who in enumerate(flat) if who == expert]
        pairs += [len(flat)] * (-len(pairs) % rows)
        expected += [pairs[start : start + rows] for start in range(0, len(pairs), rows)]
    assert found == expected
    assert blocks.experts[:total].tolist() == [flat[block[0]] for block in expected]


PRODUCTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "another activation": {"name": "gelu_tanh"},
    "clamped, biases": {"name": "quick_gelu", "limit": 0.6, "bias": True},
    "shared": {"shared": True},
    "shared, switched, added": {"shared": True, "switched": True, "added": True},
    "weights of the input": {"of_input": True, "added": True},
}


def stacks_of(
    experts: int,
    hidden: int,
    inner: int,
    dtype: torch.dtype,
    device: str,
    bias: bool = False,
    name: str = "silu",
    limit: float | None = None,
) -> Any:
    from sgl.runtime.kernels.experts.fused_moe import ExpertWeights, StackedExpertWeights

    def random(*shape: int) -> Tensor:
        return (torch.randn(*shape, device=device) * shape[-1] ** -0.5).to(dtype)

    up, down = (random(experts, 2 * inner, hidden), random(experts, hidden, inner))
    biases = (random(experts, 2 * inner), random(experts, hidden)) if bias else (None, None)
    return StackedExpertWeights(ExpertWeights(up, biases[0]), ExpertWeights(down, biases[1]), name, limit)


def check_mixture(
    options: dict[str, Any],
    rows: int,
    experts: int,
    top_k: int,
    hidden: int,
    inner: int,
    dtype: torch.dtype,
    device: str,
    **how: Any,
) -> None:
    """Some rows hold no numbers: they stay in their rows."""
    from sgl.runtime.kernels.experts.fused_moe import ExpertSelection, SharedExpertOutput, fused_moe

    options = dict(options)
    shared, switched, added, of_input = (
        options.pop(name, False) for name in ("shared", "switched", "added", "of_input")
    )
    stacks = stacks_of(experts, hidden, inner, dtype, device, **options)
    x, every, residual = (torch.randn(rows, hidden, device=device).to(dtype) for _ in range(3))
    switch = torch.randn(rows, device=device) if switched else None
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(rows)]).int().to(device)
    choice = ExpertSelection(chosen, torch.rand(rows, top_k, device=device), of_input)
    x[1::7] = math.nan
    expected = by_hand(x, stacks, choice)
    if shared:
        expected = expected + every.double() * (1 if switch is None else switch.double().sigmoid()[:, None])
    expected = expected + residual.double() if added else expected
    besides = SharedExpertOutput(every if shared else None, switch, residual if added else None)
    found = fused_moe(x, stacks, choice, besides, **how)
    assert found is residual or not added
    near(found, expected)


def check_spread(rows: int, experts: int, top_k: int, hidden: int, inner: int, dtype: torch.dtype, device: str) -> None:
    """What is not added up yet: its total, and its addition to a sum with the norm behind it."""
    from sgl.runtime.kernels.experts.fused_moe import ExpertSelection, SharedExpertOutput, fused_moe, unreduced_experts
    from sgl.runtime.kernels.rms_norm import rms_norm

    stacks, wide = (
        stacks_of(experts, hidden, inner, dtype, device),
        torch.randn(rows, hidden + 7, device=device).to(dtype),
    )
    x, every = (torch.randn(rows, hidden, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(hidden, device=device).to(dtype)
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(rows)]).int().to(device)
    choice = ExpertSelection(chosen, torch.rand(rows, top_k, device=device))
    for besides in (
        SharedExpertOutput(),
        SharedExpertOutput(every),
        SharedExpertOutput(every, torch.randn(rows, device=device)),
    ):
        found = unreduced_experts(x, stacks, choice, besides)
        assert found is not None and torch.equal(found.total(), fused_moe(x, stacks, choice, besides))
        total = wide[:, :hidden].clone()
        expected = (total.double() + found.total().double()).to(dtype)
        y = found.join(total, weight, 1e-5)
        near(total, expected.double())
        near(y, rms_norm(expected, weight, 1e-5).double())
        view = wide.clone()
        assert torch.equal(found.join(view[:, :hidden], weight, 1e-5), y) and torch.equal(
            view[:, hidden:], wide[:, hidden:]
        )
    assert unreduced_experts(x[:3], stacks, choice, besides) is None


def check_partial(
    options: dict[str, Any], rows: int, hidden: int, inner: int, dtype: torch.dtype, device: str, **how: Any
) -> None:
    """Experts that lie elsewhere give nothing, of rows that hold no numbers too, and what is nobody's is not read."""
    from sgl.runtime.kernels.experts.fused_moe import ExpertSelection, SharedExpertOutput, fused_moe

    options = dict(options)
    shared, switched, added, of_input = (
        options.pop(name, False) for name in ("shared", "switched", "added", "of_input")
    )
    stacks = stacks_of(4, hidden, inner, dtype, device, **options)
    x, every, residual = (torch.randn(rows, hidden, device=device).to(dtype) for _ in range(3))
    switch = torch.randn(rows, device=device) if switched else None
    chosen = torch.stack([torch.randperm(10)[:3] for _ in range(rows)]).clamp(max=4).int().to(device)
    chosen[::5] = 4
    choice = ExpertSelection(chosen, torch.rand(rows, 3, device=device), of_input, 10)
    x[1::7] = math.nan
    expected = by_hand(x, stacks, choice)
    expected = expected + (
        every.double() * (1 if switch is None else switch.double().sigmoid()[:, None]) if shared else 0
    )
    expected = expected + residual.double() if added else expected
    besides = SharedExpertOutput(every if shared else None, switch, residual if added else None)
    near(fused_moe(x, stacks, choice, besides, **how), expected)


def check_turns(seed: int, device: str, pairs: int = 40) -> None:
    """Of several ranks, while experts move: what the law says; padding is nobody's and does not count."""
    from sgl.runtime.kernels.experts.expert_replica_select import ExpertReplicaTable, select_replicas
    from sgl.runtime.models.placement.expert_parallel_plan import ExpertParallelPlan
    from sgl.runtime.models.spec.model_spec import ExpertShare

    rng, count, top = random.Random(seed), 6, 2
    sizes = rng.choice([[3, 3], [4, 4], [3, 2, 3], [5, 6]])
    spreads = [
        ExpertParallelPlan(ExpertShare(rank, drawn(rng, count, sizes)), count, torch.device(device))
        for rank in range(len(sizes))
    ]
    turns = [ExpertReplicaTable(spread.copies, spread.table, spread.shared, *spread.sizes) for spread in spreads]
    counts = torch.zeros(count, dtype=torch.int64, device=device)
    for _ in range(4):
        held = drawn(rng, count, sizes)
        chosen = torch.tensor([rng.sample(range(count), top) for _ in range(rng.randrange(1, pairs))], device=device)
        slots = torch.tensor([rng.randrange(4) for _ in chosen], device=device) if rng.random() < 0.7 else None
        real = torch.ones(len(chosen), dtype=torch.bool, device=device) if slots is None else slots != 0
        counts += torch.bincount(chosen[real].flatten(), minlength=count)
        for spread, own in zip(spreads, turns, strict=True):
            spread.place(held)
            wanted = torch.full_like(chosen, -1)
            wanted[real] = spread.places(chosen[real], counts)
            found = select_replicas(chosen.int(), own, counts, slots)
            assert torch.equal(found.long(), torch.where(wanted < 0, own.here, wanted))
    first = spreads[0].places(chosen, None)
    assert torch.equal(
        select_replicas(chosen.int(), turns[0], None).long(), torch.where(first < 0, turns[0].here, first)
    )


def drawn(rng: random.Random, count: int, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Any places that hold each expert, some of them twice."""
    experts = [*range(count), *rng.choices(range(count), k=sum(sizes) - count)]
    rng.shuffle(experts)
    return tuple(tuple(experts.pop() for _ in range(size)) for size in sizes)


FORMS = {"plain": 64, "zeros": 32, "floats": 32, "bytes": 64, "float8": 128, "offset": 64}  # and the inputs of a group


def check_in_few_bits(
    form: str,
    options: dict[str, Any],
    rows: int,
    experts: int,
    top_k: int,
    hidden: int,
    inner: int,
    dtype: torch.dtype,
    device: str,
    **how: Any,
) -> None:
    """Some rows hold no numbers: they stay in their rows."""
    from test_quantized_kernels import draw

    from sgl.runtime.kernels.experts.fused_moe import (
        ExpertSelection,
        ExpertWeights,
        PackedExpertWeights,
        SharedExpertOutput,
        StackedExpertWeights,
        fused_moe,
    )
    from sgl.runtime.models.reference.stacked_experts import are_alike, pack_together
    from sgl.runtime.quantization.gpu_quantized_linear import GpuQuantizedLinear

    options = dict(options)
    bias, of_input = (options.pop(name, False) for name in ("bias", "of_input"))
    ours, theirs = [], []
    for outputs, inputs in ((2 * inner, hidden), (hidden, inner)):
        drawn = [placed(draw(form, outputs, inputs, FORMS[form], seed), device) for seed in range(experts)]
        biases = [torch.randn(outputs, device=device).to(dtype) if bias else None for _ in drawn]
        layers = [GpuQuantizedLinear(weight, added, dtype) for weight, added in zip(drawn, biases, strict=True)]
        assert are_alike(layers)
        ours.append(PackedExpertWeights(*pack_together(layers)))
        theirs.append(ExpertWeights(torch.stack([weight.dense() for weight in drawn]), ours[-1].bias))
    x, residual = (torch.randn(rows, hidden, device=device).to(dtype) for _ in range(2))
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(rows)]).int().to(device)
    choice = ExpertSelection(chosen, torch.rand(rows, top_k, device=device), of_input)
    x[1::7] = math.nan
    expected = by_hand(x, StackedExpertWeights(*theirs, **options), choice)
    found = fused_moe(x, StackedExpertWeights(*ours, **options), choice, SharedExpertOutput(), **how).double()
    assert found[1::7].isnan().all()
    kept = [row for row in range(rows) if row % 7 != 1]
    assert (found[kept] - expected[kept]).norm() < (4e-3 if dtype == torch.float16 else 2e-2) * expected[kept].norm()
    added = fused_moe(
        x, StackedExpertWeights(*ours, **options), choice, SharedExpertOutput(x=residual.clone()), **how
    ).double()
    torch.testing.assert_close(
        added[kept], (found + residual.double())[kept], atol=0.05 * float(expected[kept].abs().max()), rtol=0.02
    )


def lay_in_few_bits(rig: Any, exact: Any, group: int, device: str) -> None:
    """The experts of `rig` in four bits, and in `exact` what these stand for."""
    from layer_checks import loaded_weight

    from sgl.runtime.layers.linear_layers import Linear
    from sgl.runtime.quantization.gpu_quantized_linear import GpuQuantizedLinear
    from sgl.runtime.quantization.weight_rounding import nearest

    exact.model.step = None
    for layer, other in zip(rig.model.layers, exact.model.layers, strict=True):
        if not isinstance(layer.ffn, ReferenceExperts):
            continue
        other.ffn.compiled = None
        for ours, theirs in zip(layer.ffn.experts, other.ffn.experts, strict=True):
            for name in ("gate_up", "down"):
                found = getattr(theirs, name)
                weight = nearest(loaded_weight(found), group)
                bias = None if found.bias is None else found.bias.to(device, rig.model.dtype)
                setattr(ours, name, GpuQuantizedLinear(placed(weight, device), bias, rig.model.dtype))
                setattr(theirs, name, Linear(weight.dense(), found.bias))
    vars(rig.model).pop("execution_plan", None)


def placed(weight: Any, device: str) -> Any:
    parts = {field.name: getattr(weight, field.name) for field in fields(weight)}
    return replace(weight, **{name: part.to(device) for name, part in parts.items() if isinstance(part, Tensor)})


def near(found: Tensor, expected: Tensor) -> None:
    broken = expected.isnan()
    assert found[~broken].isfinite().all() and broken.all(1).eq(broken.any(1)).all()
    bound = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[found.dtype]
    torch.testing.assert_close(found[~broken].double(), expected[~broken], atol=bound, rtol=bound)


def by_hand(x: Tensor, stacks: Any, choice: Any) -> Tensor:
    """float64 [T, hidden]: each token through each of its experts alone."""
    found = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    (up, up_bias), (down, down_bias) = stacks.gate_up, stacks.down
    for token, row in enumerate(x):
        for index, weight in zip(choice.experts[token].tolist(), choice.weights[token], strict=True):
            if index >= len(up):
                continue
            taken = (row * weight.to(row.dtype) if choice.of_input else row).double()
            y = up[index].double() @ taken + (0 if up_bias is None else up_bias[index].double())
            gate, other = y.chunk(2)
            if stacks.limit is not None:
                gate, other = gate.clamp(max=stacks.limit), other.clamp(-stacks.limit, stacks.limit) + 1
            inner = (ACTIVATIONS[stacks.name](gate) * other).to(x.dtype).double()
            given = down[index].double() @ inner + (0 if down_bias is None else down_bias[index].double())
            found[token] += given if choice.of_input else given * weight.double()
    return found


__all__ = ["PRODUCTS", "ROUTERS"]


def check_bring(
    rows: int, top_k: int, experts: int, size: tuple[int, ...], dtype: torch.dtype, device: str, padding: int = 0
) -> None:
    """What is chosen is what it is in main memory, everything else stays; padding
    chooses nothing, and all that came is counted.
    """
    from sgl.runtime.kernels.experts.expert_fetch import collect_selected as choose
    from sgl.runtime.kernels.experts.expert_fetch import fetch_experts

    chosen = torch.rand(rows + padding, experts).topk(top_k).indices.int()
    slots = (
        torch.cat((torch.arange(1, rows + 1), torch.zeros(padding, dtype=torch.long))).int().to(device)
        if padding
        else None
    )
    counter = torch.tensor([5], device=device)
    source = (torch.randn(experts, *size) * 50).to(dtype)
    source = source.pin_memory() if device == "cuda" else source
    room = torch.full(source.shape, 3, dtype=torch.int8 if dtype == torch.float8_e4m3fn else dtype, device=device).view(
        dtype
    )
    before, wanted = room.clone(), chosen[:rows].unique()
    found = choose(chosen.to(device), experts, counter, slots)
    assert int(counter) == 5 + len(wanted) and int(found.total) == len(wanted)
    assert found.experts[: len(wanted)].tolist() == wanted.tolist()
    fetch_experts(source, room, found)
    for expert in range(experts):
        there = source if expert in wanted.tolist() else before
        assert torch.equal(room[expert].cpu().view(torch.uint8), there[expert].cpu().view(torch.uint8)), expert
