"""Multimodal wrappers; `model_type` of their text_config selects the family of the text model."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import ModelConfig
from ..spec.model_spec import ModelSpec
from .family_registry import FAMILIES, family

# the family, and the sizes that files leave out where they are these
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "LlamaForCausalLM",
        {
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 11_008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
        },
    ),
    "mistral": (
        "MistralForCausalLM",
        {
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
        },
    ),
    "ministral3": (
        "Ministral3ForCausalLM",
        {
            "vocab_size": 131_072,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 34,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 262_144,
        },
    ),
    "mistral4": (
        "Mistral4ForCausalLM",
        {
            "vocab_size": 131_072,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "n_routed_experts": 128,
            "max_position_embeddings": 1_048_576,
        },
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        {
            "vocab_size": 151_936,
            "hidden_size": 4096,
            "intermediate_size": 22_016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 32_768,
        },
    ),
    "qwen3": ("Qwen3ForCausalLM", {}),
}


@family(
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
)
def wrapped(c: ModelConfig) -> ModelSpec:
    kind = c.get("model_type", str, "mistral" if c.architecture.startswith("Mistral3") else "llama")
    if kind not in TEXTS:
        raise ConfigError(
            f"{c.where}: model_type={shown(kind)} is not supported; supported: {', '.join(sorted(TEXTS))}"
        )
    name, sizes = TEXTS[kind]
    c.assume(**sizes)
    return FAMILIES[name].read(c)
