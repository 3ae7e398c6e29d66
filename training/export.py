"""Writes a trained model as transformers reads it: bf16 safetensors in shards, and its settings."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from sgl.runtime.nano.nano_prompts import END, START
from training.model import Nano, Shape
from training.tokenizer import token_id

MAX_SHARD = "14MB"
WRITES_JSON = {"whitespace": "spaced"}  # as `prompts.json_text` writes the answers that it learns


def llama_config(shape: Shape, tokenizer: Tokenizer) -> LlamaConfig:
    start, end = token_id(tokenizer, START), token_id(tokenizer, END)
    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        rms_norm_eps=shape.epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=start,
        pad_token_id=start,
        eos_token_id=end,
        dtype="bfloat16",
    )


def export(model: Nano, tokenizer: Tokenizer, out: Path) -> LlamaForCausalLM:
    """Write weights and settings to `out` (not the tokenizer); returns the model in transformers' form."""
    twin = LlamaForCausalLM(llama_config(model.shape, tokenizer))
    weights = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    twin.load_state_dict(weights)
    torch.nn.Module.to(twin, dtype=torch.bfloat16)
    config = twin.config
    twin.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, pad_token_id=config.pad_token_id, eos_token_id=config.eos_token_id
    )
    twin.save_pretrained(out, max_shard_size=MAX_SHARD)
    (out / "sgl.json").write_text(json.dumps({"json_options": WRITES_JSON}, indent=2) + "\n", encoding="utf-8")
    return twin
