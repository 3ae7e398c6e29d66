"""Adapters of mixtures of experts: of the modules of single experts and of parameters, against PEFT merged and not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from family_checks import logits_of, prompt, reference
from peft_adapters import make_adapter
from rig import Rig, Row
from safetensors.torch import load_file, save_file
from test_adapters_extras import TOLERANCE, logits_with, with_adapters

from sgl.runtime.adapters.adapter_sites import sites_of
from sgl.runtime.adapters.files.adapter_base_weights import LocalBaseWeights
from sgl.runtime.adapters.files.adapter_reader import AdapterReader
from sgl.runtime.errors import CheckpointError

FUSED = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ATTENTION: dict[str, Any] = {"target_modules": ["q_proj", "v_proj"]}
QWEN = (
    "Qwen3MoeForCausalLM",
    {"num_hidden_layers": 2, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16},
)
SHARED = (
    "Qwen2MoeForCausalLM",
    {
        "num_hidden_layers": 2,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
)
MIXTRAL = ("MixtralForCausalLM", {"num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2})
SQUARE = ("Qwen3MoeForCausalLM", QWEN[1] | {"moe_intermediate_size": 64})  # as many inside an expert as outside
GPT_OSS = (
    "GptOssForCausalLM",
    {
        "num_hidden_layers": 2,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "layer_types": ["full_attention"] * 2,
    },
)
CASES: dict[str, tuple[tuple[str, dict[str, Any]], dict[str, Any]]] = {
    "all parameters": (QWEN, ATTENTION | {"target_parameters": [*FUSED, "mlp.gate.weight"]}),
    "parameters alone": (
        QWEN,
        {
            "target_modules": [],
            "target_parameters": FUSED,
            "use_rslora": True,
            "rank_pattern": {"experts.down_proj": 3},
            "alpha_pattern": {r".*\.gate_up_proj": 5},
        },
    ),
    "one parameter": (QWEN, ATTENTION | {"target_parameters": FUSED[1:]}),
    "the router": (QWEN, {"target_modules": [], "target_parameters": ["gate.weight"]}),
    "a weight of a module": (QWEN, {"target_modules": [], "target_parameters": ["o_proj.weight"]}),
    "square": (SQUARE, ATTENTION | {"target_parameters": FUSED}),
    "shared": (SHARED, {"target_modules": "all-linear", "target_parameters": FUSED[:1]}),
    "mixtral": (MIXTRAL, ATTENTION | {"target_parameters": [*FUSED, "mlp.gate.weight"]}),
    "in turn and transposed": (GPT_OSS, ATTENTION | {"target_parameters": FUSED}),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft_merged_and_not(case, tmp_path):
    (architecture, keys), lora = CASES[case]
    model = reference(architecture, **keys)
    model.save_pretrained(tmp_path / "base")
    adapted = make_adapter(model, tmp_path / "adapter", **lora)
    rig, tokens = Rig(tmp_path / "base"), prompt(320)
    expected, base = logits_of(adapted, tokens), logits_of(model, tokens)
    assert (expected - base).abs().max() > 0.02 * base.abs().max()
    for law in ("torch", "compiled"):
        with_adapters(rig, tmp_path / "adapter", law=law)
        found = logits_with(rig, tokens, 0)
        for wanted in (expected, logits_of(adapted.merge_and_unload(), tokens)) if law == "compiled" else (expected,):
            assert (found - wanted).abs().max() < 2 * TOLERANCE * wanted.abs().max()
    assert (logits_with(rig, tokens, -1) - base).abs().max() < 2 * TOLERANCE * base.abs().max()


def of_modules(path: Path, names: dict[str, tuple[int, int]], rank: int = 4) -> dict[str, torch.Tensor]:
    """An adapter of modules, names with their outputs and inputs, as older versions of PEFT saved those of experts.

    Returns by module what it adds to the weight.
    """
    torch.manual_seed(5)
    path.mkdir()
    tensors, more = {}, {}
    for name, (outputs, inputs) in names.items():
        a, b = torch.randn(rank, inputs) * 0.2, torch.randn(outputs, rank) * 0.2
        tensors |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
        more[name] = 2.0 * b @ a
    save_file(tensors, path / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in names}),
    }
    (path / "adapter_config.json").write_text(json.dumps(config))
    return more


def test_modules_of_single_experts_are_added_to(tmp_path):
    model = reference(*SHARED[:1], **SHARED[1])
    model.save_pretrained(tmp_path / "base")
    prefix = "model.layers.1.mlp"
    names = {
        f"{prefix}.experts.{i}.{name}_proj": shape
        for i in (0, 2, 3, 5)
        for name, shape in (("gate", (24, 64)), ("up", (24, 64)), ("down", (64, 24)))
    }
    names |= {
        f"{prefix}.gate": (6, 64),
        f"{prefix}.shared_expert.down_proj": (64, 40),
        f"{prefix}.shared_expert_gate": (1, 64),
    }
    more = of_modules(tmp_path / "adapter", names)
    tokens, base = prompt(320), logits_of(model, prompt(320))
    mlp = model.model.layers[1].mlp
    with torch.no_grad():
        for i in (0, 2, 3, 5):
            mlp.experts.gate_up_proj[i] += torch.cat(
                [more[f"{prefix}.experts.{i}.{name}_proj"] for name in ("gate", "up")]
            )
            mlp.experts.down_proj[i] += more[f"{prefix}.experts.{i}.down_proj"]
        for module, name in (
            (mlp.gate, "gate"),
            (mlp.shared_expert.down_proj, "shared_expert.down_proj"),
            (mlp.shared_expert_gate, "shared_expert_gate"),
        ):
            module.weight += more[f"{prefix}.{name}"]
    expected = logits_of(model, tokens)
    assert (expected - base).abs().max() > 0.02 * base.abs().max()
    rig = Rig(tmp_path / "base")
    with_adapters(rig, tmp_path / "adapter")
    assert (logits_with(rig, tokens, 0) - expected).abs().max() < 2 * TOLERANCE * expected.abs().max()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Rig, Path, Any]:
    path = tmp_path_factory.mktemp("mixture")
    model = reference(*QWEN[:1], **QWEN[1])
    model.save_pretrained(path / "base")
    for i, parameters in enumerate((FUSED, FUSED[:1])):
        make_adapter(model, path / str(i), seed=i, **ATTENTION, target_parameters=parameters)
    make_adapter(model, path / "2", seed=2, **ATTENTION)
    return Rig(path / "base"), path, model


def test_rows_beside_are_what_they_are_alone(made):
    rig, path, _ = made
    with_adapters(rig, path / "0", path / "1", path / "2")
    owners = [0, -1, 1, 2, 0, 1, -1, 2]
    prompts = [prompt(320, 3 + i, i) for i in range(len(owners))]
    alone = [logits_with(rig, tokens, slot)[-1] for tokens, slot in zip(prompts, owners, strict=True)]
    rig.adapters = owners
    together = rig.step([(Row(tokens), len(tokens)) for tokens in prompts])
    for one, many in zip(alone, together, strict=True):
        assert (one - many).abs().max() < TOLERANCE * one.abs().max()


def test_what_does_not_fit_is_refused_by_name(made, tmp_path):
    rig, path, _ = made
    reader, _ = with_adapters(rig)
    tensors, config = (
        load_file(path / "0" / "adapter_model.safetensors"),
        json.loads((path / "0" / "adapter_config.json").read_text()),
    )
    experts = "base_model.model.model.layers.0.mlp.experts"
    cases: dict[str, tuple[dict[str, torch.Tensor | None], dict[str, Any]]] = {
        "target_parameters names nothing of it": ({}, {"target_parameters": None}),
        "target_parameters names gate_up_proj": ({}, {"target_parameters": FUSED[:1]}),
        "must be a list of names": ({}, {"target_parameters": "x"}),
        "half of a pair|of no parameter": ({f"{experts}.lora_B.weight": None}, {}),
        "ask for": ({}, {"r": 5}),
        "lacks the pair of .*experts.gate_up_proj": (
            {f"{experts}.base_layer.lora_{half}.weight": None for half in "AB"},
            {},
        ),
        "holds nan": ({f"{experts}.lora_A.weight": torch.full((24, 24), torch.nan)}, {}),
        "no module": ({"base_model.model.model.layers.7.mlp.experts.lora_A.weight": torch.zeros(24, 24)}, {}),
        "plain pairs": (
            {
                "base_model.model.model.layers.0.mlp.gate.lora_magnitude_vector": torch.ones(6),
                "base_model.model.model.layers.0.mlp.gate.lora_A.weight": torch.ones(4, 64),
            },
            {"use_dora": True},
        ),
    }
    for number, (message, (edit, keys)) in enumerate(cases.items()):
        target = tmp_path / str(number)
        target.mkdir()
        save_file(
            {name: tensor for name, tensor in (tensors | edit).items() if tensor is not None},
            target / "adapter_model.safetensors",
        )
        (target / "adapter_config.json").write_text(json.dumps(config | keys))
        with pytest.raises(CheckpointError, match=message):
            reader.read(target)
    plain = AdapterReader(rig.model.config, sites_of(rig.model.config), rig.model.dtype)  # as on a GPU
    with pytest.raises(CheckpointError, match=r"target_parameters=.* is not supported here"):
        plain.read(path / "0")


def test_mixtures_whose_experts_are_brought_from_main_memory_are_refused_by_name(made):
    rig, path, _ = made
    brought = copy.copy(rig.model)
    brought.layers = [copy.copy(block) for block in rig.model.layers]
    brought.layers[0].ffn = copy.copy(brought.layers[0].ffn)
    brought.layers[0].ffn.host = object()
    sites = sites_of(rig.model.config, True)
    reader = AdapterReader(rig.model.config, sites, torch.float32, base=LocalBaseWeights(brought, sites))
    with pytest.raises(CheckpointError, match=r"experts.* is not supported: with expert_memory"):
        reader.read(path / "0")
    assert reader.read(path / "2")


def test_digests_tell_mixtures_apart(made, tmp_path):
    rig, path, _ = made
    _, (first, second, third) = with_adapters(rig, path / "0", path / "1", path / "2")
    assert (
        first.extras.mixtures
        and first.bytes > second.bytes > third.bytes
        and len({first.digest, second.digest, third.digest}) == 3
    )
