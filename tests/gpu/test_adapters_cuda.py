"""Adapters on a GPU: kernels and graphs against the law, cold ones that wait, sleep and wake."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
from checkpoints import write_checkpoint, write_tokenizer
from family_cases import write_family
from plain_adapters import write_adapter
from slots_of_sites import site, slots_with

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.adapters.lora_linear import ReferenceAdapters, rows_of
from sgl.runtime.errors import RuntimeFailure
from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.models.gpu.gemv_layers import FullyFusedLayer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
OWNERS = [None, "0", "1", "2", "0", None, "3", "3", "2", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, dict[str, Path]]:
    path = tmp_path_factory.mktemp("adapters")
    base = write_checkpoint(path / "base", tokenizer=True, head_dim=64, num_hidden_layers=2)
    return base, {str(i): write_adapter(base, path / str(i), i, 8 + 8 * (i % 2)) for i in range(4)}


def texts(engine: Engine) -> list[list[int]]:
    sequences = [engine.open(adapter=owner) for owner in OWNERS]
    for i, sequence in enumerate(sequences):
        sequence.extend(list(range(30 + i, 50 + i)))
    return [future.result(60).token_ids for future in [sequence.generate(GREEDY) for sequence in sequences]]


@pytest.mark.parametrize("options", [{}, {"graphs": False}, {"attention": "triton"}, {"deterministic": True}])
def test_texts_are_those_of_the_cpu_whatever_lies_in_the_slots(made, options):
    base, folders = made
    with Engine(base, device="cpu", dtype="float32", threads=1, kv_tokens=4096, adapters=folders) as engine:
        expected = texts(engine)
    chosen: dict[str, Any] = {"dtype": "float32", "kv_tokens": 4096, "adapters": folders} | options
    for slots in (4, 2):
        with Engine(base, device="cuda", adapter_slots=slots, **chosen) as engine:
            assert engine.info()["adapters"]["executor"] == "fused"
            for _ in range(20):  # graphs are captured when a size comes back
                assert texts(engine) == expected
            engine.sleep()
            engine.wake()
            assert texts(engine) == expected
            assert engine.stats().adapters["slots_held"] == 0


def test_steps_of_several_tokens_in_pieces(made):
    """Sequences come while others write, again and again, so that the pieces are captured."""
    base, folders = made
    chosen: dict[str, Any] = {"dtype": "float32", "kv_tokens": 4096, "adapters": folders, "step_tokens": 64}
    with Engine(base, device="cpu", threads=1, **chosen) as engine:
        expected = texts(engine)
    with Engine(base, device="cuda", adapter_slots=3, **chosen) as engine:
        for number in range(40):
            assert texts(engine) == expected, f"run {number}"
        mixed = engine._core.runner._mixed
        assert any(adapted and mixed._pieces[size, True] for size, adapted in mixed._captured)
        engine.sleep()
        engine.wake()
        assert texts(engine) == expected


def scores(engine: Engine) -> list[list[tuple[int, float]]]:
    sequences = [engine.open(adapter=owner) for owner in OWNERS]
    for i, sequence in enumerate(sequences):
        sequence.extend(list(range(30 + i, 50 + i)))
    asked = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=True)
    found = [future.result(60) for future in [sequence.generate(asked) for sequence in sequences]]
    return [[(token, score) for score, token in each.logprobs] for each in found]


def test_products_that_go_on_through_the_adapters_score_as_those_that_are_added_to(tmp_path, monkeypatch):
    base = write_checkpoint(
        tmp_path / "base", tokenizer=True, head_dim=64, num_hidden_layers=2, hidden_size=128, intermediate_size=192
    )
    folders = {str(i): write_adapter(base, tmp_path / str(i), i, 8 + 8 * (i % 2)) for i in range(4)}
    options: dict[str, Any] = {
        "device": "cuda",
        "dtype": "bfloat16",
        "kv_tokens": 4096,
        "adapter_slots": 4,
        "adapters": folders,
    }
    monkeypatch.setattr("sgl.runtime.kernels.adapters.lora_fused_gemm.ON", True)
    with Engine(base, **options) as engine:
        found = [scores(engine) for _ in range(4)]
    monkeypatch.setattr("sgl.runtime.kernels.adapters.lora_fused_gemm.ON", False)
    with Engine(base, **options) as engine:
        added = scores(engine)
    with Engine(base, **options | {"dtype": "float32"}) as engine:
        exact = scores(engine)
    usual = first_errors(added, exact)
    for each in found:
        errors = first_errors(each, exact)
        assert max(errors) < 0.3 and sum(errors) < 2 * sum(usual) + 0.1, (errors, usual)
        assert max(errors_while_alike(each, added)) < 0.3


@pytest.mark.parametrize(
    ("owners", "most"),
    [([i % 8 for i in range(64)], 16), ([i % 8 for i in range(64)], 32), ([4] * 64, 16), ([1, -1, 0, 1, 5], 16)],
)
def test_products_in_a_graph_that_is_replayed(owners, most):
    """The programs that wait find all of A x by the input of each replay, and leave their counters as they were."""
    sites = (site(0, 4096, (4096, 1024, 1024)), site(1, 14336, (4096,)), site(2, 2048, (14336, 14336)))
    slots, law = slots_with(torch.bfloat16, (16, 8, 16, 16, 4, 16, 16, 16), sites, torch.device("cuda"), most)
    torch.cuda.synchronize()  # slots are filled on a stream of their own
    places = [slot.number for slot in slots.slots if slot.there is not None]
    owned = [places[owner] if owner >= 0 else -1 for owner in owners]
    rows, oracle = rows_of(owned, [1] * len(owned), list(range(len(owned)))), ReferenceAdapters(slots)
    law.begin(rows), oracle.begin(rows)
    inputs = [torch.empty(len(owned), each.inputs, dtype=torch.bfloat16, device="cuda") for each in sites]
    bases = [Linear(torch.randn(each.outputs, each.inputs, device="cuda").bfloat16() / 4) for each in sites]

    def products() -> list[torch.Tensor]:
        return [law.product(base, x, each) for base, x, each in zip(bases, inputs, sites, strict=True)]

    assert law._may_fold(len(owned), law.rows.device[len(owned)])
    products()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = products()
    for _ in range(50):
        for x in inputs:
            x.normal_()
        graph.replay()
        for y, base, x, each in zip(found, bases, inputs, sites, strict=True):
            expected = oracle.add(base(x), x, each)
            assert ((y - expected).abs().amax(1) < 0.02 * expected.abs().amax(1)).all()
    assert not law._counters.any()


def first_errors(found: list[list[tuple[int, float]]], exact: list[list[tuple[int, float]]]) -> list[float]:
    """Of the first tokens' scores, behind the same text."""
    return [abs(ours[0][1] - theirs[0][1]) for ours, theirs in zip(found, exact, strict=True)]


