"""Writes a directory's model as a GGUF file, in the way in which the format's own converter does."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))
from gguf_writer import Packed, Value, packed, random_blocks, write_gguf

WHOLE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.final_layernorm": "output_norm",
    "lm_head": "output",
    "model.embedding_norm": "token_embd_norm",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
}
PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.dense": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "ln_1": "attn_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "ln_2": "ffn_norm",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    **{f"feed_forward.{ours}": f"ffn_{role}" for ours, role in (("w1", "gate"), ("w2", "down"), ("w3", "up"))},
    "feed_forward.gate": "ffn_gate_inp",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    **{
        f"mlp.{shared}.{role}_proj": f"ffn_{role}_shexp"
        for shared in ("shared_expert", "shared_experts")
        for role in ("gate", "up", "down")
    },
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
}
BEHIND = {
    "gemma2",
    "gemma3",
    "olmo2",
    "gpt-oss",
    "glm4moe",
    "seed_oss",
}  # their second norm has the name of one behind the mixer
PERMUTED, RAISED, TURNED = {"llama", "granite", "smollm3"}, {"gemma", "gemma2", "gemma3"}, {"gpt2"}
EXPERT = re.compile(r"model\.layers\.(\d+)\.\w+\.experts\.(\d+)\.(\w+)\.weight")
ROLES = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
LAYER = re.compile(r"(?:model\.layers|transformer\.h)\.(\d+)\.(.+)\.(\w+)")
KEYS = {
    "block_count": ("num_hidden_layers", "n_layer"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
}
ROUTED = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace",
}
OWN = {
    "llama": {
        "attention.sliding_window": "sliding_window",
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
    },
    "gemma2": {"attention.sliding_window": "sliding_window"},
    "gemma3": {"attention.sliding_window": "sliding_window"},
    "phi3": {"attention.sliding_window": "sliding_window"},
    "command-r": {"logit_scale": "logit_scale"},
    "cohere2": {"logit_scale": "logit_scale", "attention.sliding_window": "sliding_window"},
    "qwen3moe": {
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
    },
    "qwen2moe": {
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    "lfm2": {"shortconv.l_cache": "conv_L_cache"},
    "lfm2moe": {
        "shortconv.l_cache": "conv_L_cache",
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "leading_dense_block_count": "num_dense_layers",
    },
    "glm4moe": ROUTED,
    "gpt-oss": {
        "expert_count": "num_local_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "intermediate_size",
        "attention.sliding_window": "sliding_window",
    },
    "granite": {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
}


def write_twin(
    folder: Path, file: Path, arch: str, kind: Callable[[str], str] | str = "F32", more: dict[str, Any] | None = None
) -> Path:
    """kind: of the matrices of a tensor by its name in the file; vectors are F32.  more: keys besides."""
    config = json.loads((folder / "config.json").read_text())
    metadata = {"general.architecture": arch, "general.type": "model", **keys_of(config, arch), **(more or {})}
    of = kind if callable(kind) else lambda name: kind
    tensors = {name: _packed(name, tensor, of) for name, tensor in tensors_of(folder, config, arch).items()}
    return write_gguf(file, metadata, tensors)


def _packed(name: str, tensor: torch.Tensor, of: Callable[[str], str]) -> Packed:
    return packed(
        tensor,
        of(name)
        if tensor.dim() > 1
        and not name.endswith(("bias", "conv.weight"))
        and name.startswith(("blk", "token_embd", "output"))
        else "F32",
    )


def tensors_of(folder: Path, config: dict[str, Any], arch: str) -> dict[str, torch.Tensor]:
    found = {}
    for shard in folder.glob("*.safetensors"):
        for name, tensor in stacked(load_file(shard)).items():
            if name.startswith("blk."):
                found[name] = tensor.float().contiguous()
                continue
            ours = gguf_name(name, arch)
            found[ours] = _stored(ours, tensor.float(), config, arch)
    return found | factors_of(config, arch)


def stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The experts of each layer in three tensors, under their names in GGUF files."""
    found, apart = dict[str, torch.Tensor](), dict[str, dict[int, torch.Tensor]]()
    for name, tensor in tensors.items():
        layer = name.split(".")[2] if name.startswith("model.layers.") else ""
        if own := EXPERT.fullmatch(name):
            apart.setdefault(f"blk.{own[1]}.ffn_{ROLES[own[3]]}_exps.weight", {})[int(own[2])] = tensor
        elif name.endswith("sinks"):
            found[f"blk.{layer}.attn_sinks.weight"] = tensor
        elif ".experts." in name:  # gpt-oss
            found |= of_gpt_oss(f"blk.{layer}.ffn", name.rpartition(".")[2], tensor)
        else:
            found[name] = tensor
    return found | {name: torch.stack([each[index] for index in sorted(each)]) for name, each in apart.items()}


