"""The GPU's layers of two ranks, kernels interpreted: steps of families give what the law gives on one."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with GPUs, tests/gpu does the same", allow_module_level=True)

import layer_checks as checks
from expert_checks import drawn
from family_cases import write_family
from family_checks import close, prompt
from loaded_models import load_share
from rank_threads import PostingRanks, TurnRanks, Turns
from ranks_rig import CPU
from rig import Rig, Row

from sgl.runtime.errors import ConfigError
from sgl.runtime.kernels.gemv import gemv
from sgl.runtime.loading import load_model
from sgl.runtime.loading.checkpoint import open_checkpoint
from sgl.runtime.models import decoder
from sgl.runtime.models.gpu.gemv_layers import GemvLayer
from sgl.runtime.models.gpu.gpu_layers import FusedLayer, FusedRecurrentLayer
from sgl.runtime.models.placement.expert_transfer import put, tensors_of
from sgl.runtime.models.reference.reference_experts import ReferenceExperts
from sgl.runtime.parallel.ep import expert_migration
from sgl.runtime.parallel.ep.expert_balance import ExpertBalancer
from sgl.runtime.parallel.ep.expert_migration import ExpertMigrator
from sgl.runtime.parallel.ep.expert_parallel_split import ExpertParallelSplit, require_kernels, require_same_options
from sgl.runtime.parallel.rank_collectives import joined
from sgl.runtime.parallel.tp.tensor_parallel_split import TensorParallelSplit
from sgl.runtime.quantization import transform_for

FAMILIES = [
    "llama",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "gptj",
    "gpt_neox",
    "cohere2",
    "hyperclovax",
    "opt",
    "falcon-7b",
    "phi3",
    "olmo, clipped",
    "nemotron, biases",
    "starcoder2",
    "glm4",
    "granite",
    "bloom",
]


def walk(tokens: list[int]) -> list[list[tuple[Row, int]]]:
    one, other = Row(tokens[:20]), Row(tokens[20:33])
    return [[(one, 7), (other, 12)], [(other, 1), (one, 12)], [(one, 1)]]


class Shuffled:
    """Experts of all ranks' models lie anywhere anew before each step, their
    weights and places written over where they are.
    """

    def __init__(self, path: Path) -> None:
        self._whole = load_model(path)
        checks.lay_plain(self._whole)

    def __call__(self, model: Any, rank: int, number: int) -> None:
        for index, layer in enumerate(model.layers):
            if isinstance(layer.ffn, ReferenceExperts) and number:
                sizes = [len(own) for own in layer.ffn.part.held.experts]
                held = drawn(random.Random(f"{number} {index}"), layer.ffn.part.count, sizes)
                for network, expert in zip(layer.ffn.experts, held[rank], strict=True):
                    put(network, tensors_of(self._whole.layers[index].ffn.experts[expert]))
                layer.ffn.hold_experts(held)


def steps_of_ranks(
    path: Path,
    work: list[list[tuple[Row, int]]],
    whole: ExpertParallelSplit | None = None,
    before: Any = None,
    dtype: torch.dtype = torch.float32,
    lay: Any = checks.lay_plain,
    meet: Any = TurnRanks,
    ranks: int = 2,
    by_rows: bool = False,
    attention: str = "torch_native",
) -> tuple[list[torch.Tensor], Any]:
    """Rank 0's logits of each step's every row, and its model.

    whole, by_rows: see `TensorParallelSplit`.  before: gets each rank's model, the rank and the step's number before
    it.  lay: has weights lie as on a GPU.  meet: makes what a rank adds up by.
    """
    turns, found, errors = Turns(ranks), {}, []

    def compute(rank: int) -> None:
        with turns.turn:
            try:
                model = load_share(path, dtype, CPU, TensorParallelSplit(rank, ranks, whole, by_rows))
                lay(model)
                rows: dict[int, Row] = {}
                rig = checks.FusedRig(path, dtype, model=joined(model, meet(rank, turns)), attention=attention)
                logits = []
                with torch.inference_mode():
                    for number, step in enumerate(work):
                        if before is not None:
                            before(model, rank, number)
                        logits.append(
                            rig.step(
                                [(rows.setdefault(id(row), Row(row.tokens)), count) for row, count in step],
                                every_row=True,
                            )
                        )
                found[rank] = logits, model
            except BaseException as error:
                errors.append(error)
                turns.turn.notify_all()
                raise

    threads = [threading.Thread(target=compute, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    return found[0]


@pytest.mark.few(2)
@pytest.mark.parametrize("case", FAMILIES)
def test_two_ranks_compute_what_one_computes(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_family(case, tmp_path)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    found, model = steps_of_ranks(path, walk(tokens))
    for ours, asked in zip(found, expected, strict=True):
        close(ours.float(), asked, 5e-5, case)
    assert all(isinstance(layer, FusedLayer) for layer in model.execution_plan.layers)
    assert any(isinstance(layer, GemvLayer | FusedLayer) for layer in model.execution_plan.alone)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["lfm2", "qwen 3.5", "qwen3 next, dense layers", "granite 4, dense", "mamba 2"])
def test_two_ranks_advance_the_states_that_one_advances(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks and row by row; the last family has layers without a network."""
    path = write_family(case, tmp_path)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    monkeypatch.setattr(gemv, "supports", lambda x: len(x) == 1)
    monkeypatch.setattr(gemv, "best_launch", lambda *shape: gemv.GemvLaunch(16, 64, 1))
    found, model = steps_of_ranks(path, walk(tokens))
    for ours, asked in zip(found, expected, strict=True):
        close(ours.float(), asked, 1e-4, case)
    assert any(isinstance(layer, FusedRecurrentLayer) for layer in model.execution_plan.layers) != (case == "mamba 2")


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ["llama", "qwen2", "gemma2", "lfm2", "gpt_neox"])
def test_products_of_one_row_send_their_parts_themselves(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To norms behind sums and to norms of sums, with biases; the last family has
    two branches whose sums would come between.
    """
    path, made = write_family(case, tmp_path), []
    row = Row(prompt(open_checkpoint(path).model.vocab_size)[:9])
    work = [[(row, 5)], *([(row, 1)] for _ in range(3))]
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in work]
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    monkeypatch.setattr(gemv, "supports", lambda x: len(x) == 1)
    monkeypatch.setattr(gemv, "best_launch", lambda *shape: gemv.GemvLaunch(16, 64, 1))
    PostingRanks.patch(monkeypatch)

    def meet(rank: int, turns: Turns) -> PostingRanks:
        made.append(PostingRanks(rank, turns))
        return made[-1]

    found, model = steps_of_ranks(path, work, meet=meet)
    for ours, asked in zip(found, expected, strict=True):
        close(ours.float(), asked, 1e-4, case)
    products = sum(layer.mixer is not None for layer in model.layers) + sum(
        layer.ffn is not None for layer in model.layers
    )
    assert [ranks.posts for ranks in made] == [0 if case == "gpt_neox" else 3 * products] * 2


@pytest.mark.whole
@pytest.mark.parametrize("case", ["qwen3 moe", "gpt-oss", "deepseek v2", "llama 4", "qwen2 moe"])
def test_experts_that_lie_whole_on_two_ranks_give_what_one_gives(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_family(case, tmp_path)
    tokens = prompt(open_checkpoint(path).model.vocab_size)
    rig = Rig(path, attention="torch_native")
    expected = [rig.step(step, every_row=True) for step in walk(tokens)]
    before = Shuffled(path)
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    found, model = steps_of_ranks(path, walk(tokens), ExpertParallelSplit(2), before)
    for ours, asked in zip(found, expected, strict=True):
        close(ours.float(), asked, 5e-5, case)
    mixtures = [layer for layer in model.execution_plan.layers if layer.experts is not None]
    assert mixtures and all(layer.experts.turns is not None for layer in mixtures)
    require_kernels(model, "asked")


def test_mixtures_that_the_kernels_leave_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_family("qwen3 moe", tmp_path)
    model = load_share(path, torch.float32, CPU, TensorParallelSplit(0, 2, ExpertParallelSplit()))
    with pytest.raises(ConfigError, match="Triton is not there"):
        require_kernels(model, "Engine(tensor_parallel=2")
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    few = load_share(
        path,
        torch.float32,
        CPU,
        TensorParallelSplit(0, 2, ExpertParallelSplit()),
        transform=transform_for("int8", False, CPU),
    )
    with pytest.raises(
        ConfigError, match=r"tensor_parallel=2, expert_parallel=True\): layer 0: experts kept as Int8GroupedLinear"
    ):
        require_kernels(few, "Engine(tensor_parallel=2")


def test_other_ranks_whose_experts_are_kept_otherwise_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a checkpoint of which some experts are in few bits, rank 0 may have plain ones alone."""
    path, forms = write_family("qwen3 moe", tmp_path), []
    monkeypatch.setattr(
        expert_migration.dist,
        "all_gather_object",
        lambda found, own, group: forms.append(own) or found.__setitem__(slice(None), [forms[0], own]),
    )
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)
    models = [
        load_share(
            path,
            torch.float32,
            CPU,
            TensorParallelSplit(rank, 2, ExpertParallelSplit()),
            transform=(rank and transform_for("int8", False, CPU)) or None,
        )
        for rank in range(2)
    ]
    checks.lay_plain(models[0])
    require_kernels(models[0], "Engine(tensor_parallel=2")
    require_same_options(ExpertBalancer(None, ExpertMigrator(models[0], 0, 2), 2).fixed, "Engine(tensor_parallel=2")
    fixed = ExpertBalancer(None, ExpertMigrator(models[1], 1, 2), 2).fixed
    with pytest.raises(ConfigError, match=r"expert_parallel=True\): layers 0-3: experts kept in different forms"):
        require_same_options(fixed, "Engine(tensor_parallel=2")
