"""Models with latent attention out of GGUF files beside their safetensors twins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from family_checks import reference
from gguf_convert import ROUTED, gguf_name, keys_of, packed, stacked, write_gguf
from safetensors.torch import load_file
from test_families_latent import EXPERTS, MINICPM, SMALL, V2, V3, YARN
from test_gguf_model import dense, logits

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.loading import load_model
from sgl.runtime.loading.gguf_files.gguf_model import open_gguf
from sgl.runtime.models.decoder import Decoder
from sgl.runtime.models.reference.reference_latent_attention import ReferenceLatentAttention

PARTS = {
    "q_a_proj": "attn_q_a",
    "q_a_layernorm": "attn_q_a_norm",
    "q_b_proj": "attn_q_b",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "kv_a_layernorm": "attn_kv_a_norm",
    "kv_b_proj": "attn_kv_b",
}
WARM = {"rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek v2": (
        "DeepseekV2ForCausalLM",
        V2 | WARM | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    "deepseek v2 lite": (
        "DeepseekV2ForCausalLM",
        V2 | {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
    ),
    "deepseek v3": ("DeepseekV3ForCausalLM", V3 | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek v3, not normalised": (
        "DeepseekV3ForCausalLM",
        V3 | {"norm_topk_prob": False, "kv_lora_rank": 64, "num_attention_heads": 6, "num_key_value_heads": 6},
    ),
    "kimi k2": ("DeepseekV3ForCausalLM", V3 | WARM | {"n_group": 1, "topk_group": 1, "n_shared_experts": 1}),
    "glm 4.7 flash": (
        "Glm4MoeLiteForCausalLM",
        SMALL | EXPERTS | {"rms_norm_eps": 1e-5, "n_group": 1, "topk_group": 1},
    ),
}


def twin(case: str, folder: Path, kind: str = "F32", whole: bool = False, **changes: Any) -> Path:
    """whole: as files were before attention was described as that to latents.  changes: keys, None for none."""
    architecture, keys = CASES[case]
    reference(architecture, **keys).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    tensors: dict[str, torch.Tensor] = {}
    for shard in folder.glob("*.safetensors"):
        for name, tensor in stacked(load_file(shard)).items():
            tensors |= stored(name, tensor.float(), config, whole)
    metadata = {"general.architecture": "deepseek2", "general.type": "model", **described(config, whole)}
    metadata |= {f"deepseek2.{name}": value for name, value in changes.items()}
    kinds = {
        name: kind if tensor.dim() > 1 and "inp" not in name and tensor.shape[-1] % 32 == 0 else "F32"
        for name, tensor in tensors.items()
    }
    written = {name: packed(tensor.contiguous(), kinds[name]) for name, tensor in tensors.items()}
    return write_gguf(
        folder / "model.gguf", {key: value for key, value in metadata.items() if value is not None}, written
    )


def stored(name: str, tensor: torch.Tensor, config: dict[str, Any], whole: bool) -> dict[str, torch.Tensor]:
    if name.startswith("blk."):
        return {name: tensor}
    own = name.split(".")
    if own[-2] not in PARTS:
        return {gguf_name(name, "deepseek2"): tensor}
    begin = f"blk.{own[2]}."
    if own[-2] != "kv_b_proj" or whole:
        return {f"{begin}{PARTS[own[-2]]}.weight": tensor}
    heads = tensor.view(config["num_attention_heads"], -1, config["kv_lora_rank"])
    keys, values = heads.split((config["qk_nope_head_dim"], config["v_head_dim"]), 1)
    return {f"{begin}attn_k_b.weight": keys.transpose(1, 2), f"{begin}attn_v_b.weight": values}


def described(config: dict[str, Any], whole: bool) -> dict[str, Any]:
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    sizes = {"key_length": config["qk_nope_head_dim"] + turned, "value_length": config["v_head_dim"]}
    if not whole:
        sizes = {f"{name}_mla": size for name, size in sizes.items()} | {
            "key_length": rank + turned,
            "value_length": rank,
            "head_count_kv": 1,
        }
    found = {f"attention.{name}": size for name, size in sizes.items()} | {
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": turned,
    }
    found |= {"attention.q_lora_rank": config["q_lora_rank"], "vocab_size": config["vocab_size"]}
    found |= {key: config[name] for key, name in ROUTED.items() if config.get(name) is not None}
    found["leading_dense_block_count"] = config.get("first_k_dense_replace", 1)
    found["expert_gating_func"] = 1 if config["architectures"] == ["DeepseekV2ForCausalLM"] else 2
    found["expert_weights_norm"] = True if config.get("norm_topk_prob") else None
    if log := config["rope_parameters"].get("mscale_all_dim"):
        found |= {
            "rope.scaling.yarn_log_multiplier": 0.1 * log,
            "rope.scaling.yarn_beta_fast": 4.0,
            "rope.scaling.yarn_beta_slow": 1.0,
        }
    return keys_of(config, "deepseek2") | {f"deepseek2.{key}": value for key, value in found.items()}


@pytest.mark.parametrize("whole", [False, True], ids=["halves", "whole"])
@pytest.mark.parametrize("case", CASES)
def test_a_model_equals_its_twin_to_the_last_bit(case: str, whole: bool, tmp_path: Path) -> None:
    found = load_model(twin(case, tmp_path, whole=whole))
    assert torch.equal(logits(found, tmp_path), logits(load_model(tmp_path), tmp_path))


@pytest.mark.parametrize("whole", [False, True], ids=["halves", "whole"])
def test_blocks_are_those_of_the_file(whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 32 numbers and more in eight bits, those that lead to keys and values among them."""
    monkeypatch.setitem(
        CASES,
        "wide",
        (
            "DeepseekV3ForCausalLM",
            V3 | {"qk_nope_head_dim": 32, "v_head_dim": 32, "moe_intermediate_size": 32, "q_lora_rank": 32},
        ),
    )
    found = load_model(twin("wide", tmp_path, "Q8_0", whole))
    kinds = {
        stored.name.split(".")[2]: stored.dtype
        for _, stored in open_gguf(tmp_path / "model.gguf").tensors
        if stored.name.startswith("blk")
    }
    assert {kinds[name] for name in (("attn_kv_b",) if whole else ("attn_k_b", "attn_v_b"))} == {
        "Q8_0"
    } and found.few_bits
    opened = open_gguf(tmp_path / "model.gguf")
    restored = {each.name: packed(dense(file, each)) for file, each in opened.tensors}
    exact = load_model(write_gguf(tmp_path / "restored.gguf", opened.metadata, restored))
    for few, plain in zip(latents(found), latents(exact), strict=True):
        assert torch.equal(few.absorb.weight, plain.absorb.weight) and torch.equal(
            few.expand.weight, plain.expand.weight
        )
    assert logits(found, tmp_path).isfinite().all()


