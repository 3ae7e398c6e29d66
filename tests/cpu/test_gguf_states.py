"""Models whose layers carry states along, out of GGUF files beside their safetensors twins."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from family_checks import reference
from gguf_convert import gguf_name, keys_of, packed, stacked, write_gguf
from rig import Rig, Row
from safetensors.torch import load_file
from test_families_recurrent import BARE, DELTA, EXPERTS, FALCON, GRANITE
from test_gguf_model import dense, logits

from sgl.runtime.errors import CheckpointError, ConfigError
from sgl.runtime.loading import load_model
from sgl.runtime.loading.gguf_files.gguf_model import open_gguf
from sgl.runtime.models.spec.recurrent_spec import DeltaNetSpec

MULTIPLIERS: dict[str, Any] = {
    "lm_head_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "mlp_multipliers": [0.7, 0.4],
    "key_multiplier": 0.5,
    "attention_out_multiplier": 0.8,
    "attention_in_multiplier": 1.2,
    "ssm_multipliers": [0.5, 1.5, 0.7, 1.3, 0.9],
    "ssm_in_multiplier": 1.4,
    "ssm_out_multiplier": 0.6,
}
SCALED: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 4.0,
    "position_embedding_type": None,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mamba": ("mamba", "MambaForCausalLM", BARE),
    "mamba, biases": (
        "mamba",
        "MambaForCausalLM",
        BARE
        | {
            "use_bias": True,
            "use_conv_bias": False,
            "time_step_rank": 7,
            "expand": 3,
            "conv_kernel": 3,
            "tie_word_embeddings": False,
        },
    ),
    "falcon mamba": ("mamba", "FalconMambaForCausalLM", BARE | {"layer_norm_epsilon": 0.1}),
    "mamba 2": (
        "mamba2",
        "Mamba2ForCausalLM",
        BARE | {"num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 16},
    ),
    "mamba 2, one group": (
        "mamba2",
        "Mamba2ForCausalLM",
        BARE
        | {
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 1,
            "chunk_size": 16,
            "use_bias": True,
            "use_conv_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "jamba": (
        "jamba",
        "JambaForCausalLM",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 3, "mamba_d_state": 8},
    ),
    "jamba, few experts": (
        "jamba",
        "JambaForCausalLM",
        {
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "expert_layer_period": 3,
            "expert_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 8,
        },
    ),
    "jamba, dense": (
        "jamba",
        "JambaForCausalLM",
        {
            "attn_layer_period": 3,
            "attn_layer_offset": 2,
            "num_experts": 1,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "mamba_dt_rank": 5,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3 next": ("qwen3next", "Qwen3NextForCausalLM", DELTA | EXPERTS | {"norm_topk_prob": True}),
    "qwen3 next, as many heads": (
        "qwen3next",
        "Qwen3NextForCausalLM",
        DELTA
        | EXPERTS
        | {
            "norm_topk_prob": True,
            "linear_num_value_heads": 2,
            "linear_conv_kernel_dim": 3,
            "full_attention_interval": 2,
        },
    ),
    "qwen 3.5": ("qwen35", "Qwen3_5ForCausalLM", DELTA),
    "qwen 3.5, three values to a key": (
        "qwen35",
        "Qwen3_5ForCausalLM",
        DELTA | {"linear_num_value_heads": 6, "tie_word_embeddings": True},
    ),
    "qwen 3.5, as many heads": ("qwen35", "Qwen3_5ForCausalLM", DELTA | {"linear_num_value_heads": 2}),
    "qwen 3.5 moe": ("qwen35moe", "Qwen3_5MoeForCausalLM", DELTA | EXPERTS | {"intermediate_size": ...}),
    "falcon h1": (
        "falcon-h1",
        "FalconH1ForCausalLM",
        FALCON | MULTIPLIERS | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "falcon h1, no norm": ("falcon-h1", "FalconH1ForCausalLM", FALCON | {"mamba_conv_bias": False}),
    "granite 4": ("granitehybrid", "GraniteMoeHybridForCausalLM", GRANITE | SCALED | {"num_local_experts": 4}),
    "granite 4, dense": (
        "granitehybrid",
        "GraniteMoeHybridForCausalLM",
        GRANITE
        | SCALED
        | {
            "num_local_experts": 0,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "mamba_n_groups": 2,
            "tie_word_embeddings": True,
        },
    ),
}
TILED, SECOND = ("qwen35", "qwen35moe"), ("mamba2", "falcon-h1", "granitehybrid")
WHOLE = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm", "model.final_layernorm": "output_norm"}
PARTS = {
    "norm": "attn_norm",
    "pre_ff_layernorm": "ffn_norm",
    "feed_forward.router": "ffn_gate_inp",
    **{f"feed_forward.{role}_proj": f"ffn_{role}" for role in ("gate", "up", "down")},
    **{
        f"mamba.{ours}": theirs
        for ours, theirs in (
            ("in_proj", "ssm_in"),
            ("x_proj", "ssm_x"),
            ("dt_proj", "ssm_dt"),
            ("conv1d", "ssm_conv1d"),
            ("out_proj", "ssm_out"),
            ("norm", "ssm_norm"),
            ("dt_layernorm", "ssm_dt_norm"),
            ("b_layernorm", "ssm_b_norm"),
            ("c_layernorm", "ssm_c_norm"),
        )
    },
    **{
        f"linear_attn.{ours}": theirs
        for ours, theirs in (
            ("in_proj_qkv", "attn_qkv"),
            ("in_proj_z", "attn_gate"),
            ("in_proj_ba", "ssm_ba"),
            ("in_proj_b", "ssm_beta"),
            ("in_proj_a", "ssm_alpha"),
            ("conv1d", "ssm_conv1d"),
            ("norm", "ssm_norm"),
            ("out_proj", "ssm_out"),
        )
    },
}
LAYER = re.compile(r"(?:model|backbone)\.layers\.(\d+)\.(.+)")


def twin(case: str, folder: Path, kind: str = "F32", **changes: Any) -> Path:
    """changes: keys, None for none."""
    arch, architecture, keys = CASES[case]
    reference(architecture, **keys).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    tensors: dict[str, torch.Tensor] = {}
    for shard in folder.glob("*.safetensors"):
        for name, tensor in stacked(load_file(shard)).items():
            tensors |= stored(name, tensor.float(), config, arch)
    metadata = {"general.architecture": arch, "general.type": "model", **described(config, arch)} | {
        f"{arch}.{name}": value for name, value in changes.items()
    }
    kinds = {
        name: kind
        if tensor.dim() > 1
        and "inp" not in name
        and not name.endswith(("conv1d.weight", "ssm_a", "norm.weight"))
        and tensor.shape[-1] % 32 == 0
        else "F32"
        for name, tensor in tensors.items()
    }
    written = {name: packed(tensor.contiguous(), kinds[name]) for name, tensor in tensors.items()}
    return write_gguf(
        folder / "model.gguf", {key: value for key, value in metadata.items() if value is not None}, written
    )


def stored(name: str, tensor: torch.Tensor, config: dict[str, Any], arch: str) -> dict[str, torch.Tensor]:
    """As llama.cpp's converters write it."""
    if name.startswith("blk."):
        return {name: tensor}
    tensor = multiplied(name, tensor, config) if arch == "falcon-h1" else tensor
    if (own := LAYER.fullmatch(name)) is None:
        stem, _, suffix = name.rpartition(".")
        raised = arch.startswith("qwen") and "norm" in stem
        return {f"{WHOLE[stem]}.{suffix}" if stem in WHOLE else gguf_name(name, arch): tensor + 1 if raised else tensor}
    begin, part = f"blk.{own[1]}.", own[2].replace("mixer.", "mamba.")
    tensor = heads_apart(part, tensor, config) if arch in TILED else tensor
    if "shared_mlp" in part or part.startswith("block_sparse_moe"):
        return of_granite(begin, part, tensor, config)
    if part.endswith("A_log"):
        rate = -tensor.exp()
        return {f"{begin}ssm_a": rate[:, None] if arch in SECOND else rate}
    if part.endswith(".D"):
        return {f"{begin}ssm_d": tensor[:, None] if arch in SECOND else tensor}
    if part.endswith("dt_bias"):
        return {f"{begin}ssm_dt.bias": tensor}
    if part.endswith("in_proj_qkvz.weight"):
        return of_next(begin, tensor, config)
    stem, _, suffix = part.rpartition(".")
    if stem not in PARTS:
        raised = arch.startswith("qwen") and "norm" in stem
        called = (
            f"{begin}post_attention_norm.{suffix}"
            if stem == "post_attention_layernorm" and arch.startswith("qwen")
            else gguf_name(name, arch)
        )
        return {called: tensor + 1 if raised else tensor}
    if stem.endswith("conv1d") and suffix == "weight":
        tensor = tensor.squeeze(1)
    if stem == "mamba.norm":
        tensor = tensor.view(config.get("n_groups") or config["mamba_n_groups"], -1)
    return {f"{begin}{PARTS[stem]}.{suffix}": tensor}


