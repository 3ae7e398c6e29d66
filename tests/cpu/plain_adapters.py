"""Tiny random adapters in PEFT's files, made where PEFT is not installed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PROJECTIONS = r"_proj$"
EMBEDDING = "model.embed_tokens"


def write_adapter(
    base: Path,
    path: Path,
    seed: int = 0,
    rank: int = 4,
    dora: bool = False,
    biases: bool = False,
    ends: bool = False,
    rows: tuple[int, ...] = (),
    tables: bool = False,
    modules: str = PROJECTIONS,
) -> Path:
    """Of all modules of the checkpoint `base` whose name the pattern `modules` finds.

    dora: with magnitudes.  biases: of the pairs.  ends: of head and embedding too.  rows: tokens whose embeddings are
    its own.  tables: head and embedding anew.
    """
    draw, tensors = torch.Generator().manual_seed(seed), {}

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw) * 0.2

    for file in base.glob("*.safetensors"):
        for name, weight in load_file(file).items():
            if weight.dim() == 2 and re.search(modules, name.removesuffix(".weight")):
                module, (outputs, inputs) = "base_model.model." + name.removesuffix(".weight"), weight.shape
                tensors |= {
                    f"{module}.lora_A.weight": normal(rank, inputs),
                    f"{module}.lora_B.weight": normal(outputs, rank),
                }
                if dora:
                    tensors[f"{module}.lora_magnitude_vector"] = weight.float().norm(dim=1) * (1 + normal(outputs))
                if biases:
                    tensors[f"{module}.lora_B.bias"] = normal(outputs)
            elif tables and name in ("lm_head.weight", f"{EMBEDDING}.weight"):
                tensors[f"base_model.model.{name}"] = weight.float() + normal(*weight.shape)
            elif ends and name == "lm_head.weight":
                tensors |= {
                    "base_model.model.lm_head.lora_A.weight": normal(rank, weight.shape[1]),
                    "base_model.model.lm_head.lora_B.weight": normal(len(weight), rank),
                }
            elif ends and name == EMBEDDING + ".weight":
                tensors |= {
                    f"base_model.model.{EMBEDDING}.lora_embedding_A": normal(rank, len(weight)),
                    f"base_model.model.{EMBEDDING}.lora_embedding_B": normal(weight.shape[1], rank),
                }
            elif rows and name == EMBEDDING + ".weight":
                tensors[f"base_model.model.{EMBEDDING}.token_adapter.trainable_tokens_delta"] = normal(
                    len(rows), weight.shape[1]
                )
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 8,
        "use_dora": dora,
        "lora_bias": biases,
        "trainable_token_indices": list(rows) or None,
    }
    config["modules_to_save"] = ["lm_head", "embed_tokens"] if tables else None
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path
