"""Families that no library has without code of the checkpoint, each against a class of transformers of the same
arithmetic
whose checkpoint is brought into the family's format."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checkpoint_edits import Tensors, refused, replaced, rewrite
from family_checks import check_checkpoint, reference
from safetensors.torch import load_file

from sgl.runtime.models.families import FAMILIES
from sgl.runtime.models.spec.alibi_slopes import alibi_slopes

HEADS, KV_HEADS, DIM = 4, 2, 16


def merged(
    tensors: Tensors, into: str, *parts: str, join: Callable[[list[torch.Tensor]], torch.Tensor] = torch.cat
) -> Tensors:
    """The layers' tensors of these parts as one."""
    found = {}
    for name, tensor in tensors.items():
        if f".{parts[0]}." in name:
            found[name.replace(parts[0], into)] = join([tensors[name.replace(parts[0], part)] for part in parts])
        elif not any(f".{part}." in name for part in parts):
            found[name] = tensor
    return found


def by_group(parts: list[torch.Tensor]) -> torch.Tensor:
    """Queries, keys and values as [queries of a group, its key, its value] for each group."""
    q, k, v = (part.unflatten(0, (KV_HEADS, -1)) for part in parts)
    return torch.cat((q, k, v), 1).flatten(0, 1)


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def internlm2(tensors: Tensors) -> Tensors:
    return replaced(
        merged(tensors, "attention.wqkv", *QKV, join=by_group),
        self_attn__o_proj="attention.wo",
        mlp__gate_proj="feed_forward.w1",
        mlp__up_proj="feed_forward.w3",
        mlp__down_proj="feed_forward.w2",
        input_layernorm="attention_norm",
        post_attention_layernorm="ffn_norm",
        embed_tokens="tok_embeddings",
        lm_head="output",
    )


def chatglm(tensors: Tensors) -> Tensors:
    tensors = replaced(
        merged(tensors, "self_attention.query_key_value", *QKV),
        self_attn__o_proj="self_attention.dense",
        mlp__gate_up_proj="mlp.dense_h_to_4h",
        mlp__down_proj="mlp.dense_4h_to_h",
        model__norm="transformer.encoder.final_layernorm",
        model__layers="transformer.encoder.layers",
        model__embed_tokens="transformer.embedding.word_embeddings",
        lm_head="transformer.output_layer",
    )
    return tensors | {"transformer.rotary_pos_emb.inv_freq": torch.ones(4)}


def qwen(tensors: Tensors) -> Tensors:
    return replaced(
        merged(tensors, "attn.c_attn", *QKV),
        self_attn__o_proj="attn.c_proj",
        mlp__gate_proj="mlp.w2",
        mlp__up_proj="mlp.w1",
        mlp__down_proj="mlp.c_proj",
        input_layernorm="ln_1",
        post_attention_layernorm="ln_2",
        model__norm="transformer.ln_f",
        model__layers="transformer.h",
        model__embed_tokens="transformer.wte",
    )


def baichuan(tensors: Tensors) -> Tensors:
    return merged(tensors, "self_attn.W_pack", *QKV)


def same(tensors: Tensors) -> Tensors:
    return tensors


ALONE = {"num_key_value_heads": HEADS}
PLAIN = {"head_dim": ..., "mlp_bias": ..., "attention_bias": ...}
THETA = {"rope_parameters": ..., "rope_theta": 5e5}
GLM = PLAIN | {
    "rope_parameters": ...,
    "num_key_value_heads": ...,
    "num_hidden_layers": ...,
    "vocab_size": ...,
    "intermediate_size": ...,
    "max_position_embeddings": ...,
    "rms_norm_eps": ...,
    "hidden_act": ...,
    "num_layers": 4,
    "padded_vocab_size": 320,
    "ffn_hidden_size": 96,
    "seq_length": 256,
    "layernorm_epsilon": 1e-5,
    "kv_channels": DIM,
    "multi_query_attention": True,
    "multi_query_group_num": KV_HEADS,
    "add_qkv_bias": True,
    "original_rope": True,
    "rmsnorm": True,
    "post_layer_norm": True,
    "apply_query_key_layer_scaling": True,
    "attention_softmax_in_fp32": True,
}
QWEN = {
    "rope_parameters": ...,
    "num_key_value_heads": ...,
    "rms_norm_eps": ...,
    "hidden_act": ...,
    "sliding_window": ...,
    "layer_types": ...,
    "max_window_layers": ...,
    "intermediate_size": 192,
    "kv_channels": DIM,
    "layer_norm_epsilon": 1e-6,
    "no_bias": True,
    "rotary_pct": 1.0,
    "rotary_emb_base": 1e6,
    "scale_attn_weights": True,
    "seq_length": 128,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
    "bf16": True,
}
MINICPM = {
    "embedding_multiplier": ...,
    "residual_multiplier": ...,
    "logits_scaling": ...,
    "attention_multiplier": ...,
    "mlp_bias": ...,
    "scale_emb": 3.0,
    "scale_depth": 1.4,
    "dim_model_base": 16,
}

