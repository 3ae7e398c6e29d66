"""Triton's kernels of adapters, interpreted, against the law: ragged groups,
ranks, pieces, and grids with blocks to spare.
"""

from __future__ import annotations

import inspect
import random
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from checkpoints import write_checkpoint
from interpreted import products_as_on_a_tensor_core
from peft_adapters import make_adapter
from slots_of_sites import site, slots_with

from sgl.runtime import Engine, SamplingParams
from sgl.runtime.adapters.adapter_sites import AdapterSite
from sgl.runtime.adapters.choose_adapter_kernels import adapter_products_for
from sgl.runtime.adapters.lora_linear import ReferenceAdapters, rows_of
from sgl.runtime.executor import warmup
from sgl.runtime.kernels.launch import compile_ahead
from sgl.runtime.layers.linear_layers import Linear
from sgl.runtime.sequences.sequence_state import ScheduledWork
from sgl.runtime.step.adapter_blocks import FEW, StaticAdapterRows, blocks_for, rows_by_slot

fused = pytest.importorskip("sgl.runtime.adapters.gpu_adapter_products")
kernels = pytest.importorskip("sgl.runtime.kernels.adapters.lora_sgmv")
adapted = pytest.importorskip("sgl.runtime.kernels.adapters.lora_fused_gemm")
pretend = pytest.importorskip("gpu_runner").pretend
HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


SITES = (site(0, 72, (40, 24, 24)), site(1, 1100, (130,)), site(2, 1040, (1072, 32, 16)))