def latents(model: Decoder) -> list[ReferenceLatentAttention]:
    found = [layer.mixer for layer in model.layers]
    assert len(found) == 4 and all(isinstance(each, ReferenceLatentAttention) for each in found)
    return found


@pytest.mark.parametrize(
    ("case", "changes", "said"),
    [
        ("deepseek v3", {"expert_group_count": None}, "expert_group_count' is missing"),
        ("deepseek v2", {"rope.scaling.yarn_log_multiplier": None}, "yarn_log_multiplier' is missing"),
        ("deepseek v3", {"expert_gating_func": 3}, "expert_gating_func=3 is not supported"),
        ("deepseek v3", {"attention.head_count_kv": 4}, "attention.head_count_kv=4"),
        ("deepseek v3", {"attention.key_length": 99}, "attention.key_length=99"),
        ("deepseek v3", {"attention.key_length_mla": 4}, "qk_nope_head_dim"),
        ("deepseek v3", {"attention.kv_lora_rank": None}, "kv_lora_rank' is missing"),
        ("deepseek v3", {"attention.indexer.top_k": 5}, "attention.indexer.top_k=5 is not understood"),
    ],
)
def test_keys_that_are_missing_or_cannot_be_are_refused_by_name(
    case: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=said):
        open_gguf(twin(case, tmp_path, **changes))


@pytest.mark.parametrize("scaled", [False, True])
def test_minicpm_3_equals_its_twin_to_the_last_bit(scaled: bool, tmp_path: Path) -> None:
    """Which has the multipliers of the published one, and factors of the rotation in tensors."""
    long = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0, 1.5, 2.0, 3.0],
        "long_factor": [1.0, 2.5, 3.0, 4.0],
        "original_max_position_embeddings": 256,
    }
    rope = {"rope_parameters": long, "max_position_embeddings": 256} if scaled else {}
    reference(
        "MiniCPM3ForCausalLM",
        **MINICPM
        | rope
        | {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "v_head_dim": 16, "tie_word_embeddings": False},
    ).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        tensors |= stored(name, tensor, config, True)
    if scaled:
        tensors |= {
            f"rope_factors_{which}.weight": torch.tensor(long[f"{which}_factor"]) for which in ("short", "long")
        }
    keys = {
        "attention.key_length": config["qk_nope_head_dim"] + 8,
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "rope.dimension_count": 8,
    }
    keys |= {
        key: config[name]
        for key, name in (
            ("context_length", "max_position_embeddings"),
            ("embedding_length", "hidden_size"),
            ("block_count", "num_hidden_layers"),
        )
    }
    keys |= {
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": 4,
        "attention.head_count_kv": 4,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    metadata = {"general.architecture": "minicpm3", **{f"minicpm3.{key}": value for key, value in keys.items()}}
    found = load_model(
        write_gguf(
            tmp_path / "model.gguf", metadata, {name: packed(tensor.float()) for name, tensor in tensors.items()}
        )
    )
    assert torch.equal(logits(found, tmp_path), logits(load_model(tmp_path), tmp_path))
