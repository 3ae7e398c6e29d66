"""Whole experts on ranks: each row is computed by one rank, sums are those of one,
experts that move take their numbers along.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from expert_checks import drawn
from family_cases import FAMILIES, write_family
from family_checks import close, prompt, reference
from ranks_rig import steps_of_ranks
from rig import Rig, Row
from test_experts import COUNT, PARTS, in_mxfp4, mixture

from sgl.runtime.attention.attention_layout import listed
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.errors import ConfigError, RuntimeFailure
from sgl.runtime.layers.linear_layers import PackedLinear
from sgl.runtime.loading import load_model
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.loop.expert_rebalancing import ExpertRebalancer
from sgl.runtime.models.cpu.cpu_expert_structs import ExpertsStruct
from sgl.runtime.models.placement.expert_parallel_plan import ExpertParallelPlan, rows_of
from sgl.runtime.models.placement.expert_transfer import form_of, put, tensors_of
from sgl.runtime.models.reference.reference_experts import ReferenceExperts
from sgl.runtime.models.spec.model_spec import ExpertShare, ExpertsSpec
from sgl.runtime.parallel.ep import expert_migration
from sgl.runtime.parallel.ep.expert_balance import ExpertBalancer, better, slices
from sgl.runtime.parallel.ep.expert_migration import ExpertMigrationStep, ExpertMigrator, describe_experts_apart
from sgl.runtime.parallel.ep.expert_parallel_split import ExpertParallelSplit
from sgl.runtime.parallel.ep.expert_placement import initial_placement, moves
from sgl.runtime.parallel.tp.sharded_source import require, share_of
from sgl.runtime.parallel.tp.tensor_parallel_split import TensorParallelSplit
from sgl.runtime.quantization import transform_for

CPU = torch.device("cpu")
MIXTURES = ["qwen3 moe", "gpt-oss", "deepseek v2", "mixtral, window", "llama 4", "qwen2 moe"]


@pytest.mark.parametrize("seed", range(20))
def test_each_row_goes_to_one_copy_and_copies_take_turns(seed: int) -> None:
    rng, count, before = random.Random(seed), 6, Counter[int]()
    sizes = rng.choice([[3, 3], [4, 4], [3, 2, 3], [5, 6]])
    held = drawn(rng, count, sizes)
    spreads = [ExpertParallelPlan(ExpertShare(rank, held), count) for rank in range(len(sizes))]
    copies = [
        [(rank, place) for rank, own in enumerate(held) for place, expert in enumerate(own) if expert == each]
        for each in range(count)
    ]
    for _ in range(3):
        chosen = torch.tensor([rng.sample(range(count), 2) for _ in range(rng.randrange(1, 9))])
        wanted, now = [], Counter(before)
        for expert in chosen.flatten().tolist():
            wanted.append(copies[expert][now[expert] % len(copies[expert])])
            now[expert] += 1
        counts = torch.tensor([now[each] for each in range(count)])
        found = [spread.places(chosen, counts).flatten().tolist() for spread in spreads]
        assert [
            [(rank, place) for rank, places in enumerate(found) if (place := places[pair]) >= 0]
            for pair in range(len(wanted))
        ] == [[each] for each in wanted]
        rows = Counter(rank for rank, _ in wanted)
        assert rows_of(held, [before[each] for each in range(count)], counts.tolist()) == [
            rows[rank] for rank in range(len(sizes))
        ]
        before = now


def ranks_of(whole: ReferenceExperts, held: tuple[tuple[int, ...], ...]) -> list[ReferenceExperts]:
    """Its ranks, the first of which has the shared network."""
    found = []
    for rank, own in enumerate(held):
        spec = replace(whole.part, held=ExpertShare(rank, held))
        part = mixture(replace(spec, shared=None, switched=False) if rank else spec, whole.dtype)
        part.router, part.correction = whole.router, whole.correction
        if not rank:
            part.shared, part.switch = whole.shared, whole.switch
        for network, expert in zip(part.experts, own, strict=True):
            put(network, tensors_of(whole.experts[expert]))
        part.compiled = ExpertsStruct.of(part)
        found.append(part)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PARTS)
def test_what_ranks_give_is_what_one_gives(name: str, dtype: torch.dtype) -> None:
    """By torch and compiled, one row and more than a kernel takes at once, while experts change their places."""
    whole, rng = mixture(name, dtype), random.Random(name)
    count = whole.part.count
    sizes = [count // 2 + 1, count - count // 2]
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    both = [ranks_of(whole, initial_placement(count, 2, 1)) for _ in range(2)]
    assert all((part.compiled is None) == (whole.compiled is None) for parts in both for part in parts)
    for rows in (1, 600, 7):
        x = torch.randn(rows, 48, generator=torch.Generator().manual_seed(rows)).to(dtype)
        expected = whole.by_torch(x).float()
        sums = [sum(part.by_torch(x).float() for part in both[0]), sum(part.here(x).float() for part in both[1])]
        for found in sums:
            assert (found - expected).norm() < tolerance * expected.norm()
        for one, other in zip(*both, strict=True):
            assert torch.equal(one.counts, other.counts) and torch.equal(one.counts, both[0][0].counts)
        held = drawn(rng, count, sizes)
        for parts in both:
            for part, own in zip(parts, held, strict=True):
                for network, expert in zip(part.experts, own, strict=True):
                    put(network, tensors_of(whole.experts[expert]))
                part.hold_experts(held)


def steps(tokens: list[int]) -> list[list[tuple[Row, int]]]:
    one, other = Row(tokens[:20]), Row(tokens[20:33])
    return [[(one, 7), (other, 12)], [(other, 1), (one, 12)], [(one, 1)]]


class Shuffled:
    """Experts of all ranks' models lie anywhere anew before each step."""

    def __init__(self, path: Path, seed: int) -> None:
        self._whole, self._seed = load_model(path), seed

    def __call__(self, model: Any, rank: int, number: int) -> None:
        for index, layer in enumerate(model.layers):
            if isinstance(layer.ffn, ReferenceExperts) and number:
                sizes = [len(own) for own in layer.ffn.part.held.experts]
                held = drawn(random.Random(f"{self._seed} {number} {index}"), layer.ffn.part.count, sizes)
                for network, expert in zip(layer.ffn.experts, held[rank], strict=True):
                    put(network, tensors_of(self._whole.layers[index].ffn.experts[expert]))
                layer.ffn.hold_experts(held)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", MIXTURES)
