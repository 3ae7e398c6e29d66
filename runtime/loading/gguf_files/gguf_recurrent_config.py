"""Reads recurrent layers from a GGUF file: Mamba 1 and 2, Jamba, Falcon-H1, Granite 4, gated delta nets of Qwen.

Such files hold -e^A where checkpoints hold the logarithm A, and heads of values of Qwen 3.5 in an order in
which neighbours read different heads of keys. Falcon-H1's multipliers are in its matrices already.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from ...models.spec.json_fields import JsonFields
from ...models.spec.model_spec import Mixer, ModelSpec, ParallelMixersSpec
from ...models.spec.recurrent_spec import DeltaNetSpec, Mamba1Spec, Mamba2Spec
from ...models.spec.tensor_names import DeltaNetTensorNames, TensorNames

OF_STATES = re.compile(r"blk\.(\d+)\.(ssm_\w+|attn_qkv|attn_gate)(?:\.(\w+))?")
OF_MAMBA = {
    "ssm_in": "in_proj",
    "ssm_x": "x_proj",
    "ssm_dt": "dt_proj",
    "ssm_conv1d": "conv1d",
    "ssm_out": "out_proj",
    "ssm_norm": "norm",
    "ssm_a": "A_log",
    "ssm_d": "D",
    "ssm_dt_norm": "dt_layernorm",
    "ssm_b_norm": "b_layernorm",
    "ssm_c_norm": "c_layernorm",
}
OF_DELTA = {
    "attn_qkv": "in_proj_qkv",
    "attn_gate": "in_proj_z",
    "ssm_ba": "in_proj_ba",
    "ssm_beta": "in_proj_b",
    "ssm_alpha": "in_proj_a",
    "ssm_conv1d": "conv1d",
    "ssm_norm": "norm",
    "ssm_out": "out_proj",
    "ssm_a": "A_log",
}
SIZES = {
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "state_size",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
}
MAMBA1_KEYS = SIZES | {"ssm.time_step_rank": "time_step_rank"}
MAMBA2_KEYS = SIZES | {"ssm.time_step_rank": "num_heads", "ssm.group_count": "n_groups"}
MAMBA_FLAGS = {"use_bias": "blk.0.ssm_in.bias", "use_conv_bias": "blk.0.ssm_conv1d.bias"}
JAMBA_KEYS = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.time_step_rank": "mamba_dt_rank",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
}
DELTA_KEYS = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "full_attention_interval": "full_attention_interval",
}


FALCON_KEYS = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.inner_size": "mamba_d_ssm",
}
FALCON_FLAGS = {
    "mamba_rms_norm": "blk.0.ssm_norm.weight",
    "mamba_conv_bias": "blk.0.ssm_conv1d.bias",
    "own_head": "output.weight",
}
GRANITE_KEYS = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_feed_forward_length": "shared_intermediate_size",
}


def mamba_1(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """Falcon-Mamba norms what gives time steps, B and C; no file says by which epsilon."""
    normed = keys.get("ssm.dt_b_c_rms", bool, False)
    return _alone(keys, config) | ({"architectures": ["FalconMambaForCausalLM"]} if normed else {})


def mamba_2(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    return _alone(keys, config) | {"head_dim": _share(keys, "ssm.inner_size", "ssm.time_step_rank")}


def _alone(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """Of models without attention and other networks, whose sizes are 0, and whose context is arbitrary."""
    for key in ("intermediate_size", "num_attention_heads", "max_position_embeddings"):
        config.pop(key, None)
    inner, hidden = keys.positive("ssm.inner_size"), keys.positive("embedding_length")
    return {"expand": inner // hidden if inner % hidden == 0 else (inner + 0.25) / hidden}  # rounded down


def jamba(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """Key heads mark the layers that attend, tensors those that have experts."""
    count = keys.positive("block_count")
    kinds, routed = config.pop("layer_types", ["full_attention"] * count), config.pop("routed")
    found = {"mamba_expand": _share(keys, "ssm.inner_size", "embedding_length")}
    found |= _periodic(
        keys, "attn_layer", [index for index, kind in enumerate(kinds) if kind == "full_attention"], count
    )
    return found | (_periodic(keys, "expert_layer", routed, count) if routed else {})


def falcon_h1(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """The norm, where there is one, follows the gate."""
    if not config.pop("own_head"):
        raise ConfigError(
            f"{keys.where}: the file has no tensor output.weight, so by what the head is multiplied is not known; "
            "take the model's safetensors checkpoint"
        )
    return {"mamba_d_head": _share(keys, "ssm.inner_size", "ssm.time_step_rank"), "mamba_norm_before_gate": False}


def granite(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """Nothing turns, whatever the keys of a rotation say; Bamba, whose queries turn, has the same name."""
    keys.require("rope.scaling.finetuned", False)
    for key in ("rope.dimension_count", "rope.freq_base", "rope.scaling.type"):
        keys.raw(key)
    config.setdefault("num_local_experts", 0)
    config.setdefault("layer_types", ["full_attention"] * keys.positive("block_count"))
    biases = {"mamba_proj_bias": bool(config.pop("projected")), "mamba_conv_bias": bool(config.pop("convolved"))}
    sizes = {
        "mamba_expand": _share(keys, "ssm.inner_size", "embedding_length"),
        "mamba_d_head": _share(keys, "ssm.inner_size", "ssm.time_step_rank"),
    }
    return sizes | biases | {"position_embedding_type": "nope"}


def delta(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """Layers that predict further tokens (MTP) are counted with the others, and follow them."""
    keys.raw("rope.dimension_sections")  # of pictures' positions: those of a text are equal
    more = keys.get("nextn_predict_layers", int, 0)
    found = {
        "linear_value_head_dim": _share(keys, "ssm.inner_size", "ssm.time_step_rank"),
        "num_hidden_layers": keys.positive("block_count") - more,
    }
    if "num_experts" in config and config["architectures"] == ["Qwen3NextForCausalLM"]:
        found["norm_topk_prob"] = keys.get("expert_weights_norm", bool, True)
    return found


def _share(keys: JsonFields, whole: str, parts: str) -> int:
    size, count = keys.positive(whole), keys.positive(parts)
    if size % count:
        raise ConfigError(f"{keys.where}: {whole}={size} is not a multiple of {parts}={count}; convert the model again")
    return size // count


def _periodic(keys: JsonFields, name: str, layers: Sequence[int], count: int) -> dict[str, int]:
    """`layers` of `count` as a period and an offset."""
    first = layers[0] if layers else 0
    period = layers[1] - first if len(layers) > 1 else count
    if list(layers) != [index for index in range(count) if index % period == first]:
        raise ConfigError(
            f"{keys.where}: layers {list(layers)} of {count} are not every so many of them ({name}); take the "
            "model's safetensors checkpoint"
        )
    return {f"{name}_period": period, f"{name}_offset": first}


def to_model_layout(part: str, shape: list[int]) -> list[int]:
    """The shape that the model asks for. part: the tensor's name after its layer, without `.weight`."""
    if part == "ssm_conv1d" and len(shape) == 2:
        return [shape[0], 1, shape[1]]
    if part in ("ssm_a", "ssm_d") and len(shape) == 2 and shape[1] == 1:
        return shape[:1]
    return [shape[0] * shape[1]] if part == "ssm_norm" and len(shape) == 2 else shape


