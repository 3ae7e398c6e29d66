"""Random configurations of transformers' classes, as a config.json could hold them:
sizes, flags, rotations, windows, styles.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import transformers
from transformers.activations import ACT2FN

LONGEST = 160  # tokens that a comparison computes
KINDS = ("full_attention", "sliding_attention")
NOT_DRAWN = {
    "use_cache",
    "initializer_range",
    "init_std",
    "initializer_factor",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "init_device",
    "decoder_start_token_id",
    "eod_token_id",
    "summary_type",
    "summary_activation",
    "chunk_size_feed_forward",
    "label2id",
    "id2label",
    "architectures",
    "return_dict",
    "dtype",
    "problem_type",
    "transformers_version",
    "output_hidden_states",
    "is_encoder_decoder",
    "pretraining_tp",
    "is_decoder",
    "type_vocab_size",
    "embedding_fraction",
    "verbose",
    "rescale_prenorm_residual",  # from_pretrained divides what it has loaded
}
RARE = {  # of these flags few draws may hold the value that nobody computes
    "add_cross_attention",
    "slow_but_exact",
    "apply_residual_connection_post_layernorm",
    "use_bidirectional_attention",
    "no_bias",
}
SQUARE = {"helium"}  # heads together are as wide as the model, though there is a key for it
USUAL = (
    "silu",
    "gelu",
    "gelu_new",
    "gelu_pytorch_tanh",
    "relu",
    "relu2",
    "gelu_fast",
    "quick_gelu",
    "swish",
    "gelu_python",
)
NUMBERS: dict[str, tuple[float, float]] = {
    "logit_scale": (0.1, 2.0),
    "embedding_multiplier": (0.3, 4.0),
    "residual_multiplier": (0.2, 1.5),
    "attention_multiplier": (0.05, 1.0),
    "logits_scaling": (0.3, 4.0),
    "final_logit_softcapping": (1.0, 30.0),
    "attn_logit_softcapping": (1.0, 20.0),
    "clip_qkv": (0.3, 2.0),
    "query_pre_attn_scalar": (4, 64),
    "scale_emb": (0.5, 12.0),
    "scale_depth": (0.5, 2.0),
    "partial_rotary_factor": (0.25, 1.0),
}


@dataclasses.dataclass
class Draw:
    """values: of config.json.  context: the longest sequence that is asked for, None for all positions."""

    architecture: str
    values: dict[str, Any]
    context: int | None = None


def draw(architecture: str, seed: int) -> Draw:
    dice = random.Random(f"{architecture} {seed}")
    kind = getattr(transformers, architecture).config_class
    text = kind.sub_configs.get("text_config") if hasattr(kind, "sub_configs") else None
    made = Draw(architecture, {})
    made.values = _values(text or kind, dice, made)
    if text is not None:
        made.values = {"text_config": made.values | {"model_type": text.model_type}} | wrapper(kind)
    made.values |= {
        "architectures": [architecture],
        "model_type": kind.model_type,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if dice.random() < 0.5:
        made.values |= {
            "torch_dtype": "float32",
            "auto_map": {"AutoConfig": "configuration.X"},
            "transformers_version": "4.30.0",
            "_name_or_path": "x/y",
        }
    return made


def wrapper(kind: Any) -> dict[str, Any]:
    """What a wrapper's configuration has beside its text model's: the smallest tower."""
    small = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "embed_dim": 16,
        "depth": 1,
        "num_heads": 2,
    }
    return {"vision_config": small, "mm_tokens_per_image": 4} if "vision_config" in kind.sub_configs else {}


def fields_of(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind) if field.name not in NOT_DRAWN}


def _values(kind: Any, dice: random.Random, made: Draw) -> dict[str, Any]:
    fields, names = fields_of(kind), kind.attribute_map
    sizes = _sizes(kind, fields, dice)
    values = {
        names.get(key, key): value
        for key, value in sizes.items()
        if names.get(key, key) in fields or key in ("num_hidden_layers",)
    }
    for name, field in fields.items():
        if name in values or dice.random() < 0.35:
            continue
        found = _field(name, field, sizes, dice)
        if found is not ...:
            values[name] = found
    _special(kind, values, sizes, dice)
    if "rope_parameters" in fields or "rotary_dim" in fields:
        values.pop("rope_parameters", None)
    if "rope_parameters" in fields:
        _rotation(kind, values, sizes, dice, made)
    if "head_dim" not in fields and dice.random() < 0.1:
        values["head_dim"] = sizes["hidden_size"] // sizes["num_attention_heads"]
    return values | {"pad_token_id": 1}


def _sizes(kind: Any, fields: dict[str, Any], dice: random.Random) -> dict[str, int]:
    heads = dice.choice((4, 8) if kind.model_type == "codegen" else (1, 2, 3, 4, 4, 6, 8))
    kv_heads = dice.choice([n for n in range(1, heads + 1) if heads % n == 0])
    dim = dice.choice((8, 12, 16, 16, 20, 32, 64))
    own = "head_dim" in fields
    hidden = dice.choice((heads * 8, heads * 12, heads * 10)) if own else heads * dim
    if not own and dice.random() < 0.15:
        hidden += 2 * heads
    if not own or kind.model_type in SQUARE:
        dim = hidden // heads
    layers, inner = dice.randint(1, 6), [dice.randint(9, 150) for _ in range(4)]
    vocabulary = dice.choice((320, 321, 333, 401, 512))
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_kv_heads": kv_heads,
        "head_dim": dim,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": inner[0],
        "ffn_dim": inner[1],
        "ffn_hidden_size": inner[2],
        "n_inner": inner[3],
        "vocab_size": vocabulary,
        "vocab_size_per_layer_input": vocabulary,
        "max_position_embeddings": dice.choice((LONGEST, 173, 256, 1000)),
    }


def _field(name: str, field: dataclasses.Field[Any], sizes: dict[str, int], dice: random.Random) -> Any:
    hint, default = str(field.type), field.default
    optional = "None" in hint and "eps" not in name
    if "dropout" in name or "pdrop" in name or name == "layerdrop":
        return dice.choice((0.0, 0.1))
    if name == "layer_types":
        return None if dice.random() < 0.2 else [dice.choice(KINDS) for _ in range(sizes["num_hidden_layers"])]
    if (
        "window" in name
        and "layers" not in name
        and "pattern" not in name
        and default is not True
        and default is not False
    ):
        return None if optional and dice.random() < 0.25 else dice.choice((1, 2, 5, 9, 17, 31, 400))
    if optional and dice.random() < 0.15:
        return None
    if name in NUMBERS:
        number = dice.uniform(*NUMBERS[name])
        return int(number) if isinstance(default, int) and "float" not in hint else round(number, 3)
    if isinstance(default, bool) or "bool" in hint:
        return default if name in RARE and dice.random() < 0.95 else dice.random() < 0.5
    if "eps" in name:
        return 10.0 ** dice.uniform(-8, -0.5)
    if name.endswith(("_act", "activation", "activation_function")):
        return dice.choice(sorted(ACT2FN)) if dice.random() < 0.1 else dice.choice(USUAL)
    return ...


def _special(kind: Any, values: dict[str, Any], sizes: dict[str, int], dice: random.Random) -> None:
    """Fields that only make sense together, or in one class."""
    layers, fields = sizes["num_hidden_layers"], fields_of(kind)
    if "max_window_layers" in fields:
        values["max_window_layers"] = dice.randint(0, layers)
    if "no_rope_layers" in fields and dice.random() < 0.6:
        values["no_rope_layers"] = [dice.randint(0, 1) for _ in range(layers)]
    if "no_rope_layer_interval" in fields and dice.random() < 0.6:
        values["no_rope_layer_interval"] = dice.randint(1, 4)
    if "layer_rope_theta" in fields and dice.random() < 0.5:
        values["layer_rope_theta"] = [dice.choice((0, 500.0, 10000)) for _ in range(layers)]
    if "attention_types" in fields:
        values["attention_types"] = [[[dice.choice(("global", "local"))], 1] for _ in range(layers)]
    if "rotary_dim" in fields:
        width = sizes["hidden_size"] // sizes["num_attention_heads"]
        values["rotary_dim"] = dice.choice(range(2, width + 1, 2))
    if "word_embed_proj_dim" in fields and dice.random() < 0.5:
        values["word_embed_proj_dim"] = dice.choice((16, 24, sizes["hidden_size"]))
    if "n_inner" in values and dice.random() < 0.4:
        values["n_inner"] = None
    if "attn_config" in fields:
        values["attn_config"] = _attn_config(dice)
        values["max_seq_len"] = 256
    if set(CHOSEN) & set(fields):
        _experts(values, fields, layers, dice)
    if "sliding_window_pattern" in fields and dice.random() < 0.6:
        values["sliding_window_pattern"] = dice.choice((1, 2, 3, 4, 4))
    if "conv_L_cache" in fields:
        values["conv_L_cache"] = dice.randint(2, 6)
        values |= (
            {"block_multiple_of": dice.choice((1, 8, 32)), "full_attn_idxs": None}
            if "block_multiple_of" in fields
            else {}
        )
        values["layer_types"] = [dice.choice(("conv", "conv", "full_attention")) for _ in range(layers)]
    values |= _recurrent(fields, values, sizes["hidden_size"], layers, dice)
    values |= _latent(fields, sizes, layers, dice)
    if "n_positions" in fields and "n_ctx" in fields:
        values["n_ctx"] = values.get("n_positions", 256)


def _latent(fields: dict[str, Any], sizes: dict[str, int], layers: int, dice: random.Random) -> dict[str, Any]:
    """Sizes of latents and of what turns, and of the experts that such models have."""
    if "kv_lora_rank" not in fields:
        return {}
    heads = sizes["num_attention_heads"]
    found: dict[str, Any] = {
        "num_key_value_heads": heads,
        "kv_lora_rank": dice.choice((16, 24, 32)),
        "q_lora_rank": dice.choice((None, 12, 32)),
    }
    found |= {
        "qk_nope_head_dim": dice.choice((8, 12, 16)),
        "qk_rope_head_dim": dice.choice((4, 8, 16)),
        "v_head_dim": dice.choice((6, 8, 16)),
    }
    if "topk_method" in fields:
        found["topk_method"] = dice.choice(("greedy", "group_limited_greedy"))
    if "linear_head_dim" in fields:
        found |= {
            "linear_head_dim": dice.choice((8, 12)),
            "linear_num_heads": dice.choice((1, 3)),
            "linear_conv_kernel_dim": dice.randint(2, 5),
        }
        found["layer_types"] = dice.choice((None, [dice.choice((LINEAR, FULL)) for _ in range(layers)]))
    if "mlp_layer_types" in fields:
        found["mlp_layer_types"] = dice.choice((None, [dice.choice(("dense", "sparse")) for _ in range(layers)]))
    return found


LINEAR, FULL = "linear_attention", "full_attention"


def _recurrent(
    fields: dict[str, Any], values: dict[str, Any], hidden: int, layers: int, dice: random.Random
) -> dict[str, Any]:
    """Sizes of layers that carry states along, and which these are."""
    found: dict[str, Any] = {}
    if not {"linear_num_key_heads", "state_size", "mamba_n_heads", "mamba_num_heads", "mamba_dt_rank"} & set(fields):
        return found
    heads, groups, width = dice.choice((1, 2, 3)), dice.choice((1, 2)), dice.choice((4, 8, 12))
    if "linear_num_key_heads" in fields:
        found |= {"linear_num_key_heads": heads, "linear_num_value_heads": heads * groups, "linear_key_head_dim": width}
        found |= {
            "linear_value_head_dim": width * 2 if groups == 1 else width,
            "linear_conv_kernel_dim": dice.randint(2, 5),
        }
        if "linear_a_log_min" in fields:  # transformers writes the convolution in three equal parts
            found |= {
                "linear_num_value_heads": heads,
                "linear_value_head_dim": width,
                "layer_types": [LINEAR, FULL] * 2,
                "num_hidden_layers": 4,
            }
        else:
            found["layer_types"] = [dice.choice((LINEAR, FULL)) for _ in range(layers)]
    if {"num_heads", "state_size"} <= set(fields):
        found |= {
            "expand": 2,
            "num_heads": 2 * groups,
            "head_dim": hidden // groups,
            "hidden_size": hidden // groups * groups,
            "n_groups": groups,
            "state_size": width,
            "chunk_size": 16,
        }
    elif "state_size" in fields:
        found |= {
            "expand": dice.choice((1, 2)),
            "state_size": width,
            "conv_kernel": dice.randint(2, 5),
            "time_step_rank": dice.choice(("auto", 3)),
        }
    if "mamba_n_heads" in fields:
        found |= {
            "mamba_expand": 2,
            "mamba_n_heads": 2 * groups,
            "mamba_d_head": "auto",
            "hidden_size": hidden,
            "mamba_n_groups": groups,
            "mamba_d_state": width,
        }
        found |= {"mamba_d_conv": dice.randint(2, 5), "mamba_chunk_size": 16}
        found |= (
            {"mamba_d_ssm": dice.choice((None, 16 * groups))}
            if "mamba_d_ssm" in fields
            else {"layer_types": [dice.choice((LINEAR, FULL)) for _ in range(layers)]}
        )
    if "mamba_num_heads" in fields:
        found |= {
            "mamba_num_heads": 2 * groups,
            "mamba_head_dim": width,
            "n_groups": groups,
            "ssm_state_size": width,
            "conv_kernel": dice.randint(2, 5),
            "chunk_size": 16,
        }
        found |= {
            "layers_block_type": [dice.choice((LINEAR, FULL, "mlp", "moe")) for _ in range(layers)],
            "moe_latent_size": dice.choice((None, 12)),
            "n_shared_experts": 1,
        }
        found |= {
            "moe_shared_expert_intermediate_size": dice.randint(9, 60),
            "num_nextn_predict_layers": 0,
            "use_mamba_kernels": True,
            "moe_intermediate_size": 17,
        }
    if "mamba_dt_rank" in fields:
        found |= {
            "mamba_dt_rank": dice.choice(("auto", 3)),
            "mamba_d_state": width,
            "mamba_expand": dice.choice((1, 2)),
            "attn_layer_period": 2,
            "attn_layer_offset": dice.randint(0, 1),
        }
        found |= {"expert_layer_offset": dice.randint(0, 1)}
    return found


COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk")
INNERS = (
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "intermediate_size_mlp",
)


def _experts(values: dict[str, Any], fields: dict[str, Any], layers: int, dice: random.Random) -> None:
    """Few small ones, in groups of at least two."""
    groups = dice.choice((1, 1, 2, 3))
    count = groups * dice.choice((2, 3, 4))
    values |= {key: count for key in COUNTS if key in fields} | {
        key: dice.randint(1, 2) for key in CHOSEN if key in fields
    }
    values |= {key: dice.randint(9, 60) for key in INNERS if key in fields}
    if "n_group" in fields:
        values |= {"n_group": groups, "topk_group": dice.randint(1, groups)}
    for key in {"mlp_only_layers", "first_k_dense_replace", "moe_layer_start_index"} & set(fields):
        values[key] = (
            dice.sample(range(layers), dice.randint(0, layers // 2))
            if key == "mlp_only_layers"
            else dice.randint(0, layers)
        )
    for key in {"n_shared_experts", "moe_num_shared_experts", "decoder_sparse_step", "moe_layer_interval"} & set(
        fields
    ):
        values[key] = dice.randint(1, 2)


def _attn_config(dice: random.Random) -> dict[str, Any]:
    drawn = {
        "clip_qkv": dice.choice((None, 0.5, 1.0)),
        "softmax_scale": dice.choice((None, 0.2)),
        "attn_pdrop": 0,
        "alibi": True,
        "alibi_bias_max": dice.choice((8, 8, 8, 16)),
    }
    return {key: value for key, value in drawn.items() if dice.random() < 0.7}


# rotation


def _rotation(kind: Any, values: dict[str, Any], sizes: dict[str, int], dice: random.Random, made: Draw) -> None:
    """Absent, plain, scaled, by kind of layers; as transformers 5 writes it or as before."""
    some = 0.4 if _share_of(kind) else 0.04
    share = dice.choice((0.25, 0.5, 0.75, 1.0)) if dice.random() < some else None
    turned = int(sizes["head_dim"] * (share or _share_of(kind) or 1.0))
    if "original_max_position_embeddings" in values or "original_max_position_embeddings" in fields_of(kind):
        values.pop("original_max_position_embeddings", None)
    style = dice.random()
    own = "convert_rope_params_to_dict" in vars(kind) and "layer_types" in fields_of(kind)  # rotations of each kind
    nested = own and dice.random() < 0.6
    theta = dice.choice((100.0, 1e4, 50_000, 1e6)) if dice.random() < 0.8 else None
    if nested and style < 0.8:
        values["rope_parameters"] = {
            kind_: _parameters(turned, dice, made, values, plain=True) | {"rope_theta": dice.choice((300.0, 1e4))}
            for kind_ in KINDS
        }
    elif style < 0.45:
        values["rope_parameters"] = _parameters(turned, dice, made, values) | ({"rope_theta": theta} if theta else {})
        if share and dice.random() < 0.5:
            values["rope_parameters"]["partial_rotary_factor"] = share
        elif share:
            values["partial_rotary_factor"] = share
    elif style < 0.9:
        scaling = _parameters(turned, dice, made, values)
        if dice.random() < 0.5:
            scaling["type"] = scaling.pop("rope_type")
        values["rope_scaling"] = None if scaling.get("rope_type", scaling.get("type")) == "default" else scaling
        values |= {"rope_theta": theta} if theta else {}
        values |= {"partial_rotary_factor": share} if share else {}


def _share_of(kind: Any) -> float:
    """Of a head what turns if nothing is written; 0 for families that turn whole heads."""
    return {
        "glm": 0.5,
        "glm4": 0.5,
        "phi": 0.5,
        "persimmon": 0.5,
        "nemotron": 0.5,
        "stablelm": 0.25,
        "gpt_neox": 0.25,
        "phi3": 1.0,
    }.get(kind.model_type, 0.0)


def _parameters(
    turned: int, dice: random.Random, made: Draw, values: dict[str, Any], plain: bool = False
) -> dict[str, Any]:
    names = ("default", "default", "linear", "dynamic", "yarn", "llama3", *(() if plain else ("longrope",)))
    name = dice.choice(("default", "longrope") if made.architecture == "Phi3ForCausalLM" else names)
    found: dict[str, Any] = {"rope_type": name}
    if name != "default":
        found["factor"] = dice.choice((2.0, 4, 8.0))
    if name in ("yarn", "llama3"):
        found["original_max_position_embeddings"] = dice.choice((16, 32, 64, 128))
    if name == "llama3":
        found |= {"low_freq_factor": dice.choice((1.0, 2.0)), "high_freq_factor": dice.choice((4.0, 5.5))}
    if name == "yarn":
        extra = {
            "beta_fast": dice.choice((16.0, 32)),
            "beta_slow": dice.choice((1.0, 2.0)),
            "truncate": dice.random() < 0.5,
            "attention_factor": dice.choice((1.3, 0.7)),
            "mscale": dice.choice((1.0, 0.7)),
            "mscale_all_dim": dice.choice((1.0, 0.4)),
        }
        found |= {key: value for key, value in extra.items() if dice.random() < 0.35}
        if dice.random() < 0.2:
            del found["original_max_position_embeddings"]
    if name == "longrope":
        _longrope(found, turned, dice, made, values)
    return found


def _longrope(found: dict[str, Any], turned: int, dice: random.Random, made: Draw, values: dict[str, Any]) -> None:
    """Long: every comparison is above the original length; short: the engine is asked for no more than that."""
    lists = {
        name: [round(dice.uniform(1, 6), 3) for _ in range(turned // 2)] for name in ("short_factor", "long_factor")
    }
    long = dice.random() < 0.5
    original = 12 if long else LONGEST
    made.context = None if long else LONGEST
    found |= lists
    if not long:
        values["max_position_embeddings"] = dice.choice((LONGEST, 512))
    if dice.random() < 0.5:
        del found["factor"]
    if dice.random() < 0.3:
        found["attention_factor"] = 1.2
    place = found if dice.random() < 0.6 else values
    place["original_max_position_embeddings"] = original
