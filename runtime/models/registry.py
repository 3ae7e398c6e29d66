"""The supported architectures: each a row of flags and weight names of the one decoder."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Where a checkpoint keeps each part. A merged part has one name per piece, in the order of its rows."""

    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{}."
    attention_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    output: str = "self_attn.o_proj"
    mlp_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"


@dataclass(frozen=True, slots=True)
class Architecture:
    """Flags of a family; the defaults are for keys that its `config.json` may leave out.

    sliding_window: "none", "all" layers, or chosen "layers" (`layer_types`, `max_window_layers`).
    """

    name: str
    names: WeightNames = WeightNames()
    qkv_bias: bool = False
    reads_attention_bias: bool = False
    reads_mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: Literal["none", "all", "layers"] = "none"
    default_kv_heads: int | None = None
    default_head_dim: int | None = None
    default_window_layers: int = 28


ARCHITECTURES: dict[str, Architecture] = {}


def register(arch: Architecture) -> Architecture:
    """Make the decoder load checkpoints whose `architectures` names `arch.name`."""
    ARCHITECTURES[arch.name] = arch
    return arch


LLAMA = register(Architecture("LlamaForCausalLM", reads_attention_bias=True, reads_mlp_bias=True))
MISTRAL = register(Architecture("MistralForCausalLM", sliding_window="all", default_kv_heads=8))
QWEN2 = register(Architecture("Qwen2ForCausalLM", qkv_bias=True, sliding_window="layers"))
QWEN3 = register(
    Architecture(
        "Qwen3ForCausalLM",
        reads_attention_bias=True,
        qk_norm=True,
        sliding_window="layers",
        default_head_dim=128,
    )
)
PHI3 = register(
    Architecture(
        "Phi3ForCausalLM",
        names=replace(WeightNames(), qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
        sliding_window="all",
    )
)


def architecture(names: Any, where: str) -> Architecture:
    """The first supported one of config.json's `architectures`."""
    if not isinstance(names, list) or not names:
        raise ConfigError(
            f"{where}: key 'architectures' must list the model class, not {names!r}; {_supported()}"
        )
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    near = difflib.get_close_matches(str(names[0]), ARCHITECTURES, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"{where}: architecture {names[0]!r} is not supported; {hint}{_supported()}")


def _supported() -> str:
    return f"supported: {', '.join(sorted(ARCHITECTURES))}"
