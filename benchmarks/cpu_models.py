"""Models of random weights for the CPU benchmarks, under the bundled model's
vocabulary, as folders in Hugging Face's format.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sgl.runtime.engine import NANO

DENSE = {
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
EXPERTS = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 12,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "0.3b": ("0.3 billion random weights", DENSE),
    "moe": ("0.6 billion random weights in 32 experts a layer, of which a token takes 4", EXPERTS),
}


@contextmanager
def random_model(name: str) -> Iterator[str]:
    """The folder of one of SHAPES, in bfloat16."""
    with tempfile.TemporaryDirectory() as folder:
        config = json.loads((NANO / "config.json").read_text()) | SHAPES[name][1]
        if "num_experts" in config:
            del config["mlp_bias"], config["pretraining_tp"]
        (Path(folder) / "config.json").write_text(json.dumps(config))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(NANO / file, folder)
        save_file(dict(_tensors(config)), Path(folder) / "model.safetensors")
        yield folder


def _tensors(config: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    generator, hidden = torch.Generator().manual_seed(0), config["hidden_size"]

    def drawn(shape: tuple[int, ...]) -> torch.Tensor:
        return (
            torch.randn(shape, generator=generator) / shape[1] ** 0.5 if len(shape) > 1 else torch.ones(shape)
        ).bfloat16()

    yield "model.embed_tokens.weight", drawn((config["vocab_size"], hidden))
    yield "model.norm.weight", drawn((hidden,))
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _of_layer(config):
            yield f"model.layers.{layer}.{name}.weight", drawn(shape)


def _of_layer(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, dim = config["hidden_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    yield from {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
    }.items()
    yield "self_attn.o_proj", (hidden, heads)
    yield from ((norm, (hidden,)) for norm in ("input_layernorm", "post_attention_layernorm"))
    if "num_experts" not in config:
        yield from _network("mlp", hidden, config["intermediate_size"])
        return
    yield from ((f"self_attn.{norm}_norm", (dim,)) for norm in "qk")
    yield "mlp.gate", (config["num_experts"], hidden)
    for number in range(config["num_experts"]):
        yield from _network(f"mlp.experts.{number}", hidden, config["moe_intermediate_size"])


def _network(prefix: str, hidden: int, inner: int) -> Iterator[tuple[str, tuple[int, int]]]:
    yield from (
        (f"{prefix}.{name}", shape)
        for name, shape in {
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }.items()
    )
