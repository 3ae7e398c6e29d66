"""EXAONE 4: post-norms and QK-norm; in models with sliding windows, full-attention layers have no positions."""

from __future__ import annotations

from ..spec.model_config import ModelConfig, every
from ..spec.model_spec import LayerNorms, ModelSpec, QkNormSpec
from .family_registry import family


@family("Exaone4ForCausalLM")
def exaone4(c: ModelConfig) -> ModelSpec:
    c.assume(sliding_window=4096)
    rms, rope, hybrid = c.rms(1e-5), c.rope(c.width()), c.raw("sliding_window") is not None
    mixers = [
        c.attention(norm=QkNormSpec(rms), window=window, rope=None if hybrid and window is None else rope)
        for window in c.windows(_kinds(c) if hybrid else None)
    ]
    return c.model([c.layer(LayerNorms.post(rms), mixer) for mixer in mixers], rms)


def _kinds(c: ModelConfig) -> list[str]:
    """The published ones write the pattern in letters: LLLG."""
    pattern = c.raw("sliding_window_pattern")
    if isinstance(pattern, str) and pattern == "L" * (len(pattern) - 1) + "G":
        c.values = dict(c.values) | {"sliding_window_pattern": len(pattern)}
    return every(c.count, c.positive("sliding_window_pattern", 4))