def errors_while_alike(found: list[list[tuple[int, float]]], added: list[list[tuple[int, float]]]) -> Iterator[float]:
    """Of all scores up to the first token that differs, whose score is still that of the best: a text
    that has once taken another token is another text.
    """
    for ours, theirs in zip(found, added, strict=True):
        for (token, score), (other, expected) in zip(ours, theirs, strict=True):
            yield abs(score - expected)
            if token != other:
                break


def one_by_one(engine: Engine) -> list[list[tuple[int, float]]]:
    """Texts and scores of OWNERS, a single row at a time."""
    asked, found = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=True), []
    for i, owner in enumerate(OWNERS):
        sequence = engine.open(adapter=owner)
        sequence.extend(list(range(30 + i, 50 + i)))
        found.append([(token, score) for score, token in sequence.generate(asked).result(60).logprobs])
        sequence.close()
    return found


def alone(engine: Engine) -> list[object]:
    return list(engine._core.adapters.adapted_model._model(False, False).execution_plan.alone)  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [{}, {"graphs": False}, {"attention": "triton"}])
def test_single_rows_by_the_kernels_for_one_row(made, options):
    """In float32 the texts of the CPU, whatever lies in the slots."""
    base, folders = made
    with Engine(base, device="cpu", dtype="float32", threads=1, kv_tokens=4096, adapters=folders) as engine:
        expected = one_by_one(engine)
    assert len({tuple(token for token, _ in each) for each in expected}) > 5
    chosen: dict[str, Any] = {
        "dtype": "float32",
        "kv_tokens": 4096,
        "adapters": folders,
        "adapter_slots": {16: 2},
    } | options
    with Engine(base, device="cuda", **chosen) as engine:
        for _ in range(3):
            for ours, theirs in zip(one_by_one(engine), expected, strict=True):
                assert [token for token, _ in ours] == [token for token, _ in theirs]
                assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-3)
        assert engine.info()["adapters"]["one_row"] and all(
            isinstance(layer, FullyFusedLayer) for layer in alone(engine)
        )
        assert texts(engine) == [[token for token, _ in each] for each in expected]  # and in a batch


def test_single_rows_score_in_bfloat16_as_by_two_kernels_for_each_product(tmp_path, monkeypatch):
    base = write_checkpoint(
        tmp_path / "base", tokenizer=True, head_dim=64, num_hidden_layers=2, hidden_size=128, intermediate_size=192
    )
    folders = {str(i): write_adapter(base, tmp_path / str(i), i, 8 + 8 * (i % 2)) for i in range(4)}
    options: dict[str, Any] = {
        "device": "cuda",
        "dtype": "bfloat16",
        "kv_tokens": 4096,
        "adapter_slots": 4,
        "adapters": folders,
    }
    with Engine(base, **options) as engine:
        found = [one_by_one(engine) for _ in range(3)]
        assert all(isinstance(layer, FullyFusedLayer) for layer in alone(engine))
    assert found[1] == found[2]  # by graphs, the same bits
    monkeypatch.setattr("sgl.runtime.kernels.gemv.gemv_lora.ON", False)
    with Engine(base, **options) as engine:
        added = one_by_one(engine)
        assert not engine.info()["adapters"]["one_row"] and not any(
            isinstance(layer, FullyFusedLayer) for layer in alone(engine)
        )
    with Engine(base, **options | {"dtype": "float32"}) as engine:
        exact = one_by_one(engine)
    usual = first_errors(added, exact)
    for each in found:
        errors = first_errors(each, exact)
        assert max(errors) < 0.3 and sum(errors) < 2 * sum(usual) + 0.1, (errors, usual)
        assert max(errors_while_alike(each, added)) < 0.3


