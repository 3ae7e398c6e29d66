"""A model's shape, read from the `config.json` of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..attention.base import AttentionLayout, AttentionShape, LayerAttention
from ..errors import ConfigError
from ..layers.rotary import RopeConfig
from .fields import Fields
from .registry import Architecture, architecture
from .rope import rope_config


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the decoder needs to know; see `from_hf` for where it comes from.

    windows: per layer the latest tokens a query sees, None for all. dtype: what the checkpoint was saved as, if it says so.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope: RopeConfig
    windows: tuple[int | None, ...]
    max_position: int
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    mlp_bias: bool
    dtype: str | None = None

    @property
    def attention_shape(self) -> AttentionShape:
        return AttentionShape(self.num_heads, self.num_kv_heads, self.head_dim, self.windows)

    @property
    def attention(self) -> AttentionLayout:
        heads = self.num_heads, self.num_kv_heads, self.head_dim, self.head_dim
        return AttentionLayout.of([LayerAttention(*heads, self.head_dim**-0.5, window) for window in self.windows])

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        """Parse the decoded `config.json` (EOS and BOS ids are the tokenizer's affair).

        Raises ConfigError naming `where`, the key and its value.
        """
        fields = Fields(config, where)
        arch = architecture(config.get("architectures"), where)
        _reject_unsupported(fields)
        heads = fields.positive("num_attention_heads")
        kv_heads = fields.positive("num_key_value_heads", arch.default_kv_heads or heads)
        if heads % kv_heads:
            raise ConfigError(
                f"{where}: num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}"
            )
        hidden = fields.positive("hidden_size")
        head_dim = fields.positive("head_dim", arch.default_head_dim or hidden // heads)
        if head_dim % 2:
            raise ConfigError(f"{where}: head_dim={head_dim} must be even for rotary positions")
        layers = fields.positive("num_hidden_layers")
        attention_bias = arch.reads_attention_bias and fields.get("attention_bias", bool, False)
        return cls(
            architecture=arch,
            vocab_size=fields.positive("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.positive("intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_eps=fields.get("rms_norm_eps", float, 1e-6),
            rope=rope_config(fields),
            windows=_windows(fields, arch, layers),
            max_position=fields.positive("max_position_embeddings"),
            tied_embeddings=fields.get("tie_word_embeddings", bool, False),
            qkv_bias=arch.qkv_bias or attention_bias,
            output_bias=attention_bias,
            qk_norm=arch.qk_norm,
            mlp_bias=arch.reads_mlp_bias and fields.get("mlp_bias", bool, False),
            dtype=config.get("dtype") or config.get("torch_dtype"),
        )


def _reject_unsupported(fields: Fields) -> None:
    if method := fields.values.get("quantization_config"):
        name = method.get("quant_method", method) if isinstance(method, dict) else method
        raise ConfigError(
            f"{fields.where}: quantised checkpoints ({name!r}) are not supported; use the original one"
        )
    if (act := fields.get("hidden_act", str, "silu")) not in ("silu", "swish"):
        raise ConfigError(f"{fields.where}: hidden_act={act!r} is not supported; supported: silu")


def _windows(fields: Fields, arch: Architecture, layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer: everywhere, by `layer_types`, or from `max_window_layers` on."""
    window = fields.values.get("sliding_window")
    if not arch.sliding_window or window is None:
        return (None,) * layers
    window = fields.positive("sliding_window")
    if arch.sliding_window == "all":
        return (window,) * layers
    if not fields.get("use_sliding_window", bool, False):
        return (None,) * layers
    first = fields.get("max_window_layers", int, arch.default_window_layers)
    default = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    types = fields.values.get("layer_types") or default
    if len(types) != layers or not set(types) <= {"sliding_attention", "full_attention"}:
        raise ConfigError(
            f"{fields.where}: layer_types={types!r} must name full_attention or sliding_attention {layers} times"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in types)