OWNERS = {"one": [0], "none": [-1] * 3, "mixed": [2, 0, -1, 1, 1, 2, 2, 0, -1], "many": [i % 3 for i in range(40)]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("tiles", ["short", "long"])
def test_rows_get_what_the_law_gives_them(owners, tiles, dtype, monkeypatch):
    monkeypatch.setattr(kernels, "FEW_BLOCKS", 16 if tiles == "short" else 0)
    slots, law = slots_with(dtype, (4, 8, 20), SITES)
    places = [slots.slots[i].number for i in range(5) if slots.slots[i].there is not None]
    owned = [places[owner] if owner >= 0 else -1 for owner in OWNERS[owners]]
    rows, oracle = rows_of(owned, [1] * len(owned), list(range(len(owned)))), ReferenceAdapters(slots)
    with products_as_on_a_tensor_core():
        for each in SITES:
            x, y = torch.randn(len(owned), each.inputs).to(dtype), torch.randn(len(owned), each.outputs).to(dtype)
            law.begin(rows), oracle.begin(rows)
            found, expected = law.add(y.clone(), x, each), oracle.add(y.clone(), x, each)
            torch.testing.assert_close(
                found,
                expected,
                rtol=1e-5 if dtype == torch.float32 else 2e-2,
                atol=1e-4 if dtype == torch.float32 else 0.12,
            )
            none = [i for i, owner in enumerate(owned) if owner < 0]
            assert torch.equal(found[none], y[none])


WHOLE = (site(0, 144, (128, 64, 64)), site(1, 2080, (64,)), site(2, 160, (192, 64)))  # pieces are whole tiles


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("owners", [*OWNERS, "static", "eight", "all"])
@pytest.mark.parametrize("ranks", [(4, 8, 20), (8,) * 9])
def test_a_product_goes_on_through_the_adapters_of_its_rows(owners, ranks, dtype):
    """Every product twice: whatever it counts up is zero behind it."""
    slots, law = slots_with(dtype, ranks, WHOLE, HERE)
    places = [slot.number for slot in slots.slots if slot.there is not None]
    numbers = (
        range(min(8, len(ranks)) if owners == "eight" else len(ranks))
        if owners in ("eight", "all")
        else OWNERS["mixed" if owners == "static" else owners]
    )
    owned = [places[owner] if owner >= 0 else -1 for owner in numbers]
    rows, oracle = rows_of(owned, [1] * len(owned), list(range(len(owned)))), ReferenceAdapters(slots)
    oracle.begin(rows)
    if owners == "static":
        static = StaticAdapterRows(
            len(owned),
            8,
            [torch.zeros(size, dtype=torch.int32, device=HERE) for size in StaticAdapterRows.sizes(len(owned), 8)],
        )
        blocks = static.rows.device[len(owned)]
        for target, array in zip(
            (blocks.order, blocks.table.view(-1), blocks.groups, blocks.group_of), static.arrays(owned), strict=True
        ):
            target.copy_(torch.from_numpy(array))
        rows = static.rows
    law.begin(rows)
    blocks = law.rows.device[len(owned)]
    assert adapted.supports(len(owned), law.pairs, blocks) == (0 < len(blocks.table) <= adapted.MOST_BLOCKS)
    for each, biased in product(WHOLE if len(blocks.table) else (), (True, False)):
        x, weight = (
            torch.randn(len(owned), each.inputs, device=HERE).to(dtype),
            (torch.randn(each.outputs, each.inputs, device=HERE) / 8).to(dtype),
        )
        base = Linear(weight, torch.randn(each.outputs, device=HERE).to(dtype) if biased else None)
        found, expected = folded(law, base, x, each), oracle.add(base(x), x, each)
        assert (found - expected).abs().max() < 0.02 * expected.abs().max()
        assert not law._counters.any()


def folded(law: Any, base: Linear, x: torch.Tensor, each: AdapterSite) -> torch.Tensor:
    blocks, of_site = law.rows.device[len(x)], law._products[each.number]
    assert adapted.fits_product(of_site)
    with products_as_on_a_tensor_core():
        places = adapted.segments_of(law.pairs, blocks, law._shapes)
        return adapted.fused_lora_linear(x, base.weight, base.bias, of_site, law.pairs, blocks, places, law._counters)


LONG = (site(0, 2 * adapted.CUT + 48, (64, 64)),)  # of three parts, and of five of half the size


@pytest.mark.parametrize("ranks", [(4, 16), (8, 72)])
def test_parts_of_the_inputs_are_added_in_their_order(ranks):
    slots, law = slots_with(torch.bfloat16, ranks, LONG, HERE, max(32, *ranks))
    places = [slot.number for slot in slots.slots if slot.there is not None]
    owned = [places[0], -1, places[0]]
    rows, oracle = rows_of(owned, [1] * 3, [0, 1, 2]), ReferenceAdapters(slots)
    law.begin(rows), oracle.begin(rows)
    x, base = (
        torch.randn(3, LONG[0].inputs, device=HERE).bfloat16(),
        Linear((torch.randn(LONG[0].outputs, LONG[0].inputs, device=HERE) / 8).bfloat16()),
    )
    found, expected = folded(law, base, x, LONG[0]), oracle.add(base(x), x, LONG[0])
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()
    assert not law._counters.any()


@pytest.mark.parametrize("deterministic", [False, True])
def test_no_product_goes_on_where_bits_must_not_depend_on_the_batch(deterministic, monkeypatch):
    """It would round elsewhere with up to eight blocks than with more."""
    monkeypatch.setattr(adapted, "can_fuse", lambda memory: True)
    slots, _ = slots_with(torch.bfloat16, (8,), SITES)
    law: Any = adapter_products_for(SimpleNamespace(fused=True), slots, SITES, deterministic)  # type: ignore[arg-type]
    assert law._may_fold(4, law._blocks(np.array([0, 0, 1, 0], np.int32))) is not deterministic


def test_tiles_of_several_pieces_are_not_fused():
    assert adapted.pieces_of([(0, 0, 128), (1, 128, 192)]).tolist() == [0, 0, 1]
    assert adapted.pieces_of([(0, 0, 100), (1, 100, 192)]) is None
    _, law = slots_with(torch.bfloat16, (8,), SITES)
    assert all(each.piece_of is None for each in law._products)


def test_a_static_grid_fits_any_mix_and_bits_do_not_depend_on_it():
    slots, law = slots_with(torch.bfloat16, (8, 8, 16), SITES)
    places = [slot.number for slot in slots.slots if slot.there is not None]
    x, y = torch.randn(8, SITES[0].inputs).bfloat16(), torch.randn(8, SITES[0].outputs).bfloat16()
    parts = [torch.zeros(size, dtype=torch.int32) for size in StaticAdapterRows.sizes(8, 8)]
    static = StaticAdapterRows(8, 8, parts)
    with products_as_on_a_tensor_core():
        for owners in ([0, 1, 2, -1, -1], [0] * 8, [2, 1], [0, 0, 0, 1]):
            owned = [places[owner] if owner >= 0 else -1 for owner in owners]
            for target, array in zip(parts, static.arrays(owned), strict=True):
                target.copy_(torch.from_numpy(array))
            law.begin(static.rows)
            found = law.add(y.clone(), x, SITES[0])
            for row, owner in enumerate(owned):
                law.begin(rows_of([owner], [1], [0]))
                assert torch.equal(found[row : row + 1], law.add(y[row : row + 1].clone(), x[row : row + 1], SITES[0]))
            assert torch.equal(found[len(owners) :], y[len(owners) :])


@pytest.mark.whole
def test_the_runner_of_a_gpu_has_graphs_of_their_own_for_adapters(tmp_path, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("with a GPU, tests/gpu does the same")
    path = write_checkpoint(tmp_path / "base", tokenizer=True, num_hidden_layers=2)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for i in range(3):
        make_adapter(model, tmp_path / str(i), seed=i)
    owners = [None, "0", "1", "0", "2", None, "2"]

    def found() -> tuple[list[list[int]], Any]:
        options: dict[str, Any] = {
            "kv_tokens": 2048,
            "max_running": 8,
            "step_tokens": 24,
            "run_ahead": True,
            "adapter_slots": {8: 2},
        }
        with Engine(
            path,
            device="cpu",
            dtype="float32",
            threads=1,
            adapters={str(i): tmp_path / str(i) for i in range(3)},
            **options,
        ) as engine:
            sequences = [engine.open(adapter=owner) for owner in owners]
            for i, sequence in enumerate(sequences):
                sequence.extend(list(range(30 + i, 36 + i)))
            futures = [
                sequence.generate(SamplingParams(max_tokens=5, temperature=0, ignore_eos=True))
                for sequence in sequences
            ]
            tokens = [future.result(60).token_ids for future in futures]
            return tokens, (engine.info()["adapters"]["executor"], getattr(engine._core.runner, "_static", {}).keys())

    expected, (by, _) = found()
    assert by == "compiled"
    pretend(monkeypatch)
    tokens, (by, static) = found()
    assert tokens == expected and by == "fused"
    assert {blocks for _, blocks in static} > {0}


class Asked:
    """Stands for `KernelCompileJobs`: which kernels are asked for, as they are compiled apart."""

    def __init__(self) -> None:
        self.kinds: set[Any] = set()

    def add(self, launch: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        kernel = launch.__self__
        alike, anywhere = (
            kernel.kwargs.get(name) or () for name in ("do_not_specialize", "do_not_specialize_on_alignment")
        )
        given = dict(zip(inspect.signature(kernel.fn).parameters, args, strict=False)) | options
        kinds = {
            name: type(value)
            if name in alike
            else compile_ahead._kind(value)[:1]
            if name in anywhere
            else (compile_ahead._kind(value), compile_ahead._plain(value) if name in options else None)
            for name, value in given.items()
        }
        self.kinds.add((kernel.fn.__module__, kernel.fn.__name__, *kinds.items()))

    def wait(self) -> None:
        pass


def test_what_steps_with_adapters_launch_is_compiled_before_there_is_an_adapter(tmp_path, monkeypatch):
    """Whatever mix of adapters decode steps and prompts have."""
    if torch.cuda.is_available():
        pytest.skip("with a GPU, tests/gpu does the same")
    path = write_checkpoint(tmp_path / "base", tokenizer=True, num_hidden_layers=2)
    pretend(monkeypatch)
    monkeypatch.setattr(compile_ahead, "KernelCompileJobs", lambda device, threads: Asked())
    draw = random.Random(0)
    with Engine(
        path, device="cpu", dtype="float32", threads=1, kv_tokens=2048, max_running=40, adapter_slots={8: 9, 32: 3}
    ) as engine:
        runner: Any = engine._core.runner

        def asked(*steps: list[ScheduledWork]) -> set[Any]:
            found = Asked()
            with compile_ahead.compiling(found), warmup._slots_by_number(runner):
                for work in steps:
                    runner.forward(work)
            return {kind for kind in found.kinds if "adapters" in kind[0]}

        before = engine._core.call(lambda: warmup.compile_all(runner, lambda: None)).kinds
        for _ in range(24):
            mixed = [
                work
                for count in range(draw.randint(1, 4))
                for work in warmup.dummy_sequences(draw.randint(1, 10), 1, 2, draw.randint(0, 12))
            ]
            prompts = warmup.dummy_sequences(
                draw.randint(1, 3), 0, draw.choice([draw.randint(2, 60), draw.randint(200, 500)]), draw.randint(1, 3)
            )
            kinds = engine._core.call(lambda steps=(mixed, prompts): asked(*steps))
            assert kinds and kinds <= before
        assert engine._core.runner.adapters is engine._core.adapters and engine.stats().adapters["slots_held"] == 0


def test_rows_are_laid_out_by_slot():
    order, table = rows_by_slot(np.array([1, -1, 0, 1, 1], np.int32), 2)
    assert order.tolist() == [2, 0, 3, 4] and table.tolist() == [[0, 0, 1], [1, 1, 2], [1, 3, 1]]
    assert [blocks_for(slots, 64) for slots in ([0], [0] * 16, [0] * 17, list(range(64)), [0, 1, 2], [5] * 60)] == [
        1,
        1,
        2,
        64,
        4,
        4,
    ]
    assert blocks_for([0, 1, 2], 3) == 3 and FEW == 16
    assert kernels.tiles_of([(0, 0, 130), (1, 130, 140)], 128).tolist() == [[0, 0, 128], [0, 128, 130], [1, 130, 140]]


def test_whole_words_are_read_where_all_begins_at_multiples_of_them():
    _, law = slots_with(torch.bfloat16, (8,), SITES)
    assert [each.grain for each in law._products] == [1, 1, kernels.GRAIN]
