"""Which layers the compiled step supports on a CPU. The reference runs the others within the same step."""

from __future__ import annotations

from collections.abc import Iterator

from ...layers import compiled_kernels
from ..spec.model_spec import (
    AttentionSpec,
    ExpertsSpec,
    GatedFFNSpec,
    LayerNorms,
    LayerSpec,
    NormSpec,
    PlainFFNSpec,
    QkNormSpec,
    RouterSpec,
    ShortConvSpec,
)
from ..spec.recurrent_spec import DeltaNetSpec, Mamba1Spec, Mamba2Spec
from ..spec.unsupported_fields import unsupported_fields

COMPILED: dict[type, set[str]] = {  # what the compiled step computes of each part; it leaves layers with anything else
    LayerSpec: {"norms", "mixer", "ffn", "branch", "scalar"},
    LayerNorms: {"before_mixer", "after_mixer", "before_ffn", "after_ffn", "parallel", "of_sum"},
    AttentionSpec: {
        "heads",
        "kv_heads",
        "dim",
        "scale",
        "value_dim",
        "rope",
        "bias",
        "out_bias",
        "norm",
        "value_norm_eps",
        "clip",
        "window",
        "chunk",
        "softcap",
        "sinks",
        "value_is_key",
        "source",
        "gate",
    },
    DeltaNetSpec: {
        "heads",
        "key_heads",
        "dim",
        "value_dim",
        "width",
        "eps",
        "activation",
        "rank",
        "reach",
        "gate",
        "log_rate",
    },
    Mamba2Spec: {
        "heads",
        "dim",
        "size",
        "groups",
        "width",
        "eps",
        "activation",
        "bias",
        "out_bias",
        "conv_bias",
        "least",
        "most",
        "norm_first",
        "log_rate",
    },
    Mamba1Spec: {"inner", "size", "rank", "width", "activation", "bias", "conv_bias", "norm", "log_rate"},
    ShortConvSpec: {"channels", "width", "bias"},
    NormSpec: {"eps", "kind", "offset", "weight", "bias"},
    QkNormSpec: {"norm", "over", "after"},
    GatedFFNSpec: {"inner", "activation", "bias", "limit"},
    ExpertsSpec: {"count", "top_k", "expert", "router", "weighs_input", "shared", "switched"},
    RouterSpec: {
        "score",
        "best_first",
        "bias",
        "correction",
        "groups",
        "kept_groups",
        "group_score",
        "outside",
        "normalise",
        "floor",
        "scale",
        "jitter",
    },
    PlainFFNSpec: {"inner", "activation", "bias"},
}


def cpu_refusal(layer: LayerSpec, per_layer: bool = False) -> str | None:
    """Why the compiled step on a CPU does not support a layer, whatever its weights become, for people; None: it
    does.

    per_layer: it has per-layer embeddings.
    """
    return next(_reasons(layer, per_layer), None)


def _reasons(layer: LayerSpec, per_layer: bool) -> Iterator[str]:
    ffn = layer.ffn
    if isinstance(ffn, ExpertsSpec) and ffn.held is not None:
        yield "its experts are stored on several ranks"
    yield from unsupported_fields(layer, COMPILED, one=True)
    if isinstance(layer.mixer, AttentionSpec):
        yield from _of_heads(layer.mixer)
    elif isinstance(layer.mixer, DeltaNetSpec | Mamba1Spec | Mamba2Spec | ShortConvSpec):
        yield from _of_states(layer.mixer)
    if isinstance(ffn, ExpertsSpec):
        yield from (why for why in [mixture_refusal(ffn)] if why is not None)
    elif ffn is not None and ffn.activation not in compiled_kernels.ACTIVATIONS:
        yield f"activation {ffn.activation!r}"
    elif isinstance(ffn, GatedFFNSpec) and ffn.limit is not None:
        yield "a clamped gate without experts"
    if per_layer:
        yield "per-layer embeddings"


def _of_heads(mixer: AttentionSpec) -> Iterator[str]:
    most = compiled_kernels.limit("MOST_DIM")
    if mixer.dim > most:
        yield f"head dimension {mixer.dim}; the compiled kernels take up to {most}"
    if mixer.values != mixer.dim:
        yield f"values of width {mixer.values} with keys of width {mixer.dim}"
    if mixer.gate and mixer.clip is not None:
        yield "gated heads that are clipped"


def _of_states(mixer: DeltaNetSpec | Mamba1Spec | Mamba2Spec | ShortConvSpec) -> Iterator[str]:
    activation = None if isinstance(mixer, ShortConvSpec) else mixer.activation
    seen, keys, numbers = map(compiled_kernels.limit, ("MOST_SEEN", "MOST_KEYS", "NUMBERS"))
    if not compiled_kernels.supports_convolution(mixer.width, activation):
        yield (
            f"a convolution of {mixer.width} tokens, activation {activation!r}; the compiled kernels take up to {seen}"
        )
    if isinstance(mixer, DeltaNetSpec | Mamba2Spec) and mixer.state[1].shape[1] > keys:
        yield f"states of {mixer.state[1].shape[1]} keys; the compiled kernels take up to {keys}"
    if isinstance(mixer, Mamba1Spec) and mixer.size > numbers:
        yield f"{mixer.size} numbers a channel; the compiled kernels take up to {numbers}"


def mixture_refusal(part: ExpertsSpec) -> str | None:
    """Why the kernels do not support a mixture, whatever its weights become, for people; None: they support it."""
    if part.router.score == "mixer":
        return "experts chosen one after the other (PhiMoE)"
    if part.weighs_input:
        return "experts whose inputs are weighed (Llama 4)"
    networks = [part.expert, *([part.shared] if part.shared else [])]
    if not all(isinstance(each, GatedFFNSpec) and each.scale == each.out_scale == 1 for each in networks):
        return "experts without a gate, or with multipliers inside"
    if part.latent is not None:
        return "experts after a projection"
    strange = next((each.activation for each in networks if each.activation not in compiled_kernels.ACTIVATIONS), None)
    return None if strange is None else f"activation {strange!r}"