def mixer_in_file_order(mixer: Mixer, tiled: bool) -> Mixer:
    """tiled: heads of values are ordered so that neighbours read different heads of keys."""
    if isinstance(mixer, DeltaNetSpec):
        return replace(mixer, log_rate=False, tiled=tiled and mixer.heads != mixer.key_heads)
    if isinstance(mixer, ParallelMixersSpec):
        parts: Any = tuple(mixer_in_file_order(each, tiled) for each in mixer.mixers)
        return replace(mixer, mixers=parts)
    return replace(mixer, log_rate=False) if isinstance(mixer, Mamba1Spec | Mamba2Spec) else mixer


def names_in_file(names: TensorNames) -> TensorNames:
    """Queries, keys and values of a delta net in one tensor and gates in another; where beta and decay are one, they
    are stored by key head.
    """
    own = names.delta
    return replace(
        names, delta=replace(own, inputs=DeltaNetTensorNames().inputs, by_head=("rates",) if own.by_head else ())
    )


def place_of(name: str, model: ModelSpec) -> str | None:
    """What the model calls a tensor of a layer with a state; None: it is none."""
    found = OF_STATES.fullmatch(name)
    if found is None or int(found[1]) >= len(model.layers):
        return None
    mixer, names = _recurrent(model.layers[int(found[1])].mixer), model.names
    part, suffix = found[2], "" if found[3] is None else f".{found[3]}"
    if mixer is None:
        return None
    begin, table = (names.delta.prefix, OF_DELTA) if isinstance(mixer, DeltaNetSpec) else (names.mamba, OF_MAMBA)
    if part == "ssm_dt" and not isinstance(mixer, Mamba1Spec):
        return f"{names.layer.format(int(found[1]))}{begin}dt_bias" if suffix == ".bias" else None
    return f"{names.layer.format(int(found[1]))}{begin}{table[part]}{suffix}" if part in table else None


def _recurrent(mixer: Mixer | None) -> DeltaNetSpec | Mamba1Spec | Mamba2Spec | None:
    """What of a layer's mixer carries a state of these."""
    each = mixer.mixers if isinstance(mixer, ParallelMixersSpec) else (mixer,)
    return next((part for part in each if isinstance(part, DeltaNetSpec | Mamba1Spec | Mamba2Spec)), None)