# the family; a class of transformers and its keys; what becomes of tensors and keys
Case = tuple[str, str, dict[str, Any], Callable[[Tensors], Tensors], dict[str, Any]]
CASES: dict[str, Case] = {
    "internlm": ("InternLMForCausalLM", "LlamaForCausalLM", {"attention_bias": True}, same, PLAIN),
    "internlm-rotary": (
        "InternLMForCausalLM",
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        same,
        PLAIN | {"rope_parameters": ..., "rotary": {"base": 5e5, "type": "dynamic"}, "bias": False},
    ),
    "internlm2": (
        "InternLM2ForCausalLM",
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        internlm2,
        PLAIN | THETA | {"bias": False, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    ),
    "internlm2-biased": ("InternLM2ForCausalLM", "LlamaForCausalLM", {"attention_bias": True}, internlm2, PLAIN),
    "aquila": ("AquilaForCausalLM", "LlamaForCausalLM", {}, same, PLAIN),
    "xverse": ("XverseForCausalLM", "LlamaForCausalLM", ALONE, same, PLAIN | {"max_tokenizer_truncation": 100}),
    "yi": (
        "YiForCausalLM",
        "LlamaForCausalLM",
        {},
        lambda t: replaced(t, input_layernorm="ln1", post_attention_layernorm="ln2"),
        PLAIN,
    ),
    "orion": (
        "OrionForCausalLM",
        "StableLmForCausalLM",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
        same,
        {
            "rope_parameters": ...,
            "layer_norm_eps": ...,
            "rms_norm_eps": 1e-5,
            "use_qkv_bias": ...,
            "qk_layernorm": ...,
            "use_parallel_residual": ...,
        },
    ),
    "baichuan-7b": ("BaiChuanForCausalLM", "LlamaForCausalLM", ALONE, baichuan, PLAIN | {"num_key_value_heads": ...}),
    "chatglm": (
        "ChatGLMModel",
        "GlmForCausalLM",
        {"attention_bias": True, "head_dim": DIM, "pad_token_id": 0, "rms_norm_eps": 1e-5},
        chatglm,
        GLM,
    ),
    "glm4-9b": (
        "ChatGLMForConditionalGeneration",
        "GlmForCausalLM",
        {
            "head_dim": 32,
            "attention_bias": False,
            "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
            "rms_norm_eps": 1e-7,
        },
        chatglm,
        GLM | {"rope_ratio": 500, "add_qkv_bias": False, "kv_channels": 32, "layernorm_epsilon": 1e-7},
    ),
    "minicpm": (
        "MiniCPMForCausalLM",
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 1.4 / 2,
            "logits_scaling": 4.0,
            "attention_multiplier": 0.25,
            "tie_word_embeddings": True,
        },
        same,
        MINICPM | {"tie_word_embeddings": ...},
    ),
    "minicpm-biased": (
        "MiniCPMForCausalLM",
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 1.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 64.0,
            "attention_multiplier": 0.25,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
        same,
        MINICPM | {"scale_emb": ..., "scale_depth": ..., "dim_model_base": ...},
    ),
    "qwen": (
        "QWenLMHeadModel",
        "Qwen2ForCausalLM",
        ALONE | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rms_norm_eps": 1e-6},
        qwen,
        QWEN,
    ),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", CASES)
def test_a_family_is_the_class_of_the_same_arithmetic(name: str, tmp_path: Path) -> None:
    family, architecture, keys, change, renamed = CASES[name]
    model = reference(architecture, **keys)
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, change, architectures=[family], **renamed)
    check_checkpoint(model, tmp_path)


def test_the_head_of_baichuan_2_has_rows_of_length_1(tmp_path: Path) -> None:
    model = reference("LlamaForCausalLM", **ALONE)
    model.save_pretrained(tmp_path)
    rewrite(tmp_path, baichuan, architectures=["BaichuanForCausalLM"], z_loss_weight=0, **PLAIN)
    model.lm_head.weight.data = F.normalize(model.lm_head.weight.data)
    check_checkpoint(model, tmp_path)