def of_gpt_oss(place: str, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    suffix, rows = ("bias", tensor) if name.endswith("_bias") else ("weight", tensor.transpose(1, 2))
    if name.startswith("down"):
        return {f"{place}_down_exps.{suffix}": rows}
    return {f"{place}_gate_exps.{suffix}": rows[:, ::2], f"{place}_up_exps.{suffix}": rows[:, 1::2]}


def gguf_name(name: str, arch: str) -> str:
    if layer := LAYER.fullmatch(name):
        if layer[3] in ("e_score_correction_bias", "expert_bias"):
            return f"blk.{layer[1]}.exp_probs_b.bias"
        part = "post_attention_norm" if arch in BEHIND and layer[2] == "post_attention_layernorm" else PARTS[layer[2]]
        return f"blk.{layer[1]}.{part}.{layer[3]}"
    stem, _, suffix = name.rpartition(".")
    return f"{WHOLE[stem]}.{suffix}"


def _stored(name: str, tensor: torch.Tensor, config: dict[str, Any], arch: str) -> torch.Tensor:
    if "shortconv.conv" in name:
        return tensor.squeeze(1)
    if arch in RAISED and "norm" in name:
        return tensor + 1
    if arch in TURNED and tensor.dim() == 2 and name.startswith("blk"):
        return tensor.t().contiguous()
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(
        name.split(".")[2] if name.startswith("blk") else ""
    )
    if arch in PERMUTED and heads is not None:
        count = config[heads]
        return (
            tensor.view(count, 2, len(tensor) // count // 2, *tensor.shape[1:])
            .transpose(1, 2)
            .reshape(tensor.shape)
            .contiguous()
        )
    return tensor


def factors_of(config: dict[str, Any], arch: str) -> dict[str, torch.Tensor]:
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        return {f"rope_factors_{which}.weight": torch.tensor(rope[f"{which}_factor"]) for which in ("long", "short")}
    return {"rope_freqs.weight": llama3_factors(config, rope)} if rope.get("rope_type") == "llama3" else {}


def llama3_factors(config: dict[str, Any], rope: dict[str, Any]) -> torch.Tensor:
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    found = []
    for frequency in 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)):
        turns = rope["original_max_position_embeddings"] / (2 * math.pi / float(frequency))
        blend = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        blend = min(max(blend, 0.0), 1.0)
        found.append(1 / ((1 - blend) / rope["factor"] + blend))
    return torch.tensor(found)


def keys_of(config: dict[str, Any], arch: str) -> dict[str, Any]:
    found = {key: config[name] for key, names in KEYS.items() for name in names if config.get(name) is not None}
    found["feed_forward_length"] = config.get("intermediate_size") or 4 * found["embedding_length"]
    found |= {key: config[name] for key, name in OWN.get(arch, {}).items() if config.get(name) is not None}
    if arch == "phi3":
        found.setdefault("attention.sliding_window", 0)
    if arch.startswith("lfm2"):
        found["attention.head_count_kv"] = [
            config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in config["layer_types"]
        ]
    if arch == "lfm2" and config.get("block_auto_adjust_ff_dim"):
        whole, inner = config["block_multiple_of"], 2 * config["intermediate_size"] // 3
        found["feed_forward_length"] = whole * -(-int(config["block_ffn_dim_multiplier"] * inner) // whole)
    if arch == "lfm2moe":
        found["expert_gating_func"] = 2
    if arch == "llama":
        found["vocab_size"] = config["vocab_size"]
    return {f"{arch}.{key}": value for key, value in (found | _rope_keys(config, found, arch)).items()}


def _rope_keys(config: dict[str, Any], found: dict[str, Any], arch: str) -> dict[str, Any]:
    rope = config.get("rope_parameters") or {}
    own = rope.get("full_attention", rope)
    if not own:
        return {}
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    share = own.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    keys: dict[str, Any] = {"rope.freq_base": float(own["rope_theta"]), "rope.dimension_count": int(width * share)}
    if "sliding_attention" in rope:
        keys["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
    kind, original = (
        own.get("rope_type", "default"),
        own.get("original_max_position_embeddings") or config.get("original_max_position_embeddings"),
    )
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(own["factor"])}
    if kind == "longrope":
        longest = config["max_position_embeddings"]
        keys["rope.scaling.attn_factor"] = (
            math.sqrt(1 + math.log(longest / original) / math.log(original)) if longest > original else 1.0
        )
    if kind in ("yarn", "longrope"):
        keys["rope.scaling.original_context_length"] = original
    return keys


__all__ = ["Packed", "Value", "gguf_name", "packed", "random_blocks", "write_gguf", "write_twin"]
