"""Experts in main memory, in Triton's interpreter: the same numbers as where all
are on the device, and figures that are true.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("with a GPU, tests/gpu does the same", allow_module_level=True)

import expert_checks
import layer_checks as checks
from checkpoints import write_tokenizer
from expert_checks import lay_in_few_bits
from family_cases import write_family
from interpreted import products_as_on_a_tensor_core
from part_models import RMS, LawRig, PartsRig, attention, model

from sgl.runtime import Engine
from sgl.runtime.build.engine_config import EngineConfig
from sgl.runtime.errors import ConfigError
from sgl.runtime.models import decoder
from sgl.runtime.models.gpu.offloaded_experts import OffloadBuffers
from sgl.runtime.models.placement.expert_offload_plan import ExpertOffloadPlan
from sgl.runtime.models.reference.reference_experts import ReferenceExperts
from sgl.runtime.models.spec.model_spec import (
    ExpertsSpec,
    GatedFFNSpec,
    LayerNorms,
    LayerSpec,
    PlainFFNSpec,
    RouterSpec,
)

STEPS = [((1, 9, 0, 0), False), ((0, 1, 0, 1), True)]  # of more rows than are gathered, and of few
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(decoder, "_can_fuse", lambda model: True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int16])
@pytest.mark.parametrize(
    "rows, experts, size, padding", [(1, 9, (3, 5), 0), (3, 8, (70, 130), 2), (700, 6, (4, 4), 0), (0, 4, (4, 4), 3)]
)
def test_what_is_chosen_is_brought(
    rows: int, experts: int, size: tuple[int, ...], padding: int, dtype: torch.dtype
) -> None:
    expert_checks.check_bring(rows, 2, experts, size, dtype, "cpu", padding)


def mixtures(inner: int = 24, bias: bool = False) -> Any:
    shared = GatedFFNSpec(16)
    kinds = [
        ExpertsSpec(5, 2, GatedFFNSpec(inner, bias=bias), RouterSpec(normalise=True)),
        ExpertsSpec(5, 2, GatedFFNSpec(inner, bias=bias), RouterSpec(), shared=shared, switched=True),
    ]
    return model(*[LayerSpec(LayerNorms.pre(RMS), attention(), each) for each in (*kinds, GatedFFNSpec(20), kinds[0])])


def settled(rig: Any, budget: int, free: int = 2**40) -> ExpertOffloadPlan:
    places = rig.model.expert_places = ExpertOffloadPlan(CPU, budget, lambda: free)
    for block in rig.model.layers:
        places.settle(block, rig.model.dtype)
    vars(rig.model).pop("execution_plan", None)
    return places


def plain(spec: Any, dtype: torch.dtype = torch.float32) -> PartsRig:
    rig = PartsRig(spec, dtype)
    checks.lay_plain(rig.model)
    return rig


@pytest.mark.few(1)
@pytest.mark.parametrize("budget, bias", [(0, False), (10**9, True)])
def test_logits_are_those_of_experts_on_the_device(budget: int, bias: bool) -> None:
    """The same bits, with and without room for the first layer's."""
    rigs = [plain(mixtures(bias=bias)) for _ in range(2)]
    size, top = sum(tensor.nbytes for tensor in _large(rigs[1].model.layers[0].ffn)), 2
    places = settled(rigs[1], min(budget, size))
    assert checks.errors(*rigs, STEPS) == [0.0] * len(STEPS)
    stays = 1 if budget > size else 0
    told, gone = places.describe(), 3 - stays
    assert told["device_layers"] == ("0" if stays else "") and told["host_layers"] == ("1, 3" if stays else "0-1, 3")
    assert told["host_bytes"] == gone * size and told["device_bytes"] == stays * size and told["room_bytes"] == size
    assert told["token_bytes"] == gone * top * size // 5
    assert 0 < places.brought() <= gone * size * len(STEPS) and places.brought() % (size // 5) == 0


def _large(part: ReferenceExperts) -> list[torch.Tensor]:
    return [product.weight for expert in part.experts for product in (expert.gate_up, expert.down)]


def test_only_what_is_chosen_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = plain(mixtures())
    places, seen = settled(rig, 0), []
    for layer in rig.model.execution_plan.layers:
        if layer.experts is not None:
            part = layer.experts.part
            monkeypatch.setattr(
                part.host,
                "fetch",
                lambda stacks, experts, slots, fetch=part.host.fetch: (
                    seen.append(experts.unique()),
                    fetch(stacks, experts, slots),
                )[1],
            )
    row = checks.Row([5, 9, 31, 7])
    rig.step([(row, 3)])
    rig.step([(row, 1)])
    assert len(seen) == 6 and places.brought() == sum(map(len, seen)) * places.describe()["host_bytes"] // 15


def test_rows_by_the_kernels_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from sgl.runtime.kernels.gemv import gemv

    rigs = [plain(mixtures()) for _ in range(2)]
    settled(rigs[1], 0)
    monkeypatch.setattr(gemv, "supports", lambda x: len(x) == 1)
    assert checks.errors(*rigs, checks.SINGLE[:1]) == [0.0]


def test_experts_in_few_bits() -> None:
    spec = model(
        *[
            LayerSpec(
                LayerNorms.pre(RMS),
                attention(),
                ExpertsSpec(3, 2, GatedFFNSpec(32, bias=bias), RouterSpec(normalise=True)),
            )
            for bias in (True, False)
        ]
    )
    rigs = []
    for _ in range(2):
        rig = plain(spec, torch.bfloat16)
        lay_in_few_bits(rig, LawRig(spec), 16, "cpu")
        rigs.append(rig)
    places = settled(rigs[1], 0)
    part = rigs[1].model.layers[0].ffn.experts
    assert places.describe()["host_bytes"] == 2 * sum(
        product.packed.words.nbytes + product.packed.meta.nbytes
        for each in part
        for product in (each.gate_up, each.down)
    )
    with products_as_on_a_tensor_core():
        assert checks.errors(*rigs, STEPS) == [0.0, 0.0]


def test_weights_that_come_again_take_the_place_of_those_before() -> None:
    rig = plain(mixtures())
    places = settled(rig, 0)
    before = places.describe()
    for block in rig.model.layers:
        if isinstance(block.ffn, ReferenceExperts):
            for expert in block.ffn.experts:
                expert.gate_up.weight, expert.down.weight = expert.gate_up.weight * 2, expert.down.weight.clone()
        places.settle(block, torch.float32)
    assert places.describe() == before
    twin = plain(mixtures())
    for block in twin.model.layers:
        if isinstance(block.ffn, ReferenceExperts):
            for expert in block.ffn.experts:
                expert.gate_up.weight = expert.gate_up.weight * 2
    assert checks.errors(twin, rig, STEPS[:1]) == [0.0]


def test_rooms_are_shared_by_layers_of_one_size() -> None:
    rooms, like = OffloadBuffers(CPU), torch.ones(3, 4, dtype=torch.bfloat16)
    assert rooms.like("down", like) is rooms.like("down", like.clone()) and rooms.bytes == like.nbytes
    assert rooms.like("gate_up", like) is not rooms.like("down", like) and not rooms.like("down", like).any()


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ConfigError, match=r"layer 0 take 0.00 GB of main memory, where 0.00 GB are free"):
        settled(plain(mixtures()), 0, free=7)
    strange = model(
        LayerSpec(LayerNorms.pre(RMS), attention(), ExpertsSpec(4, 2, PlainFFNSpec(24, "relu"), RouterSpec()))
    )
    with pytest.raises(ConfigError, match=r"torch computes layer 0 \(experts without a gate"):
        settled(plain(strange), 0)


@pytest.mark.parametrize("value, budget", [("device", None), ("host", 0), ("2GB", 2 * 10**9), (77, 77)])
def test_the_option(value: int | str, budget: int | None) -> None:
    config = EngineConfig.from_options({"expert_memory": value})
    assert config.expert_budget == budget
    assert config.on("cuda").expert_memory == value


@pytest.mark.parametrize("value", ["disk", -1, "2 XB", None])
def test_a_wrong_option(value: Any) -> None:
    with pytest.raises(ConfigError, match="expert_memory"):
        EngineConfig.from_options({"expert_memory": value})


def test_on_the_cpu_it_is_refused(tmp_path: Path) -> None:
    path = write_family("qwen3 moe", tmp_path)
    write_tokenizer(path)
    with pytest.raises(ConfigError, match="is for CUDA devices, here: cpu"):
        Engine(path, device="cpu", expert_memory="host")