class Baichuan13B:
    """Logits in float64, one sum after the other."""

    def __init__(self, tensors: Tensors, heads: int, unit: bool) -> None:
        self.tensors, self.heads = {name: tensor.double() for name, tensor in tensors.items()}, heads
        if unit:
            self.tensors["lm_head.weight"] = F.normalize(self.tensors["lm_head.weight"])
        self.layers = 1 + max(int(found[1]) for name in tensors if (found := re.search(r"layers\.(\d+)", name)))

    def __call__(self, ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        x = self.tensors["model.embed_tokens.weight"][ids[0]]
        for layer in range(self.layers):
            x = x + self._mixed(self._normed(x, f"model.layers.{layer}.input_layernorm"), layer)
            y = self._normed(x, f"model.layers.{layer}.post_attention_layernorm")
            gate, up = (y @ self._of(layer, f"mlp.{name}_proj").T for name in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ self._of(layer, "mlp.down_proj").T
        return SimpleNamespace(logits=(self._normed(x, "model.norm") @ self.tensors["lm_head.weight"].T)[None])

    def _of(self, layer: int, name: str) -> torch.Tensor:
        return self.tensors[f"model.layers.{layer}.{name}.weight"]

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.tensors[f"{name}.weight"]

    def _mixed(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        q, k, v = (x @ self._of(layer, "self_attn.W_pack").T).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(0, 1) for part in (q, k, v))
        distance = torch.arange(len(x))[:, None] - torch.arange(len(x))
        slopes = torch.tensor(alibi_slopes(self.heads), dtype=torch.float64)[:, None, None]
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 - slopes * distance
        mixed = scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v
        return mixed.transpose(0, 1).flatten(1) @ self._of(layer, "self_attn.o_proj").T


@pytest.mark.parametrize("unit", [False, True])
def test_baichuan_13b(unit: bool, tmp_path: Path) -> None:
    """Six heads, no power of two."""
    reference("LlamaForCausalLM", hidden_size=96, num_attention_heads=6, num_key_value_heads=6).save_pretrained(
        tmp_path
    )
    keys = {
        "max_position_embeddings": ...,
        "rope_parameters": ...,
        "model_max_length": 256,
        "z_loss_weight": 0 if unit else ...,
    }
    rewrite(tmp_path, baichuan, architectures=["BaichuanForCausalLM"], **PLAIN, **keys)
    model: Any = Baichuan13B(load_file(tmp_path / "model.safetensors"), 6, unit)
    assert check_checkpoint(model, tmp_path).model.config.max_position == 256


REFUSED: list[tuple[str, str, object]] = [
    ("internlm", "rotary", {"type": "yarn"}),
    ("internlm", "rotary", {"beta": 7}),
    ("internlm2", "qkv_bias", True),
    ("orion", "attention_bias", True),
    ("baichuan-7b", "num_key_value_heads", 2),
    ("chatglm", "add_bias_linear", True),
    ("chatglm", "rmsnorm", False),
    ("chatglm", "original_rope", False),
    ("chatglm", "multi_query_attention", False),
    ("chatglm", "multi_query_attention", None),
    ("chatglm", "multi_query_group_num", 3),
    ("chatglm", "apply_residual_connection_post_layernorm", True),
    ("chatglm", "pre_seq_len", 128),
    ("minicpm", "num_experts", 8),
    ("minicpm", "sparse_config", {"dense_len": 8192}),
    ("qwen", "no_bias", False),
    ("qwen", "visual", {"width": 8}),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_what_is_not_computed_is_refused(case: tuple[str, str, object], tmp_path: Path) -> None:
    name, key, value = case
    family, architecture, keys, _, renamed = CASES[name]
    reference(architecture, **keys).config.save_pretrained(tmp_path)
    rewrite(tmp_path, architectures=[family], **renamed)
    refused(tmp_path, key, value)


def test_a_ratio_that_two_generations_read_differently_is_refused(tmp_path: Path) -> None:
    _, architecture, keys, _, renamed = CASES["chatglm"]
    reference(architecture, **keys).config.save_pretrained(tmp_path)
    rewrite(tmp_path, architectures=["ChatGLMModel"], **renamed | {"padded_vocab_size": 65_024})
    refused(tmp_path, "rope_ratio", 16)


def test_every_family_here_is_known_by_its_published_name() -> None:
    assert {case[0] for case in CASES.values()} | {"AquilaModel", "BaichuanForCausalLM"} <= set(FAMILIES)
