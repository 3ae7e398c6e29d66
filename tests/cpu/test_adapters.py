"""Adapters as PEFT computes them: what is read, what is refused, and the law against PEFT merged and not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import edit_json
from family_cases import FAMILIES
from family_checks import logits_of, prompt, reference
from peft_adapters import make_adapter
from plain_adapters import write_adapter
from rig import Rig, Row
from safetensors.torch import load_file, save_file

from sgl.runtime.adapters.adapted_model import AdaptedModel
from sgl.runtime.adapters.adapter_sites import sites_of
from sgl.runtime.adapters.adapter_slots import AdapterSlots
from sgl.runtime.adapters.cpu_adapter_products import CpuAdapterProducts
from sgl.runtime.adapters.files.adapter_reader import AdapterReader
from sgl.runtime.adapters.lora_linear import ReferenceAdapters, rows_of
from sgl.runtime.errors import CheckpointError

TOLERANCE = 2e-5
OURS = (
    "intermediate_size",
    "num_key_value_heads",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, **dict.fromkeys(OURS, ...)}
LLAMA = ("LlamaForCausalLM", {"num_hidden_layers": 2})
PARTS = {"target_modules": ["q_proj", "down_proj"]}
CASES: dict[str, tuple[tuple[str, dict[str, Any]], dict[str, Any]]] = {
    "all": (LLAMA, {}),
    "parts": (LLAMA, PARTS),
    "regex": (LLAMA, {"target_modules": r".*layers\.1\.(self_attn\.[kv]|mlp\.up)_proj"}),
    "patterns": (
        LLAMA,
        {
            "use_rslora": True,
            "rank_pattern": {"down_proj": 9, r"layers\.0\.self_attn\.q_proj": 2},
            "alpha_pattern": {"k_proj": 3, "layers.1.mlp.*": 5},
        },
    ),
    "merged": (("Phi3ForCausalLM", {"num_hidden_layers": 2, "pad_token_id": 1}), {}),
    "biases": (("Qwen2ForCausalLM", {"num_hidden_layers": 2}), {}),
    "transposed": (("GPT2LMHeadModel", GPT), {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "by head": (
        ("GPTNeoXForCausalLM", {"num_hidden_layers": 2, "num_key_value_heads": ...}),
        {"target_modules": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]},
    ),
    "in turn": (("GlmForCausalLM", {"num_hidden_layers": 2, "head_dim": 16}), {}),
    "gpt-j": (
        ("GPTJForCausalLM", GPT | {"rotary_dim": 8, "n_inner": 96}),
        {"target_modules": ["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"]},
    ),
}


def adapted_rig(
    rig: Rig, *adapters: Path, law: str = "compiled", file: Path | None = None
) -> tuple[AdapterSlots, AdapterReader]:
    """The rig's steps may have adapters from here on; those given lie in slots 0, 1
    ... file: of a model that is one of GGUF.
    """
    sites = sites_of(rig.model.config)
    reader = AdapterReader(rig.model.config, sites, rig.model.dtype, file=file)
    slots = AdapterSlots(sites, rig.model.dtype, torch.device("cpu"), {16: max(8, len(adapters))}, False)
    for path in adapters:
        adapter = reader.read(path)
        assert slots.take(adapter.digest, adapter, False)
    rig.model.adapted = AdaptedModel(
        rig.model,
        sites,
        CpuAdapterProducts(slots, sites, len(rig.model.layers))
        if law == "compiled"
        else ReferenceAdapters(slots, law == "by row"),
    )
    return slots, reader


def logits_with(rig: Rig, tokens: list[int], slot: int) -> torch.Tensor:
    rig.adapters = [slot]
    return rig.step([(Row(tokens), len(tokens))], every_row=True)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft_merged_and_not(case, tmp_path):
    (architecture, keys), lora = CASES[case]
    model = reference(architecture, **keys)
    model.save_pretrained(tmp_path / "base")
    adapted = make_adapter(model, tmp_path / "adapter", **lora)
    rig, tokens = Rig(tmp_path / "base"), prompt(320)
    expected = logits_of(adapted, tokens)
    base = logits_of(model, tokens)
    assert (expected - base).abs().max() > 0.05 * base.abs().max()
    merged = logits_of(adapted.merge_and_unload(), tokens)
    for law in ("torch", "by row", "compiled"):
        adapted_rig(rig, tmp_path / "adapter", law=law)
        for wanted in (expected, merged):
            assert (logits_with(rig, tokens, 0) - wanted).abs().max() < TOLERANCE * wanted.abs().max()
    assert (logits_with(rig, tokens, -1) - base).abs().max() < TOLERANCE * base.abs().max()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Rig, AdapterReader, Path, Any]:
    """A base, and an adapter of it whose files tests may copy."""
    path = tmp_path_factory.mktemp("made")
    model = reference(*LLAMA[:1], **LLAMA[1])
    model.save_pretrained(path / "base")
    make_adapter(model, path / "adapter", **PARTS)
    rig = Rig(path / "base")
    _, reader = adapted_rig(rig)
    return rig, reader, path / "adapter", model


REFUSED = {
    "use_dora": True,
    "lora_bias": True,
    "modules_to_save": ["lm_head"],
    "trainable_token_indices": [1],
    "target_parameters": ["experts.down"],
    "bias": "all",
    "layer_replication": [[0, 1]],
    "use_qalora": True,
    "alora_invocation_tokens": [3],
    "init_lora_weights": "pissa_niter_4",
    "some_new_key": 3,
    "peft_type": "IA3",
    "r": 0,
    "lora_alpha": "x",
    "rank_pattern": {"(": 3},
    "use_rslora": 1,
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_a_config_asks_and_is_not_supported_is_refused_by_name(made, key, tmp_path):
    _, reader, path, _ = made
    shutil.copytree(path, tmp_path / "it")
    edit_json(tmp_path / "it" / "adapter_config.json", **{key: REFUSED[key]})
    with pytest.raises(CheckpointError, match=key):
        reader.read(tmp_path / "it")


@pytest.mark.parametrize(
    "keys",
    [
        {"lora_alpha": 10**400},
        {"lora_alpha": 1e308},
        {"lora_alpha": 3e38, "use_rslora": False},
        {"alpha_pattern": {"down_proj": 1e200}},
        {"alpha_pattern": {r"layers\.1\..*q_proj": 1e40}, "use_rslora": True},
    ],
)
def test_scales_that_no_step_could_be_computed_with_are_refused(made, keys, tmp_path):
    _, reader, path, _ = made
    shutil.copytree(path, tmp_path / "it")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    tensors = load_file(path / "adapter_model.safetensors")
    save_file(tensors | {name: torch.full_like(tensors[name], 64.0)}, tmp_path / "it" / "adapter_model.safetensors")
    edit_json(tmp_path / "it" / "adapter_config.json", **keys)
    with pytest.raises(CheckpointError, match=r"adapter_config.json.*(lora_alpha|alpha_pattern)"):
        reader.read(tmp_path / "it")


def test_keys_that_say_nothing_are_passed_over(made, tmp_path):
    _, reader, path, _ = made
    shutil.copytree(path, tmp_path / "it")
    edit_json(tmp_path / "it" / "adapter_config.json", some_new_key=None, other={}, base_model_name_or_path="elsewhere")
    assert reader.read(tmp_path / "it").digest == reader.read(path).digest


@pytest.mark.parametrize(
    "keys, word",
    [
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"use_dora": True}, "use_dora"),
        ({"target_modules": ["embed_tokens", "q_proj"]}, "embedding"),
        ({"target_modules": ["lm_head"]}, "lm_head"),
        ({"lora_bias": True}, "lora_bias"),
    ],
)
def test_tensors_that_are_not_supported_are_refused_even_where_the_config_hides_them(made, keys, word, tmp_path):
    _, reader, _, model = made
    make_adapter(model, tmp_path, **keys)
    with pytest.raises(CheckpointError, match=word):
        reader.read(tmp_path)
    values = json.loads((tmp_path / "adapter_config.json").read_text())
    edit_json(
        tmp_path / "adapter_config.json",
        **(values | {"modules_to_save": None, "use_dora": False, "bias": "none", "lora_bias": False}),
    )
    with pytest.raises(CheckpointError, match=r"not supported|no module"):
        reader.read(tmp_path)


def test_shapes_are_checked_against_the_model_and_the_config(made, tmp_path):
    _, reader, path, _ = made
    tensors = load_file(path / "adapter_model.safetensors")
    name = next(name for name in tensors if name.endswith("q_proj.lora_A.weight"))
    for what, edit in {
        "has shape": {name: torch.zeros(4, 63)},
        "rank 4": {name: torch.zeros(5, 64)},
        "other half": {name: None},
        "holds I32": {name: torch.zeros(4, 64, dtype=torch.int32)},
        "holds nan": {name: torch.full((4, 64), torch.nan)},
        "values beyond": {name: torch.full((4, 64), torch.inf)},
        "no module": {"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": torch.zeros(4, 64)},
    }.items():
        target = tmp_path / what.replace(" ", "_")
        shutil.copytree(path, target)
        save_file(
            {key: value for key, value in (tensors | edit).items() if value is not None},
            target / "adapter_model.safetensors",
        )
        with pytest.raises(CheckpointError, match=what):
            reader.read(target)


def test_missing_and_pickled_files_are_told(made, tmp_path):
    rig, reader, path, _ = made
    with pytest.raises(CheckpointError, match="not a directory"):
        reader.read(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"holds no adapter_config\.json; an adapter is"):
        reader.read(tmp_path)
    shutil.copy(path / "adapter_config.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors is missing"):
        reader.read(tmp_path)
    torch.save(load_file(path / "adapter_model.safetensors"), tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="load_format='pt'"):
        reader.read(tmp_path)
    pickles = AdapterReader(rig.model.config, sites_of(rig.model.config), torch.float32, pickles=True)
    assert pickles.read(tmp_path).digest == reader.read(path).digest


def test_the_digest_is_of_the_contents(made, tmp_path):
    _, reader, path, model = made
    make_adapter(model, tmp_path / "a", **PARTS)
    make_adapter(model, tmp_path / "b", seed=1, **PARTS)
    make_adapter(model, tmp_path / "c", lora_alpha=16, **PARTS)
    found = {reader.read(each).digest for each in (path, tmp_path / "a", tmp_path / "b", tmp_path / "c")}
    assert len(found) == 3
    assert reader.read(path).digest == reader.read(tmp_path / "a").digest


def test_adapters_made_without_peft_have_its_tensors(made, tmp_path):
    _, reader, path, model = made
    make_adapter(model, tmp_path / "its", target_modules="all-linear")
    write_adapter(path.parent / "base", tmp_path / "ours")
    shapes = [
        {name: tensor.shape for name, tensor in load_file(tmp_path / each / "adapter_model.safetensors").items()}
        for each in ("its", "ours")
    ]
    assert shapes[0] == shapes[1] and reader.read(tmp_path / "ours").places.min() >= 0


def varied(folder: Path, target: Path, seed: int, rank: int) -> Path:
    """An adapter with other numbers, of another rank."""
    torch.manual_seed(seed)
    shutil.copytree(folder, target)
    edit_json(target / "adapter_config.json", r=rank)
    tensors = load_file(folder / "adapter_model.safetensors")
    shapes = {
        name: (rank, tensor.shape[1]) if "lora_A" in name else (tensor.shape[0], rank)
        for name, tensor in tensors.items()
    }
    save_file({name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}, target / "adapter_model.safetensors")
    return target


def test_rows_of_many_adapters_are_what_each_is_alone(made, tmp_path):
    rig, _, _, model = made
    for kind, modules in enumerate(("all-linear", ["q_proj", "v_proj", "gate_proj"])):
        make_adapter(model, tmp_path / f"kind {kind}", target_modules=modules)
    paths = [varied(tmp_path / f"kind {i % 2}", tmp_path / str(i), i, 2 + i % 7) for i in range(64)]
    adapted_rig(rig, *paths)
    owners = [int(slot) for slot in np.random.default_rng(0).permutation(64)] + [-1, 3, 3]
    prompts = [prompt(320, 3 + i % 9, i) for i in range(len(owners))]
    alone = [logits_with(rig, tokens, slot)[-1] for tokens, slot in zip(prompts, owners, strict=True)]
    rig.adapters = owners
    together = rig.step([(Row(tokens), len(tokens)) for tokens in prompts])
    for one, many in zip(alone, together, strict=True):
        assert (one - many).abs().max() < TOLERANCE * one.abs().max()


def test_the_compiled_kernels_give_a_row_the_same_bits_in_any_batch_and_outside_of_the_step(made, tmp_path):
    _, _, path, model = made
    make_adapter(model, tmp_path, seed=3, r=5)
    rig = Rig(path.parent / "base", torch.bfloat16)
    adapted_rig(rig, path, tmp_path)
    prompts = [prompt(320, 5 + i, i) for i in range(8)]
    owners = [0, 1, -1, 1, 0, 1, -1, 0]
    alone = [logits_with(rig, tokens, slot)[-1] for tokens, slot in zip(prompts, owners, strict=True)]
    rig.adapters = owners
    together = rig.step([(Row(tokens), len(tokens)) for tokens in prompts])
    assert rig.model.step is not None and torch.equal(torch.stack(alone), together)
    shadow = rig.model.adapted
    shadow.products.in_step = False
    shadow._made.clear()
    assert torch.equal(rig.step([(Row(tokens), len(tokens)) for tokens in prompts]), together)
    adapted_rig(rig, path, tmp_path, law="torch")
    law = rig.step([(Row(tokens), len(tokens)) for tokens in prompts])
    assert (law - together).abs().max() < 0.03 * law.abs().max()


def test_rows_of_a_step_know_their_slots():
    rows = rows_of([2, -1, 0], [3, 2, 1], [2, 5])
    assert rows.tokens.tolist() == [2, 2, 2, -1, -1, 0] and rows.wanted.tolist() == [2, 0]
    assert [(slot, group.tolist()) for slot, group in rows.groups(6)] == [(0, [5]), (2, [0, 1, 2])]
    assert [(slot, group.tolist()) for slot, group in rows.groups(2)] == [(0, [1]), (2, [0])]
    assert rows.of(2).dtype == np.int32


def test_every_layer_has_its_pairs_in_the_table_also_without_a_site(tmp_path):
    """The compiled step fetches the pair of the product that comes next, whichever layer that is in."""
    architecture, keys = FAMILIES["nemotron h"]
    model = reference(architecture, **keys)
    model.save_pretrained(tmp_path / "base")
    adapted, rig, tokens = (
        make_adapter(model, tmp_path / "adapter", target_modules=["up_proj", "down_proj"]),
        Rig(tmp_path / "base"),
        prompt(320),
    )
    last = max(site.layer for site in sites_of(rig.model.config))
    adapted_rig(rig, tmp_path / "adapter")
    wanted = logits_of(adapted, tokens)
    assert (logits_with(rig, tokens, 0) - wanted).abs().max() < TOLERANCE * wanted.abs().max()
    assert len(rig.model.adapted.products._structs(0)) == len(rig.model.layers) > last + 1
