"""SmolLM 3: Llama in which every fourth layer has no positions."""

from __future__ import annotations

from ...errors import ConfigError
from ..spec.json_fields import shown
from ..spec.model_config import ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, ModelSpec
from .family_registry import family


@family("SmolLM3ForCausalLM")
def smollm3(c: ModelConfig) -> ModelSpec:
    """Windows, where they are wanted, are those of the layers without positions."""
    c.assume(num_key_value_heads=4)
    c.raw("max_window_layers")
    rms, bias, rope = c.rms(), c.flag("attention_bias"), c.rope(c.width(), theta=2e6)
    turns, wanted = _turning(c), c.flag("use_sliding_window") and c.raw("sliding_window") is not None
    windows = c.windows(["sliding_attention" if wanted and not turn else "full_attention" for turn in turns])
    mixers = [
        c.attention(bias=bias, out_bias=bias, window=window, rope=rope if turn else None)
        for turn, window in zip(turns, windows, strict=True)
    ]
    ffn = GatedFFNSpec(c.inner, c.activation(), c.flag("mlp_bias"))
    return c.model([c.layer(LayerNorms.pre(rms), mixer, ffn) for mixer in mixers], rms, tied=True)


def _turning(c: ModelConfig) -> list[bool]:
    """Of each layer whether it has positions; the key `no_rope_layers` says 1 where it has."""
    each, written = c.positive("no_rope_layer_interval", 4), c.raw("no_rope_layers")
    if written is None:
        return [(index + 1) % each != 0 for index in range(c.count)]
    if not isinstance(written, list) or len(written) != c.count or not all(turn in (0, 1) for turn in written):
        raise ConfigError(f"{c.where}: no_rope_layers={shown(written)} must hold {c.count} times 0 or 1")
    return [turn == 1 for turn in written]