def test_without_slots_an_adapter_is_refused(made):
    base, folders = made
    with Engine(base, device="cuda", kv_tokens=1024) as engine, pytest.raises(ValueError, match="adapter_slots"):
        engine.adapters.load("0", folders["0"])


def test_what_adapters_have_beside_pairs(tmp_path):
    """Their steps run without graphs, the others' keep theirs."""
    base = write_checkpoint(tmp_path / "base", tokenizer=True, head_dim=64, num_hidden_layers=2)
    kinds: dict[str, dict[str, Any]] = {
        "0": {},
        "1": {"dora": True, "tables": True},
        "2": {"biases": True, "ends": True},
        "3": {"rows": (33, 40, 41)},
    }
    folders = {name: write_adapter(base, tmp_path / name, int(name), 8, **keys) for name, keys in kinds.items()}
    with Engine(base, device="cpu", dtype="float32", threads=1, kv_tokens=4096, adapters=folders) as engine:
        expected = texts(engine)
    with Engine(base, device="cuda", dtype="float32", kv_tokens=4096, adapter_slots=4, adapters=folders) as engine:
        assert set(engine.info()["adapters"]["outside"]) == {"1", "2", "3"}
        for _ in range(4):
            assert texts(engine) == expected
    size = 4 * 320 * 64
    with Engine(
        base,
        device="cuda",
        dtype="float32",
        kv_tokens=4096,
        adapter_slots=2,
        adapters=folders,
        adapter_extras=2 * size + 40_000,
    ) as engine:
        for _ in range(2):
            assert texts(engine) == expected
        assert engine.stats().adapters["slot_evictions"] > 0
        engine.sleep()
        with pytest.raises(RuntimeFailure, match="wake it first"):
            engine.adapters.load("1", folders["1"])
        engine.wake()
        assert texts(engine) == expected
    with (
        Engine(base, device="cuda", kv_tokens=1024, adapter_slots=1, adapter_extras=size) as engine,
        pytest.raises(ValueError, match="adapter_extras"),
    ):
        engine.adapters.load("1", folders["1"])


MIXERS = {
    "deepseek v2": r"(q_a_proj|q_b_proj|kv_a_proj_with_mqa|o_proj|down_proj|mlp\.gate)$",
    "qwen3 moe": r"(q_proj|experts.*_proj)$",
    "qwen 3.5 moe": r"(in_proj_qkv|in_proj_z|out_proj|q_proj|up_proj|mlp\.gate)$",
    "lfm2": r"(in_proj|out_proj|w2)$",
    "mamba 2": r"in_proj$",
    "mamba": r"(in_proj|x_proj)$",
}
EXPERTS = ("deepseek v2", "qwen3 moe", "qwen 3.5 moe")  # whose steps run without graphs


@pytest.mark.parametrize("case", MIXERS)
def test_mixers_and_mixtures_of_experts(case, tmp_path):
    base = write_tokenizer(write_family(case, tmp_path / "base"))
    folders = {name: write_adapter(base, tmp_path / name, int(name), modules=MIXERS[case]) for name in "0123"}
    with Engine(base, device="cpu", dtype="float32", threads=1, kv_tokens=4096, adapters=folders) as engine:
        expected = texts(engine)
    assert len({*map(tuple, expected)}) > 5
    with Engine(base, device="cuda", dtype="float32", kv_tokens=4096, adapter_slots=4, adapters=folders) as engine:
        assert set(engine.info()["adapters"]["outside"]) == ({*folders} if case in EXPERTS else set())
        for _ in range(6):
            assert texts(engine) == expected


def test_locked_memory_of_adapters_that_were_let_go_is_that_of_the_next(made):
    base, folders = made
    options: dict[str, Any] = {"dtype": "float32", "kv_tokens": 4096, "adapter_slots": 2}
    prompt = list(range(30, 50))

    def told(engine: Engine, name: str) -> list[int]:
        sequence = engine.open(adapter=name)
        sequence.extend(prompt)
        found = sequence.generate(GREEDY).result(60).token_ids
        sequence.close()
        return found

    with Engine(base, device="cuda", adapters=folders, **options) as engine:
        expected = {name: told(engine, name) for name in folders}
        most = max(engine.adapters.get(name).bytes for name in folders)
    assert len({tuple(text) for text in expected.values()}) > 1
    with Engine(base, device="cuda", adapters=folders, adapter_memory=most, **options) as engine:
        for _ in range(10):
            assert {name: told(engine, name) for name in folders} == expected
        store = engine._core.adapters.store
        assert store.let_go > 10 and store.reads > 10
        pool = store._locked
        assert pool is not None and pool.bytes <= 8 * most  # of some 40 readings
        kept = [each.adapter for each in store if each.adapter is not None]
        assert kept and all(adapter.memory.is_pinned() for adapter in kept)
    assert pool.bytes == 0
