"""Tiny random adapters that PEFT itself makes, saves and computes with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model


def make_adapter(model: transformers.PreTrainedModel, path: Path, seed: int = 0, **keys: Any) -> PeftModel:
    """Saved in `path`; `model` stays as it is. keys: of its LoraConfig."""
    torch.manual_seed(seed)
    config = LoraConfig(
        **({"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": False} | keys)
    )
    adapted = get_peft_model(copy.deepcopy(model), config).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.2)
    adapted.save_pretrained(path)
    return adapted
