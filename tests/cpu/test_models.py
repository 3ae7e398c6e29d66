"""Every family and flag against transformers: logits in float32, one prefill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SMALL, edit_json, reference_model, write_checkpoint
from rig import Rig, Row

from sgl.runtime.errors import ConfigError
from sgl.runtime.loading import dummy_model, load_config

YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 7}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama one query head a key head": ("llama", {"num_key_value_heads": 4}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head_dim": ("llama", {"head_dim": 24}),
    "llama eps": ("llama", {"rms_norm_eps": 0.1}),
    "rope theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}),
    "rope linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "rope llama3": ("llama", {"rope_parameters": LLAMA3}),
    "rope yarn": ("llama", {"rope_parameters": YARN}),
    "rope yarn attention_factor": ("llama", {"rope_parameters": YARN | {"attention_factor": 0.7, "beta_fast": 16.0}}),
    "rope yarn mscale": ("llama", {"rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.9}}),
    "rope yarn untruncated": ("llama", {"rope_parameters": YARN | {"truncate": False}}),
    "mistral": ("mistral", {}),
    "mistral sliding": ("mistral", {"sliding_window": 7, "head_dim": 32}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied, late layers slide": ("qwen2", {"tie_word_embeddings": True, "max_window_layers": 1} | SLIDING),
    "qwen3": ("qwen3", {}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}),
    "qwen3 layer types": (
        "qwen3",
        SLIDING | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "phi3 merged weights": ("phi3", {}),
    "phi3 sliding": ("phi3", {"sliding_window": 7}),
}


def prompt(length: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, SMALL["vocab_size"], (length,), generator=generator).tolist()


@torch.no_grad()
def expected_logits(family: str, tokens: list[int], **overrides: Any) -> torch.Tensor:
    return reference_model(family, **overrides)(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    tokens = prompt(70)
    logits = Rig(write_checkpoint(tmp_path, family, **overrides)).step([(Row(tokens), 70)], every_row=True)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected_logits(family, tokens, **overrides), atol=1e-4, rtol=1e-4)


def test_every_architecture_has_a_variant() -> None:
    tested = {
        reference_model(family).config.architectures or type(reference_model(family)).__name__
        for family, _ in VARIANTS.values()
    }
    assert tested == {
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Phi3ForCausalLM",
    }


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.06), (torch.float16, 0.01)])
@pytest.mark.parametrize("variant", ["llama biases", "llama tied", "qwen3"])
def test_half_precision_stays_close(variant: str, dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    tokens = prompt(40)
    logits = Rig(write_checkpoint(tmp_path, family, **overrides), dtype).step([(Row(tokens), 40)], every_row=True)
    exact = expected_logits(family, tokens, **overrides)
    assert (logits - exact).norm() < tolerance * exact.norm()


@pytest.mark.parametrize("scaling", [LLAMA3, YARN, {"type": "linear", "rope_theta": 1e4, "factor": 3.0}])
def test_rope_in_the_form_before_transformers_5(scaling: dict[str, Any], tmp_path: Path) -> None:
    modern = {"rope_type": scaling.get("type")} | scaling
    write_checkpoint(tmp_path, rope_parameters={k: v for k, v in modern.items() if k != "type"})
    config = load_config(tmp_path)
    old = {key: value for key, value in scaling.items() if key != "rope_theta"}
    edit_json(tmp_path / "config.json", rope_parameters=..., rope_theta=scaling["rope_theta"], rope_scaling=old)
    assert load_config(tmp_path) == config
    edit_json(tmp_path / "config.json", rope_scaling=None)
    assert load_config(tmp_path).ropes[0].kind == "default"


def test_positions_beyond_the_first_table(tmp_path: Path) -> None:
    tokens = prompt(500)
    rig, row = Rig(write_checkpoint(tmp_path)), Row(tokens)
    rig.step([(row, 60)])
    logits = rig.step([(row, 440)])
    torch.testing.assert_close(logits[0], expected_logits("llama", tokens)[-1], atol=1e-4, rtol=1e-4)


def test_dummy_weights_depend_on_the_seed_only(tmp_path: Path) -> None:
    config = load_config(write_checkpoint(tmp_path, "qwen3"))
    one, same, other = (dummy_model(config, seed=seed).layers[1].mixer.qkv.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


BAD_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": ...}, "'hidden_size' is missing"),
    ({"hidden_size": "64"}, "'hidden_size' must be int, not '64'"),
    ({"num_hidden_layers": 0}, "'num_hidden_layers' must be at least 1, not 0"),
    ({"rms_norm_eps": True}, "'rms_norm_eps' must be float, not True"),
    ({"num_key_value_heads": 3}, "num_attention_heads=4 is not a multiple of num_key_value_heads=3"),
    ({"head_dim": 15}, "head_dim=15 must be even"),
    ({"architectures": ["LamaForCausalLM"]}, "did you mean 'LlamaForCausalLM'. `sgl models` lists"),
    ({"architectures": ["BertModel"]}, "'BertModel' is not supported; .*`sgl models` lists the [0-9]+ that are"),
    ({"architectures": ...}, "'architectures' must list"),
    ({"hidden_act": "mish"}, "hidden_act='mish' is not supported; supported: gelu"),
    (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "fctor": 1}, "rope_parameters": ...},
        "'fctor' .1. is not understood for rope_type='linear'",
    ),
    (
        {"attention_multiplier": 0.3, "model_type": "of_nobody"},
        "key 'attention_multiplier' .0.3. is not understood by LlamaForCausalLM",
    ),
    ({"num_hidden_layers": 10**9}, "'num_hidden_layers' must be at most 2,000, not 1000000000"),
    ({"vocab_size": 10**30}, "'vocab_size' must be at most"),
    ({"rope_parameters": {"rope_type": "dynamo"}}, "rope_type='dynamo' is not supported; supported: default, linear"),
    ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: key 'factor' is missing"),
    ({"partial_rotary_factor": 1.5}, "partial_rotary_factor=1.5 is not supported"),
    ({"architectures": ["GlmForCausalLM"], "partial_rotary_factor": 1.5}, "24 of 16 numbers of a head turn"),
]


@pytest.mark.parametrize("changes, message", BAD_CONFIGS)
def test_bad_configurations_are_named(changes: dict[str, Any], message: str, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(ConfigError, match=message) as error:
        load_config(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"))
