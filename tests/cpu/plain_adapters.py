"""Tiny random adapters in PEFT's files, made where PEFT is not installed."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PROJECTION = "_proj.weight"


def write_adapter(base: Path, path: Path, seed: int = 0, rank: int = 4) -> Path:
    """Of all projections of the checkpoint `base`."""
    draw, tensors = torch.Generator().manual_seed(seed), {}
    for file in base.glob("*.safetensors"):
        for name, weight in load_file(file).items():
            if name.endswith(PROJECTION):
                module, (outputs, inputs) = "base_model.model." + name.removesuffix(".weight"), weight.shape
                for end, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                    tensors[f"{module}.{end}.weight"] = torch.randn(shape, generator=draw) * 0.2
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 8}))
    return path
