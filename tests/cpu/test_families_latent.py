"""Families with latent attention, against transformers: cold, in chunks, forked, decoded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import edit_json
from family_checks import SIZES, check_checkpoint, check_family, randomise, reference
from family_cover import covered
from rig import Rig, Row
from safetensors.torch import load_file, save_file
from test_quantized_loading import FORMATS

from sgl.runtime.errors import ConfigError
from sgl.runtime.models import read_model
from sgl.runtime.models.reference import reference_latent_attention
from sgl.runtime.quantization import quantized_transform

SMALL: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
}
V2 = SMALL | EXPERTS | {"first_k_dense_replace": 1}
V3 = V2 | {"n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 1}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
CHOOSES: dict[str, Any] = {"index_topk": 9, "index_head_dim": 12, "index_n_heads": 16}
V32 = V3 | CHOOSES | {"num_nextn_predict_layers": ...}
MINICPM = SMALL | {"v_head_dim": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek v2": (
        "DeepseekV2ForCausalLM",
        V2
        | {
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek v2 lite": ("DeepseekV2ForCausalLM", V2 | {"q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek v2, biases": (
        "DeepseekV2ForCausalLM",
        V2 | {"attention_bias": True, "mlp_bias": True, "topk_method": "greedy"},
    ),
    "deepseek v3": ("DeepseekV3ForCausalLM", V3 | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek v3, plain": (
        "DeepseekV3ForCausalLM",
        V3 | {"q_lora_rank": None, "attention_bias": True, "norm_topk_prob": False, "rope_interleave": False},
    ),
    "deepseek v3, wide": (
        "DeepseekV3ForCausalLM",
        V3 | {"kv_lora_rank": 64, "qk_rope_head_dim": 32, "num_attention_heads": 6, "num_key_value_heads": 6},
    ),
    "kimi k2": (
        "DeepseekV3ForCausalLM",
        V3
        | {
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "rope_parameters": YARN | {"rope_theta": 5e4, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm 4.7 flash": ("Glm4MoeLiteForCausalLM", SMALL | EXPERTS | {"rms_norm_eps": 1e-5}),
    "glm 4.7 flash, by layer": (
        "Glm4MoeLiteForCausalLM",
        SMALL | EXPERTS | {"mlp_layer_types": ["sparse", "dense"] * 2, "attention_bias": True},
    ),
    "deepseek v3.2": (
        "DeepseekV32ForCausalLM",
        V32 | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "deepseek v3.2, few tokens": (
        "DeepseekV32ForCausalLM",
        V32 | {"index_topk": 100, "attention_bias": True, "mlp_layer_types": ["sparse", "dense"] * 2},
    ),
    "glm 5": ("GlmMoeDsaForCausalLM", V32 | {"index_head_dim": 8, "rms_norm_eps": 1e-5}),
    "glm 5, shared": (
        "GlmMoeDsaForCausalLM",
        V32 | {"indexer_types": ["full", "shared", "full", "shared"], "index_topk": 5},
    ),
    "mistral 4": (
        "Mistral4ForCausalLM",
        V2
        | {
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4},
        },
    ),
    "minicpm 3": ("MiniCPM3ForCausalLM", MINICPM | {"scale_emb": 3.0, "scale_depth": 1.1, "dim_model_base": 16}),
    "minicpm 3, plain": (
        "MiniCPM3ForCausalLM",
        MINICPM
        | {
            "q_lora_rank": None,
            "scale_depth": None,
            "dim_model_base": None,
            "tie_word_embeddings": False,
            "attention_bias": True,
        },
    ),
}


@pytest.mark.parametrize("case", covered(CASES, names=True))
def test_families_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    architecture, keys = CASES[case]
    check_family(architecture, tmp_path, **keys)


@pytest.mark.parametrize("case", ["deepseek v3", "mistral 4", "minicpm 3, plain"])
def test_long_prompts_with_keys_and_values_of_their_own(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_latent_attention, "FRESH", 7)
    architecture, keys = CASES[case]
    rig = check_family(architecture, tmp_path, **keys)
    rows = [Row(list(range(5, 5 + count))) for count in (7, 30, 12)]
    together = rig.step([(row, len(row.tokens)) for row in rows])
    assert torch.allclose(
        together, torch.cat([rig.step([(Row(row.tokens), len(row.tokens))]) for row in rows]), atol=1e-3
    )
    monkeypatch.setattr(reference_latent_attention, "FRESH", 1000)
    assert torch.allclose(together, rig.step([(Row(row.tokens), len(row.tokens)) for row in rows]), atol=1e-3)


SEES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
KIMI_SEES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 14,
}


def wrapped(architecture: str, text: dict[str, Any], eyes: dict[str, Any], path: Path) -> None:
    kind: Any = getattr(transformers, architecture)
    config = kind.config_class(text_config=SIZES | text, vision_config=eyes)
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = kind(config).eval()
    randomise(model, 0)
    model.save_pretrained(path)
    stored = load_file(path / "model.safetensors")  # transformers calls Kimi's layers as those of its tower
    save_file(
        {re.sub(r"^(language_model\.model\.)blocks", r"\1layers", name): tensor for name, tensor in stored.items()},
        path / "model.safetensors",
    )
    assert "its text model only" in check_checkpoint(model, path).model.config.notes[0]


def test_mistral_4_in_its_wrapper(tmp_path: Path) -> None:
    wrapped(
        "Mistral3ForConditionalGeneration",
        CASES["mistral 4"][1] | {"model_type": "mistral4"},
        SEES | {"model_type": "pixtral"},
        tmp_path,
    )


def test_kimi_k2_5_in_its_wrapper(tmp_path: Path) -> None:
    wrapped(
        "Kimi_K25ForConditionalGeneration", CASES["kimi k2"][1] | {"model_type": "deepseek_v3"}, KIMI_SEES, tmp_path
    )


def values(architecture: str, **keys: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {"architectures": [architecture]} | SIZES | keys
    return {key: value for key, value in kept.items() if value is not ...}


def test_the_scale_of_scores_has_the_square_of_yarns_temperature() -> None:
    yarn = YARN | {"factor": 40.0}
    scales = [
        read_model(
            values("DeepseekV3ForCausalLM", **V3, rope_scaling=yarn | {"mscale": mscale, "mscale_all_dim": mscale})
        )
        .layers[0]
        .mixer
        for mscale in (1.0, 0.707)
    ]
    assert [round(mixer.scale * 24**0.5, 3) for mixer in scales] == [1.874, 1.590]
    assert [mixer.rope.attention_factor for mixer in scales] == [1, 1]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "DeepseekV2ForCausalLM",
        V2 | {"topk_method": "noaux_tc"},
        "topk_method='noaux_tc' is not supported; supported: greedy, group_limited_greedy",
    ),
    (
        "DeepseekV2ForCausalLM",
        V2 | {"topk_method": "group_limited_greedy"},
        "needs n_group and topk_group of at least 1, not None and None",
    ),
    ("DeepseekV2ForCausalLM", V2 | {"norm_topk_prob": True}, "norm_topk_prob=True is not supported"),
    (
        "DeepseekV3ForCausalLM",
        V3 | {"scoring_func": "softmax"},
        "scoring_func='softmax' is not supported; only 'sigmoid' is",
    ),
    ("DeepseekV3ForCausalLM", V3 | {"num_key_value_heads": 2}, "num_key_value_heads=2 is not supported; only 4 is"),
    ("DeepseekV3ForCausalLM", V3 | {"q_lora_rank": 0}, "q_lora_rank.* must be at least 1 .*, or null, not 0"),
    (
        "DeepseekV3ForCausalLM",
        V3 | {"topk_group": 5},
        "3 of 8 experts cannot be taken from 5 of 4 groups: n_group, topk_group",
    ),
    ("DeepseekV3ForCausalLM", V3 | {"qk_head_dim": 99}, "qk_head_dim=99 is not supported; only 24 is"),
    ("DeepseekV3ForCausalLM", V3 | {"qk_rope_head_dim": 7}, "head_dim=7 must be even for rotary positions"),
    ("DeepseekV3ForCausalLM", V3 | {"index_topk": 2048}, "key 'index_topk' .* is not understood"),
    (
        "Glm4MoeLiteForCausalLM",
        SMALL | EXPERTS | {"mlp_layer_types": ["dense"]},
        "mlp_layer_types=.* must name dense or sparse 4 times",
    ),
    (
        "Mistral4ForCausalLM",
        V2 | {"rope_parameters": YARN | {"partial_rotary_factor": 0.9}},
        "partial_rotary_factor=0.9 is not supported",
    ),
    (
        "DeepseekV32ForCausalLM",
        V32 | {"q_lora_rank": None},
        "what chooses tokens needs q_lora_rank, positions, and index_head_dim=12",
    ),
    ("DeepseekV32ForCausalLM", V32 | {"index_head_dim": 4}, "index_head_dim=4 of at least 8"),
    (
        "GlmMoeDsaForCausalLM",
        V32 | {"indexer_types": ["shared"] * 4},
        "indexer_types=.*must name full or shared 4 times, full first",
    ),
    (
        "GlmMoeDsaForCausalLM",
        V32 | {"index_topk_pattern": "FXFS"},
        "indexer_types=.*must name full or shared 4 times, full first",
    ),
]


@pytest.mark.parametrize(("architecture", "keys", "message"), REFUSED)
def test_what_is_not_computed_is_refused(architecture: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_model(values(architecture, **keys))


WHOLE = V3 | {
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "num_nextn_predict_layers": 0,
}


@pytest.mark.parametrize("name", ["fp8 blocks", "awq"])
def test_checkpoints_in_few_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of the twin restored by hand; what makes keys and values of latents is restored in any case."""
    in_few_bits(name, tmp_path)
    kept = logits(tmp_path / "few")
    monkeypatch.setattr(quantized_transform, "keep_quantized", lambda codes, layer: "the test restores them")
    expected = logits(tmp_path / "whole")
    assert torch.equal(logits(tmp_path / "few"), expected)
    assert (kept - expected).norm() < 0.05 * expected.norm()


def in_few_bits(name: str, place: Path) -> None:
    """A checkpoint, and its twin restored by hand."""
    method, writer = FORMATS[name]
    for twin in ("few", "whole"):
        reference("DeepseekV3ForCausalLM", **WHOLE).save_pretrained(place / twin)
    edit_json(place / "few" / "config.json", quantization_config=method)
    few, generator = load_file(place / "few" / "model.safetensors"), torch.Generator().manual_seed(1)
    whole = dict(few)
    for key in [key for key in few if key.endswith(("proj.weight", "mqa.weight")) and "experts" not in key]:
        stored, means = writer(few.pop(key), generator)
        few |= {key.removesuffix("weight") + suffix: tensor.contiguous() for suffix, tensor in stored.items()}
        whole[key] = means.dense()
    save_file(few, place / "few" / "model.safetensors")
    save_file(whole, place / "whole" / "model.safetensors")


def logits(path: Path) -> torch.Tensor:
    return Rig(path).step([(Row([5, 6, 7, 300, 11]), 5)])[0]
