"""OLMo Hybrid: gated delta nets with beta up to 2; every fourth layer attends, with post-norms and QK-norm."""

from __future__ import annotations

from ..spec.model_config import ModelConfig
from ..spec.model_spec import GatedFFNSpec, LayerNorms, LayerSpec, ModelSpec, QkNormSpec
from ..spec.recurrent_config import FULL, LINEAR, counted, delta, layer_kinds
from ..spec.tensor_names import DeltaNetTensorNames, TensorNames
from .family_registry import family

DELTA = DeltaNetTensorNames(
    inputs=(("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("g_proj", "z")),
    rates=(("b_proj", "b"), ("a_proj", "a")),
    convolution=("q_conv1d", "k_conv1d", "v_conv1d"),
    norm="o_norm",
    output="o_proj",
)
OF_TRAINING = ("linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor")


@family("OlmoHybridForCausalLM")
def olmo_hybrid(c: ModelConfig) -> ModelSpec:
    c.raw(*OF_TRAINING)
    kinds, rms, bias = counted(c, layer_kinds(c, _kinds(c.count))), c.rms(), c.flag("attention_bias")
    written = c.raw("rope_parameters")
    rope = None if isinstance(written, dict) and written.get("rope_theta", 0) is None else c.rope(c.width())
    attention = c.attention(norm=QkNormSpec(rms, "all"), bias=bias, out_bias=bias, rope=rope)
    keys = c.positive("linear_num_key_heads", c.heads)
    width = c.positive("linear_key_head_dim", int(0.75 * c.hidden / keys))
    recurrent = delta(
        c,
        1e-5,
        c.heads,
        c.heads,
        width,
        value_dim=2 * width,
        reach=2.0 if c.flag("linear_allow_neg_eigval", True) else 1.0,
    )
    ffn = GatedFFNSpec(c.inner, c.activation())
    layers = [
        LayerSpec(LayerNorms.post(rms), attention, ffn)
        if kind == FULL
        else LayerSpec(LayerNorms.pre(rms), recurrent, ffn)
        for kind in kinds
    ]
    return c.model(layers, rms, names=_names(kinds))


def _kinds(count: int) -> list[str]:
    kinds = [FULL if index % 4 == 3 else LINEAR for index in range(count)]
    return kinds if FULL in kinds else [*kinds[:-1], FULL]


def _names(kinds: list[str]) -> TensorNames:
    """The norms of a layer have other names in the files of its makers than in those that transformers writes."""
    others = {
        LINEAR: ("input_layernorm", "attention_layer_norm"),
        FULL: ("feedforward_layer_norm", "post_attention_layernorm"),
    }
    same = [(f"model.layers.{index}.", *others[kind]) for index, kind in enumerate(kinds)]
    prefixes = [(layer + begin, layer + instead) for layer, begin, instead in same]
    prefixes += [
        (f"model.layers.{i}.post_attention_layernorm", f"model.layers.{i}.feedforward_layer_norm")
        for i, kind in enumerate(kinds)
        if kind == LINEAR
    ]
    return TensorNames(
        before_mixer="attention_layer_norm", before_ffn="feedforward_layer_norm", delta=DELTA, prefixes=tuple(prefixes)
    )
