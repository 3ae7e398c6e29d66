"""transformers' implementation over our cache: right, or refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import edit_json, write_checkpoint, write_tokenizer
from family_checks import logits_of, prompt, reference
from rig import Rig, Row

from sgl.runtime import Engine
from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.loading import describe
from sgl.runtime.models.transformers_backend import (
    TransformersDecoder,
    load_transformers_model,
    read_transformers_model,
)

MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9}
GPT_OSS = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 9,
    "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
DEEPSEEK = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "experts": ("MixtralForCausalLM", MIXTRAL),
    "sinks, windows by layer": ("GptOssForCausalLM", GPT_OSS),
    "wider keys than values": ("DeepseekV3ForCausalLM", DEEPSEEK),
    "softcap": ("Gemma2ForCausalLM", {"sliding_window": 9, "head_dim": 16, "query_pre_attn_scalar": 20}),
    "layers that share keys": (
        "Gemma3nForCausalLM",
        {
            "num_kv_shared_layers": 2,
            "sliding_window": 9,
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "vocab_size_per_layer_input": 320,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
            "intermediate_size": 96,
        },
    ),
}


class GenericRig(Rig):
    """A rig whose model is computed by transformers."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, model=load_transformers_model(describe(path, implementation="transformers"), torch.float32, "cpu")
        )


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers_alone(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    model = reference(architecture, **keys)
    model.save_pretrained(tmp_path)
    tokens = prompt(320)[:60]
    expected, rig, row = logits_of(model, tokens), GenericRig(tmp_path), Row(tokens)
    stranger = Row(tokens[5:30])
    found = [rig.step([(row, 20)], every_row=True)]
    found.append(rig.step([(row, 1), (stranger, 25)], every_row=True)[:1])
    found.append(rig.step([(row, 39)], every_row=True))
    error = (torch.cat(found) - expected).abs().max() / expected.abs().max()
    assert error < 1e-4


def engine_on(path: Path, **options: Any) -> Engine:
    return Engine(path, dtype="float32", threads=1, kv_tokens=2000, **options)


def test_an_architecture_without_a_family_runs_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = reference("FlexOlmoForCausalLM", num_experts=4, num_experts_per_tok=2)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    with caplog.at_level(logging.WARNING, "sgl"), engine_on(tmp_path) as engine:
        assert "no family describes FlexOlmoForCausalLM" in caplog.text
        text = "The quick brown fox"
        found = engine.generate([text, text + " jumps", "1 + 1"], max_tokens=8, temperature=0)
        for prompt_text, generation in zip([text, text + " jumps", "1 + 1"], found, strict=True):
            ids = list(engine.tokenizer.encode(prompt_text, special_prefix=True))
            for token in generation.token_ids:
                assert token == int(logits_of(model, ids)[-1].argmax())
                ids.append(token)
        vectors = engine.embed([text, "1 + 1"])
        with torch.no_grad():
            ids = torch.tensor([list(engine.tokenizer.encode("1 + 1", special_prefix=True))])
            states = model(ids, output_hidden_states=True).hidden_states[-1][0].mean(0)
        torch.testing.assert_close(torch.from_numpy(vectors[1]), states, atol=1e-4, rtol=1e-4)
        engine.check()


def test_a_user_may_ask_for_it(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, tokenizer=True)
    with engine_on(path, implementation="transformers") as theirs, engine_on(path) as ours:
        assert isinstance(theirs._core.runner.model, TransformersDecoder)
        found = [engine.generate("The quick", max_tokens=12, temperature=0).token_ids for engine in (theirs, ours)]
    assert found[0] == found[1]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"architectures": ["NobodysForCausalLM"], "model_type": "nobodys"},
        "'NobodysForCausalLM' is not supported.*Nor by transformers",
    ),
    (
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "rope_type='dynamic' lets the longest sequence",
    ),
    (
        {"model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"]},
        "follow positions of the library's own cache",
    ),
]


@pytest.mark.parametrize("changes, message", REFUSED)
def test_what_it_would_compute_wrongly_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path)
    edit_json(path / "config.json", **changes)
    implementation = "auto" if "NobodysForCausalLM" in str(changes) else "transformers"
    with pytest.raises(ConfigError, match=message):
        describe(path, implementation=implementation)


def test_states_that_run_across_sequences_are_refused(tmp_path: Path) -> None:
    keys = {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "head_dim": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    reference("Qwen3NextForCausalLM", **keys).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="layers with a state"):
        describe(tmp_path, implementation="transformers")


def test_a_model_that_mixes_sequences_fails_its_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    path = write_checkpoint(tmp_path)
    forward = modeling_llama.LlamaMLP.forward
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, x: forward(self, x + x.mean(1, keepdim=True)))
    with pytest.raises(ConfigError, match="computes sequences that share a step otherwise than each alone"):
        load_transformers_model(describe(path, implementation="transformers"), torch.float32, "cpu")


@pytest.mark.whole
def test_a_model_whose_own_code_fails_is_refused_with_what_it_said(tmp_path: Path) -> None:
    """LongCat's latent attention takes as many KV heads as heads, and its configuration does not check it."""
    reference("LongcatFlashForCausalLM", num_key_value_heads=2).save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"LongcatFlashForCausalLM does not compute a few tokens .* \(RuntimeError: The size of tensor",
    ):
        load_transformers_model(describe(tmp_path), torch.float32, "cpu")


@pytest.mark.parametrize("kind", ["axk2", "hy_v4", "dots3_note"])
def test_models_that_need_a_mask_are_refused_before_they_are_loaded(kind: str, tmp_path: Path) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    values = {"model_type": kind, "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="cannot run by transformers over our cache: its code reads a mask"):
        read_transformers_model(values, str(tmp_path), tmp_path)


def test_code_that_fails_in_the_pass_that_watches_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    path, forward = write_checkpoint(tmp_path), modeling_llama.LlamaModel.forward
    monkeypatch.setattr(
        modeling_llama.LlamaModel,
        "forward",
        lambda self, **given: forward(self, **given, use=given["attention_mask"][:, 0]),
    )
    with pytest.raises(
        ConfigError,
        match=r"LlamaForCausalLM does not compute a few tokens .* \(TypeError: 'NoneType' object is not "
        r"subscriptable\)",
    ):
        load_transformers_model(describe(path, implementation="transformers"), torch.float32, "cpu")


def test_a_gguf_file_is_not_computed_by_transformers(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"implementation='transformers'\): .*m\.gguf is a GGUF file, .*; leave implementation out"
    ):
        describe(tmp_path / "m.gguf", implementation="transformers")


def test_missing_tensors_are_an_error(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = write_checkpoint(tmp_path)
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"missing tensors.*model\.layers\.1\.mlp\.down_proj\.weight"):
        load_transformers_model(describe(path, implementation="transformers"), torch.float32, "cpu")


@pytest.mark.parametrize("option", [{"weights": "int8"}, {"deterministic": True}])
def test_what_needs_our_layers_is_refused(option: dict[str, Any], tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, tokenizer=True)
    with pytest.raises(ConfigError, match="which has none of it"):
        engine_on(path, implementation="transformers", **option)
