"""What the keys of a GGUF file say of the model, as the config.json of the same model would."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sgl.grammars.tokens.packed_arrays import PackedArray

from ...errors import ConfigError
from ...models.spec.json_fields import JsonFields, shown
from ..tensor_files.safetensors_header import StoredTensor
from . import gguf_recurrent_config as states
from .gguf_mla_config import deepseek, minicpm3, warmth
from .gguf_rope import rope_of_gguf

COMMON = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
LISTS = (
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
)  # may say each layer's own
WITHOUT_EFFECT = ("rope.scaling.finetuned", "tensor_data_layout", "pooling_type")
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
EXPERTS = ("expert_count", "expert_used_count")
BIAS = {"attention_bias": "blk.0.attn_q.bias"}

Extra = Callable[[JsonFields, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class GGUFArchitecture:
    """How a GGUF architecture maps to one of transformers'.

    keys: that it has beyond COMMON, with their names in config.json.  flags: keys that are true where a tensor
        exists.
    extra: what else follows of the keys and of the config so far.  rotates: it has rotary positions.
    interleaved: rows of queries and keys are interleaved, neighbours are a rotary pair.  raised: weights of its norms
        hold 1 more.
    experts: it may have some, chosen by one of `gates`: 0 for the architecture's own way, 1 for softmax, 2 for a
        sigmoid.
    latent: it attends to latents.  instead: what `layer_types` calls the mixer of layers that have no key heads.  rope:
        what no key says of a scaled rotation.  roles: tensors of a layer that play another part than elsewhere.
    listed: keys that are the numbers of the layers which have a tensor.  tiled: see `Delta`.
    """

    name: str
    keys: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    extra: Extra = lambda keys, config: {}
    rotates: bool = True
    interleaved: bool = False
    raised: bool = False
    experts: bool = False
    gates: tuple[int, ...] = (0, 1)
    latent: bool = False
    instead: str = ""
    roles: Mapping[str, str] = field(default_factory=dict)
    rope: Mapping[str, Any] = field(default_factory=dict)
    listed: Mapping[str, str] = field(default_factory=dict)
    tiled: bool = False


def _mistral(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """Llama with a window is Mistral, with experts Mixtral."""
    window = keys.optional(WINDOW, int)
    if keys.get("expert_count", int, 0):
        found = {"num_local_experts": keys.raw("expert_count"), "num_experts_per_tok": keys.raw("expert_used_count")}
        return found | {"architectures": ["MixtralForCausalLM"], "sliding_window": window or None}
    return {"architectures": ["MistralForCausalLM"], "sliding_window": window} if window else {}


def _window(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """0 stands for none."""
    return {"sliding_window": keys.optional(WINDOW, int) or None}


def _windows(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    pattern, window = keys.raw(PATTERN), keys.optional(WINDOW, int)
    found: dict[str, Any] = {} if window is None else {"sliding_window": window}
    if isinstance(pattern, list):
        return found | {"layer_types": ["sliding_attention" if each else "full_attention" for each in pattern]}
    return found if pattern is None else found | {"sliding_window_pattern": pattern}


def _scores(largest: int) -> Extra:
    """Queries are scaled by the width of a head, but in the largest model of the family, which is recognised by its
    layers.
    """

    def extra(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
        wide = config.get("num_hidden_layers") == largest
        width = (
            keys.get("embedding_length", int) // keys.positive("attention.head_count")
            if wide
            else keys.get("attention.key_length", int)
        )
        scale = keys.optional("attention.scale", float)
        return _windows(keys, config) | {"query_pre_attn_scalar": float(width) if scale is None else scale**-2}

    return extra


def _gemma3(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    return _scores(62)(keys, config) | {"rope_local_base_freq": _decimal(keys.number("rope.freq_base_swa", 1e4))}


def _parallel(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """The key is written wrongly by some; that there is no second norm says the same."""
    keys.raw("use_parallel_residual")
    return {"use_parallel_residual": not config.pop("second_norm")}


def _qwen3_moe(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """The published ones are normalised, and no key says it."""
    return {"norm_topk_prob": keys.get("expert_weights_norm", bool, True)}


def _glm4_moe(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """Layers that predict further tokens (MTP) are counted with the others, and follow them."""
    more = keys.get("nextn_predict_layers", int, 0)
    return {"num_hidden_layers": keys.get("block_count", int) - more, "num_nextn_predict_layers": more}


def _lfm2(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    """The width of its networks is written as it is."""
    return {"use_expert_bias": True} if "num_experts" in config else {"block_auto_adjust_ff_dim": False}


def _gpt_oss(keys: JsonFields, config: dict[str, Any]) -> dict[str, Any]:
    inner = keys.optional("expert_feed_forward_length", int)
    return _window(keys, config) | ({} if inner is None else {"intermediate_size": inner})


CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
LOGITS = {"logit_scale": "logit_scale"}
OF_EXPERTS = {"expert_used_count": "num_experts_per_tok", "expert_feed_forward_length": "moe_intermediate_size"}
ROUTED = OF_EXPERTS | {
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
SWITCHED = OF_EXPERTS | {
    "expert_count": "num_experts",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
}
SECOND_NORM = {"post_attention_norm": "before_ffn"}
CONVOLUTION = {"shortconv.l_cache": "conv_L_cache", "attention.layer_norm_rms_epsilon": "norm_eps"}
MIXED = OF_EXPERTS | {"expert_count": "num_experts", "leading_dense_block_count": "num_dense_layers"}
LAST_NORM = {"token_embd_norm": "norm"}
GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
ARCHITECTURES = {
    "llama": GGUFArchitecture(
        "LlamaForCausalLM",
        flags=BIAS | {"mlp_bias": "blk.0.ffn_gate.bias"},
        extra=_mistral,
        interleaved=True,
        experts=True,
    ),
    "qwen2": GGUFArchitecture("Qwen2ForCausalLM"),
    "qwen3": GGUFArchitecture("Qwen3ForCausalLM", flags=BIAS),
    "gemma": GGUFArchitecture("GemmaForCausalLM", raised=True),
    "gemma2": GGUFArchitecture("Gemma2ForCausalLM", CAPS, extra=_scores(46), raised=True),
    "gemma3": GGUFArchitecture("Gemma3ForCausalLM", CAPS, extra=_gemma3, raised=True),
    "phi2": GGUFArchitecture("PhiForCausalLM"),
    "phi3": GGUFArchitecture("Phi3ForCausalLM", extra=_window),
    "command-r": GGUFArchitecture("CohereForCausalLM", LOGITS, {"use_qk_norm": "blk.0.attn_q_norm.weight"} | BIAS),
    "cohere2": GGUFArchitecture("Cohere2ForCausalLM", LOGITS, BIAS, _windows),
    "starcoder2": GGUFArchitecture(
        "Starcoder2ForCausalLM",
        {"attention.layer_norm_epsilon": "norm_epsilon"},
        {"use_bias": "blk.0.attn_q.bias"},
        _window,
    ),
    "stablelm": GGUFArchitecture(
        "StableLmForCausalLM",
        flags={
            "use_qkv_bias": "blk.0.attn_q.bias",
            "qk_layernorm": "blk.0.attn_q_norm.weight",
            "second_norm": "blk.0.ffn_norm.weight",
        },
        extra=_parallel,
    ),
    "gpt2": GGUFArchitecture(
        "GPT2LMHeadModel",
        {"feed_forward_length": "n_inner", "attention.layer_norm_epsilon": "layer_norm_epsilon"},
        rotates=False,
    ),
    "olmo2": GGUFArchitecture("Olmo2ForCausalLM", flags=BIAS),
    "qwen3moe": GGUFArchitecture(
        "Qwen3MoeForCausalLM", OF_EXPERTS | {"expert_count": "num_experts"}, BIAS, _qwen3_moe, experts=True
    ),
    "gpt-oss": GGUFArchitecture(
        "GptOssForCausalLM",
        {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        BIAS,
        _gpt_oss,
        experts=True,
        rope={"truncate": False},
        roles=SECOND_NORM,
    ),
    "qwen2moe": GGUFArchitecture("Qwen2MoeForCausalLM", SWITCHED, {"qkv_bias": "blk.0.attn_q.bias"}, experts=True),
    "glm4moe": GGUFArchitecture(
        "Glm4MoeForCausalLM",
        ROUTED,
        BIAS | {"use_qk_norm": "blk.0.attn_q_norm.weight"},
        _glm4_moe,
        experts=True,
        gates=(2,),
        roles=SECOND_NORM,
    ),
    "deepseek2": GGUFArchitecture(
        "DeepseekV2ForCausalLM", ROUTED, extra=deepseek, experts=True, gates=(1, 2), latent=True
    ),
    "minicpm3": GGUFArchitecture(
        "MiniCPM3ForCausalLM",
        {"attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank"},
        extra=minicpm3,
        latent=True,
    ),
    "lfm2": GGUFArchitecture("Lfm2ForCausalLM", CONVOLUTION, extra=_lfm2, roles=LAST_NORM, instead="conv"),
    "lfm2moe": GGUFArchitecture(
        "Lfm2MoeForCausalLM",
        CONVOLUTION | MIXED,
        extra=_lfm2,
        experts=True,
        gates=(2,),
        roles=LAST_NORM,
        instead="conv",
    ),
    "seed_oss": GGUFArchitecture(
        "SeedOssForCausalLM", flags=BIAS | {"attention_out_bias": "blk.0.attn_output.bias"}, roles=SECOND_NORM
    ),
    "smollm3": GGUFArchitecture("SmolLM3ForCausalLM", flags=BIAS, interleaved=True),
    "granite": GGUFArchitecture(
        "GraniteForCausalLM", GRANITE, BIAS | {"mlp_bias": "blk.0.ffn_gate.bias"}, interleaved=True
    ),
    "mamba": GGUFArchitecture(
        "MambaForCausalLM", states.MAMBA1_KEYS, states.MAMBA_FLAGS, states.mamba_1, rotates=False
    ),
    "mamba2": GGUFArchitecture(
        "Mamba2ForCausalLM", states.MAMBA2_KEYS, states.MAMBA_FLAGS, states.mamba_2, rotates=False
    ),
    "jamba": GGUFArchitecture(
        "JambaForCausalLM",
        states.JAMBA_KEYS,
        {"mamba_proj_bias": "blk.0.ssm_in.bias", "mamba_conv_bias": "blk.0.ssm_conv1d.bias"},
        states.jamba,
        rotates=False,
        experts=True,
        instead="linear_attention",
        listed={"routed": "blk.{}.ffn_gate_inp.weight"},
    ),
    "falcon-h1": GGUFArchitecture("FalconH1ForCausalLM", states.FALCON_KEYS, states.FALCON_FLAGS, states.falcon_h1),
    "granitehybrid": GGUFArchitecture(
        "GraniteMoeHybridForCausalLM",
        GRANITE | states.GRANITE_KEYS,
        BIAS,
        states.granite,
        rotates=False,
        experts=True,
        instead="linear_attention",
        listed={"projected": "blk.{}.ssm_in.bias", "convolved": "blk.{}.ssm_conv1d.bias"},
    ),
    "qwen3next": GGUFArchitecture(
        "Qwen3NextForCausalLM",
        SWITCHED | states.DELTA_KEYS,
        {},
        states.delta,
        raised=True,
        experts=True,
        roles=SECOND_NORM,
    ),
    "qwen35": GGUFArchitecture(
        "Qwen3_5ForCausalLM", states.DELTA_KEYS, {}, states.delta, raised=True, roles=SECOND_NORM, tiled=True
    ),
    "qwen35moe": GGUFArchitecture(
        "Qwen3_5MoeForCausalLM",
        SWITCHED | states.DELTA_KEYS,
        {},
        states.delta,
        raised=True,
        experts=True,
        roles=SECOND_NORM,
        tiled=True,
    ),
}


def architecture_of(metadata: Mapping[str, Any], where: str) -> tuple[str, GGUFArchitecture]:
    """Its name in the file, and what it stands for. Raises ConfigError for one that is not supported."""
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ConfigError(
            f"{where}: general.type={shown(kind)}: the file holds no model; give the file of the model itself"
        )
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ConfigError(
            f"{where}: general.architecture={shown(name)} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    return name, ARCHITECTURES[name]


def config_of(
    metadata: Mapping[str, Any], tensors: Collection[StoredTensor], factors: Mapping[str, list[float]], where: str
) -> dict[str, Any]:
    """What `read_model` takes of a file with these keys and tensors.

    factors: what the tensors rope_freqs, rope_factors_long and rope_factors_short hold, by name.  where: the file, for
    errors. Raises ConfigError for architectures that are not supported, and for keys of the architecture that may
    change
    results and are not understood.
    """
    name, found = architecture_of(metadata, where)
    keys, kinds = _keys_of(metadata, name, found, where)
    there = {tensor.name for tensor in tensors}
    config: dict[str, Any] = {
        "architectures": [found.name],
        "vocab_size": _vocabulary(keys, tensors),
        "dtype": _dtype(tensors),
    } | kinds
    config |= {ours: value for key, ours in (COMMON | dict(found.keys)).items() if (value := keys.raw(key)) is not None}
    config |= {flag: tensor in there for flag, tensor in found.flags.items()}
    config |= {
        key: [index for index in range(config["num_hidden_layers"]) if tensor.format(index) in there]
        for key, tensor in found.listed.items()
    }
    config |= {"tie_word_embeddings": "output.weight" not in there} | found.extra(keys, config)
    _check_widths(keys, found)
    if found.rotates:
        config |= rope_of_gguf(keys, factors, keys.positive("rope.dimension_count") if found.latent else None)
    if config.get("rope_scaling"):
        config["rope_scaling"] = {
            **config["rope_scaling"],
            **found.rope,
            **(warmth(keys) if found.latent and config["rope_scaling"]["rope_type"] == "yarn" else {}),
        }
    _finish(keys)
    return config


def _keys_of(
    metadata: Mapping[str, Any], name: str, found: GGUFArchitecture, where: str
) -> tuple[JsonFields, dict[str, Any]]:
    """The keys of an architecture without its name, numbers as they were written; and what kinds of layers they
    list."""
    begin = f"{name}."
    values = {key.removeprefix(begin): _plain(value) for key, value in metadata.items() if key.startswith(begin)}
    heads, kinds = values.get("attention.head_count_kv"), dict[str, Any]()
    if found.instead and isinstance(heads, list) and any(heads):
        kinds = {"layer_types": [found.instead if each == 0 else "full_attention" for each in heads]}
        values["attention.head_count_kv"] = [each for each in heads if each != 0]
    for key in LISTS:
        if isinstance(values.get(key), list):
            values[key] = _the_same(f"{begin}{key}", values[key], where)
    return JsonFields(values, f"{where}: {name}"), kinds


def _the_same(key: str, values: list[Any], where: str) -> Any:
    if len(set(values)) != 1:
        raise ConfigError(
            f"{where}: {key}={shown(values)}: layers of different sizes are not supported; take the model's "
            "safetensors checkpoint"
        )
    return values[0]


def _plain(value: Any) -> Any:
    """As JSON would have it."""
    return value.tolist() if isinstance(value, PackedArray) else _decimal(value)


def _decimal(value: Any) -> Any:
    """A float of 32 bits as the number that was meant: 1e-05, not 9.999999747378752e-06."""
    if type(value) is not float or not np.isfinite(value) or abs(value) > np.finfo(np.float32).max:
        return value
    short = np.float32(value)
    return float(str(short)) if float(short) == value else value


def _vocabulary(keys: JsonFields, tensors: Collection[StoredTensor]) -> int:
    table = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    said = keys.optional("vocab_size", int)
    if table is None or len(table.shape) != 2:
        raise ConfigError(
            f"{keys.where}: the file has no tensor token_embd.weight [tokens, width]; it holds no whole model"
        )
    if said not in (None, table.shape[0]):
        raise ConfigError(
            f"{keys.where}: vocab_size={said}, but token_embd.weight has {table.shape[0]:,} rows; convert the model "
            "again"
        )
    return table.shape[0]


def _dtype(tensors: Collection[StoredTensor]) -> str:
    """What the matrices would be in as a checkpoint: as they are, or bfloat16 for few-bit ones."""
    kinds = {tensor.dtype for tensor in tensors if len(tensor.shape) > 1}
    if kinds <= {"F32", "F64"}:
        return "float32"
    return "float16" if kinds <= {"F16", "F32", "F64"} else "bfloat16"


def _check_widths(keys: JsonFields, found: GGUFArchitecture) -> None:
    width = keys.optional("attention.key_length", int)
    if width is not None and not found.latent:
        keys.require("attention.value_length", width)
    keys.require("attention.causal", True)
    if found.experts:
        keys.require("expert_gating_func", *found.gates)
    else:
        for key in EXPERTS:
            keys.require(key, 0)


def _finish(keys: JsonFields) -> None:
    for key in keys.unread():
        if key not in WITHOUT_EFFECT and keys.values[key] != 0:
            raise ConfigError(
                f"{keys.where}.{key}={shown(keys.values[key])} is not understood and may change results; "
                "take another GGUF file of this model, or its safetensors checkpoint"
            )