def test_families_compute_what_one_rank_computes(case: str, tmp_path: Path) -> None:
    path = write_family(case, tmp_path)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in steps(tokens)]
    ways = [
        steps_of_ranks(path, 2, steps(tokens), whole=ExpertParallelSplit(3, ordered=True), before=Shuffled(path, seed))
        for seed in range(2)
    ]
    ways.append(
        steps_of_ranks(
            path,
            2 if case == "mixtral, window" else 4,
            steps(tokens),
            whole=ExpertParallelSplit(),
            before=Shuffled(path, 0),
        )
    )
    for found in ways:
        for ours, asked in zip(found, expected, strict=True):
            close(ours, asked, 2e-5, case)
    assert all(torch.equal(a, b) for a, b in zip(*ways[:2], strict=True)), "bits tell where experts lie"


def test_each_rank_reads_its_own_experts_in_few_bits_as_well(tmp_path: Path) -> None:
    keys = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "sliding_window": 9,
        "intermediate_size": 32,
        "hidden_size": 64,
    }
    model = reference("GptOssForCausalLM", **keys)
    model.save_pretrained(tmp_path)
    in_mxfp4(tmp_path, model)
    tokens, rig = prompt(320), Rig(tmp_path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in steps(tokens)]
    for ours, asked in zip(
        steps_of_ranks(tmp_path, 2, steps(tokens), whole=ExpertParallelSplit(1)), expected, strict=True
    ):
        close(ours, asked, 2e-5, "mxfp4")
    names = [
        [
            stored.name
            for source in share_of(
                open_checkpoint(tmp_path), TensorParallelSplit(rank, 2, ExpertParallelSplit(1))
            ).sources
            for stored in source.tensors
        ]
        for rank in range(2)
    ]
    for rank, own in enumerate(initial_placement(4, 2, 1)):
        held = {name.split(".")[5] for name in names[rank] if ".mlp.experts." in name}
        assert held == {str(expert) for expert in own}
    assert len(set(names[0]) & set(names[1])) < len(names[0])


