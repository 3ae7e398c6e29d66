"""Writes tiny Hugging Face model directories with random weights, made by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ALPHABET_TEXT = [
    "The quick brown fox jumps over the lazy dog.",
    '{"name": "Zoë", "age": 42, "ok": true}',
    "1 + 1 = 2\n",
]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 320  # 256 bytes, the special tokens, some merges
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "initializer_range": 0.2,
}
FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3"}
OWN_DEFAULTS: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": None}, "qwen3": {"head_dim": 32}}


def reference_model(family: str, seed: int = 0, **overrides: Any) -> transformers.PreTrainedModel:
    """transformers' own float32 model of a family, random weights (norms and biases too)."""
    name = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**SMALL | OWN_DEFAULTS.get(family, {}) | overrides)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.normal_(1.0, 0.2)
    return model


def write_checkpoint(
    path: Path, family: str = "llama", seed: int = 0, shard_size: str = "1GB", tokenizer: bool = False, **overrides: Any
) -> Path:
    """A model directory; `overrides` are keys of its config.json, `shard_size` splits the weights."""
    reference_model(family, seed, **overrides).save_pretrained(path, max_shard_size=shard_size)
    if tokenizer:
        write_tokenizer(path)
    return path


def write_tokenizer(path: Path) -> Path:
    """A byte-level BPE tokenizer of `VOCABULARY` tokens with chat template; <s> is 0, </s> is 1."""
    path.mkdir(parents=True, exist_ok=True)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=1,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(ALPHABET_TEXT, trainer)
    bpe.save(str(path / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(about))
    return path


def edit_json(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; a key set to `...` is removed."""
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
