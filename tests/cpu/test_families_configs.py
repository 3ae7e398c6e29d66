"""config.json of the families: no key is passed over, old ways to write one mean
the same, what is not computed is refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import transformers
from family_checks import SIZES

from sgl.runtime.errors import ConfigError
from sgl.runtime.models import ModelSpec, read_model
from sgl.runtime.models.spec.model_config import OF_A_TOKEN, WITHOUT_EFFECT

# architectures whose configuration needs more than the sizes, and with what each key has an effect
MORE: dict[str, dict[str, Any]] = {
    "DeepseekV2ForCausalLM": {
        "num_key_value_heads": 4,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "DeepseekV3ForCausalLM": {"num_key_value_heads": 4},
    "Glm4MoeLiteForCausalLM": {"num_key_value_heads": 4, "n_group": 4, "topk_group": 2},
    "Mistral4ForCausalLM": {"num_key_value_heads": 4, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1},
    "MiniCPM3ForCausalLM": {"num_key_value_heads": 4},
    "KimiLinearForCausalLM": {"num_key_value_heads": 4, "layer_types": ["linear_attention", "full_attention"] * 2},
    "CohereForCausalLM": {"use_qk_norm": True},
    "Ernie4_5_MoeForCausalLM": {"moe_layer_end_index": 2},
    "Exaone4ForCausalLM": {"sliding_window": 9},
    "Gemma4ForCausalLM": {"num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "Llama4ForCausalLM": {"moe_layers": [1]},
    "MinistralForCausalLM": {"head_dim": 16},
    "Qwen2ForCausalLM": {"use_sliding_window": True, "max_window_layers": 2},
    "Qwen2MoeForCausalLM": {"use_sliding_window": True, "mlp_only_layers": [0]},
    "Qwen3MoeForCausalLM": {"use_sliding_window": True, "mlp_only_layers": [0]},
    "Qwen3ForCausalLM": {"use_sliding_window": True, "max_window_layers": 2},
    "SmolLM3ForCausalLM": {"use_sliding_window": True, "sliding_window": 9},
}
EXPERTS = [
    "Ernie4_5_MoeForCausalLM",
    "Glm4MoeForCausalLM",
    "GptOssForCausalLM",
    "GraniteMoeForCausalLM",
    "GraniteMoeSharedForCausalLM",
    "HYV3ForCausalLM",
    "HunYuanMoEV1ForCausalLM",
    "Llama4ForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MixtralForCausalLM",
    "OlmoeForCausalLM",
    "PhimoeForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
]
MODERN = [
    "ApertusForCausalLM",
    "ArceeForCausalLM",
    "CohereForCausalLM",
    "Cohere2ForCausalLM",
    "CwmForCausalLM",
    "Ernie4_5ForCausalLM",
    "Exaone4ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma4ForCausalLM",
    "GlmForCausalLM",
    "Glm4ForCausalLM",
    "GraniteForCausalLM",
    "GraniteSWAForCausalLM",
    "HeliumForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "HyperCLOVAXForCausalLM",
    "Jais2ForCausalLM",
    "LlamaForCausalLM",
    "MinistralForCausalLM",
    "Ministral3ForCausalLM",
    "MistralForCausalLM",
    "NanoChatForCausalLM",
    "NemotronForCausalLM",
    "OlmoForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "SeedOssForCausalLM",
    "SmolLM3ForCausalLM",
    "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
    "VaultGemmaForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "Mistral4ForCausalLM",
    "MiniCPM3ForCausalLM",
    "KimiLinearForCausalLM",
    *EXPERTS,
]
# keys that change nothing where transformers writes them: layer_types, no_rope_layers and rope_parameters say the
# same, there are no experts
IDLE = {
    "max_window_layers",
    "_sliding_window_pattern",
    "sliding_window_pattern",
    "use_sliding_window",
    "no_rope_layer_interval",
    "original_max_position_embeddings",
    "num_experts",
    "top_k_experts",
    "moe_intermediate_size",
}
IDLE_OF = {  # of training, of bfloat16, or said by another key
    "HYV3ForCausalLM": {"enable_moe_fp32_combine"},
    "GptOssForCausalLM": {"hidden_act"},
    "Llama4ForCausalLM": {"router_jitter_noise", "interleave_moe_layer_step", "no_rope_layers"},
    "MiniMaxM2ForCausalLM": {"router_jitter_noise"},
    "MixtralForCausalLM": {"router_jitter_noise"},
    "PhimoeForCausalLM": {"input_jitter_noise"},
}


def configuration(architecture: str, **keys: Any) -> dict[str, Any]:
    """As transformers writes it."""
    kind = getattr(transformers, architecture).config_class
    return json.loads(kind(**SIZES | MORE.get(architecture, {}) | keys).to_json_string(use_diff=False)) | {
        "architectures": [architecture]
    }


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 2 * value + 2
    return (
        3 if value is None else "other" if isinstance(value, str) else [] if isinstance(value, list) else {"other": 1}
    )


def outcome(values: dict[str, Any]) -> ModelSpec | str:
    try:
        return read_model(values)
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("architecture", MODERN)
def test_no_key_is_passed_over(architecture: str) -> None:
    values = configuration(architecture)
    plain = read_model(values)
    for key, value in values.items():
        if key in WITHOUT_EFFECT | IDLE | IDLE_OF.get(architecture, set()) or key.endswith(OF_A_TOKEN):
            continue
        assert outcome(values | {key: other(value)}) != plain, f"{key}={other(value)!r} changes nothing"


@pytest.mark.parametrize("architecture", MODERN)
def test_a_key_that_transformers_does_not_know_is_a_note(architecture: str) -> None:
    plain = read_model(configuration(architecture))
    found = read_model(configuration(architecture) | {"new_trick": 0.5, "empty_trick": None})
    assert found.stray == ("new_trick",) and "'new_trick' left aside" in found.notes[-1]
    assert replace(found, stray=(), notes=plain.notes) == plain


@pytest.mark.parametrize("architecture", MODERN)
def test_a_key_that_nobody_knows_is_named_where_transformers_has_no_such_type(architecture: str) -> None:
    with pytest.raises(ConfigError, match=f"key 'new_trick' \\(0.5\\) is not understood by {architecture}"):
        read_model(configuration(architecture) | {"new_trick": 0.5, "model_type": "of_nobody"})


def old(values: dict[str, Any], *gone: str, **keys: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in (*gone, "rope_parameters")} | keys


def linear(theta: float) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": 8.0, "rope_theta": theta}


def test_gemma3_as_it_was_published() -> None:
    ropes = {"full_attention": linear(2e6), "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}}
    values = configuration(
        "Gemma3ForCausalLM", head_dim=16, num_hidden_layers=8, rope_parameters=ropes, sliding_window_pattern=3
    )
    before = old(
        values,
        "layer_types",
        "_sliding_window_pattern",
        "tie_word_embeddings",
        "query_pre_attn_scalar",
        sliding_window_pattern=3,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        rope_theta=2e6,
        rope_local_base_freq=300.0,
    )
    assert read_model(before) == read_model(values)
    assert [layer.mixer.window for layer in read_model(before).layers][:4] == [4096, 4096, None, 4096]


def test_sizes_that_gemma3_wrappers_leave_out() -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    values = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
    }
    model = read_model(values)
    mixer = model.layers[0].mixer
    assert (model.vocab_size, model.tied, mixer.heads, mixer.kv_heads, mixer.dim, mixer.scale) == (
        262_208,
        True,
        8,
        4,
        256,
        1 / 16,
    )
    assert [rope.theta for rope in model.ropes] == [1e4, 1e6] and [rope.factor for rope in model.ropes] == [1, 8]


def test_cohere2_and_exaone4_as_they_were_published() -> None:
    values = configuration("Cohere2ForCausalLM", sliding_window=9)
    before = old(
        values,
        "layer_types",
        "tie_word_embeddings",
        rope_theta=1e4,
        sliding_window_pattern=4,
        layer_switch=4,
        rotary_pct=1.0,
        head_dim=16,
        order_of_interleaved_layers="local_attn_first",
        position_embedding_type="rope_gptj",
        use_embedding_sharing=True,
        use_gated_activation=True,
        use_parallel_block=True,
        use_parallel_embedding=False,
    )
    assert read_model(before) == read_model(values)
    values = configuration("Exaone4ForCausalLM", sliding_window=9)
    assert read_model(values | {"layer_types": None, "sliding_window_pattern": "LLLG"}) == read_model(values)


def test_olmo3_scales_its_full_layers_only() -> None:
    yarn = {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 32,
        "beta_slow": 1,
        "attention_factor": 1.2,
    }
    ropes = {
        "full_attention": yarn | {"rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
    }
    values = configuration("Olmo3ForCausalLM", sliding_window=9, rope_parameters=ropes)
    assert read_model(old(values, rope_scaling=yarn, rope_theta=5e5)) == read_model(values)


LONG = {"short_factor": [1.0 + i / 8 for i in range(6)], "long_factor": [2.0 + i for i in range(6)]}


def phi3(**keys: Any) -> dict[str, Any]:
    return (
        old(configuration("Phi3ForCausalLM"), "partial_rotary_factor", partial_rotary_factor=0.75, rope_theta=1e4)
        | keys
    )


def test_other_names_of_an_architecture() -> None:
    values = configuration("Ernie4_5ForCausalLM")
    assert read_model(values | {"architectures": ["Ernie4_5_ForCausalLM"]}).layers == read_model(values).layers
    values = configuration("LlamaForCausalLM", num_key_value_heads=2)
    assert read_model(values | {"architectures": ["IQuestCoderForCausalLM"]}).layers == read_model(values).layers
    three = old(
        values,
        "attention_bias",
        "mlp_bias",
        architectures=["InternLM3ForCausalLM"],
        qkv_bias=True,
        bias=False,
        head_dim=16,
    )
    assert [(layer.mixer.bias, layer.mixer.out_bias, layer.ffn.bias) for layer in read_model(three).layers[:1]] == [
        (True, False, False)
    ]


def test_longrope_is_chosen_once_by_the_longest_sequence_that_is_wanted() -> None:
    values = phi3(rope_scaling={"type": "longrope"} | LONG, original_max_position_embeddings=64)
    short, long = (read_model(values, context=context).ropes[0] for context in (64, 65))
    assert short.factors == tuple(LONG["short_factor"]) and long.factors == tuple(LONG["long_factor"])
    assert short.attention_factor == long.attention_factor > 1
    assert read_model(values).ropes[0] == long


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_longrope_had_other_names(name: str) -> None:
    values = phi3(rope_scaling={"type": "longrope"} | LONG, original_max_position_embeddings=64)
    assert read_model(values | {"rope_scaling": {"type": name} | LONG}) == read_model(values)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Gemma2ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True is not supported"),
    (
        "Gemma3ForCausalLM",
        {"attn_logit_softcapping": 50.0},
        "attn_logit_softcapping=50.0 is not supported; nothing but null is",
    ),
    ("Gemma3ForCausalLM", {"rope_parameters": linear(1e4)}, "rope_parameters=.* must have an object for each kind"),
    ("Gemma3ForCausalLM", {"layer_types": ["full_attention"]}, "layer_types=.* 4 times"),
    ("Gemma3ForCausalLM", {"layer_types": ["chunked_attention"] * 4}, "layers in chunks are not supported"),
    ("SmolLM3ForCausalLM", {"no_rope_layers": [[], 0, 1, 1]}, "no_rope_layers=.* must hold 4 times 0 or 1"),
    ("GraniteSWAForCausalLM", {"layer_rope_theta": ["a"] * 4}, "layer_rope_theta=.* must hold 4 numbers"),
    ("Cohere2ForCausalLM", {"use_parallel_block": False}, "use_parallel_block=False is not supported; only True is"),
    ("Cohere2ForCausalLM", {"head_dim": 99}, "head_dim=99 is not supported; only 16 is"),
    (
        "LlamaForCausalLM",
        {"partial_rotary_factor": 0.5},
        "partial_rotary_factor=0.5 is not supported by this architecture",
    ),
    ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0, 2, 1]}, r"no_rope_layers=\[1, 0, 2, 1\] must hold 4 times 0 or 1"),
    (
        "GraniteSWAForCausalLM",
        {"layer_rope_theta": [1e4, -1, 0, 0]},
        "layer_rope_theta=.* must hold 4 numbers above 1, or 0",
    ),
    (
        "HunYuanDenseV1ForCausalLM",
        {"rope_parameters": {"rope_type": "dynamic", "alpha": 9.0}, "head_dim": 2},
        "at least 4 numbers",
    ),
    ("HunYuanDenseV1ForCausalLM", {"use_cla": True}, "use_cla=True is not supported"),
    ("Ministral3ForCausalLM", {"layer_types": ["sliding_attention"] * 4}, "layer_types=.* is not supported"),
    ("Starcoder2ForCausalLM", {"norm_type": "rms"}, "norm_type='rms' is not supported; only 'layer_norm' is"),
    ("StableLmForCausalLM", {"partial_rotary_factor": 0.2, "rope_parameters": None}, "3 of 16 numbers of a head turn"),
    (
        "Phi3ForCausalLM",
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        "must be a list of 8 numbers",
    ),
]


@pytest.mark.parametrize(("architecture", "changes", "message"), REFUSED)
def test_what_is_not_computed_is_refused(architecture: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_model(configuration(architecture) | changes)