@pytest.mark.parametrize(
    "weights, deterministic",
    [
        ("auto", False),
        ("auto", True),
        ("int8", False),
        ("int4", True),
        ("mxfp4", False),
        ("nvfp4", False),
        ("packed", False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_expert_takes_anothers_place(weights: str, deterministic: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """Whatever its products are kept as, but for forms that say that they cannot."""
    path = write_family("gpt-oss", tmp_path, num_hidden_layers=1, layer_types=["full_attention"], intermediate_size=32)
    transform = None if weights == "packed" else transform_for(weights, deterministic, CPU)
    if weights == "packed":
        transform = lambda name, layer: (  # noqa: E731
            PackedLinear(layer.weight.contiguous(), layer.bias)
            if name in ("gate_up", "down") and dtype == torch.bfloat16
            else layer
        )
    source, target = (load_model(path, dtype, transform=transform).layers[0].ffn.experts for _ in range(2))
    forms = {form_of(expert) for expert in (*source, *target)}
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert len(forms) == 1 and None not in forms
    put(target[1], [tensor.clone() for tensor in tensors_of(source[3])])
    for rows in (1, 40):
        assert torch.equal(target[1].output(x[:rows]), source[3].output(x[:rows])) and not torch.equal(
            target[0].output(x[:rows]), source[3].output(x[:rows])
        )


def test_forms_tell_what_cannot_be_exchanged(tmp_path: Path) -> None:
    path = write_family("qwen3 moe", tmp_path, num_hidden_layers=1)
    plain, few = (
        load_model(path, transform=transform_for(weights, False, CPU)).layers[0].ffn.experts[0]
        for weights in ("auto", "int8")
    )
    assert form_of(plain) != form_of(few)


@pytest.mark.parametrize("seed", range(10))
def test_slices_of_a_layer_end_in_its_new_places(seed: int) -> None:
    rng, count = random.Random(seed), 8
    spread = ExpertParallelPlan(ExpertShare(0, initial_placement(count, 2, 2)), count)
    held = better(spread, [rng.randrange(100) for _ in range(count)]) or drawn(rng, count, [5, 5])
    found = list(slices(3, spread.held, held, rng.choice([1, 2**24, 2**30])))
    assert [move for each in found for move in each.moves] == moves(spread.held, held)
    assert all(each.held is None for each in found[:-1]) and (not found or found[-1].held == held)
    assert (
        better(spread, [0] * count) is None
        and better(ExpertParallelPlan(ExpertShare(0, initial_placement(count, 2)), count), [1] * count) is None
    )


@pytest.fixture
def mover(monkeypatch: pytest.MonkeyPatch) -> ExpertMigrator:
    """Rank 0's, of a model of one mixture."""
    monkeypatch.setattr(
        expert_migration.dist,
        "all_gather_object",
        lambda found, own, group: found.__setitem__(slice(None), [own] * len(found)),
    )
    part = ranks_of(mixture("plain"), initial_placement(COUNT, 2, 2))[0]
    return ExpertMigrator(SimpleNamespace(layers=[SimpleNamespace(ffn=part)]), 0, 2)


def test_a_router_that_chose_otherwise_is_told(mover: ExpertMigrator) -> None:
    chosen = describe_experts_apart(mover.parts[0])
    mover.take(ExpertMigrationStep(0, (), None, chosen))
    mover.parts[0].by_torch(torch.randn(3, 48))
    with pytest.raises(RuntimeFailure, match="chose other experts in layer 0"):
        mover.take(ExpertMigrationStep(0, (), None, chosen))


def test_a_mixture_is_computed_by_the_same_code_on_all_ranks(
    mover: ExpertMigrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = mover.parts[0]
    part.compiled = SimpleNamespace()
    mover.review()
    assert part.compiled is not None and mover.movable == [0]

    def gather(found: list, own: dict, group: None) -> None:
        found[:] = [own, {index: (False, {"another"}) for index in own}]

    monkeypatch.setattr(expert_migration.dist, "all_gather_object", gather)
    mover.review()
    assert part.compiled is None and mover.movable == []


def test_weights_that_are_loaded_anew_end_what_was_under_way(mover: ExpertMigrator) -> None:
    told: list[str] = []
    experts = ExpertBalancer(SimpleNamespace(tell=told.append), mover, 2)
    mover.parts[0].by_torch(torch.randn(50, 48, generator=torch.Generator().manual_seed(0)))
    assert sum(experts.rows()[0]) == 150
    experts.begin()
    assert experts.busy
    mover.parts[0].hold_experts(initial_placement(COUNT, 2, 2)[::-1])
    mover._model.layers[0].ffn = ranks_of(mixture("plain"), initial_placement(COUNT, 2, 2))[0]
    assert sum(experts.rows()[0]) == 150 and experts.places() == {
        "0": [listed(sorted(own)) for own in initial_placement(COUNT, 2, 2)]
    }
    mover.parts[0].by_torch(torch.randn(10, 48))
    for _ in range(2):  # before it is looked at, and behind
        assert sum(experts.rows()[0]) == 180
        experts.turn()
        assert not experts.busy and told == ["review"]
    experts.begin()
    assert experts.last.balance_before <= 1 and experts.busy


def test_nothing_keeps_the_weights_of_before_while_others_are_loaded(mover: ExpertMigrator) -> None:
    """And rows are counted on."""
    told: list[str] = []
    experts, spread = (
        ExpertBalancer(SimpleNamespace(tell=lambda name, *rest: told.append(name)), mover, 2),
        mover.parts[0].spread,
    )
    mover.parts[0].by_torch(torch.randn(50, 48, generator=torch.Generator().manual_seed(0)))
    experts._slices += slices(0, spread.held, (spread.held[0][::-1], spread.held[1]), 2**30)
    experts.turn()
    assert mover._staged
    before = weakref.ref(mover.parts[0])
    experts.let_go()
    mover._model.layers[0].ffn = ranks_of(mixture("plain"), initial_placement(COUNT, 2, 2))[0]
    gc.collect()
    assert before() is None and not mover._staged and sum(experts.rows()[0]) == 150
    experts.look()
    mover.parts[0].by_torch(torch.randn(10, 48))
    assert not experts.busy and told == ["move", "drop", "review"] and sum(experts.rows()[0]) == 180
    experts.begin()
    assert experts.busy


def test_no_rank_keeps_experts_on_their_way_when_weights_go_elsewhere(mover: ExpertMigrator) -> None:
    experts, spread = ExpertBalancer(SimpleNamespace(tell=lambda *told: None), mover, 2), mover.parts[0].spread
    after = spread.held[0][::-1], spread.held[1]
    experts._slices += slices(0, spread.held, after, 2**30)
    experts.turn()
    assert mover._staged and experts._slices and spread.held != after
    ExpertRebalancer(experts, None, lambda: False).settle()
    assert not (mover._staged or experts._slices) and spread.held == after


def test_the_groups_of_a_router_stay_on_one_node() -> None:
    spread = ExpertParallelPlan(ExpertShare(0, initial_placement(8, 4, 4), nodes=2, groups=4), 8)
    held = better(spread, [50, 1, 1, 1, 1, 1, 40, 1])
    assert held is not None and all(
        len({rank // 2 for rank, own in enumerate(held) for expert in group if expert in own}) == 1
        for group in ((0, 1), (2, 3), (4, 5), (6, 7))
    )


@pytest.mark.parametrize(
    "options, why",
    [
        ({"expert_parallel": True}, "tensor_parallel, here 1"),
        ({"redundant_experts": 2}, r"redundant_experts=2\) is about experts that are whole"),
        ({"tensor_parallel": 2, "rebalance_every": 5}, "take expert_parallel=True as well"),
        ({"tensor_parallel": 2, "expert_parallel": True, "pipeline_parallel": 2}, "not with stages"),
        ({"tensor_parallel": 2, "expert_parallel": True, "expert_nodes": 3}, "cannot be shared out among so many"),
        ({"tensor_parallel": 2, "expert_parallel": True, "rebalance_every": 0}, "positive whole number"),
        ({"tensor_parallel": 2, "expert_parallel": True, "redundant_experts": -1}, "redundant_experts"),
        ({"tensor_parallel": 2, "expert_parallel": 1}, "True or False"),
    ],
)
def test_options_that_make_no_sense_are_told(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        EngineConfig.from_options(options)


@pytest.mark.parametrize("beside", [{"deterministic": True}, {"weights": "int8"}], ids=str)
def test_what_gpus_do_not_do_beside_it_is_refused_by_name(beside: dict[str, Any]) -> None:
    asked = {"tensor_parallel": 2, "expert_parallel": True}
    assert EngineConfig.from_options(asked).on("cuda").whole_experts is not None
    with pytest.raises(ConfigError, match=rf"expert_parallel=True, {next(iter(beside))}=.*not supported on GPUs"):
        EngineConfig.from_options(asked | beside).on("cuda")


@pytest.mark.parametrize(
    "whole, ranks, why",
    [
        (ExpertParallelSplit(7), 2, "take no more"),
        (ExpertParallelSplit(), 8, "each takes one at least"),
        (ExpertParallelSplit(1, nodes=2), 2, "must divide"),
    ],
)
def test_places_that_cannot_be_are_told(whole: ExpertParallelSplit, ranks: int, why: str, tmp_path: Path) -> None:
    write_family("qwen3 moe", tmp_path, num_attention_heads=8, num_key_value_heads=8)
    with pytest.raises(ConfigError, match=why):
        require(open_checkpoint(tmp_path).model, ranks, whole)


def test_a_model_without_experts_has_none_to_share_out(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"expert_parallel=True.*it has no experts"):
        require(open_checkpoint(tiny).model, 2, ExpertParallelSplit())


def test_the_cases_are_there() -> None:
    assert all(case in FAMILIES for case in MIXTURES) and isinstance(PARTS["plain"], ExpertsSpec) and COUNT == 8