def of_granite(begin: str, part: str, tensor: torch.Tensor, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Gate and up in tensors of their own; what all tokens share is the network itself where there are no experts."""
    if "router" in part:
        return {f"{begin}ffn_gate_inp.weight": tensor}
    end = "_exps" if part.startswith("block") else "_shexp" if config["num_local_experts"] else ""
    if "output_linear" in part:
        return {f"{begin}ffn_down{end}.weight": tensor}
    gate, up = tensor.chunk(2, -2)
    return {f"{begin}ffn_gate{end}.weight": gate, f"{begin}ffn_up{end}.weight": up}


def multiplied(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Falcon-H1's multipliers are put into its matrices."""
    into, gate_down = config["attention_in_multiplier"], config["mlp_multipliers"]
    factors = {
        "q_proj": into,
        "k_proj": into * config["key_multiplier"],
        "v_proj": into,
        "o_proj": config["attention_out_multiplier"],
        "gate_proj": gate_down[0],
        "down_proj": gate_down[1],
        "mamba.out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    if "mamba.in_proj" in name:
        inner, each = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        spread = torch.tensor(config["ssm_multipliers"]).repeat_interleave(
            torch.tensor([inner, inner, each, each, config["mamba_n_heads"]])
        )
        return tensor * config["ssm_in_multiplier"] * spread[:, None]
    return tensor * next((factor for part, factor in factors.items() if f"{part}.weight" in name), 1.0)


def of_falcon(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_d_ssm"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.group_count": config["mamba_n_groups"],
    }


def of_granite_keys(config: dict[str, Any]) -> dict[str, Any]:
    inner = config["mamba_expand"] * config["hidden_size"]
    return {
        "attention.head_count_kv": [
            config["num_key_value_heads"] * (kind != "linear_attention") for kind in config["layer_types"]
        ],
        "context_length": 2**20,
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": inner,
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "rope.scaling.finetuned": False,
        "rope.dimension_count": 16,
        "rope.freq_base": 1e4,
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    }


def of_next(begin: str, tensor: torch.Tensor, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    keys, dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    wide = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    parts = tensor.view(keys, -1, tensor.shape[1]).split([dim, dim, wide, wide], 1)
    q, k, v, z = (part.reshape(-1, tensor.shape[1]) for part in parts)
    return {f"{begin}attn_qkv.weight": torch.cat([q, k, v]), f"{begin}attn_gate.weight": z}


def heads_apart(part: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Heads of values that share one of keys lie far from each other, not side by side."""
    if not part.startswith("linear_attn.") or part.endswith(".norm.weight"):
        return tensor
    keys, dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    each = config["linear_num_value_heads"] // keys
    wide = (
        1
        if part.endswith(("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias"))
        else config["linear_value_head_dim"]
    )
    if part.endswith("out_proj.weight"):
        return tensor.view(len(tensor), keys, each, wide).transpose(1, 2).reshape(tensor.shape)
    first = 2 * keys * dim if "in_proj_qkv" in part or "conv1d" in part else 0
    values = tensor[first:]
    moved = values.view(keys, each, wide, *values.shape[1:]).transpose(0, 1).reshape(values.shape)
    return torch.cat([tensor[:first], moved])


def described(config: dict[str, Any], arch: str) -> dict[str, Any]:
    if arch.startswith("mamba"):
        found = of_mamba(config, arch)
    else:
        found = {key.removeprefix(f"{arch}."): value for key, value in keys_of(config, arch).items()}
        own = {"jamba": of_jamba, "falcon-h1": of_falcon, "granitehybrid": of_granite_keys}.get(arch)
        found |= own(config) if own else of_delta(config, arch)
    return {f"{arch}.{key}": value for key, value in found.items()}


def of_mamba(config: dict[str, Any], arch: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "context_length": 2**20,
        "embedding_length": config["hidden_size"],
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": config["num_hidden_layers"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["state_size"],
        "ssm.inner_size": int(config["expand"] * config["hidden_size"]),
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
    }
    if arch == "mamba2":
        return found | {"ssm.time_step_rank": config["num_heads"], "ssm.group_count": config["n_groups"]}
    return found | {
        "ssm.time_step_rank": config["time_step_rank"],
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }


def of_jamba(config: dict[str, Any]) -> dict[str, Any]:
    attends = [
        index % config["attn_layer_period"] == config["attn_layer_offset"]
        for index in range(config["num_hidden_layers"])
    ]
    return {
        "attention.head_count_kv": [config["num_key_value_heads"] * each for each in attends],
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_dt_rank"],
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
    }


def of_delta(config: dict[str, Any], arch: str) -> dict[str, Any]:
    rope, dim = config["rope_parameters"], config["head_dim"]
    found = {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "full_attention_interval": config.get(
            "full_attention_interval", config["layer_types"].index("full_attention") + 1
        ),
        "rope.dimension_count": int(dim * rope.get("partial_rotary_factor", 0.25)),
        "rope.freq_base": float(rope["rope_theta"]),
    }
    if arch != "qwen3next":
        found["rope.dimension_sections"] = [11, 11, 10, 0]
    if arch != "qwen35":
        found |= {
            "expert_count": config.get("num_experts") or config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        }
    return found


def greedy(model: Any, folder: Path) -> list[int]:
    rig, row = Rig(folder, model=model), Row([5, 9, 31, 7])
    for _ in range(8):
        row.tokens.append(int(rig.step([(row, row.pending)])[-1].argmax()))
    return row.tokens


@pytest.mark.parametrize("case", CASES)
def test_a_model_equals_its_twin(case: str, tmp_path: Path) -> None:
    """To the last bit, but where heads of values lie in another order and sums are of
    another, and where multipliers are rounded elsewhere.
    """
    file = twin(case, tmp_path)
    ours, theirs = load_model(file), load_model(tmp_path)
    if case.startswith("falcon h1") or any(
        isinstance(layer.mixer, DeltaNetSpec) and layer.mixer.tiled for layer in ours.config.layers
    ):
        torch.testing.assert_close(logits(ours, tmp_path), logits(theirs, tmp_path), rtol=1e-4, atol=1e-4)
    else:
        assert torch.equal(logits(ours, tmp_path), logits(theirs, tmp_path))
    assert greedy(ours, tmp_path) == greedy(theirs, tmp_path)


@pytest.mark.parametrize("case", ["mamba 2", "jamba", "qwen3 next", "qwen 3.5"])
def test_weights_in_few_bits(case: str, tmp_path: Path) -> None:
    """They are those of a file that holds in float32 what they stand for."""
    opened = open_gguf(twin(case, tmp_path, "Q8_0"))
    assert "Q8_0" in {
        stored.dtype for _, stored in opened.tensors if "ssm" in stored.name or "attn_gate" in stored.name
    }
    restored = {stored.name: packed(dense(at, stored)) for at, stored in opened.tensors}
    plain = load_model(write_gguf(tmp_path / "plain.gguf", opened.metadata, restored))
    ours = load_model(tmp_path / "model.gguf", transform=lambda name, layer: layer)
    torch.testing.assert_close(logits(ours, tmp_path), logits(plain, tmp_path), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_names_are_those_of_the_formats_own_package(case: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    arch = CASES[case][0]
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    known = {
        template.format(bid=index)
        for kind in gguf.MODEL_TENSORS[number]
        for template in [gguf.TENSOR_NAMES[kind]]
        for index in range(8)
    }
    opened = open_gguf(twin(case, tmp_path))
    assert {re.sub(r"\.(weight|bias)$", "", stored.name) for _, stored in opened.tensors} <= known


@pytest.mark.parametrize(
    "case, changes, message",
    [
        ("mamba 2", {"ssm.inner_size": 130}, "ssm.inner_size=130 is not a multiple of ssm.time_step_rank=8"),
        ("mamba", {"ssm.mystery": 3}, r"mamba.ssm.mystery=3 is not understood"),
        (
            "jamba",
            {"attention.head_count_kv": [2, 2, 0, 2]},
            r"layers \[0, 1, 3\] of 4 are not every so many of them \(attn_layer\)",
        ),
        ("granite 4", {"rope.scaling.finetuned": True}, "rope.scaling.finetuned=True is not supported"),
        ("qwen 3.5", {"expert_count": 3}, "expert_count=3 is not supported"),
    ],
)
def test_what_is_not_understood_is_refused(case: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = twin(case, tmp_path, **changes)
    with pytest.raises((ConfigError, CheckpointError), match=message):
        open_gguf(file)


def test_a_head_whose_multiplier_is_not_known_is_refused(tmp_path: Path) -> None:
    opened = open_gguf(twin("falcon h1", tmp_path))
    tensors = {
        stored.name: packed(dense(at, stored)) for at, stored in opened.tensors if stored.name != "output.weight"
    }
    with pytest.raises(ConfigError, match="by what the head is multiplied is not known"):
        open_gguf(write_gguf(tmp_path / "tied.gguf", opened.metadata, tensors))
